// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var compareConfigs = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func TestParseAnnotations(t *testing.T) {
	prefix := netip.MustParsePrefix
	rows := []struct {
		name        string
		annotations map[string]string
		byDefault   bool
		want        Config
	}{
		{name: "nothing, default off", want: Config{}},
		{name: "nothing, default on", byDefault: true, want: Config{RedirectAll: true}},
		{name: "others are ignored", annotations: map[string]string{"capture.aether.io/other": "x"}, want: Config{}},
		{name: "on over default off", annotations: map[string]string{RedirectAllAnnotation: "true"}, want: Config{RedirectAll: true}},
		{name: "off over default on", annotations: map[string]string{RedirectAllAnnotation: "false"}, byDefault: true, want: Config{}},
		{name: "one port", annotations: map[string]string{ExcludePortsAnnotation: "3306"}, want: Config{ExcludePorts: []PortRange{{3306, 3306}}}},
		{
			name: "ports and ranges", annotations: map[string]string{ExcludePortsAnnotation: " 1, 9000-9099 ,65535 "},
			want: Config{ExcludePorts: []PortRange{{1, 1}, {9000, 9099}, {65535, 65535}}},
		},
		{name: "connection rate", annotations: map[string]string{ConnectionRateAnnotation: " 200 "}, want: Config{ConnectionRate: 200}},
		{name: "empty lists", annotations: map[string]string{ExcludePortsAnnotation: "", ExcludeRangesAnnotation: " "}, want: Config{}},
		{
			name: "CIDR, address and host bits", annotations: map[string]string{ExcludeRangesAnnotation: "10.0.0.0/8, 192.0.2.7,172.16.5.9/12"},
			want: Config{ExcludeRanges: []netip.Prefix{prefix("10.0.0.0/8"), prefix("192.0.2.7/32"), prefix("172.16.0.0/12")}},
		},
		{
			name: "everything", annotations: map[string]string{ExcludeRangesAnnotation: "0.0.0.0/0"},
			want: Config{ExcludeRanges: []netip.Prefix{prefix("0.0.0.0/0")}},
		},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			got, err := ParseAnnotations(row.annotations, row.byDefault)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(row.want, got, compareConfigs); d != "" {
				t.Error(d)
			}
			if err := got.Validate(); err != nil {
				t.Errorf("what was parsed is not valid: %v", err)
			}
		})
	}
}

func TestParseAnnotationsNamesWhatIsWrong(t *testing.T) {
	rows := []struct{ annotation, value, element, reason string }{
		{RedirectAllAnnotation, "yes", "yes", `"true" or "false"`},
		{RedirectAllAnnotation, "", "", `"true" or "false"`},
		{ConnectionRateAnnotation, "0", "0", "from 1 to 1000000"},
		{ConnectionRateAnnotation, "1000001", "1000001", "from 1 to 1000000"},
		{ConnectionRateAnnotation, "many", "many", "from 1 to 1000000"},
		{ConnectionRateAnnotation, "", "", "from 1 to 1000000"},
		{ExcludePortsAnnotation, "80,http", "http", "port from 1 to 65535"},
		{ExcludePortsAnnotation, "0", "0", "port from 1 to 65535"},
		{ExcludePortsAnnotation, "65536", "65536", "port from 1 to 65535"},
		{ExcludePortsAnnotation, "-1", "-1", "port from 1 to 65535"},
		{ExcludePortsAnnotation, "80-", "80-", "port from 1 to 65535"},
		{ExcludePortsAnnotation, "1-2-3", "1-2-3", "port from 1 to 65535"},
		{ExcludePortsAnnotation, "9099-9000", "9099-9000", "ends before it begins"},
		{ExcludePortsAnnotation, "80,,81", "", "empty element"},
		{ExcludePortsAnnotation, "80,", "", "empty element"},
		{ExcludeRangesAnnotation, "10.0.0.0/8,db.example", "db.example", "IPv4 CIDR"},
		{ExcludeRangesAnnotation, "10.0.0.0/33", "10.0.0.0/33", "IPv4 CIDR"},
		{ExcludeRangesAnnotation, "10.0.0/8", "10.0.0/8", "IPv4 CIDR"},
		{ExcludeRangesAnnotation, "fd00::/8", "fd00::/8", "not IPv4"},
		{ExcludeRangesAnnotation, "::ffff:10.1.1.1", "::ffff:10.1.1.1", "not IPv4"},
		{ExcludeRangesAnnotation, "10.0.0.0/8,", "", "empty element"},
		{ExcludePortsAnnotation, strings.Repeat("1,", MaxExclusions) + "1", "1025 elements", "at most 1024"},
		{ExcludeRangesAnnotation, strings.Repeat("10.0.0.0/8,", MaxExclusions) + "10.0.0.0/8", "1025 elements", "at most 1024"},
	}
	for _, row := range rows {
		c, err := ParseAnnotations(map[string]string{row.annotation: row.value}, true)
		var ae *AnnotationError
		if !errors.As(err, &ae) {
			t.Errorf("%s: %q: error %v, want an *AnnotationError", row.annotation, row.value, err)
			continue
		}
		if ae.Annotation != row.annotation || ae.Element != row.element || !strings.Contains(ae.Reason, row.reason) {
			t.Errorf("%s: %q: got %+v, want element %q and reason %q", row.annotation, row.value, *ae, row.element, row.reason)
		}
		if !strings.Contains(err.Error(), row.annotation) || !strings.Contains(err.Error(), strconv.Quote(row.element)) {
			t.Errorf("error %q names not both the annotation and the element", err)
		}
		if d := cmp.Diff(Config{}, c, compareConfigs); d != "" {
			t.Errorf("%s: %q: a config came with the error: %s", row.annotation, row.value, d)
		}
	}
}

func TestParseAnnotationsReportsAllAtOnce(t *testing.T) {
	_, err := ParseAnnotations(map[string]string{
		RedirectAllAnnotation: "maybe", ExcludePortsAnnotation: "x,80,y", ExcludeRangesAnnotation: "z",
	}, true)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`"maybe"`, `"x"`, `"y"`, `"z"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	rows := []struct {
		c    Config
		want string
	}{
		{Config{ExcludePorts: []PortRange{{0, 5}}}, "excluded ports 0-5"},
		{Config{ExcludePorts: []PortRange{{9, 5}}}, "excluded ports 9-5"},
		{Config{ExcludeRanges: []netip.Prefix{netip.MustParsePrefix("fd00::/8")}}, "excluded range fd00::/8: not IPv4"},
		{Config{ExcludeRanges: []netip.Prefix{{}}}, "not IPv4"},
		{Config{ConnectionRate: MaxConnectionRate + 1}, "connection rate 1000001"},
		{Config{ExcludePorts: make([]PortRange, MaxExclusions+1)}, "1025 excluded ports"},
		{Config{ExcludeRanges: make([]netip.Prefix, MaxExclusions+1)}, "1025 excluded ranges"},
	}
	for _, row := range rows {
		if err := row.c.Validate(); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("Validate = %v, want %q", err, row.want)
		}
	}
}

// Whatever a Config says, its annotations say too.
func TestAnnotationsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyConfig().Draw(t, "config")
		got, err := ParseAnnotations(annotationsOf(want), rapid.Bool().Draw(t, "default"))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, compareConfigs); d != "" {
			t.Fatal(d)
		}
	})
}

// Any text is either refused by name or gives a Config that can be installed.
func FuzzParseAnnotations(f *testing.F) {
	f.Add("true", "80,9000-9099", "10.0.0.0/8,192.0.2.7", "200")
	f.Add("", "80-,0", "::1/0,10.0.0.0/-1", "-1")
	f.Fuzz(func(t *testing.T, all, ports, ranges, rate string) {
		c, err := ParseAnnotations(map[string]string{
			RedirectAllAnnotation: all, ExcludePortsAnnotation: ports, ExcludeRangesAnnotation: ranges, ConnectionRateAnnotation: rate,
		}, false)
		var ae *AnnotationError
		if err != nil && !errors.As(err, &ae) {
			t.Errorf("error %v names no annotation", err)
		}
		if err == nil && c.Validate() != nil {
			t.Errorf("parsed %+v is not valid: %v", c, c.Validate())
		}
	})
}

func annotationsOf(c Config) map[string]string {
	var ports, ranges []string
	for _, p := range c.ExcludePorts {
		ports = append(ports, p.String())
	}
	for _, p := range c.ExcludeRanges {
		ranges = append(ranges, p.String())
	}
	out := map[string]string{
		RedirectAllAnnotation:   strconv.FormatBool(c.RedirectAll),
		ExcludePortsAnnotation:  strings.Join(ports, ","),
		ExcludeRangesAnnotation: strings.Join(ranges, ","),
	}
	if c.ConnectionRate > 0 {
		out[ConnectionRateAnnotation] = strconv.Itoa(int(c.ConnectionRate))
	}
	return out
}
