// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// wantNone fails when a pod is answered at an address.
func wantNone(t *testing.T, s *labtest.Space, pod string, vip netip.Addr) {
	t.Helper()
	if a := s.Try(pod, vip, 80); a.Outcome == echo.OK {
		t.Errorf("pod %s: %s, and nobody should", pod, a)
	}
}

// wantAll dials from a pod until every endpoint has answered; not one connection
// may fail.
func wantAll(t *testing.T, s *labtest.Space, pod string, vip netip.Addr, endpoints int) {
	t.Helper()
	by := map[string]int{}
	for range 10 * endpoints {
		a := s.Try(pod, vip, 80)
		if a.Outcome != echo.OK {
			t.Errorf("pod %s: %s", pod, a)
			continue
		}
		by[a.By.Pod]++
	}
	if len(by) != endpoints {
		t.Errorf("pod %s was answered by %v, want %d different ones", pod, by, endpoints)
	}
}

// The first leg of the proposal: a ClusterIP Service answers a captured pod
// although what kube-proxy wrote for it was deleted from the node and is kept
// deleted. That the deletion matters is seen at the same time on the pod beside
// it, and on the captured pod itself once it is captured no more.
func TestServiceAnswersWithoutKubeProxysRules(t *testing.T) {
	s := labtest.New(t)
	s.Apply(labtest.Service("web", "web"), labtest.EchoDeployment("web", 3),
		labtest.Client("captured", true), labtest.Client("plain", false))
	s.Endpoints("web", 3)
	s.Ready("captured", "plain")
	vip := s.VIP("web")
	s.Answers("captured", vip, 80)
	s.Answers("plain", vip, 80)

	s.KubeProxy.Pause()
	t.Cleanup(s.KubeProxy.Resume)
	n, err := s.DeleteServiceRules(t.Context(), vip)
	s.Must(err)
	if n == 0 {
		t.Fatalf("kube-proxy has no rules for %s that could be deleted", vip)
	}
	keeper := s.KeepServiceRulesDeleted(vip)
	t.Cleanup(func() { _ = keeper.Stop() }) // on an early end; else it is known already
	without(t, s, vip)

	// kube-proxy goes on, writes them again, and they are deleted again.
	s.KubeProxy.Resume()
	s.Must(s.KubeProxy.Restart(t.Context()))
	s.Eventually("kube-proxy wrote its rules again, and they were deleted", func() error {
		wantAll(t, s, "captured", vip, 3)
		if keeper.Times() == 0 {
			return errorf("there was nothing to delete yet")
		}
		return nil
	})
	wantNone(t, s, "plain", vip)
	s.Must(keeper.Stop())

	// It was the rules: with them the pod beside is answered again.
	s.Must(s.KubeProxy.Restart(t.Context()))
	s.Answers("plain", vip, 80)
}

// without is what holds while there are no rules and kube-proxy is paused.
func without(t *testing.T, s *labtest.Space, vip netip.Addr) {
	t.Helper()
	if rules, err := s.ServiceRules(t.Context(), vip); err != nil || len(rules) > 0 {
		t.Fatalf("kube-proxy's rules for %s: %v, %v, want none", vip, rules, err)
	}
	for range 3 {
		wantNone(t, s, "plain", vip)
	}
	wantAll(t, s, "captured", vip, 3)
	captured := s.Namespace + "/captured"
	s.Must(s.StopCapture(captured))
	wantNone(t, s, "captured", vip)
	s.Must(s.StartCapture(captured))
	wantAll(t, s, "captured", vip, 3)
}

// The same without any table of kube-proxy's: also not the one that drops what is
// dialled in the Service range and is nobody's.
func TestServiceAnswersWithoutKubeProxysTable(t *testing.T) {
	s := labtest.New(t)
	s.Apply(labtest.Service("web", "web"), labtest.EchoDeployment("web", 2),
		labtest.Client("captured", true), labtest.Client("plain", false))
	s.Endpoints("web", 2)
	s.Ready("captured", "plain")
	vip := s.VIP("web")
	s.Answers("plain", vip, 80)

	s.KubeProxy.Stop()
	t.Cleanup(func() {
		if err := s.KubeProxy.Start(context.Background()); err != nil {
			t.Errorf("start kube-proxy again: %v", err)
		}
	})
	had, err := s.DeleteKubeProxyTable(t.Context())
	s.Must(err)
	if !had {
		t.Fatal("kube-proxy has no table")
	}
	wantNone(t, s, "plain", vip)
	// Never dialled before: the answer, too, comes without kube-proxy.
	wantAll(t, s, "captured", vip, 2)

	// The same beside a kube-proxy that works, and whose table is deleted whenever
	// it writes one.
	keeper := s.KeepKubeProxyTableDeleted()
	t.Cleanup(func() { _ = keeper.Stop() }) // on an early end; else it is known already
	s.Must(s.KubeProxy.Start(t.Context()))
	s.Eventually("kube-proxy wrote its table again, and it was deleted", func() error {
		wantAll(t, s, "captured", vip, 2)
		if keeper.Times() == 0 {
			return errorf("there was nothing to delete yet")
		}
		return nil
	})
	s.Must(keeper.Stop())
	s.Must(s.KubeProxy.Restart(t.Context()))
	s.Answers("plain", vip, 80)
}

// A Service without endpoints is refused by us: with a reset, a line that names
// reason, Service and pod, and a count. The pod beside it is refused by
// kube-proxy, when it connects.
func TestServiceWithoutEndpointsIsRefused(t *testing.T) {
	s := labtest.New(t)
	s.Apply(labtest.Service("empty", "nobody"), labtest.Client("captured", true), labtest.Client("plain", false))
	s.Ready("captured", "plain")
	vip := s.VIP("empty")
	s.Eventually("kube-proxy refuses the uncaptured pod", func() error {
		if a := s.Try("plain", vip, 80); a.Outcome != echo.Refused {
			return errorOf(a)
		}
		return nil
	})

	key := "no-endpoints " + s.Namespace + "/empty"
	before, err := s.Refusals(t.Context())
	s.Must(err)
	const dials = 5
	for range dials {
		a := s.Try("captured", vip, 80)
		if a.Outcome != echo.Reset {
			t.Errorf("captured pod: %s, want a reset", a)
		}
		line, err := s.Logged(t.Context(), a.Verdict)
		s.Must(err)
		if line.Outcome != "refused" || line.Reason != "no-endpoints" || line.ServiceName != "empty" ||
			line.ServiceNamespace != s.Namespace || line.PodName != "captured" {
			t.Errorf("access log: %+v", line)
		}
	}
	s.Eventually("the refusals are counted", func() error {
		after, err := s.Refusals(t.Context())
		if err == nil && after[key]-before[key] != dials {
			err = errorf("%s: counted %d, want %d; all: %v", key, after[key]-before[key], dials, after)
		}
		return err
	})

	// An endpoint that comes is used, without a new ask.
	s.Apply(labtest.EchoPod("nobody", "nobody", "n2"))
	if by := s.Answers("captured", vip, 80); by != "nobody" {
		t.Errorf("answered by %q", by)
	}
}

func errorOf(a lab.Answer) error { return errorf("%s", strings.TrimSpace(a.String())) }
