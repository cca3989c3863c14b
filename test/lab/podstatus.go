// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox"
)

const goArch = runtime.GOARCH

// nodeResources are round figures that the topology of endpoints is computed from.
func nodeResources() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods: resource.MustParse("500"),
	}
}

// statusOf is what a kubelet writes of a pod that is as the sandbox says. It is a
// pure function but for now, which goes into conditions that change.
func statusOf(pod *corev1.Pod, local sandbox.PodStatus, hostIP string, now metav1.Time) corev1.PodStatus {
	st := corev1.PodStatus{
		Phase: corev1.PodPhase(local.Phase), HostIP: hostIP, HostIPs: []corev1.HostIP{{IP: hostIP}},
		StartTime: &now,
	}
	if pod.Status.StartTime != nil {
		st.StartTime = pod.Status.StartTime
	}
	if local.IP != "" && st.Phase != corev1.PodPending {
		st.PodIP, st.PodIPs = local.IP, []corev1.PodIP{{IP: local.IP}}
	}
	for _, c := range local.Containers {
		s := containerStatus(pod, c)
		if c.Init {
			st.InitContainerStatuses = append(st.InitContainerStatuses, s)
		} else {
			st.ContainerStatuses = append(st.ContainerStatuses, s)
		}
	}
	initialized := st.Phase != corev1.PodPending
	ready, reason, message := podReady(pod, local)
	st.Conditions = conditions(pod, now, []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		{Type: corev1.PodInitialized, Status: truth(initialized)},
		{Type: corev1.ContainersReady, Status: truth(local.Ready), Reason: reasonUnless(local.Ready), Message: local.Problem},
		{Type: corev1.PodReady, Status: truth(ready), Reason: reason, Message: message},
	})
	return st
}

func truth(b bool) corev1.ConditionStatus {
	if b {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

func reasonUnless(ready bool) string {
	if ready {
		return ""
	}
	return "ContainersNotReady"
}

// podReady: containers are ready, and so says every readiness gate (KEP-580).
func podReady(pod *corev1.Pod, local sandbox.PodStatus) (ready bool, reason, message string) {
	if !local.Ready {
		return false, "ContainersNotReady", local.Problem + reasonsOf(local)
	}
	for _, g := range pod.Spec.ReadinessGates {
		if c := condition(pod, g.ConditionType); c == nil || c.Status != corev1.ConditionTrue {
			return false, "ReadinessGatesNotReady", fmt.Sprintf("condition %s is not true", g.ConditionType)
		}
	}
	return true, "", ""
}

func reasonsOf(local sandbox.PodStatus) string {
	out := ""
	for _, c := range local.Containers {
		if !c.Ready && c.Reason != "" {
			out += " container " + c.Name + ": " + c.Reason
		}
	}
	return out
}

func condition(pod *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == t {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// conditions fills in since when each has its value.
func conditions(pod *corev1.Pod, now metav1.Time, cs []corev1.PodCondition) []corev1.PodCondition {
	for i := range cs {
		cs[i].LastTransitionTime = now
		if old := condition(pod, cs[i].Type); old != nil && old.Status == cs[i].Status {
			cs[i].LastTransitionTime = old.LastTransitionTime
		}
	}
	return cs
}

func containerStatus(pod *corev1.Pod, c sandbox.ContainerStatus) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.Name, Ready: c.Ready, RestartCount: int32(c.Restarts)}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == c.Name {
				s.Image = list[i].Image
			}
		}
	}
	running := c.State == "running"
	s.Started = &running
	switch c.State {
	case "running":
		s.ContainerID = fmt.Sprintf("lab://%d", c.PID)
		s.State.Running = &corev1.ContainerStateRunning{}
	case "terminated":
		t := &corev1.ContainerStateTerminated{Reason: "Completed"}
		if _, err := fmt.Sscanf(c.Reason, "exit code %d", &t.ExitCode); err != nil || t.ExitCode != 0 {
			t.Reason, t.Message = "Error", c.Reason
		}
		s.State.Terminated = t
		if c.Init && t.ExitCode == 0 {
			s.Ready = true
		}
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating", Message: c.Reason}
	}
	return s
}

// refusedStatus is that of a pod the lab cannot run.
func refusedStatus(pod *corev1.Pod, why error) corev1.PodStatus {
	return corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "NotInTheLab", Message: why.Error(), StartTime: pod.Status.StartTime,
	}
}

// sameStatus leaves times out: they do not change by themselves.
func sameStatus(a, b corev1.PodStatus) bool {
	strip := func(s corev1.PodStatus) corev1.PodStatus {
		s.StartTime = nil
		cs := make([]corev1.PodCondition, len(s.Conditions))
		copy(cs, s.Conditions)
		for i := range cs {
			cs[i].LastTransitionTime = metav1.NewTime(time.Time{})
		}
		s.Conditions = cs
		return s
	}
	return reflect.DeepEqual(strip(a), strip(b))
}

// statusPatch is a strategic merge patch: conditions of others stay.
func statusPatch(pod *corev1.Pod, st corev1.PodStatus) ([]byte, error) {
	b, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   st,
	})
	if err != nil {
		return nil, fmt.Errorf("write status of pod %s: %w", pod.Name, err)
	}
	return b, nil
}
