// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"aether.io/aether/internal/model"
)

func anyTarget() *rapid.Generator[netip.AddrPort] {
	return rapid.Custom(func(t *rapid.T) netip.AddrPort {
		b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), rapid.Uint16Range(1, 65535).Draw(t, "port"))
	})
}

func anyLabel() *rapid.Generator[string] {
	return rapid.StringMatching(`[a-z]([-a-z0-9]{0,20}[a-z0-9])?`)
}

func TestClusterNameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyTarget().Draw(t, "target")
		got, err := ParseClusterName(ClusterName(want))
		if err != nil || got != want {
			t.Fatalf("ParseClusterName(ClusterName(%v)) = %v, %v", want, got, err)
		}
	})
}

func TestListenerNameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := model.Name{Namespace: anyLabel().Draw(t, "namespace"), Name: rapid.StringMatching(`[a-z0-9]([-.a-z0-9]{0,40}[a-z0-9])?`).Draw(t, "name")}
		got, err := ParseListenerName(ListenerName(want))
		if err != nil || got != want {
			t.Fatalf("ParseListenerName(ListenerName(%v)) = %v, %v", want, got, err)
		}
	})
}

func TestParseClusterNameRefuses(t *testing.T) {
	for _, name := range []string{
		"", "svc:", "svc", "*", "10.96.0.1:80", "passthrough_original_dst",
		"svc:10.96.0.1", "svc:10.96.0.1:", "svc:10.96.0.1:0", "svc:10.96.0.1:080", "svc:10.96.0.1:65536", "svc:10.96.0.1:+80",
		"svc:010.96.0.1:80", "svc:10.96.1:80", "svc: 10.96.0.1:80", "svc:10.96.0.1:80 ", "svc:10.96.0.1:http",
		"svc:[::1]:80", "svc:[::ffff:10.96.0.1]:80", "svc:[fe80::1%eth0]:80", "SVC:10.96.0.1:80", "svc:svc:10.96.0.1:80",
	} {
		if got, err := ParseClusterName(name); err == nil {
			t.Errorf("ParseClusterName(%q) = %v, want an error", name, got)
		} else if !strings.Contains(err.Error(), name) {
			t.Errorf("ParseClusterName(%q): error %q does not name it", name, err)
		}
	}
}

func TestParseListenerNameRefuses(t *testing.T) {
	for _, name := range []string{"", "capture:", "capture:web", "capture:/web", "capture:default/", "capture:a/b/c", "inbound:a/b", "a/b"} {
		if got, err := ParseListenerName(name); err == nil {
			t.Errorf("ParseListenerName(%q) = %v, want an error", name, got)
		}
	}
}

// FuzzParseClusterName holds that a name is either refused or the one name of
// what it parses to.
func FuzzParseClusterName(f *testing.F) {
	for _, s := range []string{"svc:10.96.0.12:80", "svc:10.96.0.12:080", "svc:[::1]:1", "svc:", "svc:0.0.0.0:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := ParseClusterName(name)
		if err == nil && ClusterName(got) != name {
			t.Errorf("%q parses to %v, whose name is %q", name, got, ClusterName(got))
		}
	})
}

// FuzzParseListenerName holds the same of listeners.
func FuzzParseListenerName(f *testing.F) {
	for _, s := range []string{"capture:default/web", "capture:a/b/c", "capture://"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := ParseListenerName(name)
		if err == nil && ListenerName(got) != name {
			t.Errorf("%q parses to %v, whose name is %q", name, got, ListenerName(got))
		}
	})
}

func TestStatNameAndIdentity(t *testing.T) {
	svc := model.Name{Namespace: "default", Name: "web"}
	if got, want := StatName(svc, "http"), "svc.default.web.http"; got != want {
		t.Errorf("StatName = %q, want %q", got, want)
	}
	if got, want := StatName(svc, "8080"), "svc.default.web.8080"; got != want {
		t.Errorf("StatName = %q, want %q", got, want)
	}
	if got, want := SPIFFEID("aether.internal", "default", "web"), "spiffe://aether.internal/ns/default/sa/web"; got != want {
		t.Errorf("SPIFFEID = %q, want %q", got, want)
	}
}
