// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"aether.io/aether/internal/agent/api"
)

const shop = "testdata/shop"

// TestExplainText holds what people see, for every kind of answer.
func TestExplainText(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
	}{
		{"balance", []string{"10.96.0.10:80", "--node", "n1"}},
		{"balance-wide", []string{"web.shop:http", "--node", "n1", "-o", "wide"}},
		{"passthrough-mode", []string{"10.96.0.10:80", "--node", "n1", "--mode", "passthrough"}},
		{"no-endpoints", []string{"10.96.0.12:80", "--node", "n1"}},
		{"no-local-endpoints", []string{"10.96.0.11:6379", "--node", "n1"}},
		{"port-not-declared", []string{"10.96.0.10:53", "--node", "n1"}},
		{"no-service", []string{"10.96.0.99:80", "--node", "n1"}},
		{"no-service-balance", []string{"10.96.0.99:80", "--node", "n1", "--mode", "balance"}},
		{"not-proxied", []string{"169.254.169.254:80", "--node", "n1"}},
		{"api-server", []string{"10.96.0.1:443", "--node", "n1"}},
		{"foreign", []string{"10.96.0.13:80", "--node", "n1"}},
		{"external", []string{"192.0.2.1:443", "--node", "n1", "--service-range", "10.50.0.0/16,10.96.0.0/16"}},
		{"no-node", []string{"10.96.0.11:6379"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := ok(t, append([]string{"explain", "-f", shop}, c.args...)...)
			if strings.Contains(r.out, "\x1b") {
				t.Error("colours, or a name that a terminal would act upon, in what is no terminal")
			}
			golden(t, "explain-"+c.name+".txt", r.out)
		})
	}
}

// TestExplainNext: each refusal ends with a command, and the commands that are
// ours can be run.
func TestExplainNext(t *testing.T) {
	for _, target := range []string{"10.96.0.11:6379", "10.96.0.10:81"} {
		r := ok(t, "explain", "-f", shop, target, "--node", "n1")
		_, next, found := strings.Cut(r.out, "Next: "+program+" ")
		if !found {
			t.Fatalf("no command of ours to try next:\n%s", r.out)
		}
		if r = ok(t, strings.Fields(next)...); !strings.Contains(r.out, "✔ balance over ") {
			t.Errorf("%s answers\n%s", next, r.out)
		}
	}
}

// TestExplainFormats: JSON and YAML are the wire type, all fields, in its order.
func TestExplainFormats(t *testing.T) {
	var fromJSON, fromYAML api.Explanation
	js := ok(t, "explain", "-f", shop, "10.96.0.10:80", "--node", "n1", "-o", "json")
	if err := json.Unmarshal([]byte(js.out), &fromJSON); err != nil {
		t.Fatal(err)
	}
	ym := ok(t, "explain", "-f", shop, "10.96.0.10:80", "--node", "n1", "-o", "yaml")
	if err := yaml.UnmarshalStrict([]byte(ym.out), &fromYAML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fromJSON, fromYAML); diff != "" {
		t.Errorf("JSON and YAML differ\n%s", diff)
	}
	golden(t, "explain.json", js.out)
	nothing := ok(t, "explain", "-f", shop, "192.0.2.1:443", "--node", "n1", "-o", "json")
	golden(t, "explain-external.json", nothing.out)
}

// TestByName: a Service port by name is the same question as its address.
func TestByName(t *testing.T) {
	want := ok(t, "explain", "-f", shop, "10.96.0.10:80", "--node", "n1", "-o", "json").out
	for _, name := range []string{"web.shop:http", "web.shop:80", "web.shop.svc:http", "web.shop.svc.cluster.local:80", "web.shop.svc.cluster.local.:80"} {
		if got := ok(t, "explain", "-f", shop, name, "--node", "n1", "-o", "json").out; got != want {
			t.Errorf("%s: %s", name, cmp.Diff(want, got))
		}
	}
}

func TestParseTarget(t *testing.T) {
	for in, want := range map[string]string{
		"10.96.0.10:80":                 "10.96.0.10:80",
		"10.96.0.10:65535":              "10.96.0.10:65535",
		"[10.96.0.10]:80":               "10.96.0.10:80",
		"[::ffff:10.96.0.10]:80":        "10.96.0.10:80",
		"web:http":                      "default/web http",
		"web:80":                        "default/web 80",
		"web.shop:http":                 "shop/web http",
		"web.shop.svc:http":             "shop/web http",
		"1web.shop.svc.cluster.local:1": "shop/1web 1",

		"":                    "",
		"10.96.0.10":          "",
		"10.96.0.10:":         "",
		":80":                 "",
		"10.96.0.10:0":        "",
		"10.96.0.10:65536":    "",
		"10.96.0.10:080":      "",
		"10.96.0.10:+80":      "",
		"10.96.0.10:-1":       "",
		"10.96.0.10:http":     "",
		"10.96.0:80":          "",
		"10.96.0.256:80":      "",
		"010.96.0.10:80":      "",
		" 10.96.0.10:80":      "",
		"[::1]:80":            "",
		"[fe80::1%eth0]:80":   "",
		"::1:80":              "",
		"::ffff:10.96.0.1:80": "",
		"[web]:80":            "",
		"www.example.com:80":  "",
		"Web:80":              "",
		"web.:80":             "",
		"web:70000":           "",
		"web:-1":              "",
		"web:":                "",
		"web:a b":             "",
		"http://web:80":       "",
		"we\x1bb:80":          "",
	} {
		got := ""
		tg, err := parseTarget(in)
		switch {
		case err != nil:
		case tg.addr.IsValid():
			got = tg.addr.String()
		default:
			got = tg.ns + "/" + tg.service + " " + tg.port
		}
		if got != want {
			t.Errorf("%q is read as %q (%v), want %q", in, got, err, want)
		}
	}
}

// TestBadQuestions: what is asked wrongly is exit code 2 and says what to do.
func TestBadQuestions(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"no such Service", []string{"explain", "nobody.shop:80", "-f", shop}, "no Service shop/nobody"},
		{"no such port", []string{"explain", "web.shop:grpc", "-f", shop}, `no TCP port named "grpc" (it declares http=80)`},
		{"UDP port by name", []string{"explain", "web.shop:dns", "-f", shop}, `no TCP port named "dns"`},
		{"no ClusterIP", []string{"explain", "named-only.shop:80", "-f", shop}, "owns no IPv4 ClusterIP"},
		{"mode", []string{"explain", "10.96.0.10:80", "-f", shop, "--mode", "strict"}, `mode "strict"`},
		{"range", []string{"explain", "10.96.0.10:80", "-f", shop, "--service-range", "10.96.0.0"}, `service range "10.96.0.0"`},
		{"IPv6 range", []string{"explain", "10.96.0.10:80", "-f", shop, "--service-range", "fd00::/112"}, "IPv4 CIDR"},
		{"flag without -f", []string{"explain", "10.96.0.10:80", "--node", "n1"}, "--node goes with -f only"},
		{"mode of a node", []string{"mode", "strict"}, `mode "strict"`},
		{"sandbox without manifests", []string{"sandbox", "up"}, `required flag(s) "filename" not set`},
		{"sandbox of nothing", []string{"sandbox", "up", "-f", "testdata/none"}, "no such file"},
		{"exec without a command", []string{"sandbox", "exec", "pod"}, "requires at least 2 arg(s)"},
		{"exec with an empty command", []string{"sandbox", "exec", "pod", "--"}, "no command given"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, c.args...)
			if r.code != exitInput || r.out != "" || !strings.Contains(r.err, c.says) {
				t.Errorf("exit code %d, want %d\nstdout %q, want none\nstderr %q, want it to say %q", r.code, exitInput, r.out, r.err, c.says)
			}
		})
	}
}

// TestSelectorWithoutSlices: who forgot that endpoints come from slices is told so.
func TestSelectorWithoutSlices(t *testing.T) {
	const says = "no EndpointSlice for Service shop/%s"
	for target, noted := range map[string]bool{"queue.shop:amqp": true, "idle.shop:http": false, "web.shop:http": false, "10.96.0.99:80": false} {
		name, _, _ := strings.Cut(target, ".")
		r := ok(t, "explain", "-f", shop, target, "--node", "n1")
		if strings.Contains(r.err, fmt.Sprintf(says, name)) != noted {
			t.Errorf("%s: stderr %q", target, r.err)
		}
		if strings.Contains(r.out, "Next: aetherctl sandbox up -f testdata/shop\n") != noted {
			t.Errorf("%s: %s", target, r.out)
		}
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{"a/b-c.d": "a/b-c.d", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'", "ä": "'ä'"} {
		if got := shellWord(in); got != want {
			t.Errorf("%q becomes %s, want %s", in, got, want)
		}
	}
}

func TestDefaultServiceRange(t *testing.T) {
	if want := netip.MustParsePrefix("10.96.0.0/16"); defaultServiceRange != want {
		t.Errorf("%v, want %v", defaultServiceRange, want)
	}
}
