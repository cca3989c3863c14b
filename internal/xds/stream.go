// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// session is one stream. It serves the delta server of that stream as its cache
// and hears from it as its callbacks. All its methods run in the stream's
// goroutine, except respond; what Publish touches too is guarded by Server.mu.
type session struct {
	server  *Server
	ctx     context.Context // ends with the stream
	info    Stream
	opened  bool
	views   map[Type]*view
	waiting map[Type]request     // for something to respond with
	sentAt  map[string]time.Time // by nonce; this goroutine's alone
}

// request is a request that the delta server has passed on, and where it takes
// the response. There is room for it: a type has at most two responses waiting, one
// for the request before and one for this, and the delta server provides for that.
type request struct {
	req *cache.DeltaRequest
	out chan<- cache.DeltaResponse
}

var _ cache.ConfigWatcher = (*session)(nil)

// CreateWatch is for the state-of-the-world protocol, which is not served.
func (ses *session) CreateWatch(*cache.Request, cache.Subscription, chan cache.Response) (func(), error) {
	return nil, errors.New("only the delta protocol is served")
}

// CreateDeltaWatch responds to a request now or as soon as there is something to
// respond with. A type that is not served is never answered: closing the stream
// would take the others with it.
func (ses *session) CreateDeltaWatch(req *cache.DeltaRequest, _ cache.Subscription, out chan cache.DeltaResponse) (func(), error) {
	t := Type(req.GetTypeUrl())
	v := ses.views[t]
	if v == nil {
		return nil, nil
	}
	mu := &ses.server.mu
	mu.Lock()
	defer mu.Unlock()
	ses.waiting[t] = request{req, out}
	// Envoy waits for a first response to a wildcard, if only to hear that there is
	// nothing.
	ses.respond(t, v.wildcard && !v.begun)
	v.begun = true
	return func() {
		mu.Lock()
		defer mu.Unlock()
		delete(ses.waiting, t)
	}, nil
}

// respond sends what Envoy needs now, if a request waits; nothing is sent when it
// needs nothing, unless even an empty response is called for. The caller holds
// Server.mu.
func (ses *session) respond(t Type, evenEmpty bool) {
	r, ok := ses.waiting[t]
	if !ok {
		return
	}
	v := ses.views[t]
	f, replaced := v.next(t, ses.server.ledger)
	if f.empty() && !evenEmpty {
		return
	}
	delete(ses.waiting, t)
	v.made(f)
	r.out <- &cache.DeltaPassthroughResponse{
		DeltaRequest:           r.req,
		NextVersionMap:         map[string]string{}, // the view knows
		DeltaDiscoveryResponse: f.response(t),
	}
	if t == Cluster {
		ses.rewarm(replaced)
	}
}

// rewarm has the assignments of replaced clusters sent after them. The caller
// holds Server.mu.
func (ses *session) rewarm(clusters []string) {
	v := ses.views[Assignment]
	if v == nil || len(clusters) == 0 {
		return
	}
	for _, name := range clusters {
		if _, has := v.has[name]; has {
			v.resend(name)
		}
	}
	ses.respond(Assignment, false)
}

// OnDeltaStreamOpen does nothing: who opened the stream is known with its first
// request.
func (ses *session) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }

// OnDeltaStreamClosed ends the session.
func (ses *session) OnDeltaStreamClosed(int64, *corev3.Node) {
	if !ses.opened {
		return
	}
	s := ses.server
	s.mu.Lock()
	delete(s.sessions, ses.info.ID)
	s.mu.Unlock()
	s.cfg.Metrics.streams.Dec()
	s.cfg.Log.Info("envoy disconnected", "stream", ses.info.ID, "node", ses.info.Node, "pid", ses.info.PID)
	ses.emit(StreamClosed{ses.info})
}

// OnStreamDeltaRequest takes note of a request before it is responded to.
func (ses *session) OnStreamDeltaRequest(_ int64, req *discovery.DeltaDiscoveryRequest) error {
	if !ses.opened {
		ses.open(req)
	}
	t := Type(req.GetTypeUrl())
	if !t.served() {
		ses.server.cfg.Metrics.requests.WithLabelValues(t.String(), "unserved").Inc()
		ses.server.cfg.Log.Warn("envoy asks for a type that is not served", "stream", ses.info.ID, "type", string(t))
		return nil
	}
	if ses.views[t] == nil {
		return ses.first(t, req)
	}
	if nonce := req.GetResponseNonce(); nonce != "" {
		ses.answer(t, nonce, req)
	}
	ses.server.mu.Lock()
	v := ses.views[t]
	added := v.subscribe(t, req.GetResourceNamesSubscribe(), ses.server.ledger)
	v.unsubscribe(req.GetResourceNamesUnsubscribe())
	ses.server.mu.Unlock()
	if len(added) > 0 {
		ses.server.cfg.Metrics.requests.WithLabelValues(t.String(), "ask").Inc()
		ses.emit(Asked{ses.info, t, added})
	}
	return nil
}

func (ses *session) open(req *discovery.DeltaDiscoveryRequest) {
	ses.opened = true
	ses.info.Node = req.GetNode().GetId()
	ses.info.Version = envoyVersion(req.GetNode())
	s := ses.server
	s.mu.Lock()
	s.lastID++
	ses.info.ID = s.lastID
	ses.info.Epoch = s.epochs.of(ses.info.PID, isFresh(req))
	s.sessions[ses.info.ID] = ses
	s.mu.Unlock()
	s.cfg.Metrics.streams.Inc()
	s.cfg.Metrics.opened.Inc()
	s.cfg.Log.Info("envoy connected", "stream", ses.info.ID, "node", ses.info.Node, "version", ses.info.Version, "pid", ses.info.PID)
	ses.emit(StreamOpened{ses.info})
}

// first handles the first request of a type: it is held until the owner of the
// resources has answered what it names.
func (ses *session) first(t Type, req *discovery.DeltaDiscoveryRequest) error {
	s := ses.server
	s.cfg.Metrics.requests.WithLabelValues(t.String(), "first").Inc()
	if err := ses.hold(t, req); err != nil {
		return err
	}
	s.mu.Lock()
	v := newView(t, req, s.ledger)
	ses.views[t] = v
	var has []Accepted
	var changed []string
	for name, version := range v.has {
		e := s.ledger[Key{t, name}]
		if e == nil || e.want.version != version {
			continue
		}
		if _, offered := s.ledger.accept(Key{t, name}, e.want); offered {
			changed = append(changed, name)
		}
		has = append(has, Accepted{name, version, true})
	}
	s.offer(t, changed)
	s.mu.Unlock()
	if len(has) > 0 {
		slices.SortFunc(has, func(a, b Accepted) int { return strings.Compare(a.Name, b.Name) })
		ses.emit(Acked{Stream: ses.info, Type: t, Resources: has})
	}
	return nil
}

func (ses *session) hold(t Type, req *discovery.DeltaDiscoveryRequest) error {
	if ses.server.cfg.Sink == nil {
		return nil
	}
	done := make(chan struct{})
	begun := time.Now()
	ses.emit(FirstRequest{
		Stream:     ses.info,
		Type:       t,
		Held:       slices.Sorted(maps.Keys(req.GetInitialResourceVersions())),
		Subscribed: slices.Sorted(slices.Values(named(req))),
		Fresh:      isFresh(req),
		Done:       sync.OnceFunc(func() { close(done) }),
	})
	timeout := time.NewTimer(ses.server.cfg.HoldTimeout)
	defer timeout.Stop()
	select {
	case <-done:
		ses.server.cfg.Metrics.hold.WithLabelValues("answered").Observe(time.Since(begun).Seconds())
	case <-timeout.C:
		ses.server.cfg.Metrics.hold.WithLabelValues("timeout").Observe(time.Since(begun).Seconds())
		ses.server.cfg.Log.Warn("first request not answered in time, envoy may drop what it holds",
			"stream", ses.info.ID, "type", t.String(), "count", len(req.GetInitialResourceVersions()))
	case <-ses.ctx.Done():
		return ses.ctx.Err()
	}
	return nil
}

// answer takes Envoy's verdict on a response.
func (ses *session) answer(t Type, nonce string, req *discovery.DeltaDiscoveryRequest) {
	if at, ok := ses.sentAt[nonce]; ok {
		delete(ses.sentAt, nonce)
		ses.server.cfg.Metrics.answered.WithLabelValues(t.String()).Observe(time.Since(at).Seconds())
	}
	var e Event
	if detail := req.GetErrorDetail(); detail != nil {
		ses.server.cfg.Metrics.requests.WithLabelValues(t.String(), "nack").Inc()
		e = ses.nacked(t, nonce, detail.GetMessage())
	} else {
		ses.server.cfg.Metrics.requests.WithLabelValues(t.String(), "ack").Inc()
		e = ses.acked(t, nonce)
	}
	if e != nil {
		ses.emit(e)
	}
}

func (ses *session) acked(t Type, nonce string) Event {
	s := ses.server
	s.mu.Lock()
	defer s.mu.Unlock()
	v := ses.views[t]
	f, ok := v.settle(nonce)
	if !ok {
		return nil
	}
	e := Acked{Stream: ses.info, Type: t, Removed: f.removed}
	var changed []string
	for _, r := range f.resources {
		newest, offered := s.ledger.accept(Key{t, r.name}, r.blob)
		if offered {
			changed = append(changed, r.name)
		}
		e.Resources = append(e.Resources, Accepted{r.name, r.blob.version, newest})
	}
	v.search.judged(f.trial)
	s.offer(t, changed)
	if f.empty() {
		return nil
	}
	return e
}

func (ses *session) nacked(t Type, nonce, message string) Event {
	s := ses.server
	s.mu.Lock()
	defer s.mu.Unlock()
	v := ses.views[t]
	f, ok := v.settle(nonce)
	if !ok || len(f.resources) == 0 {
		s.cfg.Log.Warn("envoy rejects a response that brought nothing", "stream", ses.info.ID, "type", t.String(), "reason", message)
		return nil
	}
	guilty, innocent := blame(f.names(), message)
	if len(f.resources) == 1 {
		guilty, innocent = f.names(), nil
	}
	// Envoy may have skipped any of the others, removals included.
	for _, name := range slices.Concat(innocent, f.removed) {
		v.resend(name)
	}
	v.search.judged(f.trial)
	if len(guilty) == 0 {
		s.cfg.Log.Warn("envoy rejects resources without naming them, sending them again in parts",
			"stream", ses.info.ID, "type", t.String(), "count", len(f.resources), "reason", message)
		v.search.suspect(slices.DeleteFunc(innocent, func(name string) bool {
			e := s.ledger[Key{t, name}]
			return e == nil || e.offer.none() || !v.wants(name)
		}))
		return nil
	}
	var changed []string
	for _, r := range f.resources {
		if !slices.Contains(guilty, r.name) {
			continue
		}
		if s.ledger.reject(Key{t, r.name}, r.blob.version, message) {
			changed = append(changed, r.name)
		}
		s.cfg.Log.Warn("envoy rejects a resource", logKey(t), r.name, "stream", ses.info.ID, "type", t.String(), "reason", message)
	}
	s.offer(t, changed)
	s.cfg.Metrics.rejections.WithLabelValues(t.String()).Add(float64(len(guilty)))
	return Nacked{ses.info, t, guilty, message}
}

// OnStreamDeltaResponse takes note of a response just before it is sent.
func (ses *session) OnStreamDeltaResponse(_ int64, _ *discovery.DeltaDiscoveryRequest, resp *discovery.DeltaDiscoveryResponse) {
	t := Type(resp.GetTypeUrl())
	s := ses.server
	s.mu.Lock()
	f := ses.views[t].send(resp.GetNonce())
	s.mu.Unlock()
	ses.sentAt[resp.GetNonce()] = time.Now()
	size := 0
	for _, r := range f.resources {
		size += len(r.blob.bytes)
	}
	m := s.cfg.Metrics
	m.responses.WithLabelValues(t.String()).Inc()
	m.sent.WithLabelValues(t.String()).Add(float64(len(f.resources)))
	m.removed.WithLabelValues(t.String()).Add(float64(len(f.removed)))
	m.bytes.WithLabelValues(t.String()).Add(float64(size))
}

func (ses *session) emit(e Event) {
	if ses.server.cfg.Sink != nil {
		ses.server.cfg.Sink(e)
	}
}

// isFresh reports whether a first request lists no resource and asks for none by
// name.
func isFresh(req *discovery.DeltaDiscoveryRequest) bool {
	return len(req.GetInitialResourceVersions())+len(named(req)) == 0
}

// named are the names that a request subscribes to, without the wildcard.
func named(req *discovery.DeltaDiscoveryRequest) []string {
	return slices.DeleteFunc(slices.Clone(req.GetResourceNamesSubscribe()), func(name string) bool { return name == "*" })
}

func envoyVersion(n *corev3.Node) string {
	if v := n.GetUserAgentBuildVersion().GetVersion(); v != nil {
		return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	}
	return n.GetUserAgentVersion()
}

func logKey(t Type) string {
	if t == Listener {
		return "listener"
	}
	return "cluster" // an assignment has the name of its cluster
}
