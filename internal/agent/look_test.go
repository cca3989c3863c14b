// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/capture"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/plan/demand"
	"aether.io/aether/internal/xds"
)

// lookTest is a worker and what it tells.
type lookTest struct {
	api   *apiServer
	looks chan demand.LookAt

	mu   sync.Mutex
	told []message
}

func (w *lookTest) tell(m message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, m)
}

// take returns what was told since the last time, when all is quiet.
func (w *lookTest) take() []message {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	ms := w.told
	w.told = nil
	return ms
}

func withLookWorker(t *testing.T, f func(w *lookTest)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait() // no goroutine is left
		defer cancel()
		w := &lookTest{api: newAPIServer(systemClock{}), looks: make(chan demand.LookAt, demand.MaxLooks)}
		ready := make(chan struct{})
		w.api.behind = time.Now()
		go lookWorker{w.api, systemClock{}, w.tell}.run(ctx, ready, w.looks)
		if got := w.take(); len(got) != 0 {
			t.Errorf("told %+v before the sources have synced", got)
		}
		w.api.change(func() { w.api.behind = time.Time{} })
		close(ready)
		f(w)
	})
}

func TestLookIsToldWithWhenItBegan(t *testing.T) {
	withLookWorker(t, func(w *lookTest) {
		w.api.change(func() { w.api.mood = "silent" })
		begun := time.Now()
		at := demand.LookAt{Addr: unknown.Addr(), Number: 7}
		w.looks <- at
		time.Sleep(300 * time.Millisecond)
		w.api.change(func() { w.api.mood = "answers" })
		want := lookOver{LookAt: at, found: plan.Look{Sight: plan.Absent, At: begun}, took: 300 * time.Millisecond}
		if got := w.take(); len(got) != 1 || got[0] != want {
			t.Errorf("told %+v, want %+v", got, want)
		}
	})
}

// A look that does not end is over after its timeout, and so are others beside it.
func TestSilentAPIServerTimesOut(t *testing.T) {
	withLookWorker(t, func(w *lookTest) {
		w.api.change(func() { w.api.mood = "silent" })
		for n := range demand.MaxLooks {
			w.looks <- demand.LookAt{Addr: netip.AddrFrom4([4]byte{10, 96, 9, byte(n)}), Number: uint64(n)}
		}
		time.Sleep(lookTimeout - 1)
		if got := w.take(); len(got) != 0 {
			t.Errorf("told %+v before the timeout", got)
		}
		time.Sleep(time.Nanosecond)
		got := w.take()
		if len(got) != demand.MaxLooks {
			t.Fatalf("told %d, want %d", len(got), demand.MaxLooks)
		}
		for _, m := range got {
			if f := m.(lookOver).found; f.Sight != plan.Blind || f.Cause != plan.TimedOut {
				t.Errorf("found %+v", f)
			}
		}
		if _, most := w.api.counts(); most != demand.MaxLooks {
			t.Errorf("%d looks at once", most)
		}
	})
}

func TestBehindIsToldOnce(t *testing.T) {
	withLookWorker(t, func(w *lookTest) {
		time.Sleep(10 * behindInterval)
		since := time.Now()
		w.api.change(func() { w.api.behind = since })
		time.Sleep(10 * behindInterval)
		w.api.change(func() { w.api.behind = time.Time{} })
		time.Sleep(10 * behindInterval)
		got := w.take()
		if len(got) != 2 || got[0] != (sourceBehind{since}) || got[1] != (sourceBehind{}) {
			t.Errorf("told %+v", got)
		}
	})
}

// The loop never waits for the worker: a scan of 65,000 addresses has no more looks
// under way than the channel has room for, even when nobody takes them.
func TestScanDoesNotBlockTheLoop(t *testing.T) {
	n := newLoopTest(t)
	n.demand = demand.New(demand.Config{
		Budget: demand.DefaultBudget, LookRate: demand.DefaultLookRate, LookBurst: demand.DefaultLookBurst,
	}, nil)
	n.sync(t)
	all := make([]netip.AddrPort, 0, 65_000)
	for i := range 65_000 {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 8080))
	}
	var names []string
	for _, a := range all {
		names = append(names, envoy.ClusterName(a))
	}
	looked := 0
	n.heardEvent(xds.Asked{Stream: xds.Stream{ID: 1, Epoch: 1}, Type: xds.Cluster, Names: names})
	for range 3 * 10 { // half a minute
		for {
			var ms []message
			for len(n.lookAts) > 0 {
				at := <-n.lookAts
				looked++
				ms = append(ms, lookOver{LookAt: at, found: plan.Look{Sight: plan.Absent, At: n.clock.Now()}})
			}
			if len(ms) > demand.MaxLooks {
				t.Fatalf("%d looks under way", len(ms))
			}
			if len(ms) == 0 {
				break
			}
			n.turn(ms)
		}
		n.clock.Advance(second)
		n.turn(nil)
	}
	if looked > demand.DefaultBudget {
		t.Errorf("%d looks, want at most %d", looked, demand.DefaultBudget)
	}
	if c := n.demand.Count(demand.KindHeld); c != 0 {
		t.Errorf("%d names are held still", c)
	}
	if a := n.look(unknown); a.Verdict != plan.Refuse {
		t.Errorf("%+v", a)
	}
}

// TestCreatedAndDialled runs the agent with Envoy 1.40: a Service is created and
// dialled in the same instant, and the source tells of it half a second later.
func TestCreatedAndDialled(t *testing.T) {
	s := newTestScenario(t)
	s.real = true
	s.api.clock = systemClock{}
	pod := newPodNS(t, "10.244.0.2")
	pod.serve(t)
	if err := capture.Install(pod.path, capture.Config{RedirectAll: true}); err != nil {
		t.Fatal(err)
	}
	s.write(t, "range.yaml", realManifests)
	if err := s.startAgent([]string{"looks=yes"}, (*scenario).awaitReady); err != nil {
		t.Fatal(err)
	}
	s.startEnvoy(t)
	s.addPod(t, "1", pod)

	t.Run("served when the source tells of it", func(t *testing.T) { createdForReal(t, s, pod) })
	t.Run("nobody's is refused at once", func(t *testing.T) {
		begun := time.Now()
		if _, _, err := pod.dial("10.96.9.9:80"); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want a reset", err)
		}
		if took := time.Since(begun); took > 250*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("passed through when nobody can see", func(t *testing.T) {
		s.api.change(func() { s.api.mood = string(plan.Unreachable) })
		var c net.Conn
		err := pod.in(func() (err error) {
			c, err = net.DialTimeout("tcp", "10.96.9.10:80", patience)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// Nobody else serves it either, so that the dial hangs, but it is not refused.
		if err := c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v, want nothing", err)
		}
		if got := s.answered(t, "10.96.9.10:80"); got != "passthrough" {
			t.Errorf("answered %q", got)
		}
	})
}

func createdForReal(t *testing.T, s *scenario, pod *podNS) {
	const lag = 500 * time.Millisecond
	err := s.allocate(nil, []string{"10.96.0.12", "service", "default/web"})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	told := make(chan struct{})
	timer := time.AfterFunc(lag, func() {
		defer close(told)
		s.write(t, "web.yaml", service("web", "10.96.0.12", pod.ip))
	})
	defer func() {
		if !timer.Stop() {
			<-told
		}
	}()
	c, line, err := pod.dial("10.96.0.12:80")
	if err != nil || line != pod.ip {
		t.Fatalf("dial: %q %v, want the pod's own address", line, err)
	}
	c.Close()
	if took := time.Since(begun); took < lag || took > demand.LookWait {
		t.Errorf("served after %v", took)
	}
	if got := s.answered(t, "10.96.0.12:80"); got != "balance" {
		t.Errorf("answered %q", got)
	}
}

// answered returns the agent's answer to a name.
func (s *scenario) answered(t *testing.T, address string) string {
	t.Helper()
	var e api.Explanation
	_, err := s.agent.call(agentSocket, http.MethodGet, "/v1/explain?address="+url.QueryEscape(address), nil, &e)
	if err != nil {
		t.Fatal(err)
	}
	return e.Answer
}
