// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// load is captured pods that dial without a pause to speak of. Each pair of pod
// and address has one dialler, which makes one connection after the other.
type load struct {
	s    *labtest.Space
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	made []lab.Answer
	errs []error
}

// every is the pause between two connections of one dialler.
const every = 15 * time.Millisecond

// dialling begins to dial every address from every pod, port 80, path included.
func dialling(t *testing.T, s *labtest.Space, path string, pods []string, vips ...netip.Addr) *load {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &load{s: s, stop: stop}
	for _, pod := range pods {
		for _, vip := range vips {
			l.wg.Go(func() { l.dial(ctx, s.Namespace+"/"+pod, path, vip) })
		}
	}
	t.Cleanup(func() { l.end() })
	return l
}

func (l *load) dial(ctx context.Context, pod, path string, vip netip.Addr) {
	for ctx.Err() == nil {
		// What is under way at the end is brought to its end.
		var a lab.Answer
		err := l.s.Node.InPod(pod, func() error {
			a.Verdict = echo.Client{Mode: "http", Path: path, Target: lab.Target(vip, 80)}.Do(context.Background())
			return nil
		})
		if err == nil && a.Outcome == echo.OK && path == "/" {
			err = json.Unmarshal([]byte(a.Answer), &a.By)
		}
		l.mu.Lock()
		if err != nil {
			l.errs = append(l.errs, err)
		} else {
			l.made = append(l.made, a)
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

// count is how many connections were made so far.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.made)
}

// more waits until so many more connections have been made.
func (l *load) more(count int) {
	want := l.count() + count
	l.s.Eventually(fmt.Sprintf("%d more connections are made", count), func() error {
		if got := l.count(); got < want {
			return errorf("%d of %d", got, want)
		}
		return nil
	})
}

// end ends the load and returns all connections, in the order they ended in.
func (l *load) end() []lab.Answer {
	l.stop()
	l.wg.Wait()
	return l.made
}

// unharmed ends the load and wants that not one connection failed.
func (l *load) unharmed(t *testing.T, what string) {
	t.Helper()
	made := l.end()
	for _, err := range l.errs {
		t.Errorf("%s: %v", what, err)
	}
	sum := settle(t, l.s, made)
	if sum.failed > 0 || sum.made == 0 {
		t.Errorf("%s: %v, want none failed", what, sum)
	}
	t.Logf("%s: %v", what, sum)
}

// tally is an account's sum: connections, those that failed from the client's point
// of view, and their causes.
type tally struct {
	made, failed int
	causes       map[string]int
}

func (a tally) String() string {
	out := fmt.Sprintf("%d connections, %d failed", a.made, a.failed)
	for _, c := range slices.Sorted(maps.Keys(a.causes)) {
		out += fmt.Sprintf(", %s %d", c, a.causes[c])
	}
	return out
}

// settle looks in the access log for the cause of every failure. One that has none
// fails the test.
func settle(t *testing.T, s *labtest.Space, made []lab.Answer) tally {
	t.Helper()
	var sum tally
	var without []lab.Answer
	err := lab.Poll(within(t), "every failure has a cause in the access log", func(context.Context) error {
		lines, err := s.AccessLog()
		if err != nil {
			return err
		}
		sum, without = account(made, lines)
		if len(without) > 0 {
			return errorf("%d have none", len(without))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, a := range without[:min(len(without), 10)] {
		t.Errorf("no line of the access log says why, at %s: %s after %.0f ms, from %q",
			a.Time.Format("15:04:05.000"), a, a.TotalMS, a.Local)
	}
	return sum
}

// account matches failures with lines, each line once; those who know their own
// port come first.
func account(made []lab.Answer, lines []lab.LogLine) (tally, []lab.Answer) {
	sum := tally{made: len(made), causes: map[string]int{}}
	by := map[string][]int{}
	for i, l := range lines {
		if cause(l) != "" {
			by[l.Client+" "+l.Dialled] = append(by[l.Client+" "+l.Dialled], i)
			by[l.Dialled] = append(by[l.Dialled], i)
		}
	}
	claimed := map[int]bool{}
	var without []lab.Answer
	for _, anonymous := range []bool{false, true} {
		for _, a := range made {
			if a.Outcome == echo.OK || (a.Local == "") != anonymous {
				continue
			}
			sum.failed++
			key := a.Local + " " + a.Remote
			if anonymous {
				key = a.Target
			}
			at := slices.IndexFunc(by[key], func(i int) bool {
				return !claimed[i] && !lines[i].Time.Before(a.Time.Truncate(time.Millisecond))
			})
			if at < 0 {
				without = append(without, a)
				continue
			}
			i := by[key][at]
			claimed[i] = true
			sum.causes[cause(lines[i])]++
		}
	}
	return sum, without
}

// cause is what a line gives as the reason of a failure.
func cause(l lab.LogLine) string {
	if l.Outcome == "ok" {
		return ""
	}
	return cmp.Or(l.Reason, l.Outcome)
}

// held is a connection that is kept open and used four times a second.
type held struct {
	what   string
	conn   net.Conn
	stop   chan struct{}
	done   chan struct{}
	rounds int
	err    error
}

// hold opens a connection from a pod to a server that echoes lines.
func hold(t *testing.T, s *labtest.Space, pod string, to netip.Addr, port int) *held {
	t.Helper()
	h := &held{what: pod + " to " + lab.Target(to, port), stop: make(chan struct{}), done: make(chan struct{})}
	s.Must(s.Node.InPod(s.Namespace+"/"+pod, func() (err error) {
		h.conn, err = net.DialTimeout("tcp4", lab.Target(to, port), 5*time.Second)
		return err
	}))
	if h.err = h.round(); h.err != nil {
		t.Fatalf("connection of %s: %v", h.what, h.err)
	}
	go h.talk()
	t.Cleanup(func() { h.end() })
	return h
}

func (h *held) talk() {
	defer close(h.done)
	for h.err == nil {
		select {
		case <-h.stop:
			return
		case <-time.After(250 * time.Millisecond):
			h.err = h.round()
		}
	}
}

func (h *held) round() error {
	text := fmt.Sprintf("round %d\n", h.rounds)
	_ = h.conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(h.conn, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(h.conn, got); err != nil {
		return err
	}
	if string(got) != text {
		return errors.New("another answer: " + strings.TrimSpace(string(got)))
	}
	h.rounds++
	return nil
}

// end closes the connection.
func (h *held) end() {
	select {
	case <-h.stop:
	default:
		close(h.stop)
	}
	<-h.done
	h.conn.Close()
}

// lived ends connections and wants that they lived until now.
func lived(t *testing.T, hs ...*held) {
	t.Helper()
	for _, h := range hs {
		h.end()
		if h.err != nil {
			t.Errorf("the open connection of %s ended after %d rounds: %v", h.what, h.rounds, h.err)
		}
		t.Logf("the open connection of %s: %d rounds", h.what, h.rounds)
	}
}
