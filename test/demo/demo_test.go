// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox"
)

// ordinaryUser is nobody whom the system knows.
const ordinaryUser = 54321

// install builds the programs into a folder that everybody may read, with Envoy
// and the example beside them, and returns the demo's command line as the
// ordinary user, who has a home there.
func install(t *testing.T) (demo func(args ...string) *exec.Cmd, home string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("run as root: this test becomes an ordinary user")
	}
	found, err := sandbox.FindEnvoy("")
	if err != nil {
		t.Fatal(err) // says how to get one
	}
	// Not t.TempDir: the directory above it is closed to others.
	dir, err := os.MkdirTemp("", "demo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	home = filepath.Join(dir, "home")
	envoy := filepath.Join(dir, "envoy")
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.Mkdir(home, 0o700), os.Chown(home, ordinaryUser, ordinaryUser),
		copyFile(found, envoy), os.CopyFS(filepath.Join(dir, "shop"), os.DirFS("../../examples/shop")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", dir+"/", "./cmd/aetherctl", "./cmd/aether-agent", "./test/demo")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(dir, "demo"), append([]string{
			"-bin", dir, "-envoy", envoy, "-manifests", filepath.Join(dir, "shop"),
		}, args...)...)
		cmd.Dir, cmd.Env = home, []string{"PATH=/usr/bin:/bin", "HOME=" + home, "TMPDIR=" + home}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}}
		return cmd
	}, home
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

// running lists the processes that have dir in their command line.
func running(dir string) (out []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), dir) {
			out = append(out, fmt.Sprintf("%s %.100q", f, b))
		}
	}
	return out
}

// TestOrdinaryUser: every claim of the demo holds for an ordinary user, and
// nothing is left of it: when it has ended, when it is interrupted, and when it
// is killed.
func TestOrdinaryUser(t *testing.T) {
	demo, home := install(t)
	ended := func(what string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); len(running(filepath.Dir(home))) > 0; {
			if time.Now().After(deadline) {
				t.Fatalf("after the demo %s these are running: %q", what, running(filepath.Dir(home)))
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	t.Run("interrupted", func(t *testing.T) {
		cmd := startDemo(t, demo())
		// As a terminal does: everybody in the foreground.
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("an interrupted demo says that all is well")
		}
		ended("was interrupted")
		if left, _ := filepath.Glob(filepath.Join(home, "*")); len(left) > 0 {
			t.Errorf("files are left: %v", left)
		}
	})
	t.Run("killed", func(t *testing.T) {
		cmd := startDemo(t, demo())
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // that it was killed
		ended("was killed")
	})
	t.Run("complete", func(t *testing.T) {
		report := filepath.Join(home, "demo.json")
		out, err := demo("-out", report).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var r struct {
			User    string
			Holds   bool
			Results []result
		}
		b, err := os.ReadFile(report)
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !r.Holds || len(r.Results) != len(claims()) || r.User != "uid 54321, without root" {
			t.Errorf("holds: %v, %d of %d claims, as %q", r.Holds, len(r.Results), len(claims()), r.User)
		}
		if !strings.Contains(string(out), "removed what an earlier sandbox left") {
			t.Errorf("nothing is said of what the killed one left:\n%s", out)
		}
		ended("was over")
		if left, _ := filepath.Glob(filepath.Join(home, "aether-sandbox*")); len(left) > 0 {
			t.Errorf("files are left: %v", left)
		}
	})
}

// startDemo starts it and returns when its node is up.
func startDemo(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if strings.HasPrefix(lines.Text(), "the node is up") {
			go func() { _, _ = io.Copy(io.Discard, r) }() // ends with the demo
			return cmd
		}
	}
	t.Fatalf("the demo ended: %v\n%s", cmd.Wait(), said.String())
	return nil
}
