// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocuments(t *testing.T) {
	tests := []struct {
		name, file, in string
		want           []string // JSON, or "! " and a part of the error
	}{
		{"empty", "a.yaml", "", nil},
		{"comments only", "a.yaml", "# nothing\n---\n# here\n", nil},
		{"one", "a.yaml", "a: 1\n", []string{`{"a":1}`}},
		{"several, empty ones not counted", "a.yaml", "---\n---\na: 1\n---\n# no\n---\nb: [x, z]\n...\n---\nc: ~\n", []string{`{"a":1}`, `{"b":["x","z"]}`, `{"c":null}`}},
		{"comment after a marker", "a.yaml", "a: 1\n--- # second\nb: 2\n", []string{`{"a":1}`, `{"b":2}`}},
		{"content after a marker", "a.yaml", "--- {a: 1}\n--- {b: 2}\n", []string{`{"a":1}`, `{"b":2}`}},
		{"directive", "a.yaml", "%YAML 1.1\n---\na: 1\n", []string{`{"a":1}`}},
		{"no marker by its place", "a.yaml", "a: |\n  ---\n  b\n", []string{`{"a":"---\nb\n"}`}},
		{"byte order mark and CRLF", "a.yaml", "\xef\xbb\xbfa: 1\r\n---\r\nb: 2\r\n", []string{`{"a":1}`, `{"b":2}`}},
		{"keys that are no text", "a.yaml", "1: a\ntrue: b\n1.5: c\n", []string{`{"1":"a","1.5":"c","true":"b"}`}},
		{"repeated key", "a.yaml", "a: 1\nb: 2\na: 3\n---\nc: 1\n", []string{"! line 3: key \"a\" already set", `{"c":1}`}},
		{"key repeated as number and text", "a.yaml", "1: a\n\"1\": b\n", []string{`! the key "1" is there twice`}},
		{"a mapping as key", "a.yaml", "{a: 1}: b\n", []string{"! invalid map key"}},
		{"anchors", "a.yaml", "a: &x {m: 1}\nb: *x\n", []string{`{"a":{"m":1},"b":{"m":1}}`}},
		{"not a number", "a.yaml", "a: .nan\n", []string{"! write YAML as JSON"}},
		{"syntax error in the second document", "a.yaml", "a: 1\n---\nb: [1\nc: 2\n---\nd: 1\n", []string{`{"a":1}`, "! read YAML: line 3"}},
		{"tab", "a.yaml", "a:\n\tb: 1\n", []string{"! line 2"}},
		{"trailing garbage", "a.yaml", "{a: 1}\nb: 2\n", []string{`{"a":1}`, "! read YAML"}},
		{"JSON", "a.json", `{"a": 1}`, []string{`{"a": 1}`}},
		{"JSON values in a row", "a.json", "{\"a\": 1}\n{\"b\":\n2}", []string{`{"a": 1}`, "{\"b\":\n2}"}},
		{"JSON indented with tabs in a YAML file", "a.yaml", "{\n\t\"a\": 1\n}", []string{"{\n\t\"a\": 1\n}"}},
		{"flow mapping in a YAML file", "a.yaml", "{a: 1}", []string{`{"a":1}`}},
		{"broken JSON", "a.json", "{\"a\": 1}\n{\"b\":\n2,}", []string{`{"a": 1}`, "! read JSON: line 3"}},
		{"JSON that ends early", "a.json", "{\"a\":\n", []string{"! read JSON: line 2: the file ends in the middle"}},
		{"empty JSON", "a.JSON", " \n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			docs := documents(tt.file, []byte(tt.in))
			if len(docs) != len(tt.want) {
				t.Fatalf("%d documents %v, want %d", len(docs), docs, len(tt.want))
			}
			for i, want := range tt.want {
				d := docs[i]
				if part, isErr := strings.CutPrefix(want, "! "); isErr {
					if d.err == nil || !strings.Contains(d.err.Error(), part) || d.json != nil {
						t.Errorf("document %d: %s, error %v; want an error with %q", i+1, d.json, d.err, part)
					}
					continue
				}
				if diff := cmp.Diff(want, string(d.json)); diff != "" || d.err != nil {
					t.Errorf("document %d: error %v (-want +got)\n%s", i+1, d.err, diff)
				}
			}
		})
	}
}
