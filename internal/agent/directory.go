// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/observe"
)

// maxFormerPods is how many pods that are gone keep their names: their last
// connections are told of after them.
const maxFormerPods = 1024

// directory says whose an address is, to those who are not the loop. The loop
// gives it each new state.
type directory struct {
	state atomic.Pointer[model.State]

	mu     sync.RWMutex
	byIP   map[netip.Addr]observe.Source
	byName map[model.Name]observe.Source
}

var _ observe.Names = (*directory)(nil)

func newDirectory() *directory {
	return &directory{byIP: map[netip.Addr]observe.Source{}, byName: map[model.Name]observe.Source{}}
}

// update takes the state of now; pods is true when its pods may be others.
func (d *directory) update(s *model.State, pods bool) {
	first := d.state.Swap(s) == nil
	if !pods && !first {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	live := 0
	for range s.Workloads() {
		live++
	}
	if max(len(d.byName), len(d.byIP)) > live+maxFormerPods {
		clear(d.byIP)
		clear(d.byName)
	}
	for w := range s.Workloads() {
		src := observe.Source{Pod: w.Name, ServiceAccount: w.ServiceAccount}
		d.byIP[w.IP] = src
		d.byName[w.Name] = src
	}
}

// PodAt implements observe.Names.
func (d *directory) PodAt(a netip.Addr) (observe.Source, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	s, ok := d.byIP[a]
	return s, ok
}

// Pod implements observe.Names.
func (d *directory) Pod(n model.Name) (observe.Source, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	s, ok := d.byName[n]
	return s, ok
}

// ServiceAt implements observe.Names.
func (d *directory) ServiceAt(a netip.AddrPort) *api.ServiceRef {
	s := d.state.Load()
	if s == nil {
		return nil
	}
	svc, ok := s.ServiceByVIP(a.Addr())
	if !ok {
		if svc, ok = s.ServiceByExternalIP(a.Addr()); !ok {
			return nil
		}
	}
	ref := &api.ServiceRef{Namespace: svc.Name.Namespace, Name: svc.Name.Name, Port: strconv.Itoa(int(a.Port()))}
	if p, ok := svc.TCPPort(a.Port()); ok && p.Name != "" {
		ref.Port = p.Name
	}
	return ref
}
