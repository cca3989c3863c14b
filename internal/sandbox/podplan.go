// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aether.io/aether/internal/capture"
	"aether.io/aether/internal/model"
)

// Annotations the sandbox reads on Pods.
const (
	// outsideAnnotation lists the IPv4 addresses a pod of the external world
	// holds; the pod runs in the outside namespace.
	outsideAnnotation = "sandbox.aether.io/outside"
	// readyAnnotation "true" or "false" overrides every probe of the pod and may
	// be changed while it runs.
	readyAnnotation = "sandbox.aether.io/ready"

	managedLabel = "aether.io/managed"
)

// podPlan is one pod that is to run, with everything that is fixed for its life.
type podPlan struct {
	name        model.Name
	pod         *corev1.Pod
	node        string // empty for a pod of the external world
	captured    bool
	outside     []netip.Addr
	hostNetwork bool
	fixedIP     netip.Addr
	forced      *bool // readyAnnotation
	grace       time.Duration
	// identity is equal for two manifests that may share one running pod.
	identity string
}

// planPods turns Pod manifests into what is to run on node. A manifest that
// cannot run is a problem and leaves the others alone.
func planPods(pods map[model.Name]*corev1.Pod, node string) (map[model.Name]podPlan, []Problem) {
	out := map[model.Name]podPlan{}
	var problems []Problem
	byIP := map[netip.Addr]model.Name{}
	for _, name := range slices.SortedFunc(maps.Keys(pods), model.Name.Compare) {
		p, err := planPod(pods[name], node)
		if err != nil {
			err.Object = "Pod " + name.String()
			problems = append(problems, *err)
			continue
		}
		for _, a := range append(slices.Clone(p.outside), p.fixedIP) {
			if other, dup := byIP[a]; dup && a.IsValid() {
				problems = append(problems, Problem{
					Object: "Pod " + name.String(), Field: "status.podIP",
					Text: fmt.Sprintf("%s belongs to Pod %s already", a, other),
				})
				err = &problems[len(problems)-1]
				break
			}
		}
		if err != nil {
			continue
		}
		for _, a := range append(slices.Clone(p.outside), p.fixedIP) {
			if a.IsValid() {
				byIP[a] = name
			}
		}
		out[name] = p
	}
	return out, problems
}

func planPod(pod *corev1.Pod, node string) (podPlan, *Problem) {
	p := podPlan{name: objectName(pod), pod: pod, node: cmp.Or(pod.Spec.NodeName, node), grace: 30 * time.Second}
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil && *g >= 0 {
		p.grace = time.Duration(*g) * time.Second
	}
	if text, ok := pod.Annotations[outsideAnnotation]; ok {
		for s := range strings.SplitSeq(text, ",") {
			a, err := netip.ParseAddr(strings.TrimSpace(s))
			if err != nil || !a.Is4() || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
				return p, &Problem{
					Field: "metadata.annotations[" + outsideAnnotation + "]",
					Text:  fmt.Sprintf("%q is not a usable IPv4 address", strings.TrimSpace(s)),
				}
			}
			p.outside = append(p.outside, a)
		}
		p.node = ""
	}
	mine := p.node == node
	p.hostNetwork = pod.Spec.HostNetwork && mine
	p.captured = mine && !p.hostNetwork && pod.Labels[managedLabel] != "false"
	if s := pod.Status.PodIP; s != "" && p.outside == nil && !p.hostNetwork {
		a, err := netip.ParseAddr(s)
		if err != nil || !a.Is4() || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
			return p, &Problem{Field: "status.podIP", Text: fmt.Sprintf("%q is not a usable IPv4 address", s)}
		}
		p.fixedIP = a
	}
	if s, ok := pod.Annotations[readyAnnotation]; ok {
		v := s == "true"
		if !v && s != "false" {
			return p, &Problem{
				Field: "metadata.annotations[" + readyAnnotation + "]",
				Text:  fmt.Sprintf("%q: want true or false", s),
			}
		}
		p.forced = &v
	}
	if p.captured {
		if _, err := capture.ParseAnnotations(pod.Annotations, true); err != nil {
			return p, &Problem{Field: "metadata.annotations", Text: err.Error()}
		}
	}
	for i, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if _, err := containerCommand(&c); err != nil {
			field := fmt.Sprintf("spec.containers[%d]", i-len(pod.Spec.InitContainers))
			if i < len(pod.Spec.InitContainers) {
				field = fmt.Sprintf("spec.initContainers[%d]", i)
			}
			return p, &Problem{Field: field, Text: err.Error()}
		}
	}
	if len(pod.Spec.Containers) == 0 {
		return p, &Problem{Field: "spec.containers", Text: "a pod needs at least one container"}
	}
	p.identity = podIdentity(p)
	return p, nil
}

// podIdentity covers what cannot change under a running pod: its spec, address,
// place and capture settings. Labels, other annotations and readiness can.
func podIdentity(p podPlan) string {
	capture := map[string]string{}
	for k, v := range p.pod.Annotations {
		if strings.HasPrefix(k, "capture.aether.io/") {
			capture[k] = v
		}
	}
	// Marshalling API types and string maps cannot fail.
	b, _ := json.Marshal(struct {
		Spec     corev1.PodSpec
		UID      string
		IP       netip.Addr
		Outside  []netip.Addr
		Node     string
		Captured bool
		Capture  map[string]string
	}{p.pod.Spec, string(p.pod.UID), p.fixedIP, p.outside, p.node, p.captured, capture})
	return string(b)
}

// podKey names the pod in file and namespace names: a namespace holds no dot, so
// two pods never share one.
func podKey(n model.Name) string { return n.Namespace + "." + n.Name }

// hostname is the pod's own.
func (p podPlan) hostname() string { return cmp.Or(p.pod.Spec.Hostname, p.name.Name) }

// serviceAccount defaults as the API server does.
func (p podPlan) serviceAccount() string { return cmp.Or(p.pod.Spec.ServiceAccountName, "default") }

// restarts reports whether a container that exited with code is started
// again.
func (p podPlan) restarts(c *corev1.Container, init bool, code int) bool {
	if init && isSidecar(c) {
		return true
	}
	switch p.pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return !init || code != 0
}
