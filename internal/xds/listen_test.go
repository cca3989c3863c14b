// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aether.io/aether/internal/xds"
)

func TestListen(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o660} {
		path := filepath.Join(socketDir(t), "s.sock")
		l, err := xds.Listen(path, mode)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != fs.ModeSocket|mode {
			t.Errorf("mode %v, want %v", info.Mode(), mode)
		}
		if l.Addr().String() != path {
			t.Errorf("address %s, want %s", l.Addr(), path)
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
			t.Errorf("left beside the socket: %v", left)
		}
		if _, err := xds.Listen(path, mode); err == nil || !strings.Contains(err.Error(), "another process serves it") {
			t.Errorf("a second listener: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after Close: %v", err)
		}
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a second Close: %v", err)
		}
	}
}

func TestListenReplacesAStaleSocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "s.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := xds.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// The predecessor may close after its successor has taken the path over.
func TestCloseLeavesTheSuccessorsSocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "s.sock")
	first, err := xds.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := xds.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the successor's socket: %v", err)
	}
	_ = c.Close()
}

func TestListenRefuses(t *testing.T) {
	dir := socketDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, words := range map[string]string{
		file:                           "no socket",
		dir:                            "no socket",
		filepath.Join(dir, "no", "s"):  "no such file",
		"/" + strings.Repeat("x", 120): "at most 107",
	} {
		l, err := xds.Listen(path, 0o600)
		if err == nil {
			_ = l.Close()
			t.Errorf("%s: no error", path)
		} else if !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, words)
		}
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Error("the file was touched")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}
