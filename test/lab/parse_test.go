// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox"
)

func TestMapKeys(t *testing.T) {
	const listing = `{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"map": {"family": "ip", "name": "service-ips", "elem": [
		[{"concat": ["10.96.0.1", "tcp", 443]}, {"goto": {"target": "service-X"}}],
		[{"elem": {"val": {"concat": ["10.96.7.1", "udp", 53]}, "comment": "kube-system/dns"}}, {"goto": {"target": "reject-chain"}}]]}}]}`
	got, err := mapKeys([]byte(listing))
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"10.96.0.1", "tcp", "443"}, {"10.96.7.1", "udp", "53"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := mapKeys([]byte(`{"nftables": [{"map": {"elem": [["10.96.0.1", {}]]}}]}`)); err == nil {
		t.Error("a key that is no concatenation is read")
	}
}

func TestSamplesOf(t *testing.T) {
	const text = "# HELP a_total what\n" +
		"a_total{reason=\"no \\\"end\\\"\",service=\"s}\"} 3\n" +
		"a_total_more 4\na_total 5 1700000000\n"
	got, err := samplesOf([]byte(text), "a_total")
	if err != nil {
		t.Fatal(err)
	}
	want := []Sample{{map[string]string{"reason": `no \"end\"`, "service": "s}"}, 3}, {map[string]string{}, 5}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestDecode(t *testing.T) {
	got, err := decode([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\n# nothing\n---\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"b\"}}\n"))
	if err != nil || len(got) != 2 || got[0].GetName() != "a" || got[1].GetKind() != "Pod" {
		t.Errorf("decode: %v, %v", got, err)
	}
	if _, err := decode([]byte("metadata: {name: a}")); err == nil || !strings.Contains(err.Error(), "no kind") {
		t.Errorf("decode without a kind: %v", err)
	}
}

// statusCase is a pod as the sandbox has it, and the conditions that follow.
type statusCase struct {
	name  string
	local sandbox.PodStatus
	gates map[string]corev1.ConditionStatus // readiness gates and their conditions
	ready bool
	ip    string
	state string // of the container: running, terminated, waiting
}

func TestStatusOf(t *testing.T) {
	container := func(state, reason string, ready bool) []sandbox.ContainerStatus {
		return []sandbox.ContainerStatus{{Name: "c", State: state, Reason: reason, Ready: ready, PID: 7}}
	}
	for _, c := range []statusCase{
		{"being made", sandbox.PodStatus{Phase: "Pending", IP: "10.244.0.9", Containers: container("waiting", "", false)}, nil, false, "", "waiting"},
		{"runs, not ready", sandbox.PodStatus{Phase: "Running", IP: "10.244.0.9", Containers: container("running", "probe", false)}, nil, false, "10.244.0.9", "running"},
		{"ready", sandbox.PodStatus{Phase: "Running", IP: "10.244.0.9", Ready: true, Containers: container("running", "", true)}, nil, true, "10.244.0.9", "running"},
		{
			"ready, its gate closed",
			sandbox.PodStatus{Phase: "Running", IP: "10.244.0.9", Ready: true, Containers: container("running", "", true)},
			map[string]corev1.ConditionStatus{"example.org/gate": corev1.ConditionFalse},
			false, "10.244.0.9", "running",
		},
		{
			"ready, its gate open",
			sandbox.PodStatus{Phase: "Running", IP: "10.244.0.9", Ready: true, Containers: container("running", "", true)},
			map[string]corev1.ConditionStatus{"example.org/gate": corev1.ConditionTrue},
			true, "10.244.0.9", "running",
		},
		{"ended", sandbox.PodStatus{Phase: "Failed", IP: "10.244.0.9", Containers: container("terminated", "exit code 3", false)}, nil, false, "10.244.0.9", "terminated"},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t) })
	}
}

func (c statusCase) check(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	for gate, value := range c.gates {
		pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(gate)})
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(gate), Status: value})
	}
	now := metav1.NewTime(time.Unix(1000, 0))
	st := statusOf(pod, c.local, "172.18.0.3", now)
	if isReady(&corev1.Pod{Status: st}) != c.ready || st.PodIP != c.ip {
		t.Errorf("ready %v at %q, want %v at %q", !c.ready, st.PodIP, c.ready, c.ip)
	}
	s := st.ContainerStatuses[0].State
	if (s.Running != nil) != (c.state == "running") || (s.Terminated != nil) != (c.state == "terminated") || (s.Waiting != nil) != (c.state == "waiting") {
		t.Errorf("container state %+v, want %s", s, c.state)
	}
	if c.state == "terminated" && s.Terminated.ExitCode != 3 {
		t.Errorf("exit code %d, want 3", s.Terminated.ExitCode)
	}
	// Later, nothing has changed: no time has, either.
	pod.Status = st
	again := statusOf(pod, c.local, "172.18.0.3", metav1.NewTime(time.Unix(2000, 0)))
	if len(c.gates) == 0 && cmp.Diff(st, again) != "" {
		t.Errorf("the same status is another one later: %s", cmp.Diff(st, again))
	}
	if !sameStatus(st, again) && len(c.gates) == 0 {
		t.Error("it counts as changed")
	}
}

// Settings that cannot work are refused before anything is made.
func TestConfigIsChecked(t *testing.T) {
	for want, c := range map[string]Config{
		"lab name":     {Name: "Not-A-Name"},
		"service CIDR": {ServiceCIDR: netip.MustParsePrefix("10.96.0.0/30")},
		"node name":    {Nodes: []NodeConfig{{Name: "a"}, {Name: "a"}}},
	} {
		if _, err := c.withDefaults().resolve(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error about the %s", c, err, want)
		}
	}
}
