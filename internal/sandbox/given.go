// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aether.io/aether/internal/model"
)

// Pods need not come from manifests: a program that plays the kubelet of some API
// server says which are to run, and looks what became of them.

// SetPod runs a pod, or changes one that runs as a changed manifest of it would.
// It takes the place of a manifest's pod of that name. An error says what of it
// cannot be run here; nothing has changed then. The pod must not be modified
// afterwards.
func (n *Node) SetPod(pod *corev1.Pod) error {
	if _, problem := planPod(pod, n.cfg.Node); problem != nil {
		return errors.New(problem.Field + ": " + problem.Text)
	}
	n.mu.Lock()
	n.given[objectName(pod)] = pod
	n.mu.Unlock()
	n.kick()
	return nil
}

// RemovePod ends a pod that SetPod runs: its containers have grace to end, in
// place of the pod's own terminationGracePeriodSeconds, and are killed then. It
// does not wait: Pods lists the pod until nothing is left of it.
func (n *Node) RemovePod(pod string, grace time.Duration) {
	name := podName(pod)
	n.mu.Lock()
	delete(n.given, name)
	if p := n.running[name]; p != nil && !p.deleting() {
		p.shorter = &grace
	}
	n.mu.Unlock()
	n.kick()
}

// Pods returns all pods of which something is left, by name, and a channel that
// is closed when that may have changed.
func (n *Node) Pods() (pods []PodStatus, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.podStatus(), n.watchers
}

// podStatus needs mu.
func (n *Node) podStatus() []PodStatus {
	out := []PodStatus{}
	for _, name := range slices.SortedFunc(maps.Keys(n.running), model.Name.Compare) {
		out = append(out, n.running[name].status())
	}
	return out
}
