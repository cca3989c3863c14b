// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// script writes an executable that prints a version as Envoy does.
func script(t *testing.T, path, version string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("#!/bin/sh\necho 'envoy  version: 0123abcdef/%s/Clean/RELEASE/BoringSSL'\n", version)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestFindEnvoy(t *testing.T) {
	dir := t.TempDir()
	given, env, inPath, built := dir+"/given", dir+"/env", dir+"/path/envoy", dir+"/src/.build/envoy/envoy"
	t.Setenv("PATH", dir+"/path:"+os.Getenv("PATH"))
	if err := os.MkdirAll(dir+"/src/deep", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir + "/src/deep")
	steps := []struct {
		what        string
		do          func()
		given       string
		want, fails string
	}{
		{"nothing", func() { t.Setenv("AETHER_ENVOY", "") }, "", "", "make envoy"},
		{"built here", func() { script(t, built, "1.40.0") }, "", built, ""},
		{"an old one in PATH", func() { script(t, inPath, "1.39.9") }, "", built, ""},
		{"a newer one in PATH", func() { script(t, inPath, "1.41.0") }, "", inPath, ""},
		{"$AETHER_ENVOY", func() { script(t, env, "2.0.0"); t.Setenv("AETHER_ENVOY", env) }, "", env, ""},
		{"an old $AETHER_ENVOY", func() { script(t, env, "1.9.0") }, "", "", "is Envoy 1.9"},
		{"given", func() { script(t, given, "1.40.1") }, given, given, ""},
		{"given, not Envoy", func() { script(t, given, "x") }, given, "", "not Envoy"},
		{"given, not there", func() {}, dir + "/nowhere", "", "no such file"},
	}
	for _, s := range steps {
		s.do()
		got, err := FindEnvoy(s.given)
		if s.fails != "" && (err == nil || !strings.Contains(err.Error(), s.fails)) || s.fails == "" && (err != nil || got != s.want) {
			t.Errorf("%s: got %s (%v), want %s%s", s.what, got, err, s.want, s.fails)
		}
	}
}
