// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"aether.io/aether/internal/sandbox/echo"
)

// givenPod answers over HTTP on port 80, and for as long as drain after it was
// asked to end.
func givenPod(name, uid, drain string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "echo", Image: "aether/echo", Args: []string{"--http", ":80", "--drain", drain},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}},
		}}},
	}
}

// withSource leaves the objects to somebody else.
func withSource(c *Config) { c.Dirs, c.Source = nil, []string{"--kubeconfig", "/etc/agent.conf"} }

// awaitPod waits until the pod is as ok says.
func awaitPod(t *testing.T, n *Node, what string, ok func(PodStatus) bool) PodStatus {
	t.Helper()
	for deadline := time.After(10 * time.Second); ; {
		pods, changed := n.Pods()
		for _, p := range pods {
			if ok(p) {
				return p
			}
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("not within 10 s: %s; pods are %+v", what, pods)
		}
	}
}

func TestPodsAreGivenByTheProgram(t *testing.T) {
	n, _ := plain(t, "given", "", withSource)
	if err := n.SetPod(givenPod("a", "u1", "0s")); err != nil {
		t.Fatal(err)
	}
	p := awaitPod(t, n, "pod a is ready", func(p PodStatus) bool { return p.Name == "a" && p.Ready })
	if p.UID != "u1" {
		t.Errorf("its UID is %q, want u1", p.UID)
	}
	c := echo.Client{Mode: "http", Target: p.IP + ":80"}
	if err := n.InNode(func() error {
		if v := c.Do(t.Context()); v.Outcome != echo.OK {
			return errors.New(v.Error)
		}
		return nil
	}); err != nil {
		t.Errorf("ask pod a: %v", err)
	}

	// Another pod of that name takes its place.
	if err := n.SetPod(givenPod("a", "u2", "0s")); err != nil {
		t.Fatal(err)
	}
	awaitPod(t, n, "the second pod a is ready", func(p PodStatus) bool { return p.UID == "u2" && p.Ready })

	n.RemovePod("shop/a", 0)
	eventually(t, "nothing is left of pod a", func() bool {
		pods, _ := n.Pods()
		return len(pods) == 0
	})
	files, err := os.ReadDir(n.paths.generated())
	if err != nil || len(files) > 0 {
		t.Errorf("objects were written beside another source: %v, %v", files, err)
	}
}

func TestAPodThatCannotRunIsRefused(t *testing.T) {
	n, _ := plain(t, "givenbad", "", withSource)
	pod := givenPod("a", "u1", "0s")
	pod.Spec.Containers[0].Image = "nginx"
	if err := n.SetPod(pod); err == nil || !strings.Contains(err.Error(), "spec.containers[0]") {
		t.Errorf("SetPod: %v, want the field that is wrong", err)
	}
}

// The pod drains for a minute and would be given half of one.
func TestRemovePodGivesItsOwnGrace(t *testing.T) {
	n, _ := plain(t, "givengrace", "", withSource)
	if err := n.SetPod(givenPod("a", "u1", "1m")); err != nil {
		t.Fatal(err)
	}
	awaitPod(t, n, "pod a is ready", func(p PodStatus) bool { return p.Ready })
	began := time.Now()
	n.RemovePod("shop/a", 300*time.Millisecond)
	awaitPod(t, n, "pod a is terminating and ready still", func(p PodStatus) bool { return p.Terminating && p.Ready })
	eventually(t, "nothing is left of pod a", func() bool {
		pods, _ := n.Pods()
		return len(pods) == 0
	})
	if took := time.Since(began); took < 300*time.Millisecond || took > 9*time.Second {
		t.Errorf("it was gone after %v, want its 300 ms of grace and little more", took)
	}
}

func TestPrepareComesBeforeTheAgent(t *testing.T) {
	var seen string
	n, _ := plain(t, "givenprep", "", fakes(t), withSource, func(c *Config) {
		c.Prepare = func(_ context.Context, nodeNetNS string, nodeIP netip.Addr) error {
			seen = nodeNetNS + " " + nodeIP.String()
			return nil
		}
	})
	if want := n.nodeNS + " 172.18.0.2"; seen != want {
		t.Errorf("prepared %q, want %q", seen, want)
	}
	flags := n.agentFlags()
	if slices.Contains(flags, "--manifest-dir") || !slices.Contains(flags, "--kubeconfig") {
		t.Errorf("the agent is started with %q", flags)
	}
}

func TestUpEndsWhenPrepareFails(t *testing.T) {
	needRoot(t)
	want := errors.New("no API server")
	c := Config{Name: "givenfail", StateDir: t.TempDir(), NoProxy: true, Prepare: func(context.Context, string, netip.Addr) error { return want }}
	withSource(&c)
	if _, err := Up(t.Context(), c); !errors.Is(err, want) {
		t.Errorf("Up: %v, want %v", err, want)
	}
	if left, err := sandboxNetNS("givenfail"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
