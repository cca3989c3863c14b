// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// The oldest Envoy that works: bound listeners in pods' network namespaces,
// on-demand clusters and pod-sourced egress as they are used here.
const envoyMajor, envoyMinor = 1, 40

// FindEnvoy returns the Envoy binary: the given one, $AETHER_ENVOY, the one in
// PATH, or .build/envoy/envoy under the working directory or one of its parents.
// One that is named must be Envoy 1.40 or newer; an older one in PATH is passed
// over. The error says how to get one.
func FindEnvoy(given string) (string, error) {
	for _, named := range []struct{ path, what string }{{given, "Envoy"}, {os.Getenv("AETHER_ENVOY"), "Envoy of $AETHER_ENVOY"}} {
		if named.path == "" {
			continue
		}
		p, err := checkExecutable(named.path, named.what)
		if err == nil {
			err = checkEnvoyVersion(p)
		}
		return p, err
	}
	why := "not in PATH"
	if p, err := exec.LookPath("envoy"); err == nil {
		if p, err = filepath.Abs(p); err == nil {
			if err = checkEnvoyVersion(p); err == nil {
				return p, nil
			}
		}
		why = err.Error()
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find Envoy: %w", err)
	}
	for {
		if p, err := checkExecutable(filepath.Join(dir, ".build/envoy/envoy"), "Envoy"); err == nil {
			return p, checkEnvoyVersion(p)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no Envoy ($AETHER_ENVOY is not set; %s; nothing in .build/envoy): run `make envoy`", why)
		}
		dir = parent
	}
}

var envoyVersionPattern = regexp.MustCompile(`version: [0-9a-f]+/(\d+)\.(\d+)\.(\d+)`)

// checkEnvoyVersion asks a binary for its version.
func checkEnvoyVersion(path string) error {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", path, err)
	}
	m := envoyVersionPattern.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("%s is not Envoy: --version says %q", path, firstBytes(out, 80))
	}
	major, errMajor := strconv.Atoi(string(m[1]))
	minor, errMinor := strconv.Atoi(string(m[2]))
	if err := errors.Join(errMajor, errMinor); err != nil {
		return fmt.Errorf("read the version of %s: %w", path, err)
	}
	if major < envoyMajor || major == envoyMajor && minor < envoyMinor {
		return fmt.Errorf("%s is Envoy %d.%d, want %d.%d or newer: run `make envoy`", path, major, minor, envoyMajor, envoyMinor)
	}
	return nil
}

func firstBytes(b []byte, n int) []byte { return b[:min(len(b), n)] }
