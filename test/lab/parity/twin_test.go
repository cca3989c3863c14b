// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// twin is a Service with the same rules and the input we take for the true one:
// what kube-proxy makes of it must be what we make of the family's.
type twin struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
	why     []string // names of differences
}

// entry is one endpoint behind one port of one slice.
type entry struct {
	slice    string
	name     string
	protocol corev1.Protocol
	to       netip.AddrPort
	endpoint discoveryv1.Endpoint
}

// entriesOf takes apart the slices that kube-proxy reads, which are sorted.
func entriesOf(of []*discoveryv1.EndpointSlice) (out []*entry) {
	for _, s := range of {
		if !read(s) {
			continue
		}
		for _, e := range s.Endpoints {
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				continue
			}
			for _, q := range s.Ports {
				if q.Port != nil && *q.Port != 0 {
					out = append(out, &entry{s.Name, *q.Name, *q.Protocol, netip.AddrPortFrom(a, uint16(*q.Port)), e})
				}
			}
		}
	}
	return out
}

func (e *entry) faulty() bool { return slices.Contains(faultyAddresses, e.to.Addr().String()) }

func (e *entry) id() string { return fmt.Sprint(e.name, " ", e.protocol, " ", e.to) }

func orTrue(b *bool) bool { return b == nil || *b }

func (e *entry) conditions() (ready, serving, terminating bool) {
	c := e.endpoint.Conditions
	return orTrue(c.Ready), orTrue(c.Serving), c.Terminating != nil && *c.Terminating
}

// effect is all of it that a choice on our node can depend on.
func (e *entry) effect() string {
	ready, serving, terminating := e.conditions()
	local := e.endpoint.NodeName != nil && *e.endpoint.NodeName == "n1"
	zones, nodes := []string{}, []string{}
	if h := e.endpoint.Hints; h != nil {
		for _, z := range h.ForZones {
			zones = append(zones, z.Name)
		}
		for _, n := range h.ForNodes {
			nodes = append(nodes, n.Name)
		}
	}
	slices.Sort(zones)
	slices.Sort(nodes)
	return fmt.Sprintf("%v %v %v %v %q %q", ready, serving, terminating, local, zones, nodes)
}

// rank orders duplicates by the rule told to users: not terminating, ready, serving.
func (e *entry) rank() int {
	ready, serving, terminating := e.conditions()
	rank := 0
	for _, worse := range []bool{terminating, !ready, !serving} {
		rank *= 2
		if worse {
			rank++
		}
	}
	return rank
}

// twinOf makes the family's twin, nil when there is nothing to put right.
func twinOf(f *family, of []*discoveryv1.EndpointSlice) *twin {
	if !clusterIP(f.service).IsValid() || foreign(f.service) != "" {
		return nil
	}
	var why []string
	entries := entriesOf(of)
	if slices.ContainsFunc(entries, (*entry).faulty) {
		why = append(why, "faulty-address")
		entries = slices.DeleteFunc(entries, (*entry).faulty)
	}
	best, contested := map[string]*entry{}, false
	for _, e := range entries {
		if b := best[e.id()]; b == nil {
			best[e.id()] = e
		} else {
			contested = contested || b.effect() != e.effect()
			if e.rank() < b.rank() {
				best[e.id()] = e
			}
		}
	}
	if contested {
		why = append(why, "duplicate")
	}
	if len(f.left) > 0 {
		why = append(why, "slice-left")
	}
	if len(why) == 0 {
		return nil
	}
	entries = slices.DeleteFunc(entries, func(e *entry) bool { return best[e.id()] != e })
	t := &twin{why: why, service: &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("t%d-%d", f.round, f.index)},
		Spec: corev1.ServiceSpec{
			InternalTrafficPolicy: f.service.Spec.InternalTrafficPolicy,
			SessionAffinity:       f.service.Spec.SessionAffinity, SessionAffinityConfig: f.service.Spec.SessionAffinityConfig,
		},
	}}
	for _, q := range f.service.Spec.Ports {
		q.NodePort = 0
		t.service.Spec.Ports = append(t.service.Spec.Ports, q)
	}
	t.slices = slicesOf(t.service.Name, entries)
	return t
}

// slicesOf makes slices of one port each.
func slicesOf(service string, entries []*entry) (out []*discoveryv1.EndpointSlice) {
	port := func(e *entry) string { return fmt.Sprint(e.name, e.protocol, e.to.Port()) }
	slices.SortStableFunc(entries, func(a, b *entry) int { return cmp.Compare(port(a), port(b)) })
	for i, e := range entries {
		if i == 0 || port(entries[i-1]) != port(e) {
			out = append(out, &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s-%d", service, len(out)), Labels: map[string]string{discoveryv1.LabelServiceName: service},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports:       []discoveryv1.EndpointPort{{Name: &e.name, Protocol: &e.protocol, Port: new(int32(e.to.Port()))}},
			})
		}
		last := out[len(out)-1]
		last.Endpoints = append(last.Endpoints, e.endpoint)
	}
	return out
}

// makeTwins makes the twins of this round.
func (p *parity) makeTwins(ctx context.Context) error {
	of, err := p.slicesByService(ctx)
	if err != nil {
		return err
	}
	p.twins = map[*family]*twin{}
	for _, f := range p.families {
		if f.service == nil {
			continue
		}
		t := twinOf(f, of[f.service.Name])
		if t == nil {
			continue
		}
		for _, s := range t.slices {
			if _, err := p.Client().DiscoveryV1().EndpointSlices(p.Namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("make slice of a twin: %w", err)
			}
		}
		if t.service, err = p.Client().CoreV1().Services(p.Namespace).Create(ctx, t.service, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make twin of %s: %w", f.service.Name, err)
		}
		p.twins[f] = t
		p.twinsMade++
	}
	return nil
}

// removeTwins removes them again.
func (p *parity) removeTwins(ctx context.Context) error {
	for _, t := range p.twins {
		if err := p.Client().CoreV1().Services(p.Namespace).Delete(ctx, t.service.Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("remove twin: %w", err)
		}
		for _, s := range t.slices {
			if err := p.Client().DiscoveryV1().EndpointSlices(p.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("remove slice of a twin: %w", err)
			}
		}
	}
	return nil
}
