// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// eventually polls until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestAStormRaisesTheDelayAndItFallsBack(t *testing.T) {
	s, path := serve(t, Config{QuietRate: 100, StormRate: 1000})
	if got := s.currentDelay(); got != 5*time.Millisecond {
		t.Fatalf("the delay before the storm is %s", got)
	}
	var stop atomic.Bool
	var clients sync.WaitGroup
	for range 64 {
		clients.Go(func() {
			for !stop.Load() {
				if err := refused(path, header); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("in the storm: %v", err)
					return
				}
			}
		})
	}
	eventually(t, "the storm raised the delay", func() bool { return s.currentDelay() > 50*time.Millisecond })
	began := time.Now()
	if err := refused(path, header); !errors.Is(err, syscall.ECONNRESET) || time.Since(began) < 20*time.Millisecond {
		t.Errorf("in the storm a newcomer saw %v after %s", err, time.Since(began))
	}
	stop.Store(true)
	clients.Wait()
	eventually(t, "the delay fell back", func() bool { return s.currentDelay() == 5*time.Millisecond })
}

// All at once, and more than may be held.
func TestFiveThousandAtOnce(t *testing.T) {
	const burst = 5000
	s, path := serve(t, Config{MaxHeld: 3000})
	conns := make([]net.Conn, 0, burst)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range burst {
		c, err := net.Dial("unix", path)
		for errors.Is(err, unix.EAGAIN) { // the backlog is full for the moment
			c, err = net.Dial("unix", path)
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := c.Write(header); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		if n := len(s.slots); n > 3000 {
			t.Fatalf("%d are held", n)
		}
	}
	resets := 0
	for _, c := range conns {
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		switch _, err := c.Read(make([]byte, 1)); {
		case errors.Is(err, unix.ECONNRESET):
			resets++
		case !errors.Is(err, io.EOF):
			t.Fatalf("neither reset nor closed: %v", err)
		}
	}
	if resets < burst/2 {
		t.Errorf("%d of %d were reset", resets, burst)
	}
	eventually(t, "nothing is held", func() bool { return len(s.slots) == 0 })
}

// childSocket tells a child of the tests which socket to serve with few
// descriptors; childReady is what it says when it does.
const (
	childSocket = "REFUSE_TEST_SOCKET"
	childReady  = "serving\n"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childSocket); path != "" {
		if err := starvedChild(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func starvedChild(path string) error {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 40, Max: 40}); err != nil {
		return err
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the parent's end of the pipe
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if most := defaultMaxHeld(); most != 10 {
		return fmt.Errorf("with 40 descriptors %d connections may be held, want 10", most)
	}
	fmt.Print(childReady)
	return New(Config{MaxHeld: 1000, Delay: 100 * time.Millisecond}).Serve(ctx, ln)
}

// A process that has no descriptors left refuses as soon as it has some again.
func TestOutOfDescriptors(t *testing.T) {
	dir, err := os.MkdirTemp("", "refuse-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childSocket+"="+path)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	output := bufio.NewReader(stdout)
	if line, err := output.ReadString('\n'); line != childReady {
		t.Fatalf("the child says %q, %v", line, err)
	}
	var clients sync.WaitGroup
	for range 200 {
		clients.Go(func() {
			if err := refused(path, header); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("saw %v", err)
			}
		})
	}
	clients.Wait()
	stdin.Close()
	if rest, err := io.ReadAll(output); err != nil || child.Wait() != nil {
		t.Errorf("the child ended with %s, %v", rest, err)
	}
}
