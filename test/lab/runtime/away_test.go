// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"maps"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// outage is how long the API server is away.
const outage = 2 * time.Minute

// Addresses of the range that no Service has.
var (
	nobodys      = netip.MustParseAddr("10.96.250.1") // dialled before
	nobodysNew   = netip.MustParseAddr("10.96.250.2") // first dialled while the API server is away
	nobodysAlone = netip.MustParseAddr("10.96.250.3") // and the agent does not know anything
)

// TestAPIServerIsAway has a lab of its own: kube-apiserver is away for two minutes. Services that were dialled
// before go on without one failure, when the agent is started anew, too; nothing is
// refused on a suspicion; afterwards everything is as the API server has it.
func TestAPIServerIsAway(t *testing.T) {
	t.Parallel()
	s := labtest.In(t, labtest.Own(t, "away", lab.Config{}))
	known := []string{"one", "two", "three"}
	asked, unasked := "asked", "unasked" // first dialled while the API server is away
	for _, name := range append([]string{asked, unasked, "short"}, known...) {
		s.Apply(server(name, 2))
	}
	s.Apply(labtest.Client("left", true), labtest.Client("right", true))
	s.Ready("left", "right")
	var vips []netip.Addr
	var open []*held
	for _, name := range append([]string{"short"}, known...) {
		s.Endpoints(name, 2)
		isServed(t, s, "left", s.VIP(name), name)
		if name != "short" {
			vips = append(vips, s.VIP(name))
			open = append(open, hold(t, s, "left", s.VIP(name), 81))
		}
	}
	s.Endpoints(asked, 2)
	s.Endpoints(unasked, 2)
	withoutKubeProxy(t, s) // it drops what it does not know
	stranded(t, s, "one", nobodys, nobodysNew, nobodysAlone)
	askedVIP, unaskedVIP, short := s.VIP(asked), s.VIP(unasked), s.VIP("short")
	s.Eventually("a stranger is refused", func() error { return refused(within(t), s, "left", nobodys, "no-service") })
	l := dialling(t, s, "/", []string{"left", "right"}, vips...)
	l.more(100)

	away := time.Now()
	s.APIServer.Stop()
	t.Cleanup(s.StartAPIServer)
	whileAgentKnows(t, s, askedVIP, asked)
	refusals, err := s.Refusals(t.Context())
	s.Must(err)
	l.more(100)
	back := restartAlone(t, s, unaskedVIP)
	l.more(100)
	left := outage - time.Since(away)
	t.Logf("kube-apiserver is away for %.0f s more, %d connections so far", left.Seconds(), l.count())
	<-time.After(left)
	if now, err := s.Refusals(t.Context()); err != nil || !maps.Equal(now, refusals) {
		t.Errorf("refused meanwhile: %v, before %v, %v", now, refusals, err)
	}

	s.Must(s.APIServer.Start(t.Context()))
	// Changes of the first moment are seen: the agent may not have connected yet.
	s.Apply(serviceAt("fresh", "one", ""))
	s.Must(s.Client().CoreV1().Services(s.Namespace).Delete(t.Context(), "short", metav1.DeleteOptions{}))
	s.StartAPIServer() // it runs: the controllers are to see them, too
	t.Logf("kube-apiserver was away for %.0f s", time.Since(away).Seconds())
	s.Must(<-back)
	s.Eventually("a Service created at its return is served", func() error { return served(within(t), s, "right", s.VIP("fresh"), "fresh") })
	s.Eventually("a Service deleted at its return is refused", func() error { return refused(within(t), s, "left", short, "no-service") })
	for _, stranger := range []netip.Addr{nobodys, nobodysNew, nobodysAlone} {
		s.Eventually("a stranger is refused again", func() error { return refused(within(t), s, "left", stranger, "no-service") })
	}
	s.Eventually("what was never asked for is served", func() error { return served(within(t), s, "left", unaskedVIP, unasked) })
	isServed(t, s, "left", askedVIP, asked)
	l.more(100)
	l.unharmed(t, "known Services while the API server was away, and before and after")
	lived(t, open...)
}

// withoutKubeProxy ends kube-proxy and all that it wrote for the rest of the test.
func withoutKubeProxy(t *testing.T, s *labtest.Space) {
	t.Helper()
	s.KubeProxy.Stop()
	_, err := s.DeleteKubeProxyTable(t.Context())
	s.Must(err)
	t.Cleanup(func() {
		if err := s.KubeProxy.Start(context.Background()); err != nil {
			t.Errorf("start kube-proxy again: %v", err)
		}
	})
}

// whileAgentKnows: the agent answers from what it knows, and takes no silence for
// an answer.
func whileAgentKnows(t *testing.T, s *labtest.Space, asked netip.Addr, name string) {
	t.Helper()
	s.Eventually("what is known of Services counts as stale", func() error { return stale(s, "services") })
	s.Eventually("strangers that were refused are passed through", func() error { return passedThrough(within(t), s, "left", nobodys, inRange) })
	s.Must(passedThrough(within(t), s, "left", nobodysNew, inRange))
	isServed(t, s, "right", asked, name)
}

// restartAlone kills the agent, which starts anew and knows nothing. The channel
// tells when it works again.
func restartAlone(t *testing.T, s *labtest.Space, unasked netip.Addr) <-chan error {
	t.Helper()
	was := s.Node.AgentPID()
	s.Must(s.Node.KillAgent())
	s.Eventually("the agent is back, and waits for the API server", func() error {
		st, err := s.AgentStatus(t.Context())
		if err == nil && (s.Node.AgentPID() == was || st.Synced || st.Envoy.Connected) {
			err = errorf("its status is %+v", st)
		}
		return err
	})
	// What Envoy never asked for gets no answer, and is no refusal.
	for _, vip := range []netip.Addr{unasked, nobodysAlone} {
		a := s.Dial("left", echo.Client{Mode: "http", Target: lab.Target(vip, 80), Timeout: 10 * time.Second})
		line, err := s.Logged(within(t), a.Verdict)
		s.Must(err)
		if a.Outcome == echo.OK || line.Outcome != "unanswered" || line.Reason != "" {
			t.Errorf("never asked for: %s, logged as %+v", a, line)
		}
	}
	// What was passed through stays so.
	s.Must(passedThrough(within(t), s, "left", nobodysNew, inRange))
	back := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), outage+2*labtest.Patience)
	go func() {
		defer cancel()
		back <- s.Node.StartAgent(ctx)
	}()
	return back
}

// stale is nil when the agent says that what it knows of a kind may be out of date.
func stale(s *labtest.Space, kind string) error {
	n, err := agentCount(s, "aether_kube_stale", map[string]string{"kind": kind})
	if err == nil && n != 1 {
		err = errorf("aether_kube_stale of %s is %v", kind, n)
	}
	return err
}

// agentCount sums the samples of one of the agent's metrics that have the labels.
func agentCount(s *labtest.Space, name string, want map[string]string) (float64, error) {
	samples, err := s.AgentMetric(context.Background(), name)
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for _, m := range samples {
		fits := true
		for k, v := range want {
			fits = fits && m.Labels[k] == v
		}
		if fits {
			sum, found = sum+m.Value, true
		}
	}
	if !found {
		return 0, errorf("no sample of %s with %v", name, want)
	}
	return sum, nil
}
