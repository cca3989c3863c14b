// SPDX-License-Identifier: Apache-2.0

package xdstest

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// subscription is what Envoy wants and has of one type. Envoy.mu guards it.
type subscription struct {
	wildcard  bool
	names     map[string]bool
	versions  map[string]string // of accepted responses
	listed    map[string][]byte // what versions stands for
	resources map[string][]byte // applied
	owed      []*discovery.DeltaDiscoveryRequest
}

func (s *subscription) drop(name string) {
	delete(s.versions, name)
	delete(s.listed, name)
	delete(s.resources, name)
}

func (s *subscription) wants(name string) bool { return s.wildcard || s.names[name] }

// subscription returns that of a type and starts it if there is none.
func (e *Envoy) subscription(typeURL string) *subscription {
	s := e.types[typeURL]
	if s == nil {
		s = &subscription{
			wildcard:  typeURL == resource.ClusterType || typeURL == resource.ListenerType,
			names:     map[string]bool{},
			versions:  map[string]string{},
			listed:    map[string][]byte{},
			resources: map[string][]byte{},
		}
		e.types[typeURL] = s
		if typeURL == resource.ClusterType {
			e.order = append(e.order, typeURL)
		}
	}
	return s
}

// begin sends the first request of a type on a stream.
func (e *Envoy) begin(s *stream, typeURL string) {
	if s.begun[typeURL] {
		return
	}
	s.begun[typeURL] = true
	sub := e.subscription(typeURL)
	sub.owed = nil
	names := slices.Sorted(maps.Keys(sub.names))
	if sub.wildcard && len(names) > 0 {
		names = append([]string{"*"}, names...)
	}
	s.enqueue(&discovery.DeltaDiscoveryRequest{
		Node:                    e.node(),
		TypeUrl:                 typeURL,
		ResourceNamesSubscribe:  names,
		InitialResourceVersions: maps.Clone(sub.versions),
	})
}

// start makes the first request of a type, on this stream and the later ones.
func (e *Envoy) start(typeURL string) {
	if !slices.Contains(e.order, typeURL) {
		e.order = append(e.order, typeURL)
	}
	if e.stream != nil {
		e.begin(e.stream, typeURL)
	}
}

func (s *stream) enqueue(req *discovery.DeltaDiscoveryRequest) {
	s.queue = append(s.queue, req)
	select {
	case s.out <- struct{}{}:
	default:
	}
}

func (e *Envoy) request(req *discovery.DeltaDiscoveryRequest) {
	if e.stream != nil {
		e.stream.enqueue(req)
	}
}

// interest changes the names of a type and tells the server.
func (e *Envoy) interest(typeURL string, add, drop []string) {
	sub := e.subscription(typeURL)
	var added, dropped []string
	for _, name := range add {
		if !sub.names[name] {
			sub.names[name] = true
			added = append(added, name)
		}
	}
	for _, name := range drop {
		if sub.names[name] {
			delete(sub.names, name)
			sub.drop(name)
			dropped = append(dropped, name)
		}
	}
	if len(added)+len(dropped) == 0 {
		return
	}
	if e.stream != nil && e.stream.begun[typeURL] {
		e.request(&discovery.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: added, ResourceNamesUnsubscribe: dropped})
	} else {
		e.start(typeURL)
	}
	e.notify()
}

// handle applies a response and answers it.
func (e *Envoy) handle(resp *discovery.DeltaDiscoveryResponse) {
	t := resp.GetTypeUrl()
	sub := e.subscription(t)
	got := Response{Type: t, Removed: slices.Sorted(slices.Values(resp.GetRemovedResources()))}
	for _, r := range resp.GetResources() {
		got.Names = append(got.Names, r.GetName())
	}
	slices.Sort(got.Names)
	got.Nack = e.applyAll(t, resp)
	e.responses = append(e.responses, got)

	answer := &discovery.DeltaDiscoveryRequest{TypeUrl: t, ResponseNonce: resp.GetNonce()}
	if got.Nack != "" {
		answer.ErrorDetail = &statuspb.Status{Code: int32(codes.Internal), Message: got.Nack}
	} else {
		for _, r := range resp.GetResources() {
			if sub.wants(r.GetName()) {
				sub.versions[r.GetName()] = r.GetVersion()
				sub.listed[r.GetName()] = r.GetResource().GetValue()
			}
		}
	}
	if e.stalled[t] {
		sub.owed = append(sub.owed, answer)
	} else {
		e.request(answer)
	}
	if t == resource.ClusterType {
		e.follow(resp)
		e.start(resource.ListenerType)
	}
}

// applyAll applies what can be applied of a response and returns the words of the
// rejection, or "".
func (e *Envoy) applyAll(t string, resp *discovery.DeltaDiscoveryResponse) string {
	sub := e.subscription(t)
	faults := map[string]error{}
	for _, r := range resp.GetResources() {
		if err := e.judge(t, r); err != nil {
			if errors.As(err, &undecodable{}) {
				return err.Error()
			}
			faults[r.GetName()] = err
		}
	}
	var words []string
	for _, r := range resp.GetResources() {
		name := r.GetName()
		if err := faults[name]; err != nil {
			if t == resource.EndpointType {
				return err.Error()
			}
			words = append(words, name+": "+err.Error())
			continue
		}
		if sub.wants(name) {
			sub.resources[name] = r.GetResource().GetValue()
		}
	}
	for _, name := range resp.GetRemovedResources() {
		sub.drop(name)
	}
	if len(words) == 0 {
		return ""
	}
	kind := "listener"
	if t == resource.ClusterType {
		kind = "cluster"
	}
	return "Error adding/updating " + kind + "(s) " + strings.Join(words, ", ")
}

func (e *Envoy) judge(t string, r *discovery.Resource) error {
	if e.opts.Judge == nil {
		return nil
	}
	return e.opts.Judge(t, r.GetName(), r.GetResource().GetValue())
}

// follow subscribes to the assignments of the clusters that Envoy has, and drops
// those of the clusters that have gone.
func (e *Envoy) follow(resp *discovery.DeltaDiscoveryResponse) {
	clusters := e.subscription(resource.ClusterType).resources
	var add, drop []string
	note := func(name string) {
		before, after := e.assignments[name], assignmentOf(name, clusters[name])
		if before == after {
			return
		}
		delete(e.assignments, name)
		if before != "" {
			drop = append(drop, before)
		}
		if after != "" {
			e.assignments[name] = after
			add = append(add, after)
		}
	}
	for _, r := range resp.GetResources() {
		note(r.GetName())
	}
	for _, name := range resp.GetRemovedResources() {
		note(name)
	}
	slices.Sort(add)
	slices.Sort(drop)
	e.interest(resource.EndpointType, add, drop)
}

// assignmentOf returns the name of the assignment that a cluster needs, or "".
func assignmentOf(name string, value []byte) string {
	var c clusterv3.Cluster
	if value == nil || proto.Unmarshal(value, &c) != nil || c.GetType() != clusterv3.Cluster_EDS {
		return ""
	}
	return cmp.Or(c.GetEdsClusterConfig().GetServiceName(), name)
}
