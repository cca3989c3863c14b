// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/sandbox/echo"
)

// TestPodsComeAndGo: a pod whose listener Envoy rejects, and pods that are
// deleted while they have connections, hurt nobody else and leave nothing.
func TestPodsComeAndGo(t *testing.T) {
	n := upReady(t, restartWorld())
	n.keepAccount()
	n.expectUnclean("a listener is rejected")
	envoyPID := n.EnvoyPID()
	l := n.learn(t)
	t.Run("a listener that Envoy rejects", n.rejectedListener)
	t.Run("a pod that cannot be", n.impossiblePods)
	t.Run("a pod deleted with connections", n.deletedPod)
	t.Run("a pod replaced by its like", n.replacedPod)
	l.check(t, "after all of it")
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
	t.Run("a pod that vanished, and a new Envoy", n.vanishedPod)
}

// callCNI makes one request as the CNI plugin does and returns the status code.
func (n *node) callCNI(ctx context.Context, method, path string, in any) (int, string, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return 0, "", err
	}
	hc := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.Paths().RunDir, "cni.sock"))
		},
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(resp.Body)
	return resp.StatusCode, text.String(), err
}

// extraNetNS makes a network namespace of the test's own.
func extraNetNS(t *testing.T, name string) (path string, remove func()) {
	t.Helper()
	run := func(args ...string) {
		t.Helper()
		if out, err := ip(args...); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	_, _ = ip("netns", "delete", name) // of a run that was killed
	run("netns", "add", name)
	run("-n", name, "link", "set", "lo", "up")
	gone := false
	remove = func() {
		if !gone {
			gone = true
			run("netns", "delete", name)
		}
	}
	t.Cleanup(remove)
	return "/run/netns/" + name, remove
}

// rejectedListener has Envoy get two new listeners in one response: one whose
// namespace has gone by the time it looks, and one of a good pod.
func (n *node) rejectedListener(t *testing.T) {
	path, remove := extraNetNS(t, sandboxName(t))
	resume := n.suspendEnvoy(t)
	n.write(t, "carol.yaml", client("carol"))
	bad := api.Pod{Namespace: "default", Name: "bad", ServiceAccount: "bad", IP: "10.244.99.99", NetNS: path}
	n.report(t, bad, http.StatusAccepted)
	eventually(t, settled, "the agent knows of carol", func() error {
		s, err := n.listenerOf(t.Context(), "carol")
		if err == nil && s.Listener != "pending" {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	remove()
	resume()
	eventually(t, settled, "the bad pod's listener is rejected", func() error {
		s, err := n.listenerOf(t.Context(), "bad")
		if err == nil && (s.Listener != "rejected" || !strings.Contains(s.Nack, path)) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	n.awaitReady(t, "carol")
	for _, pod := range []string{"alice", "bob", "carol"} {
		wantAllOK(t, []echo.Verdict{n.dial(t, pod, serverFirst(knownService))})
	}
	problem := func(p api.Problem) bool { return strings.Contains(p.Source+p.Text, "default/bad") }
	if s := n.agentStatus(t); !slices.ContainsFunc(s.Problems, problem) {
		t.Errorf("the status has problems %+v, none of the bad pod", s.Problems)
	}
	// Reported once more it is refused at once: its namespace is gone.
	code, text, err := n.callCNI(t.Context(), http.MethodPost, "/v1/pods", bad)
	if err != nil || code != http.StatusBadRequest || !strings.Contains(text, path) {
		t.Errorf("the bad pod once more: %d %s (%v), want 400 that names %s", code, text, err, path)
	}
	n.forget(t, "bad")
	if s := n.agentStatus(t); slices.ContainsFunc(s.Problems, problem) {
		t.Errorf("with the bad pod gone the status has problems %+v", s.Problems)
	}
}

// vanishedPod: the namespace of a pod goes without a word to the agent, and then
// Envoy. The next one cannot have its listener; all others are as they were. The
// next agent sees that the pod is gone.
func (n *node) vanishedPod(t *testing.T) {
	path, remove := extraNetNS(t, sandboxName(t))
	n.report(t, api.Pod{Namespace: "default", Name: "lost", ServiceAccount: "lost", IP: "10.244.99.96", NetNS: path}, http.StatusOK)
	remove()
	envoyPID, agentPID := n.EnvoyPID(), n.AgentPID()
	if err := n.KillEnvoy(); err != nil {
		t.Fatal(err)
	}
	eventually(t, settled, "the next Envoy rejects the listener that cannot be and has the others", func() error {
		s, err := n.tryStatus(t.Context())
		if err != nil {
			return err
		}
		for _, p := range s.Pods {
			want := "ready"
			if p.Name == "lost" {
				want = "rejected"
			}
			if n.EnvoyPID() == envoyPID || p.Listener != want {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
	for _, pod := range []string{"alice", "bob", "carol"} {
		wantAllOK(t, []echo.Verdict{n.dial(t, pod, serverFirst(knownService))})
	}
	if err := n.KillAgent(); err != nil {
		t.Fatal(err)
	}
	n.awaitConnected(t, agentPID, 0)
	if p, err := n.listenerOf(t.Context(), "lost"); err == nil {
		t.Errorf("the next agent still has %+v", p)
	}
	for _, pod := range []string{"alice", "bob", "carol"} {
		wantAllOK(t, []echo.Verdict{n.dial(t, pod, serverFirst(knownService))})
	}
}

// listenerOf returns what the agent says of a pod of namespace default.
func (n *node) listenerOf(ctx context.Context, pod string) (api.PodStatus, error) {
	s, err := n.tryStatus(ctx)
	if err != nil {
		return api.PodStatus{}, err
	}
	for _, p := range s.Pods {
		if p.Namespace == "default" && p.Name == pod {
			return p, nil
		}
	}
	return api.PodStatus{}, fmt.Errorf("the agent knows no pod %s", pod)
}

// impossiblePods are refused as they are reported, with the field's name, and
// change nothing.
func (n *node) impossiblePods(t *testing.T) {
	before := n.listeners(t)
	good := api.Pod{Namespace: "default", Name: "x", ServiceAccount: "x", IP: "10.244.99.98", NetNS: n.Paths().OutsideNS}
	for field, change := range map[string]func(*api.Pod){
		"netns: /run/netns/nowhere": func(p *api.Pod) { p.NetNS = "/run/netns/nowhere" },
		"netns: /dev/null":          func(p *api.Pod) { p.NetNS = "/dev/null" },
		"node's own":                func(p *api.Pod) { p.NetNS = n.Paths().NodeNetNS },
		"netns":                     func(p *api.Pod) { p.NetNS = "relative" },
		"ip":                        func(p *api.Pod) { p.IP = "fd00::1" },
		"name":                      func(p *api.Pod) { p.Name = "a/b" },
		"serviceAccount":            func(p *api.Pod) { p.ServiceAccount = "%UPSTREAM_HOST%" },
		"belongs to pod":            func(p *api.Pod) { p.NetNS = n.netns(t, "alice") },
	} {
		p := good
		change(&p)
		code, text, err := n.callCNI(t.Context(), http.MethodPost, "/v1/pods", p)
		if err != nil || code/100 != 4 || !strings.Contains(text, field) {
			t.Errorf("%s: %d %s (%v), want it refused with these words", field, code, text, err)
		}
	}
	if after := n.listeners(t); !slices.Equal(after, before) {
		t.Errorf("Envoy has listeners %v, had %v", after, before)
	}
}

func (n *node) netns(t *testing.T, pod string) string {
	t.Helper()
	for _, p := range n.Status().Pods {
		if p.Namespace == "default" && p.Name == pod {
			return p.NetNS
		}
	}
	t.Fatalf("no pod %s", pod)
	return ""
}

// canary puts one end of a link into a pod's namespace and the other into the
// node's. The kernel takes it away when it ends the namespace, which it does when
// nothing uses it any more: no process, no mount and no socket.
func (n *node) canary(t *testing.T, pod string) (alive func() bool) {
	t.Helper()
	name := "canary-" + pod
	if out, err := ip("-n", filepath.Base(n.Paths().NodeNetNS), "link", "add", name, "type", "veth", "peer", "name", "canary", "netns", filepath.Base(n.netns(t, pod))); err != nil {
		t.Fatalf("make the link: %v: %s", err, out)
	}
	return func() bool {
		_, err := ip("-n", filepath.Base(n.Paths().NodeNetNS), "link", "show", name)
		return err == nil
	}
}

// holder is a pod that makes connections by itself and holds them for as long as
// it lives.
func holder(name string, count int, targets ...string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: aether/client, args: [--mode, server-first, --count, "%[2]d", --concurrency, "%[2]d", --hold, 10m, %[3]s]}]
---
`, name, count, strings.Join(targets, ", "))
}

// deletedPod deletes a pod in the midst of its connections, and puts one of the
// same name in its place, to be deleted too.
func (n *node) deletedPod(t *testing.T) {
	const count = 20
	pod := holder("dave", count, "10.96.0.11:80")
	for round := range 2 {
		beside := n.meanwhile(t, "bob", "--mode", "server-first", "--duration", "4s", "--pause", "5ms", knownService)
		n.write(t, "dave.yaml", pod)
		eventually(t, settled, "dave has connections", func() error {
			if got := n.gauge(t, "cluster.svc.default.cold-1.greet.upstream_cx_active"); got != count {
				return fmt.Errorf("Envoy counts %d", got)
			}
			return nil
		})
		alive, netns := n.canary(t, "dave"), n.netns(t, "dave")
		if !alive() {
			t.Fatal("the canary is not there")
		}
		n.remove(t, "dave.yaml")
		began := time.Now()
		eventually(t, settled, "dave's listener is gone", func() error {
			if slices.Contains(n.listeners(t), "capture:default/dave") {
				return errors.New("it is there")
			}
			return nil
		})
		eventually(t, settled, "dave's namespace has no name any more", func() error {
			switch _, err := os.Stat(netns); {
			case err == nil:
				return errors.New("it is there")
			case !errors.Is(err, os.ErrNotExist):
				return err
			}
			return nil
		})
		unnamed := time.Since(began)
		eventually(t, time.Minute, "dave's namespace is ended by the kernel", func() error {
			if alive() {
				return errors.New("something still uses it")
			}
			return nil
		})
		t.Logf("round %d: no listener and no name after %d ms, ended after %d ms", round, unnamed.Milliseconds(), time.Since(began).Milliseconds())
		if s, err := n.listenerOf(t.Context(), "dave"); err == nil {
			t.Errorf("the agent still knows %+v", s)
		}
		wantAllOK(t, beside())
	}
}

// replacedPod deletes a pod and reports another of the same name, as of a
// StatefulSet, while Envoy stands still and owes an acknowledgement, so that it
// hears of both at once. The listener must be in the new namespace then.
func (n *node) replacedPod(t *testing.T) {
	path, remove := extraNetNS(t, sandboxName(t)+"a")
	pod := api.Pod{Namespace: "default", Name: "erin", UID: "1", ServiceAccount: "erin", IP: "10.244.99.97", NetNS: path}
	n.report(t, pod, http.StatusOK)
	listens(t, path, true)
	pod.IP = "10.244.99.95" // shows in no listener
	n.report(t, pod, http.StatusOK)

	resume := n.suspendEnvoy(t)
	n.write(t, "frank.yaml", client("frank"))
	eventually(t, settled, "the agent knows frank", func() error {
		_, err := n.listenerOf(t.Context(), "frank")
		return err
	})
	n.forget(t, "erin")
	remove()
	pod.UID = "2"
	pod.NetNS, _ = extraNetNS(t, sandboxName(t)+"b")
	n.report(t, pod, http.StatusAccepted)
	resume()
	n.report(t, pod, http.StatusOK)
	listens(t, pod.NetNS, true)
	n.awaitReady(t, "frank")
	n.forget(t, "erin")
	listens(t, pod.NetNS, false)
}

// forget tells the agent that a pod of namespace default is gone.
func (n *node) forget(t *testing.T, pod string) {
	t.Helper()
	code, text, err := n.callCNI(t.Context(), http.MethodDelete, "/v1/pods/default/"+pod, nil)
	if err != nil || code != http.StatusNoContent {
		t.Fatalf("tell the agent that pod %s is gone: %d %s (%v), want 204", pod, code, text, err)
	}
}

// report tells the agent of a pod as the CNI plugin does.
func (n *node) report(t *testing.T, pod api.Pod, want int) {
	t.Helper()
	code, text, err := n.callCNI(t.Context(), http.MethodPost, "/v1/pods", pod)
	if err != nil || code != want {
		t.Fatalf("report pod %s in %s: %d %s (%v), want %d", pod.Name, pod.NetNS, code, text, err, want)
	}
}

// listens waits until a capture listener is, or is not, in a namespace.
func listens(t *testing.T, netns string, want bool) {
	t.Helper()
	eventually(t, settled, fmt.Sprintf("a listener in %s: %t", netns, want), func() error {
		return ns.WithNetNSPath(netns, func(ns.NetNS) error {
			c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", envoy.CapturePort))
			if err != nil && !want {
				return nil
			}
			if err == nil {
				c.Close()
				if !want {
					err = errors.New("something listens")
				}
			}
			return err
		})
	})
}

// suspendEnvoy has Envoy stand still until resume is called.
func (n *node) suspendEnvoy(t *testing.T) (resume func()) {
	t.Helper()
	pid := n.EnvoyPID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatalf("suspend Envoy: %v", err)
	}
	resume = sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(resume)
	return resume
}
