// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestListeningSocketIsFound(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	for name, c := range map[string]struct {
		table string
		want  bool
	}{
		"nothing":               {head, false},
		"ours":                  {head + "   0: 0100007F:4651 00000000:0000 0A 00000000:00000000\n", true},
		"on every address":      {head + "   0: 00000000:4651 00000000:0000 0A 00000000:00000000\n", false},
		"another port":          {head + "   0: 0100007F:4652 00000000:0000 0A 00000000:00000000\n", false},
		"a connection from it":  {head + "   0: 0100007F:4651 0100007F:9999 01 00000000:00000000\n", false},
		"after others":          {head + "   0: 00000000:0050 00000000:0000 0A 0:0\n   1: 0100007F:4651 00000000:0000 0A 0:0\n", true},
		"only after the end":    {head + "   0: 0100007F:0050 0100007F:9999 01 0:0\n   1: 0100007F:4651 00000000:0000 0A 0:0\n", false},
		"a line that is broken": {head + "\n   0:\n   1: 0100007F:4651 00000000:0000 0A 0:0\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tcp")
			if err := os.WriteFile(path, []byte(c.table), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := listens(path); err != nil || got != c.want {
				t.Errorf("listens = %t, %v, want %t", got, err, c.want)
			}
		})
	}
}

// A namespace is seen as it is.
func TestSee(t *testing.T) {
	pod := newNetns(t, "look")
	s, err := See(pod.path)
	if err != nil {
		t.Fatal(err)
	}
	if s.Listening || s.Ports < 1000 {
		t.Errorf("an empty namespace is seen as %+v", s)
	}
	if err := pod.do(t, func() error {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", ListenerAddress().String())
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	pod.exec(t, "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40099")
	if s, err = See(pod.path); err != nil || !s.Listening || s.Ports != 100 {
		t.Errorf("a listener and 100 ports are seen as %+v, %v", s, err)
	}
	if err := Install(pod.path, Config{RedirectAll: true}); err != nil {
		t.Fatal(err)
	}
	if s, err = See(pod.path); err != nil || s.MaxTracked == 0 {
		t.Errorf("with rules that track connections it is seen as %+v, %v", s, err)
	}
	if _, err := See(pod.path + "-gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a namespace that does not exist: %v", err)
	}
}
