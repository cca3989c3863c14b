// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/model"
)

// scopeName names a way to learn of endpoints. The set is closed.
type scopeName string

const (
	// scopeAll is the product's: one watch of all EndpointSlices, all of them kept in
	// the model's form.
	scopeAll scopeName = "all kept"
	// scopeKept is one watch of all, of which only those of Services in demand are
	// kept; an ask lists the Service's.
	scopeKept scopeName = "demanded kept"
	// scopeEach is one watch for each Service in demand.
	scopeEach scopeName = "watch per Service"
)

var allScopes = []scopeName{scopeAll, scopeKept, scopeEach}

// scopeWay is one way. demand returns when the State has the Service's endpoints.
type scopeWay interface {
	narrows() bool // the product's source is to leave EndpointSlices alone
	run(ctx context.Context)
	ready(ctx context.Context) error
	demand(ctx context.Context, n model.Name) error
	watches() int
}

func newScopeWay(name scopeName, r *reader, config *rest.Config) (scopeWay, error) {
	if name == scopeAll {
		return everything{}, nil
	}
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := fastClient(config)
	if err != nil {
		return nil, err
	}
	switch name {
	case scopeKept:
		return &demandedOnly{r: r, client: client, listed: make(chan struct{}), wanted: map[model.Name]bool{}}, nil
	case scopeEach:
		return &perServiceWatch{r: r, client: client}, nil
	}
	return nil, fmt.Errorf("way %q: want one of %v", name, allScopes)
}

// everything is scopeAll: what there is to know is known.
type everything struct{}

func (everything) narrows() bool                            { return false }
func (everything) run(context.Context)                      {}
func (everything) ready(context.Context) error              { return nil }
func (everything) demand(context.Context, model.Name) error { return nil }
func (everything) watches() int                             { return 1 }

// notHeadless is what the product asks for, too.
const notHeadless = "!service.kubernetes.io/headless"

func ofService(n model.Name) string {
	return labels.Set{discoveryv1.LabelServiceName: n.Name}.String() + "," + notHeadless
}

// reflect watches a selection of EndpointSlices into a store until ctx ends.
func reflect(ctx context.Context, client kubernetes.Interface, namespace, selector string, into cache.ReflectorStore) {
	api := client.DiscoveryV1().EndpointSlices(namespace)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return api.Watch(ctx, o)
		},
	}
	cache.NewReflectorWithOptions(lw, &discoveryv1.EndpointSlice{}, into, cache.ReflectorOptions{}).RunWithContext(ctx)
}

// sliceStore tells a reader of slices, of the Services that are wanted.
type sliceStore struct {
	r      *reader
	wanted func(model.Name) bool
	listed func()

	mu    sync.Mutex
	known map[model.Name]struct{}
}

func (s *sliceStore) Transformer() cache.TransformFunc {
	return func(o any) (any, error) { return s.convert(o), nil }
}

// convert makes the model's form of a slice, nil for none that is wanted.
func (s *sliceStore) convert(o any) *model.Slice {
	switch o := o.(type) {
	case *model.Slice:
		return o
	case *discoveryv1.EndpointSlice:
		if !s.wanted(model.Name{Namespace: o.Namespace, Name: o.Labels[discoveryv1.LabelServiceName]}) {
			return nil
		}
		if slice, ok := convert.Slice(o); ok {
			return &slice
		}
	}
	return nil
}

func (s *sliceStore) put(o any) error {
	if slice := s.convert(o); slice != nil {
		s.mu.Lock()
		if s.known == nil {
			s.known = map[model.Name]struct{}{}
		}
		s.known[slice.Name] = struct{}{}
		s.mu.Unlock()
		s.r.apply(model.SetSlice{Slice: *slice})
	}
	return nil
}

func (s *sliceStore) Add(o any) error    { return s.put(o) }
func (s *sliceStore) Update(o any) error { return s.put(o) }
func (s *sliceStore) Resync() error      { return nil }

func (s *sliceStore) Delete(o any) error {
	if m, ok := o.(metav1.Object); ok {
		s.forget(model.Name{Namespace: m.GetNamespace(), Name: m.GetName()})
	}
	return nil
}

func (s *sliceStore) forget(n model.Name) {
	s.mu.Lock()
	_, there := s.known[n]
	delete(s.known, n)
	s.mu.Unlock()
	if there {
		s.r.apply(model.DeleteSlice{Name: n})
	}
}

func (s *sliceStore) Replace(list []any, _ string) error {
	now := map[model.Name]bool{}
	for _, o := range list {
		if slice := s.convert(o); slice != nil {
			now[slice.Name] = true
		}
		if err := s.put(o); err != nil {
			return err
		}
	}
	s.mu.Lock()
	var gone []model.Name
	for n := range s.known {
		if !now[n] {
			gone = append(gone, n)
		}
	}
	s.mu.Unlock()
	for _, n := range gone {
		s.forget(n)
	}
	s.listed()
	return nil
}

// demandedOnly is scopeKept.
type demandedOnly struct {
	r      *reader
	client kubernetes.Interface
	listed chan struct{}
	once   sync.Once
	store  sliceStore

	mu     sync.Mutex
	wanted map[model.Name]bool
}

func (d *demandedOnly) narrows() bool { return true }
func (d *demandedOnly) watches() int  { return 1 }

func (d *demandedOnly) wants(n model.Name) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wanted[n]
}

func (d *demandedOnly) run(ctx context.Context) {
	d.store = sliceStore{r: d.r, wanted: d.wants, listed: func() { d.once.Do(func() { close(d.listed) }) }}
	reflect(ctx, d.client, metav1.NamespaceAll, notHeadless, &d.store)
}

func (d *demandedOnly) ready(ctx context.Context) error { return awaitClosed(ctx, d.listed) }

// demand lists the Service's slices from the API server's cache, which is not behind
// what the watch told before.
func (d *demandedOnly) demand(ctx context.Context, n model.Name) error {
	d.mu.Lock()
	d.wanted[n] = true
	d.mu.Unlock()
	list, err := d.client.DiscoveryV1().EndpointSlices(n.Namespace).List(ctx, metav1.ListOptions{LabelSelector: ofService(n), ResourceVersion: "0"})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if err := d.store.put(&list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// perServiceWatch is scopeEach.
type perServiceWatch struct {
	r      *reader
	client kubernetes.Interface

	running sync.WaitGroup
	mu      sync.Mutex
	count   int
}

func (p *perServiceWatch) narrows() bool { return true }

func (p *perServiceWatch) watches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

func (p *perServiceWatch) run(ctx context.Context) {
	<-ctx.Done()
	p.running.Wait()
}

func (p *perServiceWatch) ready(context.Context) error { return nil }

// demand begins a watch and waits for its first list.
func (p *perServiceWatch) demand(ctx context.Context, n model.Name) error {
	listed := make(chan struct{})
	var once sync.Once
	store := &sliceStore{
		r: p.r, wanted: func(model.Name) bool { return true }, listed: func() { once.Do(func() { close(listed) }) },
	}
	p.mu.Lock()
	p.count++
	p.mu.Unlock()
	p.running.Go(func() { reflect(ctx, p.client, n.Namespace, ofService(n), store) })
	return awaitClosed(ctx, listed)
}

func awaitClosed(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
