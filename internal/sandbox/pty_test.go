// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// screen is a terminal and what was shown on it. Tests type on keys; programs
// have tty.
type screen struct {
	keys, tty *os.File
	mu        sync.Mutex
	shown     strings.Builder
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	keys, tty, err := openPTY()
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{keys: keys, tty: tty}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for b := make([]byte, 1024); ; {
			n, err := keys.Read(b)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.shown.Write(b[:n])
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		tty.Close()
		keys.Close()
		<-ended
	})
	return s
}

func (s *screen) shows(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.shown.String(), text)
}

// TestOrdinaryUserTerminal: a command has a terminal that is its own: its size
// follows, Ctrl-C reaches it alone, and the caller's is as before afterwards.
func TestOrdinaryUserTerminal(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	cl, _, _ := usersOwn(t, "tty", twoPods)
	s := newScreen(t)
	setSize := func(rows, columns uint16) {
		raw, err := s.keys.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var inner error
		if err := raw.Control(func(fd uintptr) {
			inner = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
		}); err != nil || inner != nil {
			t.Fatal(err, inner)
		}
	}
	setSize(33, 101)
	before, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		script := `stty size; trap 'echo "interrupted"; exit 5' INT; trap 'stty size' WINCH; read line; echo "read <$line>"; while :; do sleep 0.05; done`
		code, err := cl.Exec(t.Context(), "client", []string{"sh", "-c", script}, Stdio{In: s.tty, Out: s.tty, Err: s.tty})
		ended <- end{code, err}
	}()
	eventually(t, "the size is the caller's", func() bool { return s.shows("33 101") })
	if _, err := s.keys.WriteString("a line\r"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what was typed was read", func() bool { return s.shows("read <a line>") })
	setSize(44, 99)
	// The kernel tells the foreground of a session, and here is none.
	if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the size follows", func() bool { return s.shows("44 99") })
	if _, err := s.keys.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if e := <-ended; e.code != 5 || e.err != nil {
		t.Errorf("exit code %d (%v), want 5", e.code, e.err)
	}
	eventually(t, "its last words are shown", func() bool { return s.shows("interrupted") })
	after, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the caller's terminal was left changed: %+v, was %+v (%v)", after, before, err)
	}
}

// TestOrdinaryUserTerminalAndPipe: with output to elsewhere the command reads
// the caller's terminal itself, and signals are handed on.
func TestOrdinaryUserTerminalAndPipe(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	cl, _, _ := usersOwn(t, "pipe", twoPods)
	s := newScreen(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	code := make(chan int, 1)
	go func() {
		script := `trap 'echo interrupted; exit 6' INT; read line; echo "read <$line>"; while :; do sleep 0.05; done`
		n, err := cl.Exec(t.Context(), "client", []string{"sh", "-c", script}, Stdio{In: s.tty, Out: w})
		if err != nil {
			t.Error(err)
		}
		w.Close()
		code <- n
	}()
	if _, err := s.keys.WriteString("a line\r"); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 64)
	n, err := r.Read(said)
	if err != nil || string(said[:n]) != "read <a line>\n" {
		t.Fatalf("%q (%v)", said[:n], err)
	}
	if err := unix.Kill(os.Getpid(), unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	n, err = r.Read(said)
	if err != nil || string(said[:n]) != "interrupted\n" {
		t.Errorf("%q (%v)", said[:n], err)
	}
	if got := <-code; got != 6 {
		t.Errorf("exit code %d, want 6", got)
	}
}
