// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// session is one stream. It stands between the delta server, which calls it as
// its callbacks and as its cache, and the linear caches. All its methods run in
// the stream's goroutine; what Publish reads too is guarded by Server.mu.
type session struct {
	server *Server
	ctx    context.Context // ends with the stream
	info   Stream
	opened bool
	views  map[Type]*view
	sentAt map[string]time.Time // by nonce; this goroutine's alone
}

var _ cache.ConfigWatcher = (*session)(nil)

// CreateWatch is for the state-of-the-world protocol, which is not served.
func (ses *session) CreateWatch(*cache.Request, cache.Subscription, chan cache.Response) (func(), error) {
	return nil, errors.New("only the delta protocol is served")
}

// CreateDeltaWatch hands the request to the cache of its type. A type that is not
// served is never answered: closing the stream would take the others with it.
func (ses *session) CreateDeltaWatch(req *cache.DeltaRequest, sub cache.Subscription, out chan cache.DeltaResponse) (func(), error) {
	c := ses.server.caches[Type(req.GetTypeUrl())]
	if c == nil {
		return nil, nil
	}
	ses.server.mu.Lock()
	defer ses.server.mu.Unlock()
	return c.CreateDeltaWatch(req, subscription{sub, ses.views[Type(req.GetTypeUrl())]}, out)
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

// OnStreamDeltaRequest takes note of a request before the cache sees it.
func (ses *session) OnStreamDeltaRequest(_ int64, req *discovery.DeltaDiscoveryRequest) error {
	if !ses.opened {
		ses.open(req)
	}
	t := Type(req.GetTypeUrl())
	if ses.server.caches[t] == nil {
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
	added := v.subscribe(req.GetResourceNamesSubscribe(), true)
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
	v := newView(t, req)
	if err := ses.hold(t, v, isFresh(req)); err != nil {
		return err
	}
	s.mu.Lock()
	ses.views[t] = v
	var has []Accepted
	c := newChanges(s.ledger)
	for name, version := range v.told {
		e := s.ledger[Key{t, name}]
		if e == nil {
			continue
		}
		if e.want.version == version {
			_, verdict := s.ledger.accept(Key{t, name}, e.want)
			c.add(Key{t, name}, verdict)
			has = append(has, Accepted{name, version, true})
		}
		if e.offer.none() {
			v.retired(name, true)
		}
	}
	err := s.apply(c)
	s.mu.Unlock()
	if len(has) > 0 {
		slices.SortFunc(has, func(a, b Accepted) int { return strings.Compare(a.Name, b.Name) })
		ses.emit(Acked{Stream: ses.info, Type: t, Resources: has})
	}
	return err
}

func (ses *session) hold(t Type, v *view, fresh bool) error {
	if ses.server.cfg.Sink == nil {
		return nil
	}
	done := make(chan struct{})
	begun := time.Now()
	ses.emit(FirstRequest{
		Stream: ses.info, Type: t, Fresh: fresh,
		Held: sorted(v.told), Subscribed: sorted(v.names),
		Done: sync.OnceFunc(func() { close(done) }),
	})
	timeout := time.NewTimer(ses.server.cfg.HoldTimeout)
	defer timeout.Stop()
	select {
	case <-done:
		ses.server.cfg.Metrics.hold.WithLabelValues("answered").Observe(time.Since(begun).Seconds())
	case <-timeout.C:
		ses.server.cfg.Metrics.hold.WithLabelValues("timeout").Observe(time.Since(begun).Seconds())
		ses.server.cfg.Log.Warn("first request not answered in time, envoy may drop what it holds",
			"stream", ses.info.ID, "type", t.String(), "count", len(v.told))
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
	c := newChanges(s.ledger)
	for _, r := range f.resources {
		newest, verdict := s.ledger.accept(Key{t, r.name}, r.blob)
		c.add(Key{t, r.name}, verdict)
		e.Resources = append(e.Resources, Accepted{r.name, r.blob.version, newest})
	}
	if v.search.nonce == nonce {
		v.judged(nil)
	}
	ses.complain(s.apply(c))
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
	for _, name := range f.removed {
		v.resend(name) // Envoy may have skipped removals too
	}
	onTrial := v.search.nonce == nonce
	guilty, innocent := blame(f.names(), message)
	if len(f.resources) == 1 {
		guilty, innocent = f.names(), nil
	}
	innocent = slices.DeleteFunc(innocent, func(name string) bool {
		e := s.ledger[Key{t, name}]
		return e == nil || e.offer.none() || !v.wants(name)
	})
	if len(guilty) == 0 {
		s.cfg.Log.Warn("envoy rejects resources without naming them, sending them again in parts",
			"stream", ses.info.ID, "type", t.String(), "count", len(f.resources), "reason", message)
		v.suspect(innocent, onTrial, s.offered(t))
		return nil
	}
	c := newChanges(s.ledger)
	for _, r := range f.resources {
		if slices.Contains(guilty, r.name) {
			c.add(Key{t, r.name}, s.ledger.reject(Key{t, r.name}, r.blob.version, message))
			s.cfg.Log.Warn("envoy rejects a resource", logKey(t), r.name, "stream", ses.info.ID, "type", t.String(), "reason", message)
		}
	}
	if onTrial {
		v.judged(innocent)
	} else {
		for _, name := range innocent {
			v.resend(name)
		}
	}
	ses.complain(s.apply(c))
	s.cfg.Metrics.rejections.WithLabelValues(t.String()).Add(float64(len(guilty)))
	return Nacked{ses.info, t, guilty, message}
}

// OnStreamDeltaResponse takes note of a response just before it is sent.
func (ses *session) OnStreamDeltaResponse(_ int64, _ *discovery.DeltaDiscoveryRequest, resp *discovery.DeltaDiscoveryResponse) {
	t := Type(resp.GetTypeUrl())
	f := flight{removed: slices.Sorted(slices.Values(resp.GetRemovedResources()))}
	size := 0
	for _, r := range resp.GetResources() {
		f.resources = append(f.resources, sent{r.GetName(), blob{r.GetVersion(), r.GetResource().GetValue()}})
		size += len(r.GetResource().GetValue())
	}
	slices.SortFunc(f.resources, func(a, b sent) int { return strings.Compare(a.name, b.name) })
	m := ses.server.cfg.Metrics
	m.responses.WithLabelValues(t.String()).Inc()
	m.sent.WithLabelValues(t.String()).Add(float64(len(f.resources)))
	m.removed.WithLabelValues(t.String()).Add(float64(len(f.removed)))
	m.bytes.WithLabelValues(t.String()).Add(float64(size))
	ses.sentAt[resp.GetNonce()] = time.Now()

	s := ses.server
	s.mu.Lock()
	defer s.mu.Unlock()
	v := ses.views[t]
	v.search.carries(resp.GetNonce(), f)
	replaced := v.send(resp.GetNonce(), f)
	if t == Cluster {
		ses.rewarm(replaced)
	}
}

// rewarm has the assignments of replaced clusters sent after them. The caller
// holds Server.mu.
func (ses *session) rewarm(clusters []string) {
	v := ses.views[Assignment]
	if v == nil {
		return
	}
	again := map[string]types.Resource{}
	for _, name := range clusters {
		e := ses.server.ledger[Key{Assignment, name}]
		if e == nil || e.offer.none() || !v.wants(name) {
			continue
		}
		v.resend(name)
		again[name] = e.offer.message()
	}
	if len(again) > 0 {
		// The same bytes: streams that have them are not sent anything.
		ses.complain(ses.server.caches[Assignment].UpdateResources(again, nil))
	}
}

func (ses *session) complain(err error) {
	if err != nil {
		ses.server.cfg.Log.Error("offer resources", "stream", ses.info.ID, "err", err)
	}
}

func (ses *session) emit(e Event) {
	if ses.server.cfg.Sink != nil {
		ses.server.cfg.Sink(e)
	}
}

// isFresh reports whether a first request lists no resource and asks for none by
// name.
func isFresh(req *discovery.DeltaDiscoveryRequest) bool {
	named := func(name string) bool { return name != "*" }
	return len(req.GetInitialResourceVersions()) == 0 && !slices.ContainsFunc(req.GetResourceNamesSubscribe(), named)
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

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
