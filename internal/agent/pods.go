// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"time"

	"google.golang.org/protobuf/proto"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/xds"
)

// podReplyTime is how long the CNI plugin waits for Envoy to take a pod's
// listener. A pod is not held up by an Envoy that is starting.
const podReplyTime = 2 * time.Second

// The states of a pod's listener.
const (
	listenerPending  = "pending"
	listenerReady    = "ready"
	listenerRejected = "rejected"
)

// pods are the captured pods of this node and those who wait for them.
type pods struct {
	byName  map[model.Name]*pod
	waiting map[model.Name]*podWait
}

type pod struct {
	workload model.Workload
	// annotations say what its rules capture; the agent makes none by them.
	annotations map[string]string
	listener    string
	nack        string
	held        bool   // kept from an Envoy that starts
	saved       uint64 // sequence number of the write that holds the pod
}

// podWait is a pod whose callers wait for its listener.
type podWait struct {
	until   time.Time
	replies []chan<- podReply
}

// podReply is what became of a pod. A conflict is set when it was not taken.
type podReply struct {
	state    string
	nack     string
	conflict string
}

func newPods(restored []model.Workload, annotations map[model.Name]map[string]string) pods {
	p := pods{byName: map[model.Name]*pod{}, waiting: map[model.Name]*podWait{}}
	for _, w := range restored {
		p.byName[w.Name] = &pod{workload: w, annotations: annotations[w.Name], listener: listenerPending}
	}
	return p
}

// unknown notes that a fresh Envoy has no listener yet.
func (p *pods) unknown() {
	for _, x := range p.byName {
		if x.listener == listenerReady {
			x.listener = listenerPending
		}
	}
}

func (p *pods) accepted(n model.Name) {
	if x := p.byName[n]; x != nil {
		x.listener, x.nack = listenerReady, ""
	}
}

func (p *pods) rejected(n model.Name, nack string) {
	if x := p.byName[n]; x != nil {
		x.listener, x.nack = listenerRejected, nack
	}
}

// addPod takes a pod in. One that is known already is replaced; one that Envoy
// rejected is tried once more.
func (l *loop) addPod(t *turn, m podAdd) {
	w := m.workload
	for n, other := range l.pods.byName {
		if n != w.Name && other.workload.NetNS == w.NetNS {
			m.reply <- podReply{conflict: fmt.Sprintf("netns %s belongs to pod %s", w.NetNS, n)}
			return
		}
	}
	x := l.pods.byName[w.Name]
	if old := x; old == nil || old.workload != w || !maps.Equal(old.annotations, m.annotations) {
		x = &pod{workload: w, annotations: m.annotations, listener: listenerPending}
		if old != nil && l.sameListener(old.workload, w) {
			x.listener, x.nack = old.listener, old.nack // Envoy is sent nothing
		}
		l.pods.byName[w.Name] = x
		l.change(t, model.SetWorkload{Workload: w})
		x.saved = l.save(podsFile)
		l.log.Info("pod added", "pod", w.Name.String(), "path", w.NetNS)
	}
	if x.listener == listenerRejected {
		l.withdrawListener(w)
		x.listener, x.nack, x.held = listenerPending, "", false
		t.retry = append(t.retry, w)
	}
	wait := l.pods.waiting[w.Name]
	if wait == nil {
		wait = &podWait{until: t.now.Add(podReplyTime)}
		l.pods.waiting[w.Name] = wait
	}
	wait.replies = append(wait.replies, m.reply)
}

// sameListener reports whether two states of a pod have one and the same listener.
func (l *loop) sameListener(a, b model.Workload) bool {
	c := l.published.capture
	return c != nil && proto.Equal(envoy.Listener(a, *c, l.cfg.Envoy), envoy.Listener(b, *c, l.cfg.Envoy))
}

// withdrawListener withdraws a rejected listener, so that its bytes are tried
// again though they are the same.
func (l *loop) withdrawListener(w model.Workload) {
	key := xds.Key{Type: xds.Listener, Name: envoy.ListenerName(w.Name)}
	if err := l.xds.Publish(xds.Update{Remove: []xds.Key{key}}); err != nil {
		l.log.Error("publish", "listener", key.Name, "err", err)
	}
}

// change applies a change of our own in this turn.
func (l *loop) change(t *turn, c model.Change) {
	if !l.hasPending() {
		l.pendingAt = t.now
	}
	l.pending = append(l.pending, c)
}

// deletePod forgets a pod. One that is not known is gone already.
func (l *loop) deletePod(t *turn, m podDelete) {
	t.done = append(t.done, func() { m.reply <- struct{}{} })
	x := l.pods.byName[m.name]
	if x == nil || m.uid != "" && x.workload.UID != "" && m.uid != x.workload.UID {
		return
	}
	delete(l.pods.byName, m.name)
	l.change(t, model.DeleteWorkload{Name: m.name})
	l.save(podsFile)
	l.log.Info("pod removed", "pod", m.name.String())
}

// answerPods replies to those whose pod has come to an end: Envoy has taken its
// listener and the pod is on disk, Envoy has rejected it, the pod is gone, or the
// time is over.
func (l *loop) answerPods(now time.Time) {
	for n, wait := range l.pods.waiting {
		reply, done := podReply{}, true
		switch x := l.pods.byName[n]; {
		case x == nil:
			reply.conflict = "the pod was deleted meanwhile"
		case x.listener == listenerRejected:
			reply.state, reply.nack = x.listener, x.nack
		case x.listener == listenerReady && l.files[podsFile].done >= x.saved:
			reply.state = listenerReady
		case !now.Before(wait.until):
			reply.state = listenerPending
		default:
			done = false
		}
		if !done {
			continue
		}
		for _, r := range wait.replies {
			r <- reply
		}
		delete(l.pods.waiting, n)
	}
}

var (
	// label is a DNS label (RFC 1123), subdomain several joined by dots: what the
	// API server takes for names of namespaces, and of pods and ServiceAccounts.
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

const maxSubdomain = 253

// workload checks a pod as it was reported and returns it as the model knows it.
// An error names the field.
func workload(p api.Pod, checkNetNS func(path string) error) (model.Workload, error) {
	var w model.Workload
	if !label.MatchString(p.Namespace) {
		return w, fmt.Errorf("namespace: %q is no name of a namespace", p.Namespace)
	}
	if !validName(p.Name) {
		return w, fmt.Errorf("name: %q is no name of a pod", p.Name)
	}
	if !validName(p.ServiceAccount) {
		return w, fmt.Errorf("serviceAccount: %q is no name of a ServiceAccount", p.ServiceAccount)
	}
	ip, err := netip.ParseAddr(p.IP)
	if err != nil || !ip.Is4() {
		return w, fmt.Errorf("ip: %q is no IPv4 address", p.IP)
	}
	if !filepath.IsAbs(p.NetNS) || filepath.Clean(p.NetNS) != p.NetNS {
		return w, fmt.Errorf("netns: %q is no absolute path", p.NetNS)
	}
	if err := checkNetNS(p.NetNS); err != nil {
		return w, fmt.Errorf("netns: %w", err)
	}
	return model.Workload{
		Name:           model.Name{Namespace: p.Namespace, Name: p.Name},
		UID:            p.UID,
		ServiceAccount: p.ServiceAccount,
		IP:             ip,
		NetNS:          p.NetNS,
	}, nil
}

func validName(s string) bool { return len(s) <= maxSubdomain && subdomain.MatchString(s) }

// workloads returns the pods in no particular order.
func (p *pods) workloads() []model.Workload {
	ws := make([]model.Workload, 0, len(p.byName))
	for _, x := range p.byName {
		ws = append(ws, x.workload)
	}
	return ws
}
