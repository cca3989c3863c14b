// SPDX-License-Identifier: Apache-2.0

package accesslog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	l := Log{Path: filepath.Join(t.TempDir(), "access.log")}
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(l.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	want := func(outcomes ...string) {
		t.Helper()
		lines, err := l.Read()
		if err != nil || len(lines) != len(outcomes) {
			t.Fatalf("%d lines, %v; want %d", len(lines), err, len(outcomes))
		}
		for i, line := range lines {
			if line.Outcome != outcomes[i] {
				t.Errorf("line %d is %+v, want outcome %s", i, line, outcomes[i])
			}
		}
	}
	want() // not there yet
	write(`{"outcome":"ok","reason":null}` + "\n" + `{"outcome":"ref`)
	want("ok")
	write(`used"}` + "\n")
	want("ok", "refused")
	write(`{"outcome":"ok","unheard_of":1}` + "\n")
	for range 2 { // it stays so
		if _, err := l.Read(); err == nil || !strings.Contains(err.Error(), "unheard_of") {
			t.Fatalf("a key that is not documented: %v", err)
		}
	}
}
