// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab/labtest"
)

// While kube-apiserver is away, and killed rather than stopped, what works goes on
// to work; when it is back so is the lab: pods made then run.
func TestAPIServerComesBack(t *testing.T) {
	s := labtest.New(t)
	s.Apply(labtest.Service("web", "web"), labtest.EchoPod("web", "web", "n2"), labtest.Client("captured", true))
	s.Endpoints("web", 1)
	s.Ready("captured")
	vip := s.VIP("web")
	s.Answers("captured", vip, 80)

	s.APIServer.Kill()
	if _, err := s.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("kube-apiserver answers after it was killed")
	}
	for range 5 {
		if a := s.Try("captured", vip, 80); a.Outcome != echo.OK {
			t.Errorf("without kube-apiserver: %s", a)
		}
	}
	s.StartAPIServer()
	s.Apply(labtest.Service("late", "late"), labtest.EchoPod("late", "late", "n3"))
	if by := s.Answers("captured", s.VIP("late"), 80); by != "late" {
		t.Errorf("answered by %q", by)
	}
}

// After a compaction and a restart of kube-apiserver its history is gone, as who
// watches from an old version is told.
func TestCompactedHistoryIsGone(t *testing.T) {
	s := labtest.New(t)
	ctx := t.Context()
	services := s.Client().CoreV1().Services(s.Namespace)
	s.Apply(labtest.Service("a", "a"))
	old, err := services.List(ctx, metav1.ListOptions{})
	s.Must(err)
	s.Apply(labtest.Service("b", "b"))
	s.Must(s.CompactEtcd(ctx))
	s.RestartAPIServer()
	w, err := services.Watch(ctx, metav1.ListOptions{ResourceVersion: old.ResourceVersion})
	if err == nil {
		e := <-w.ResultChan()
		w.Stop()
		err = apierrors.FromObject(e.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before the compaction: %v, want that it is gone", err)
	}
}

// The annotation of a pod switches its readiness.
func TestReadinessIsSwitched(t *testing.T) {
	s := labtest.New(t)
	s.Apply(labtest.Service("web", "web"), labtest.EchoPod("web", "web", "n2"), labtest.Client("captured", true))
	s.Endpoints("web", 1)
	s.Ready("captured")
	vip := s.VIP("web")
	s.Answers("captured", vip, 80)
	s.Must(s.Node.SetReady(s.Namespace+"/web", "", false))
	s.Endpoints("web", 0)
	s.Eventually("it is refused", func() error {
		if a := s.Try("captured", vip, 80); a.Outcome != echo.Reset {
			return errorOf(a)
		}
		return nil
	})
	s.Must(s.Node.ResetReady(s.Namespace+"/web", ""))
	s.Answers("captured", vip, 80)
}

// A lab whose holder is killed leaves no process, and the rest goes with the next
// command.
func TestKilledLabIsClearedAway(t *testing.T) {
	const name = "tkilled"
	program := filepath.Join(t.TempDir(), "lab")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("go", "build", "-o", program, "./cmd/lab")
	t.Cleanup(func() {
		if t.Failed() {
			_ = exec.Command(program, "down", "-name", name).Run()
		}
	})
	if out := run(program, "up", "-name", name, "-no-proxy"); !strings.Contains(out, "KUBECONFIG=") {
		t.Errorf("up does not say how to look around:\n%s", out)
	}
	lock := "/run/aether-lab/" + name + ".lock"
	b, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		t.Fatal(err)
	}
	if len(inLab(t, name)) < 4 {
		t.Errorf("processes %v, want etcd, kube-apiserver, kube-controller-manager and kube-proxy", inLab(t, name))
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for left := inLab(t, name); len(left) > 0; left = inLab(t, name) {
		if ctx.Err() != nil {
			t.Fatalf("processes outlive the holder: %v", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if out := run(program, "down", "-name", name); !strings.Contains(out, "aether-"+name+"-control") {
		t.Errorf("down says: %s", out)
	}
	for _, path := range []string{lock, "/run/aether-lab/" + name, "/run/netns/aether-" + name + "-control", "/run/netns/aether-" + name + "-node"} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if out := run(program, "down", "-name", name); !strings.Contains(out, "nothing was there") {
		t.Errorf("a second down says: %s", out)
	}
}

// inLab lists the processes that hold the network namespaces of a lab.
func inLab(t *testing.T, name string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]bool{}
	for _, part := range []string{"control", "node"} {
		if st, err := os.Stat("/run/netns/aether-" + name + "-" + part); err == nil {
			in[fmt.Sprintf("net:[%d]", st.Sys().(*syscall.Stat_t).Ino)] = true
		}
	}
	var out []string
	for _, e := range entries {
		ns, err := os.Readlink("/proc/" + e.Name() + "/ns/net")
		if err == nil && in[ns] {
			out = append(out, e.Name())
		}
	}
	return out
}
