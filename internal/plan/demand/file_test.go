// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestFileForm(t *testing.T) {
	got := string(Encode([]Name{
		{Target: netip.MustParseAddrPort("10.96.0.20:443"), LastDial: epoch.Add(time.Millisecond)},
		{Target: netip.MustParseAddrPort("10.96.0.3:80")},
	}))
	want := `{"version":1,"names":[
{"address":"10.96.0.3:80"},
{"address":"10.96.0.20:443","lastDial":"2026-01-02T03:04:05Z"}
]}
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("file (-want +got):\n%s", d)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"nothing", "", "parse JSON"},
		{"garbage", "\x00\x7fELF", "parse JSON"},
		{"another type", `[1]`, "parse JSON"},
		{"null", `null`, "version: missing"},
		{"no version", `{"names":[]}`, "version: missing"},
		{"a later version", `{"version":2,"names":{"a":1},"more":true}`, "reads version 1, the file has 2"},
		{"version 0", `{"version":0,"names":[]}`, "reads version 1, the file has 0"},
		{"no names", `{"version":1}`, "names: missing"},
		{"an unknown field", `{"version":1,"names":[],"nmaes":[]}`, `unknown field "nmaes"`},
		{"two objects", `{"version":1,"names":[]}{"version":1,"names":[]}`, "something follows"},
		{"a name that is none", `{"version":1,"names":[{"address":"web:80"}]}`, `names[0].address: "web:80"`},
		{"no port", `{"version":1,"names":[{"address":"10.96.0.1"}]}`, `names[0].address: "10.96.0.1"`},
		{"port 0", `{"version":1,"names":[{"address":"10.96.0.1:0"}]}`, "names[0].address"},
		{"IPv6", `{"version":1,"names":[{"address":"[fd00::1]:80"}]}`, "names[0].address"},
		{"a port not in canonical form", `{"version":1,"names":[{"address":"10.96.0.1:080"}]}`, "names[0].address"},
		{
			"a name twice",
			`{"version":1,"names":[{"address":"10.96.0.1:80"},{"address":"10.96.0.2:80"},{"address":"10.96.0.1:80"}]}`,
			"names[2].address: 10.96.0.1:80 is names[0] already",
		},
		{
			"a time that is none", `{"version":1,"names":[{"address":"10.96.0.1:80","lastDial":"yesterday"}]}`,
			`names[0].lastDial: "yesterday"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			names, err := Decode([]byte(c.file))
			if err == nil || !strings.Contains(err.Error(), c.want) || names != nil {
				t.Errorf("got %v, %v; want an error with %q", names, err, c.want)
			}
		})
	}
}

func genNames(t *rapid.T) []Name {
	byTarget := rapid.MapOfN(rapid.IntRange(0, 1<<16-1), rapid.Int64Range(-1, 4102444800), 0, 12).Draw(t, "names")
	names := []Name{}
	for n, sec := range byTarget {
		name := Name{Target: target(n)}
		if sec >= 0 {
			name.LastDial = time.Unix(sec, 0).UTC()
		}
		names = append(names, name)
	}
	return names
}

func TestFileRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := genNames(t)
		file := Encode(names)
		got, err := Decode(file)
		if err != nil {
			t.Fatalf("decode: %v\n%s", err, file)
		}
		if again := Encode(got); string(again) != string(file) {
			t.Fatalf("encoded again:\n%s\nwant:\n%s", again, file)
		}
		if len(got) != len(names) {
			t.Fatalf("%d names, want %d", len(got), len(names))
		}
	})
}

// A write that was cut short anywhere loads whole or is refused whole.
func TestEveryPrefixLoadsWholeOrNotAtAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		file := Encode(genNames(t))
		for n := range len(file) {
			got, err := Decode(file[:n])
			switch {
			case err != nil && got != nil:
				t.Fatalf("prefix of %d bytes: %v with an error", n, got)
			case err == nil && string(Encode(got)) != string(file):
				t.Fatalf("prefix of %d bytes half loads: %v", n, got)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(nil))
	f.Add(Encode([]Name{{Target: target(1), LastDial: epoch}, {Target: target(2)}}))
	f.Add([]byte(`{"version":1,"names":[{"address":"10.96.0.1:80","lastDial":"2026-01-02T03:04:05+01:00"}]}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		names, err := Decode(file)
		if err != nil {
			if names != nil {
				t.Fatalf("names %v with error %v", names, err)
			}
			return
		}
		again, err := Decode(Encode(names))
		if err != nil || len(again) != len(names) {
			t.Fatalf("%v became %v, %v", names, again, err)
		}
	})
}
