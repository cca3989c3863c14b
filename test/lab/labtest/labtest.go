// SPDX-License-Identifier: Apache-2.0

// Package labtest lets the tests of one package share a lab: it is made when the
// first of them wants it and taken down after the last. What goes wrong ends the
// test; every test has a Kubernetes namespace of its own.
package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
)

// Patience is how long the cluster has to do what it was asked for, unless a test
// is about time: it has two cores that others use, too.
const Patience = 60 * time.Second

// shared is the lab of this test binary.
var shared struct {
	sync.Mutex
	config  lab.Config
	cluster *lab.Cluster
	err     error
	log     logBuffer
}

// Main runs the tests of a package and takes their lab down. TestMain calls it:
//
//	func TestMain(m *testing.M) { labtest.Main(m, lab.Config{}) }
//
// The lab is named after the package's directory, so that a run clears away what a
// killed one left; a second run of the same package waits for the first.
func Main(m *testing.M, c lab.Config) {
	if c.Name == "" {
		c.Name = nameOf("")
	}
	shared.config = c
	code := m.Run()
	if err := down(); err != nil {
		fmt.Fprintln(os.Stderr, "take the lab down:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// nameOf names a lab after this package's directory and a word.
func nameOf(word string) string {
	dir, err := os.Getwd()
	if err != nil {
		dir = os.Args[0]
	}
	h := fnv.New32a()
	h.Write([]byte(dir + " " + word))
	return fmt.Sprintf("t%08x", h.Sum32())
}

func down() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		return nil
	}
	return shared.cluster.Down(context.Background())
}

// Cluster returns the lab that all tests of the package share. Who stops one of
// its programs starts it again before the test ends.
func Cluster(t testing.TB) *lab.Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		c := shared.config
		c.Progress = func(s string) { fmt.Fprintln(os.Stderr, "lab:", s) }
		c.Log = slog.New(slog.NewTextHandler(&shared.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		shared.cluster, shared.err = upWhenFree(c)
	}
	if shared.err != nil {
		t.Fatalf("bring the lab up: %v", shared.err)
	}
	return shared.cluster
}

// Own brings a lab up for one test alone and takes it down at its end. The word
// tells it from other labs of the package.
func Own(t testing.TB, word string, c lab.Config) *lab.Cluster {
	t.Helper()
	c.Name = nameOf(word)
	c.Progress = func(s string) { t.Log("lab:", s) }
	cluster, err := upWhenFree(c)
	if err != nil {
		t.Fatalf("bring a lab up: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			Dump(t, cluster)
		}
		if err := cluster.Down(context.Background()); err != nil {
			t.Errorf("take the lab down: %v", err)
		}
	})
	return cluster
}

// upWhenFree waits for a lab of that name to end: of another run of these tests.
func upWhenFree(c lab.Config) (*lab.Cluster, error) {
	for deadline := time.Now().Add(10 * time.Minute); ; {
		cluster, err := lab.Up(context.Background(), c)
		if !errors.Is(err, lab.ErrRunning) || time.Now().After(deadline) {
			return cluster, err
		}
		time.Sleep(time.Second)
	}
}

// Space is one test's part of a lab: a namespace, which is deleted when the test
// ends. Names of pods and Services are of that namespace. Methods end the test
// when they cannot do what they are for.
type Space struct {
	*lab.Cluster
	Namespace string
	t         testing.TB
}

// New makes a namespace in the lab that the package's tests share.
func New(t testing.TB) *Space {
	t.Helper()
	return In(t, Cluster(t))
}

// In is New for another lab.
func In(t testing.TB, c *lab.Cluster) *Space {
	t.Helper()
	s := &Space{Cluster: c, Namespace: namespaceOf(t), t: t}
	ctx := s.ctx(Patience)
	if err := c.CreateNamespace(ctx, s.Namespace); err != nil {
		t.Fatal(err)
	}
	if err := c.AwaitServiceAccount(ctx, s.Namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			Dump(t, c)
		}
		now := int64(0) // its pods as well
		err := c.Client().CoreV1().Namespaces().Delete(context.Background(), s.Namespace, metav1.DeleteOptions{GracePeriodSeconds: &now})
		if err != nil {
			t.Errorf("delete namespace %s: %v", s.Namespace, err)
		}
	})
	return s
}

var spaces struct {
	sync.Mutex
	count int
}

// namespaceOf makes a name out of the test's, another one each time.
func namespaceOf(t testing.TB) string {
	spaces.Lock()
	defer spaces.Unlock()
	spaces.count++
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, strings.TrimPrefix(t.Name(), "Test"))
	return fmt.Sprintf("%s-%d", strings.Trim(name[:min(len(name), 40)], "-"), spaces.count)
}

// ctx is bounded, and ends with the test.
func (s *Space) ctx(most time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), most)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *Space) name(n string) string {
	if strings.Contains(n, "/") {
		return n
	}
	return s.Namespace + "/" + n
}

// Must ends the test on an error.
func (s *Space) Must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// Apply applies objects in the test's namespace.
func (s *Space) Apply(yaml ...string) {
	s.t.Helper()
	s.Must(s.Cluster.Apply(s.ctx(Patience), s.Namespace, strings.Join(yaml, "\n---\n")))
}

// Remove deletes objects and does not wait for pods to end.
func (s *Space) Remove(yaml string) {
	s.t.Helper()
	s.Must(s.Delete(s.ctx(Patience), s.Namespace, yaml))
}

// Ready waits for pods.
func (s *Space) Ready(pods ...string) {
	s.t.Helper()
	for _, p := range pods {
		s.Must(s.AwaitReady(s.ctx(Patience), s.name(p)))
	}
}

// Endpoints waits until a Service has so many ready endpoints in the API.
func (s *Space) Endpoints(service string, count int) {
	s.t.Helper()
	s.Must(s.AwaitEndpoints(s.ctx(Patience), s.name(service), count))
}

// StartAPIServer starts kube-apiserver again, and the controllers anew. Each of their
// watches that found it away waits longer every time before it asks again, up to a
// minute, until there were two minutes without such a wait (client-go's reflector). A
// test that makes objects would wait for that.
func (s *Space) StartAPIServer() {
	s.t.Helper()
	ctx := context.Background() // tests start it when they are cleaned up, too
	s.Must(s.APIServer.Start(ctx))
	s.Must(s.ControllerManager.Restart(ctx))
}

// RestartAPIServer is StartAPIServer for one that may run.
func (s *Space) RestartAPIServer() {
	s.t.Helper()
	s.APIServer.Stop()
	s.StartAPIServer()
}

// VIP returns a Service's ClusterIP.
func (s *Space) VIP(service string) netip.Addr {
	s.t.Helper()
	a, err := s.Cluster.VIP(s.ctx(Patience), s.name(service))
	s.Must(err)
	return a
}

// Try makes one connection from a pod to a port of a ClusterIP, in mode http, with
// 2 s for connecting and for the answer each.
func (s *Space) Try(pod string, vip netip.Addr, port int) lab.Answer {
	s.t.Helper()
	return s.Dial(pod, echo.Client{Mode: "http", Target: lab.Target(vip, port), Timeout: 2 * time.Second})
}

// Dial makes one connection from a pod.
func (s *Space) Dial(pod string, c echo.Client) lab.Answer {
	s.t.Helper()
	a, err := s.Cluster.Dial(s.t.Context(), s.name(pod), c)
	s.Must(err)
	return a
}

// Answers waits until a pod is answered at a port of a ClusterIP, and says by whom.
func (s *Space) Answers(pod string, vip netip.Addr, port int) string {
	s.t.Helper()
	var by string
	s.Eventually(fmt.Sprintf("%s is answered at %s", pod, lab.Target(vip, port)), func() error {
		a := s.Try(pod, vip, port)
		by = a.By.Pod
		if a.Outcome != echo.OK {
			return errors.New(a.String())
		}
		return nil
	})
	return by
}

// Eventually waits until check returns nil, for as long as Patience.
func (s *Space) Eventually(what string, check func() error) {
	s.t.Helper()
	s.Must(lab.Poll(s.ctx(Patience), what, func(context.Context) error { return check() }))
}

// Dump prints what helps to see why a test failed.
func Dump(t testing.TB, c *lab.Cluster) {
	t.Logf("——— the lab's own log\n%s", lastLines(shared.log.String(), 30))
	for _, p := range []*lab.Process{c.APIServer, c.ControllerManager, c.KubeProxy} {
		t.Logf("——— %s", p.Tail(15))
	}
	paths := c.Node.Paths()
	for f, lines := range map[string]int{paths.AgentLog: 20, paths.EnvoyLog: 10, paths.AccessLog: 5} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Logf("——— %v", err)
			continue
		}
		t.Logf("——— %s\n%s", f, lastLines(string(b), lines))
	}
	pods, _ := c.Node.Pods()
	for _, p := range pods {
		t.Logf("——— pod %s/%s on %s at %s, captured %v: %s, ready %v, terminating %v %s",
			p.Namespace, p.Name, p.Node, p.IP, p.Captured, p.Phase, p.Ready, p.Terminating, p.Problem)
	}
}

func lastLines(s string, n int) string {
	all := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}

// logBuffer is a bytes.Buffer for several goroutines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
