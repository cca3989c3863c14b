// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"aether.io/aether/internal/plan"
)

func (l *lab) startXDS() {
	mux := &cache.MuxCache{
		ClassifyDelta: func(r *cache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches: map[string]cache.Cache{
			resource.ListenerType: l.listeners, resource.ClusterType: l.clusters, resource.EndpointType: l.assignments,
			bucketType: l.buckets(),
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := server.NewServer(ctx, mux, server.CallbackFuncs{StreamDeltaRequestFunc: l.onRequest})
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, srv)
	ln, err := net.Listen("unix", filepath.Join(l.dir, "xds.sock"))
	l.must(err)
	go func() { _ = g.Serve(ln) }()
	l.t.Cleanup(func() { cancel(); g.Stop() })
}

const bucketType = "type.googleapis.com/envoy.type.v3.TokenBucket"

func (l *lab) buckets() *cache.LinearCache {
	c := cache.NewLinearCache(bucketType)
	for name, b := range RateLimits(l.settings) {
		l.must(c.UpdateResource(name, b))
	}
	return c
}

// onRequest publishes the answers to the names that Envoy asks for.
func (l *lab) onRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := r.GetErrorDetail(); e != nil {
		l.nacks = append(l.nacks, e.GetMessage())
	}
	if r.GetTypeUrl() != resource.ClusterType {
		return nil
	}
	for _, name := range r.GetResourceNamesSubscribe() {
		if a, ok := l.answers[name]; ok {
			if err := l.publish(a); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *lab) publish(r Resources) error {
	if r.Assignment != nil {
		if err := l.assignments.UpdateResource(r.Assignment.ClusterName, r.Assignment); err != nil {
			return err
		}
	}
	return l.clusters.UpdateResource(r.Cluster.Name, r.Cluster)
}

// answer sets what a name is answered with; at once if it was asked for already.
func (l *lab) answer(a plan.Answer) { l.t.Helper(); l.set(Translate(a, l.settings)) }

func (l *lab) set(r Resources) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.clusters.GetResources()[r.Cluster.Name]
	l.answers[r.Cluster.Name] = r
	if known {
		l.must(l.publish(r))
	}
}

// capture publishes the listeners of all pods.
func (l *lab) capture(c plan.Capture) {
	set := map[string]types.Resource{}
	for _, w := range l.pods {
		ln := Listener(w, c, l.settings)
		if l.bound > 0 {
			editScopes(l.t, ln, func(s *typev3.Scope) { s.MaxCounters = u32(uint32(l.bound)) })
		}
		set[ln.Name] = ln
	}
	l.must(l.listeners.UpdateResources(set, nil))
}

// refuse runs the refuser: it closes each connection unread shortly after the
// first bytes are there, which the kernel turns into a reset.
func (l *lab) refuse() (stop func()) {
	ln, err := net.Listen("unix", l.settings.RefuseSocket)
	l.must(err)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				raw, err := c.(*net.UnixConn).SyscallConn()
				if err != nil {
					return
				}
				_ = raw.Read(func(fd uintptr) bool {
					n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
					return n > 0 || !errors.Is(err, syscall.EAGAIN)
				})
				time.Sleep(5 * time.Millisecond)
			}()
		}
	}()
	var once sync.Once
	stop = func() { once.Do(func() { _ = ln.Close() }) }
	l.t.Cleanup(stop)
	return stop
}
