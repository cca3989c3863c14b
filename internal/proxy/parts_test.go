// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestConfig(t *testing.T) {
	good := testConfig("/run/x")
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.RunDir = "run" }, `run dir "run": not an absolute path`},
		{func(c *Config) { c.RunDir = "/" + strings.Repeat("x", 90) }, "(at most 107)"},
		{func(c *Config) { c.Envoy = "" }, "envoy is empty"},
		{func(c *Config) { c.Bootstrap = "" }, `bootstrap "": not an absolute path`},
		{func(c *Config) { c.BaseID = math.MaxUint32 }, "base id 4294967295: want at most 134217720"},
		{func(c *Config) { c.DrainTime = 0 }, "drain time 0s: want whole seconds"},
		{func(c *Config) { c.ShutdownTime = 1500 * time.Millisecond }, "shutdown time 1.5s: want whole seconds"},
		{func(c *Config) { c.DrainTime = time.Minute }, "drain time 1m0s: longer than the shutdown time 3s"},
		{func(c *Config) { c.StartTimeout = 0 }, "start timeout 0s"},
		{func(c *Config) { c.Concurrency = -1 }, "concurrency -1"},
	} {
		bad := good
		c.change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
		if _, err := New(bad, slog.New(slog.DiscardHandler), io.Discard); err == nil {
			t.Errorf("New takes what Validate refuses as %q", c.want)
		}
	}
	if got := strings.Join(good.command("/e", 4096, 2), " "); got != "/e -c /run/x/boot.json --base-id 4096 --restart-epoch 2 --socket-path /run/x/hot --socket-mode 600 "+
		"--drain-time-s 1 --parent-shutdown-time-s 3 --drain-strategy gradual --ignore-unknown-dynamic-fields --concurrency 1 --log-level warning" {
		t.Errorf("command line %q", got)
	}
}

// Base ids of different directories are far enough apart to have all their slots, and
// ten times one is an int32.
func TestBaseIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := baseIDOf(rapid.Uint64().Draw(t, "dev"), rapid.Uint64().Draw(t, "ino"))
		if id < minBaseID || (id-minBaseID)%slots != 0 || (uint64(id)+slots)*10+2 > math.MaxInt32 {
			t.Fatalf("base id %d", id)
		}
	})
	c := testConfig(t.TempDir())
	one, err := c.baseID()
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.baseID()
	if err != nil || again != one {
		t.Errorf("%d, then %d (%v)", one, again, err)
	}
	c.RunDir = t.TempDir()
	if other, err := c.baseID(); err != nil || other == one {
		t.Errorf("two directories have %d and %d (%v)", one, other, err)
	}
	c.BaseID = 77
	if set, err := c.baseID(); err != nil || set != 77 {
		t.Errorf("%d (%v), want 77", set, err)
	}
}

// memoryFile writes what Envoy would.
func memoryFile(t *testing.T, size, version, flags uint64, length int) sharedMemory {
	t.Helper()
	b := make([]byte, length)
	binary.NativeEndian.PutUint64(b, size)
	binary.NativeEndian.PutUint64(b[8:], version)
	binary.NativeEndian.PutUint64(b[length-8:], flags)
	m := sharedMemory{filepath.Join(t.TempDir(), "memory")}
	if err := os.WriteFile(m.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSharedMemory(t *testing.T) {
	m := memoryFile(t, 104, 11, 0b101, 104)
	before, err := os.ReadFile(m.path)
	if err != nil || !m.marked() {
		t.Fatalf("marked %t, %v", m.marked(), err)
	}
	if err := m.clear(); err != nil || m.marked() {
		t.Errorf("cleared: %v, marked %t", err, m.marked())
	}
	before[96] = 0b100
	if after, err := os.ReadFile(m.path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("%v, want %v (%v)", after, before, err)
	}
	for what, other := range map[string]sharedMemory{
		"another version": memoryFile(t, 104, 12, 1, 104),
		"another size":    memoryFile(t, 112, 11, 1, 104),
		"tiny":            memoryFile(t, 24-8, 11, 1, 24),
		"huge":            memoryFile(t, 8192, 11, 1, 8192),
	} {
		if err := other.clear(); err == nil || other.marked() {
			t.Errorf("%s: cleared %v, marked %t", what, err, other.marked())
		}
	}
	if err := m.remove(); err != nil {
		t.Error(err)
	}
	if err := m.remove(); err != nil || m.marked() || m.clear() == nil {
		t.Errorf("without a file: removed %v, marked %t", err, m.marked())
	}
}

func TestStandIn(t *testing.T) {
	dir := t.TempDir()
	parent, child := filepath.Join(dir, "parent"), filepath.Join(dir, "child")
	if err := os.WriteFile(parent, nil, 0o600); err != nil { // what the dead one left
		t.Fatal(err)
	}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: child, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := newStandIn(parent, child)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	read := func() []byte {
		if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return b[:n]
	}
	if got := read(); !bytes.Equal(got, emptyStats) {
		t.Errorf("at first %q", got)
	}
	to := &net.UnixAddr{Name: parent, Net: "unixgram"}
	// Requests to terminate, and what is none, are not answered; one for statistics is.
	for _, m := range []string{"\x00\x00\x00\x00\x00\x00\x00\x04\n\x02*\x00", "x", "", "\x00\x00\x00\x00\x00\x00\x00\x04\n\x02\x1a\x00"} {
		if _, err := c.WriteToUnix([]byte(m), to); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(); !bytes.Equal(got, emptyStats) {
		t.Errorf("%q, want an answer without statistics", got)
	}
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 100)); err == nil {
		t.Errorf("one more answer, of %d bytes", n)
	}
	if _, err := newStandIn(filepath.Join(dir, "no", "parent"), child); err == nil {
		t.Error("no error where there is no directory")
	}
}

func TestLastLine(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"a\nb\n\n", "b"},
		{" a \n", "a"},
		{strings.Repeat("x", 500), strings.Repeat("x", 400) + "…"},
	} {
		if got := lastLine([]byte(c.in)); got != c.want {
			t.Errorf("%q: %q", c.in, got)
		}
	}
}
