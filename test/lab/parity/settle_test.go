// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// The marker is a Service that tells who has applied what. Its port and its slice's
// are renamed last in every round, and its endpoints are hinted for one zone each:
// whoever serves it under its new name, with the endpoint of the node's zone, has
// seen all that was written to Services, slices and the Node before.
const marker = "marker"

func (p *parity) markerPort() (name string, number int32) {
	return "m" + strconv.Itoa(p.round), int32(1000 + p.round)
}

func (p *parity) markerTarget() netip.AddrPort {
	_, number := p.markerPort()
	return netip.AddrPortFrom(markerVIP, uint16(number))
}

// markerEndpoints are those of it that this node's zone wants: all without a zone.
func (p *parity) markerEndpoints() (out []netip.AddrPort) {
	for i, zone := range []string{"zone-a", "zone-b", "zone-c"} {
		if p.zone == zone || p.zone == "" {
			out = append(out, netip.AddrPortFrom(servers[i].ip, uint16(livePort1)))
		}
	}
	return out
}

// setMarker writes the marker of this round.
func (p *parity) setMarker(ctx context.Context) error {
	name, number := p.markerPort()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: marker}, Spec: corev1.ServiceSpec{
		ClusterIP: markerVIP.String(), Ports: []corev1.ServicePort{{Name: name, Port: number}},
	}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: marker, Labels: map[string]string{discoveryv1.LabelServiceName: marker}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: new(livePort1)}},
	}
	for i, zone := range []string{"zone-a", "zone-b", "zone-c"} {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{servers[i].ip.String()}, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	services, endpointSlices := p.Client().CoreV1().Services(p.Namespace), p.Client().DiscoveryV1().EndpointSlices(p.Namespace)
	var err, err2 error
	if p.round == 0 {
		_, err = services.Create(ctx, s, metav1.CreateOptions{})
		_, err2 = endpointSlices.Create(ctx, slice, metav1.CreateOptions{})
	} else {
		_, err = services.Update(ctx, s, metav1.UpdateOptions{})
		_, err2 = endpointSlices.Update(ctx, slice, metav1.UpdateOptions{})
	}
	if err := cmp.Or(err, err2); err != nil {
		return fmt.Errorf("write the marker of round %d: %w", p.round, err)
	}
	return nil
}

// awaitMarker waits until both sides have applied the round.
func (p *parity) awaitMarker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, labtest.Patience)
	defer cancel()
	want := p.markerEndpoints()
	err := lab.Poll(ctx, "kube-proxy has applied the round", func(ctx context.Context) error {
		rules, err := p.KubeProxyRules(ctx)
		if err != nil {
			return err
		}
		if d := rules.Decide(p.markerTarget()); !slices.Equal(d.Endpoints, want) {
			return fmt.Errorf("it serves the marker with %v, want %v", d.Endpoints, want)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return lab.Poll(ctx, "the agent has applied the round", func(ctx context.Context) error {
		a, err := p.dialOnce(ctx, captured, p.markerTarget(), patience)
		if err != nil {
			return err
		}
		hosts, err := p.EnvoyHosts(ctx)
		if err == nil && !slices.Equal(hosts[p.markerTarget()], want) {
			err = fmt.Errorf("Envoy serves the marker with %v, want %v; %s", hosts[p.markerTarget()], want, a)
		}
		return err
	})
}

// setZone gives our node another zone, or none.
func (p *parity) setZone(ctx context.Context, zone string) error {
	value := "null"
	if zone != "" {
		value = strconv.Quote(zone)
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, corev1.LabelTopologyZone, value)
	if _, err := p.Client().CoreV1().Nodes().Patch(ctx, "n1", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set the zone of our node: %w", err)
	}
	p.zone = zone
	return nil
}

// awaitControllers waits until the EndpointSlice controller has written what the
// Services with selectors ask for, and the garbage collector has removed what
// belonged to Services that were deleted.
func (p *parity) awaitControllers(ctx context.Context) error {
	// A slice written as its Service went is seldom collected late: it counts then as it is.
	collected := time.Now().Add(labtest.Patience / 2)
	return lab.Poll(ctx, "the controllers have written the slices", func(ctx context.Context) error {
		bySlice, err := p.slicesByService(ctx)
		if err != nil {
			return err
		}
		if err := p.orphans(bySlice); err != nil && time.Now().Before(collected) {
			return err
		}
		for _, f := range p.families {
			s := f.service
			if s == nil || s.DeletionTimestamp != nil || len(s.Spec.Selector) == 0 || s.Spec.Type == corev1.ServiceTypeExternalName {
				continue
			}
			got, hinted := controllersOwn(s, bySlice[s.Name])
			if want := selected(s); !slices.Equal(got, want) {
				return fmt.Errorf("slices of %s list\n%q, want\n%q", s.Name, got, want)
			}
			wantHints := s.Spec.TrafficDistribution != nil && s.Annotations[corev1.AnnotationTopologyMode] == ""
			if s.Annotations[corev1.AnnotationTopologyMode] == "" && hinted && !wantHints {
				return fmt.Errorf("slices of %s have hints", s.Name)
			}
			if remote := slices.ContainsFunc(got, func(t string) bool { return t[:2] != "e1" && t[:2] != "e2" && t[len(t)-4:] == "true" }); wantHints && remote && !hinted {
				return fmt.Errorf("slices of %s have no hints", s.Name)
			}
		}
		return nil
	})
}

// orphans says which slices are of a Service that is gone.
func (p *parity) orphans(bySlice map[string][]*discoveryv1.EndpointSlice) error {
	for _, f := range p.families {
		for _, s := range bySlice[f.name()] {
			for _, o := range s.OwnerReferences {
				if f.service == nil || o.UID != f.service.UID {
					return fmt.Errorf("slice %s is of a Service that was deleted", s.Name)
				}
			}
		}
	}
	return nil
}

// slicesByService are all slices there are, by the Service they are of, sorted by
// name.
func (p *parity) slicesByService(ctx context.Context) (map[string][]*discoveryv1.EndpointSlice, error) {
	list, err := p.Client().DiscoveryV1().EndpointSlices(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list slices: %w", err)
	}
	out := map[string][]*discoveryv1.EndpointSlice{}
	for i := range list.Items {
		s := &list.Items[i]
		out[s.Labels[discoveryv1.LabelServiceName]] = append(out[s.Labels[discoveryv1.LabelServiceName]], s)
	}
	for _, of := range out {
		slices.SortFunc(of, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	}
	return out, nil
}

// listed is one endpoint behind one port, in words.
func listed(server string, p corev1.ServicePort, number int32, ready bool) string {
	return fmt.Sprintf("%s %q %s %d %v", server, p.Name, p.Protocol, number, ready)
}

// controllersOwn is what the controller's slices of a Service list, and whether
// with hints.
func controllersOwn(service *corev1.Service, of []*discoveryv1.EndpointSlice) (out []string, hinted bool) {
	for _, s := range of {
		if !metav1.IsControlledBy(s, service) {
			continue
		}
		for _, e := range s.Endpoints {
			name := e.Addresses[0]
			if i := slices.IndexFunc(servers, func(s server) bool { return s.ip.String() == name }); i >= 0 {
				name = servers[i].name
			}
			hinted = hinted || e.Hints != nil
			for _, q := range s.Ports {
				out = append(out, listed(name, corev1.ServicePort{Name: *q.Name, Protocol: *q.Protocol}, *q.Port, *e.Conditions.Ready))
			}
		}
	}
	slices.Sort(out)
	return out, hinted
}

// selected is what a Service with a selector is to have.
func selected(s *corev1.Service) (out []string) {
	for _, server := range servers {
		if !slices.ContainsFunc(server.groups, func(g string) bool { return s.Spec.Selector[groupLabel(g)] != "" }) {
			continue
		}
		for _, q := range s.Spec.Ports {
			number := q.TargetPort.IntVal
			if q.TargetPort.Type == intstr.String {
				number = map[string]int32{"http": server.http, "alt": server.alt}[q.TargetPort.StrVal]
				if q.Protocol != corev1.ProtocolTCP {
					number = 0 // a container port of that name is TCP's
				}
			}
			if number != 0 {
				out = append(out, listed(server.name, q, number, server.ready || s.Spec.PublishNotReadyAddresses))
			}
		}
	}
	slices.Sort(out)
	return out
}
