// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"maps"
	"slices"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// historyIsGone: the agent sleeps, without a connection, while Services are deleted
// and endpoints move, etcd is compacted and kube-apiserver starts anew, which leaves
// nobody who could tell it what it missed. Its watches are answered by 410 and it
// lists again.
func historyIsGone(t *testing.T) {
	s := labtest.New(t)
	for _, name := range []string{"same", "moves", "goes"} {
		s.Apply(server(name, 2))
	}
	s.Apply(labtest.Client("captured", true))
	s.Ready("captured")
	for _, name := range []string{"same", "moves", "goes"} {
		s.Endpoints(name, 2)
		isServed(t, s, "captured", s.VIP(name), name)
	}
	moves, goes := s.VIP("moves"), s.VIP("goes")
	l := dialling(t, s, "/", []string{"captured"}, s.VIP("same"))
	open := hold(t, s, "captured", s.VIP("same"), 81)
	kinds := []string{"services", "endpointslices"}
	lists := map[string]float64{}
	for _, k := range kinds {
		lists[k] = listed(t, s, k)
	}

	pid := s.Node.AgentPID()
	known, err := s.Client().CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	s.Must(err)
	version := known.ResourceVersion // the agent knows no later one while it sleeps
	s.Must(syscall.Kill(pid, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // it may have ended
	s.RestartAPIServer()                                         // from here on nothing reaches the agent
	s.Must(s.Client().CoreV1().Services(s.Namespace).Delete(t.Context(), "goes", metav1.DeleteOptions{}))
	old := replaceServer(t, s, "moves")
	s.Apply(serviceAt("comes", "same", ""))
	s.Must(s.CompactEtcd(t.Context()))
	s.RestartAPIServer()
	l.more(20)
	s.Must(syscall.Kill(pid, syscall.SIGCONT))

	for _, k := range kinds {
		s.Eventually("the agent listed "+k+" again", func() error {
			if more := listed(t, s, k) - lists[k]; more != 1 {
				return errorf("%v lists more", more)
			}
			return nil
		})
	}
	s.Must(historyEndsAfter(t, s, version))
	s.Eventually("the deleted Service is refused", func() error { return refused(within(t), s, "captured", goes, "no-service") })
	s.Eventually("the new Service is served", func() error { return served(within(t), s, "captured", s.VIP("comes"), "comes") })
	s.Eventually("only the new endpoints are used", func() error {
		by := map[string]bool{}
		for range 10 {
			a := s.Try("captured", moves, 80)
			if a.Outcome != echo.OK || slices.Contains(old, a.By.Pod) {
				return errorOf(a)
			}
			by[a.By.Pod] = true
		}
		if len(by) != 2 {
			return errorf("answered by %v", slices.Collect(maps.Keys(by)))
		}
		return nil
	})
	if s.Node.AgentPID() != pid {
		t.Error("it is another agent")
	}
	l.more(20)
	l.unharmed(t, "a Service that did not change")
	lived(t, open)
}

// listed reads how often the agent has listed a kind.
func listed(t *testing.T, s *labtest.Space, kind string) float64 {
	t.Helper()
	n, err := agentCount(s, "aether_kube_events_total", map[string]string{"kind": kind, "event": "list"})
	s.Must(err)
	return n
}

// historyEndsAfter is nil when kube-apiserver answers a watch of Services from that
// version by 410.
func historyEndsAfter(t *testing.T, s *labtest.Space, version string) error {
	t.Helper()
	w, err := s.Client().CoreV1().Services("").Watch(within(t), metav1.ListOptions{ResourceVersion: version})
	if err == nil {
		defer w.Stop()
		ev := <-w.ResultChan()
		if ev.Type != watch.Error {
			return errorf("a watch from version %s goes on: %s %v", version, ev.Type, ev.Object)
		}
		err = apierrors.FromObject(ev.Object)
	}
	if !apierrors.IsResourceExpired(err) {
		return errorf("a watch from version %s: %w", version, err)
	}
	return nil
}

// replaceServer replaces all pods of a server and returns the names of the old ones.
func replaceServer(t *testing.T, s *labtest.Space, app string) (old []string) {
	t.Helper()
	pods := s.Client().CoreV1().Pods(s.Namespace)
	list, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	s.Must(err)
	for i := range list.Items {
		old = append(old, list.Items[i].Name)
		s.Must(pods.Delete(t.Context(), list.Items[i].Name, metav1.DeleteOptions{}))
	}
	for _, name := range old {
		s.Must(s.AwaitGone(within(t), s.Namespace+"/"+name))
	}
	s.Must(lab.Poll(within(t), "the slices of "+app+" have the new pods", func(ctx context.Context) error {
		return replaced(ctx, s, app, old)
	}))
	return old
}

// replaced is nil when a Service has two ready endpoints, neither of them old.
func replaced(ctx context.Context, s *labtest.Space, app string, old []string) error {
	list, err := s.Client().DiscoveryV1().EndpointSlices(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + app})
	if err != nil {
		return err
	}
	var ready []string
	for i := range list.Items {
		for _, e := range list.Items[i].Endpoints {
			if e.TargetRef != nil && e.Conditions.Ready != nil && *e.Conditions.Ready {
				ready = append(ready, e.TargetRef.Name)
			}
		}
	}
	if len(ready) != 2 || slices.Contains(old, ready[0]) || slices.Contains(old, ready[1]) {
		return errorf("ready are %v", ready)
	}
	return nil
}
