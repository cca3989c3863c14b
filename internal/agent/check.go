// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/check"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan/demand"
	"aether.io/aether/internal/xds"
)

const (
	// checkTimeout bounds a check: what was not looked at by then is said to be so.
	checkTimeout = 8 * time.Second
	// checkAtOnce is how many pods' namespaces are looked into at a time; each
	// takes a thread.
	checkAtOnce = 4
)

// looker collects the facts of a check, beside the loop. One check runs at a
// time, so that those who ask often cost no more than one.
type looker struct {
	cfg         Config
	loop        mailbox
	now         func() time.Time
	checkNetNS  func(string) error
	lookAtPod   func(netns string, annotations map[string]string) (check.PodSight, error)
	connectOnly func(context.Context) ([]check.ConnectOnly, error)
	apiServer   func() check.APIServer
	begun       moment
	one         chan struct{} // holds a value while a check runs
}

func (a *Agent) looker() *looker {
	return &looker{
		cfg: a.cfg, loop: a.mailbox(), now: a.deps.Clock.Now,
		checkNetNS: a.deps.CheckNetNS, lookAtPod: a.deps.LookAtPod, connectOnly: a.deps.ConnectOnly, apiServer: a.deps.APIServer,
		begun: readClocks(), one: make(chan struct{}, 1),
	}
}

// serve is GET /v1/check.
func (k *looker) serve(w http.ResponseWriter, r *http.Request) {
	select {
	case k.one <- struct{}{}:
		defer func() { <-k.one }()
	case <-r.Context().Done():
		unavailable(w, errStopped)
		return
	}
	facts, err := k.look(r.Context())
	if err != nil {
		unavailable(w, err)
		return
	}
	reply(w, http.StatusOK, check.Assess(facts))
}

// look collects the facts.
func (k *looker) look(ctx context.Context) (check.Facts, error) {
	replies := make(chan loopFacts, 1)
	l, err := ask(ctx, k.loop, checkQuery{reply: replies}, replies)
	if err != nil {
		return check.Facts{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	f := check.Facts{Now: k.now(), RunDir: k.cfg.RunDir, Agent: l.agent, Names: l.names, Looks: l.looks}
	f.Envoy.Connected = l.connected
	f.Disk.Files = l.files
	var parts sync.WaitGroup
	parts.Go(func() { k.lookAtEnvoy(ctx, &f.Envoy) })
	parts.Go(func() { f.Pods = k.lookAtPods(ctx, l.pods) })
	parts.Go(func() { f.Refuser = lookAtRefuser(ctx, k.cfg.run(refuseSocket)) })
	parts.Go(func() { k.lookAtDisk(&f.Disk) })
	parts.Go(func() { f.ConnectOnly = k.lookAtCommands(ctx) })
	parts.Wait()
	f.Clock = lookAtClock(k.begun, k.cfg.StateDir)
	f.Kernel = lookAtKernel()
	if k.apiServer != nil {
		fares := k.apiServer()
		f.APIServer = &fares
	}
	return f, nil
}

func (k *looker) lookAtCommands(ctx context.Context) check.Look[[]check.ConnectOnly] {
	if k.connectOnly == nil {
		return check.NotLooked[[]check.ConnectOnly]("this agent's source does not give it the pods' specs")
	}
	return check.Saw(k.connectOnly(ctx))
}

// checkQuery asks the loop for what it knows that a check needs.
type checkQuery struct{ reply chan<- loopFacts }

func (checkQuery) isMessage() {}

// loopFacts is the loop's part of the facts.
type loopFacts struct {
	agent     check.Agent
	connected []string
	names     check.Names
	files     []check.File
	pods      []podFacts
	looks     *check.Looks
}

// podFacts is what the loop knows of a pod.
type podFacts struct {
	check.Pod
	annotations map[string]string
}

func (l *loop) checkFacts() loopFacts {
	s := l.status()
	f := loopFacts{
		agent: check.Agent{
			Node: s.Node, Version: daemon.Version(), Mode: s.Mode, EgressSource: s.EgressSource,
			Synced: s.Synced, RangeKnown: s.RangeKnown, Range: s.Range, Problems: slices.Clone(l.problems),
		},
		names: check.Names{
			Services: l.demand.Count(demand.KindService), Other: l.demand.Count(demand.KindOther), Held: l.demand.Count(demand.KindHeld),
			Budget: l.cfg.NameBudget, OverLimit: l.demand.OverLimit(), CompactAt: l.cfg.CompactNames,
		},
	}
	_, f.names.All, _ = l.demand.Newest()
	if l.demand.Looking() {
		cause, since := l.demand.Blind()
		f.looks = &check.Looks{Cause: string(cause), Since: since}
	}
	for _, e := range l.envoys {
		f.connected = append(f.connected, e.Version)
	}
	slices.Sort(f.connected)
	for key, words := range l.nacks {
		if key.Type != xds.Listener { // a pod's
			f.agent.Rejected = append(f.agent.Rejected, check.Rejected{Type: key.Type.String(), Name: key.Name, Words: words})
		}
	}
	slices.SortFunc(f.agent.Rejected, func(a, b check.Rejected) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name)) })
	for _, name := range stateFiles {
		x := check.File{Name: name, Damaged: l.files[name].damaged}
		if l.files[name].failing() {
			x.Unsaved = l.files[name].err.Error()
		}
		f.files = append(f.files, x)
	}
	for n, p := range l.pods.byName {
		f.pods = append(f.pods, podFacts{
			check.Pod{Name: n.String(), NetNS: p.workload.NetNS, Listener: p.listener, Nack: p.nack}, p.annotations,
		})
	}
	slices.SortFunc(f.pods, func(a, b podFacts) int { return cmp.Compare(a.Name, b.Name) })
	return f
}

// lookAtPods looks into the namespaces of the pods, a few at a time.
func (k *looker) lookAtPods(ctx context.Context, pods []podFacts) []check.Pod {
	out := make([]check.Pod, len(pods))
	slots := make(chan struct{}, checkAtOnce)
	var looks sync.WaitGroup
	for i, p := range pods {
		out[i] = p.Pod
		slots <- struct{}{}
		if ctx.Err() != nil {
			<-slots
			out[i].Sight = check.NotLooked[check.PodSight]("the time for the check was over")
			continue
		}
		looks.Go(func() {
			defer func() { <-slots }()
			k.lookAt(&out[i], p.annotations)
		})
	}
	looks.Wait()
	return out
}

func (k *looker) lookAt(p *check.Pod, annotations map[string]string) {
	if err := k.checkNetNS(p.NetNS); err != nil {
		p.NetNSErr = err.Error()
		return
	}
	if k.lookAtPod == nil {
		p.Sight = check.NotLooked[check.PodSight]("this agent cannot look into pods' namespaces")
		return
	}
	p.Sight = check.Saw(k.lookAtPod(p.NetNS, annotations))
}

// captureAnnotations are a pod's annotations that say what is captured. The agent
// keeps them to tell whether the pod's rules are right, and for nothing else.
func captureAnnotations(all map[string]string) map[string]string {
	var out map[string]string
	for key, value := range all {
		if len(key) > len(capturePrefix) && key[:len(capturePrefix)] == capturePrefix {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}

const capturePrefix = "capture.aether.io/"

// annotationsOf returns the annotations of a pod for pods.json.
func (p *pods) annotationsOf(n model.Name) map[string]string {
	if x := p.byName[n]; x != nil {
		return x.annotations
	}
	return nil
}

// restoreAnnotations reads the annotations of a pods.json that decodePods took.
func restoreAnnotations(data []byte) map[model.Name]map[string]string {
	out := map[model.Name]map[string]string{}
	for _, p := range readPods(data) {
		if a := captureAnnotations(p.Annotations); a != nil {
			out[model.Name{Namespace: p.Namespace, Name: p.Name}] = a
		}
	}
	return out
}

// readPods returns the pods of a file that is known to be whole.
func readPods(data []byte) []api.Pod {
	var head podsHead
	if err := json.Unmarshal(data, &head); err != nil || head.Pods == nil {
		return nil
	}
	return *head.Pods
}
