// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/util/workqueue"

	"aether.io/aether/internal/sandbox"
)

// podIPAnnotation fixes a pod's address, which otherwise is the next free one.
const podIPAnnotation = "lab.aether.io/pod-ip"

// kubeletWorkers is how many pods are looked at at once.
const kubeletWorkers = 4

// kubelet plays scheduler and kubelet of all nodes: it binds pods that nobody
// bound, lets the sandbox run them, writes their status, and ends them in the
// order a kubelet keeps: deletion timestamp, preStop, SIGTERM, grace, gone.
type kubelet struct {
	client kubernetes.Interface
	node   *sandbox.Node
	nodes  []corev1.Node // with labels and addresses
	log    *slog.Logger
	queue  workqueue.TypedRateLimitingInterface[string]
	lister listersv1.PodLister
	pods   *podStore
	ctx    context.Context
	end    context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	next   int // node of the next pod that is bound
	local  map[string]sandbox.PodStatus
	given  map[types.UID]*corev1.Pod // as SetPod got them
	ending map[types.UID]bool
	wrote  map[types.UID]*corev1.PodStatus
}

func newKubelet(client kubernetes.Interface, node *sandbox.Node, cfg Config, log *slog.Logger) *kubelet {
	k := &kubelet{
		client: client, node: node, log: log,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](20*time.Millisecond, time.Second)),
		local: map[string]sandbox.PodStatus{}, given: map[types.UID]*corev1.Pod{},
		ending: map[types.UID]bool{}, wrote: map[types.UID]*corev1.PodStatus{},
	}
	for i := range cfg.Nodes {
		k.nodes = append(k.nodes, *nodeObject(cfg, i))
	}
	k.pods = newPodStore(k.queue.Add)
	k.lister = listersv1.NewPodLister(k.pods)
	k.ctx, k.end = context.WithCancel(context.Background())
	return k
}

func (k *kubelet) start() {
	k.wg.Go(func() { k.pods.run(k.ctx, k.client) })
	k.wg.Go(k.watchLocal)
	for range kubeletWorkers {
		k.wg.Go(k.work)
	}
}

func (k *kubelet) stop() {
	k.end()
	k.queue.ShutDown()
	k.wg.Wait()
}

// watchLocal has every pod looked at whose state in the sandbox changed.
func (k *kubelet) watchLocal() {
	for {
		pods, changed := k.node.Pods()
		now := map[string]sandbox.PodStatus{}
		for _, p := range pods {
			now[p.Namespace+"/"+p.Name] = p
		}
		k.mu.Lock()
		was := k.local
		k.local = now
		k.mu.Unlock()
		for key, p := range now {
			if !reflect.DeepEqual(was[key], p) {
				k.queue.Add(key)
			}
		}
		for key := range was {
			if _, still := now[key]; !still {
				k.queue.Add(key)
			}
		}
		select {
		case <-changed:
		case <-k.ctx.Done():
			return
		}
	}
}

func (k *kubelet) work() {
	for {
		key, quit := k.queue.Get()
		if quit {
			return
		}
		err := k.sync(key)
		switch {
		case err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			k.queue.Forget(key) // an event says what it is now
		case k.ctx.Err() == nil:
			k.log.Debug("pod is not in order yet", "pod", key, "err", err)
			k.queue.AddRateLimited(key)
		}
		k.queue.Done(key)
	}
}

// sync brings one pod in line with its object.
func (k *kubelet) sync(key string) error {
	namespace, name := splitName(key)
	pod, err := k.lister.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		k.node.RemovePod(key, 0) // it was deleted by force, or is gone already
		k.mu.Lock()
		k.forget(types.UID(k.local[key].UID))
		k.mu.Unlock()
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil:
		return k.bind(pod)
	case k.indexOf(pod.Spec.NodeName) < 0:
		return nil // of a node the lab does not have
	case pod.DeletionTimestamp != nil:
		return k.finish(pod)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		k.node.RemovePod(key, graceOf(pod))
		return nil
	}
	if err := k.give(pod); err != nil {
		k.log.Warn("pod cannot run in the lab", "pod", key, "err", err)
		return k.writeStatus(pod, refusedStatus(pod, err))
	}
	return k.publish(pod)
}

func (k *kubelet) indexOf(node string) int {
	for i := range k.nodes {
		if k.nodes[i].Name == node {
			return i
		}
	}
	return -1
}

// bind gives the pod the next node whose labels its nodeSelector wants.
func (k *kubelet) bind(pod *corev1.Pod) error {
	selector := labels.SelectorFromSet(pod.Spec.NodeSelector)
	k.mu.Lock()
	node := ""
	for range k.nodes {
		n := &k.nodes[k.next%len(k.nodes)]
		k.next++
		if selector.Matches(labels.Set(n.Labels)) {
			node = n.Name
			break
		}
	}
	k.mu.Unlock()
	if node == "" {
		k.log.Warn("no node has the labels that a pod wants", "pod", pod.Namespace+"/"+pod.Name)
		return nil
	}
	return k.client.CoreV1().Pods(pod.Namespace).Bind(k.ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
}

// give lets the sandbox run the pod, or tells it what of the pod has changed.
func (k *kubelet) give(pod *corev1.Pod) error {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Labels: pod.Labels, Annotations: pod.Annotations,
		},
		Spec: pod.Spec, Status: corev1.PodStatus{PodIP: pod.Annotations[podIPAnnotation]},
	}
	k.mu.Lock()
	last := k.given[pod.UID]
	k.mu.Unlock()
	if last != nil && reflect.DeepEqual(last, p) {
		return nil
	}
	if err := k.node.SetPod(p); err != nil {
		return err
	}
	k.mu.Lock()
	k.given[pod.UID] = p
	k.mu.Unlock()
	return nil
}

// publish writes the status of a pod that runs.
func (k *kubelet) publish(pod *corev1.Pod) error {
	k.mu.Lock()
	local, here := k.local[pod.Namespace+"/"+pod.Name]
	k.mu.Unlock()
	if !here || local.UID != string(pod.UID) {
		return nil // the sandbox has not made it yet, and says so when it has
	}
	i := k.indexOf(pod.Spec.NodeName)
	return k.writeStatus(pod, statusOf(pod, local, k.nodes[i].Status.Addresses[0].Address, metav1.Now()))
}

// writeStatus writes a status that differs from the last one written.
func (k *kubelet) writeStatus(pod *corev1.Pod, st corev1.PodStatus) error {
	k.mu.Lock()
	last := k.wrote[pod.UID]
	k.mu.Unlock()
	if last != nil && sameStatus(*last, st) {
		return nil
	}
	patch, err := statusPatch(pod, st)
	if err != nil {
		return err
	}
	if _, err := k.client.CoreV1().Pods(pod.Namespace).Patch(k.ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	k.mu.Lock()
	k.wrote[pod.UID] = &st
	k.mu.Unlock()
	return nil
}

// finish leads a deleted pod to its end, and then removes its object.
func (k *kubelet) finish(pod *corev1.Pod) error {
	key := pod.Namespace + "/" + pod.Name
	if k.inSandbox(key, pod.UID) {
		k.mu.Lock()
		begun := k.ending[pod.UID]
		k.ending[pod.UID] = true
		k.mu.Unlock()
		if !begun {
			k.wg.Go(func() { k.endPod(pod) })
		}
		return k.publish(pod)
	}
	k.node.RemovePod(key, 0)
	if k.inSandbox(key, pod.UID) {
		return errors.New("it is being made, and ends then")
	}
	k.mu.Lock()
	k.forget(pod.UID)
	k.mu.Unlock()
	now := int64(0)
	err := k.client.CoreV1().Pods(pod.Namespace).Delete(k.ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("remove pod: %w", err)
	}
	return nil
}

// forget drops what was remembered of a pod. It needs mu.
func (k *kubelet) forget(uid types.UID) {
	delete(k.given, uid)
	delete(k.ending, uid)
	delete(k.wrote, uid)
}

// inSandbox reports whether something of the pod is left there. It asks the
// sandbox itself.
func (k *kubelet) inSandbox(key string, uid types.UID) bool {
	pods, _ := k.node.Pods()
	for _, p := range pods {
		if p.Namespace+"/"+p.Name == key && p.UID == string(uid) {
			return true
		}
	}
	return false
}

// graceOf is how long a pod has to end.
func graceOf(pod *corev1.Pod) time.Duration {
	for _, s := range []*int64{pod.DeletionGracePeriodSeconds, pod.Spec.TerminationGracePeriodSeconds} {
		if s != nil && *s >= 0 {
			return time.Duration(*s) * time.Second
		}
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// endPod runs the preStop hooks and then ends the containers, which have what is
// left of the grace, and 2 s at least, as kubelets give.
func (k *kubelet) endPod(pod *corev1.Pod) {
	grace := graceOf(pod)
	began := time.Now()
	ctx, cancel := context.WithTimeout(k.ctx, grace)
	defer cancel()
	var hooks sync.WaitGroup
	for i := range pod.Spec.Containers {
		if l := pod.Spec.Containers[i].Lifecycle; l != nil && l.PreStop != nil {
			hooks.Go(func() {
				if err := k.preStop(ctx, pod, l.PreStop); err != nil && k.ctx.Err() == nil {
					k.log.Warn("preStop hook", "pod", pod.Namespace+"/"+pod.Name, "err", err)
				}
			})
		}
	}
	hooks.Wait()
	if grace > 0 {
		grace = max(grace-time.Since(began), 2*time.Second)
	}
	k.node.RemovePod(pod.Namespace+"/"+pod.Name, grace)
}

// preStop runs one hook; sleep and exec are done here.
func (k *kubelet) preStop(ctx context.Context, pod *corev1.Pod, h *corev1.LifecycleHandler) error {
	switch {
	case h.Sleep != nil:
		select {
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	case h.Exec != nil:
		code, err := k.node.Exec(ctx, pod.Namespace+"/"+pod.Name, h.Exec.Command, sandbox.Stdio{})
		if err == nil && code != 0 {
			err = fmt.Errorf("%s: exit code %d", strings.Join(h.Exec.Command, " "), code)
		}
		return err
	}
	return errors.New("only sleep and exec are done in the lab")
}

// nodeObject is what a node's kubelet registers.
func nodeObject(cfg Config, i int) *corev1.Node {
	n := cfg.Nodes[i]
	l := map[string]string{
		corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: goArch,
	}
	if n.Zone != "" {
		l[corev1.LabelTopologyZone] = n.Zone
	}
	maps.Copy(l, n.Labels)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: l},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: cfg.nodeIP(i).String()},
				{Type: corev1.NodeHostName, Address: n.Name},
			},
			Capacity: nodeResources(), Allocatable: nodeResources(),
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Lab", Message: "plays a kubelet",
				LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
			}},
			NodeInfo: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: goArch, KubeletVersion: "aether-lab"},
		},
	}
}

// registerNodes makes the Node objects.
func (c *Cluster) registerNodes(ctx context.Context) error {
	for i := range c.cfg.Nodes {
		n := nodeObject(c.cfg, i)
		if _, err := c.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("register node %s: %w", n.Name, err)
		}
	}
	return nil
}
