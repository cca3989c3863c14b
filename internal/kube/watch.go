// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

const (
	// requestTimeout bounds a question to the API server.
	requestTimeout = 10 * time.Second
	// listTimeout bounds a list, which may be tens of megabytes.
	listTimeout = 2 * time.Minute
	// startTimeout bounds the wait for a watch to begin. Some proxies pass on nothing
	// before the first event, which may be a bookmark, a minute later.
	startTimeout = 90 * time.Second
	// lateEnd is how much longer than it was asked for a watch may last: an API
	// server that forgot it must not be waited for.
	lateEnd = 30 * time.Second
	// firstRetry is the shortest pause before a request is tried again.
	firstRetry = 800 * time.Millisecond
	// absenceTwice is the pause between the two looks that must agree before a
	// kind counts as gone.
	absenceTwice = 10 * time.Second
)

// selection is what of a kind is asked for.
type selection struct{ labels, fields string }

// selectionOf returns the node's part of a kind. The API server filters.
func selectionOf(k Kind, node string) selection {
	switch k {
	case EndpointSlices:
		// A slice with the label is nobody's to balance, whatever its value.
		return selection{labels: "!" + corev1.IsHeadlessService}
	case Nodes:
		return selection{fields: fields.OneTermEqualSelector("metadata.name", node).String()}
	case Pods:
		return selection{fields: fields.OneTermEqualSelector("spec.nodeName", node).String()}
	}
	// Services labelled service-proxy-name are another's to balance, and must be
	// known so that they are left alone.
	return selection{}
}

// watcher keeps one store at what the API server has of a selection of a kind.
type watcher struct {
	kind   Kind
	s      *Source
	store  *store
	client *rest.RESTClient // nil for ServiceImports, whose version is found first
	sel    selection
}

func (s *Source) newWatcher(k Kind, sel selection, into *store) (*watcher, error) {
	w := &watcher{kind: k, s: s, store: into, sel: sel}
	if k == ServiceImports {
		return w, nil
	}
	var err error
	w.client, err = s.client.builtIn(k.version())
	return w, err
}

// run watches until ctx ends.
func (w *watcher) run(ctx context.Context) {
	if w.kind.optional() {
		w.runOptional(ctx)
		return
	}
	w.reflect(ctx, w.client, expected(w.kind), func() {})
}

// runOptional watches while the API server serves the kind, and looks for it
// while it does not.
func (w *watcher) runOptional(ctx context.Context) {
	var missing int // looks that found nothing, in a row
	retry := firstRetry
	for ctx.Err() == nil {
		v, served, err := w.s.client.discover(ctx, w.kind)
		pause := w.s.o.DiscoveryInterval + rand.N(w.s.o.DiscoveryInterval/5)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			w.failed(err)
			pause = retry + rand.N(retry)
			retry = min(2*retry, w.s.o.RetryCap)
		case served:
			missing, retry = 0, firstRetry
			w.watchUntilGone(ctx, v)
			pause = firstRetry // discovery may lag behind what is served
		default:
			if missing++; missing == 1 && w.store.count() > 0 {
				pause = min(pause, absenceTwice)
				break
			}
			retry = firstRetry
			w.absent(missing)
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// absent notes that the kind is not served.
func (w *watcher) absent(looks int) {
	w.store.clear()
	was := w.s.health.freshness().Of(w.kind)
	w.s.health.gone(w.kind)
	w.s.out.settle(w.kind)
	if looks == 1 || !was.Absent {
		w.s.o.Log.Info("the API server does not serve a kind; it is looked for again", "type", w.kind.group()+"/"+string(w.kind))
	}
}

// watchUntilGone watches until the API server says that it has no such kind.
func (w *watcher) watchUntilGone(ctx context.Context, v schema.GroupVersion) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, example := w.client, expected(w.kind)
	if w.kind == ServiceImports {
		var err error
		if client, err = w.s.client.rest(v, importScheme(v), jsonType, jsonType); err != nil {
			w.failed(err)
			sleep(ctx, w.s.o.RetryCap)
			return
		}
		w.s.o.Log.Info("ServiceImports are watched", "version", v.Version)
	}
	w.reflect(ctx, client, example, cancel)
}

// sleep reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// expected returns an example of the kind.
func expected(k Kind) runtime.Object {
	switch k {
	case Services:
		return &corev1.Service{}
	case EndpointSlices:
		return &discoveryv1.EndpointSlice{}
	case ServiceCIDRs:
		return &networkingv1.ServiceCIDR{}
	case ServiceImports:
		return &serviceImport{}
	case Nodes:
		return &corev1.Node{}
	}
	return &corev1.Pod{}
}

// reflect runs one reflector until ctx ends. absent is called when the API server
// says that it has no such kind.
func (w *watcher) reflect(ctx context.Context, client *rest.RESTClient, example runtime.Object, absent func()) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := w.list(ctx, client, o)
			w.judge(ctx, err, absent)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stream, err := w.watch(ctx, client, o)
			if o.SendInitialEvents != nil && apierrors.IsInvalid(err) {
				return nil, err // an API server without streaming lists; the reflector lists
			}
			w.judge(ctx, err, absent)
			return stream, err
		},
	}
	backoff := wait.Backoff{
		Duration: min(firstRetry, w.s.o.RetryCap), Cap: w.s.o.RetryCap, Factor: 2, Jitter: 1, Steps: math.MaxInt32,
	}
	cache.NewReflectorWithOptions(lw, example, w.store, cache.ReflectorOptions{
		Name: string(w.kind), Clock: stoppingClock{ctx: ctx}, Backoff: &backoff,
	}).RunWithContext(ctx)
}

func (w *watcher) params(o *metav1.ListOptions) {
	o.LabelSelector, o.FieldSelector = w.sel.labels, w.sel.fields
}

func (w *watcher) list(ctx context.Context, client *rest.RESTClient, o metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	w.params(&o)
	return client.Get().Resource(string(w.kind)).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Get()
}

func (w *watcher) watch(ctx context.Context, client *rest.RESTClient, o metav1.ListOptions) (watch.Interface, error) {
	w.params(&o)
	o.Watch = true
	ctx, cancel := context.WithTimeout(ctx, time.Duration(*o.TimeoutSeconds)*time.Second+lateEnd) // a reflector always says
	late := time.AfterFunc(startTimeout, cancel)
	stream, err := client.Get().Resource(string(w.kind)).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
	if reflect.TypeOf(stream) == unanswered {
		err = errNoAnswer
	}
	if !late.Stop() && err != nil {
		err = fmt.Errorf("begin a watch: no answer within %s", startTimeout)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	w.s.health.opened(w.kind, cancel)
	return &openWatch{Interface: stream, end: func() {
		cancel()
		w.s.health.closed(w.kind)
	}}, nil
}

// A watch whose connection times out or ends before the API server says anything is
// no error for client-go, but an empty watch.
var (
	unanswered  = reflect.TypeOf(watch.NewEmptyWatch())
	errNoAnswer = errors.New("begin a watch: the connection timed out or ended")
)

// judge notes a request's failure.
func (w *watcher) judge(ctx context.Context, err error, absent func()) {
	if err == nil || ctx.Err() != nil {
		return
	}
	w.failed(err)
	if w.kind.optional() && failureOf(err) == failAbsent {
		absent()
	}
}

// failed notes a failure. ServiceImports that cannot be had hold nothing up: most
// clusters have none.
func (w *watcher) failed(err error) {
	f := failureOf(err)
	w.s.meter.failed(w.kind, f)
	if f == failExpired {
		return // the reflector lists anew
	}
	w.s.health.failed(w.kind, err)
	if w.kind == ServiceImports && f != failUnreachable {
		w.s.out.settle(w.kind)
	}
}

// openWatch is a stream whose end is noted.
type openWatch struct {
	watch.Interface
	once sync.Once
	end  func()
}

// Stop ends the stream.
func (o *openWatch) Stop() {
	o.Interface.Stop()
	o.once.Do(o.end)
}

// stoppingClock is a clock whose waits end with ctx: a reflector that waits before
// it tries again must not keep a process from ending.
type stoppingClock struct {
	clock.RealClock
	ctx context.Context
}

// After sends when the duration has passed or ctx has ended.
func (c stoppingClock) After(d time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(c.ctx, d)
	context.AfterFunc(ctx, func() {
		cancel()
		ch <- time.Now()
	})
	return ch
}
