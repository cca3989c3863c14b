// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

// The cluster is what it says: Kubernetes 1.37.2, RBAC, kube-proxy in nftables
// mode.
func TestClusterIsReal(t *testing.T) {
	c := labtest.Cluster(t)
	v, err := c.Client().Discovery().ServerVersion()
	if err != nil || v.GitVersion != "v1.37.2" {
		t.Errorf("kube-apiserver is %v, %v", v, err)
	}
	for name, args := range map[string][]string{
		"kube-proxy": {"--version"}, "kube-controller-manager": {"--version"}, "kube-apiserver": {"--version"},
		"kubectl": {"version", "--client"}, "etcd": {"--version"},
	} {
		out, err := exec.Command(c.Program(name), args...).CombinedOutput()
		want := "v1.37.2"
		if name == "etcd" {
			want = "etcd Version: 3.7.0"
		}
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s is not %s: %v: %s", name, want, err, out)
		}
	}
	if mode, err := c.KubeProxyMode(t.Context()); err != nil || mode != "nftables" {
		t.Errorf("kube-proxy's mode is %q, %v", mode, err)
	}
}

// Programs of the host come in over the forwarder.
func TestKubectlWorksFromTheHost(t *testing.T) {
	c := labtest.Cluster(t)
	out, err := exec.Command(c.Program("kubectl"), "--kubeconfig", c.Kubeconfig(), "get", "nodes", "-o", "name").CombinedOutput()
	if want := "node/n1\nnode/n2\nnode/n3\n"; err != nil || string(out) != want {
		t.Errorf("kubectl get nodes: %v\n%s", err, out)
	}
}

// Nothing in the lab has a way to the host or beyond.
func TestThereIsNoWayOut(t *testing.T) {
	s := labtest.New(t)
	s.Apply(labtest.Client("captured", true), labtest.Client("plain", false))
	s.Ready("captured", "plain")
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	s.Must(err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	addrs, err := net.InterfaceAddrs()
	s.Must(err)
	targets := []string{"192.0.2.1:80"}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			targets = append(targets, fmt.Sprintf("%s:%d", n.IP, port))
		}
	}
	for _, target := range targets {
		for _, pod := range []string{"captured", "plain"} {
			if a := s.Dial(pod, echo.Client{Mode: "talk", Target: target, Timeout: 500 * time.Millisecond}); a.Outcome == echo.OK || a.Received > 0 {
				t.Errorf("pod %s reached %s", pod, target)
			}
		}
		err := s.Node.InNode(func() error {
			v := echo.Client{Mode: "talk", Target: target, Timeout: 300 * time.Millisecond}.Do(t.Context())
			if v.Local != "" {
				return errorf("the node reached %s", target)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A deleted pod goes through what a kubelet does: terminating and serving during
// its preStop hook, then SIGTERM, then gone.
func TestPodIsDeletedInOrder(t *testing.T) {
	s := labtest.New(t)
	s.Apply(labtest.Service("web", "web"), labtest.Client("captured", true), `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: n2
  terminationGracePeriodSeconds: 20
  containers:
  - name: echo
    image: aether/echo
    args: [--http, ":8080"]
    lifecycle: {preStop: {sleep: {seconds: 3}}}
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}`)
	s.Ready("captured")
	s.Endpoints("web", 1)
	vip := s.VIP("web")
	s.Answers("captured", vip, 80)
	began := time.Now()
	s.Must(s.Client().CoreV1().Pods(s.Namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	s.Eventually("its endpoint is terminating and serving", func() error { return endpointState(s, "web", false, true, true) })
	// The last one left is used although it is terminating (KEP-1669).
	if a := s.Try("captured", vip, 80); a.Outcome != echo.OK {
		t.Errorf("while it is terminating: %s", a)
	}
	s.Must(s.AwaitGone(t.Context(), s.Namespace+"/web"))
	if took := time.Since(began); took < 3*time.Second || took > 15*time.Second {
		t.Errorf("it was gone after %v, want the 3 s of its hook and little more", took)
	}
}

func endpointState(s *labtest.Space, service string, ready, serving, terminating bool) error {
	list, err := s.Client().DiscoveryV1().EndpointSlices(s.Namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return err
	}
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			c := e.Conditions
			if *c.Ready == ready && *c.Serving == serving && *c.Terminating == terminating {
				return nil
			}
		}
	}
	return errorf("slices are %v", list.Items)
}

// What the lab has is gone when it ends; a killed one is cleared away by the next.
func TestNothingIsLeft(t *testing.T) {
	const word = "ends"
	c := labtest.Own(t, word, lab.Config{Nodes: []lab.NodeConfig{{Name: "n1"}}, NoProxy: true})
	var pids []int
	for _, p := range []*lab.Process{c.Etcd, c.APIServer, c.ControllerManager, c.KubeProxy} {
		pids = append(pids, p.PID())
	}
	dir := c.Node.Paths().Dir
	if err := c.Down(t.Context()); err != nil {
		t.Errorf("down: %v", err)
	}
	for _, pid := range pids {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); pid == 0 || err == nil && bytes.Contains(b, []byte("kube")) {
			t.Errorf("process %d is still there: %s", pid, b)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	names, err := os.ReadDir("/run/netns")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.Contains(n.Name(), c.Name()) {
			t.Errorf("network namespace %s is still there", n.Name())
		}
	}
}
