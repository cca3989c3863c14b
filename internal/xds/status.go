// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"cmp"
	"slices"
)

// Status is a snapshot for people.
type Status struct {
	Streams   []StreamStatus   // by id
	Resources []ResourceStatus // by type in the order of offering, then name
}

// StreamStatus is one connected Envoy.
type StreamStatus struct {
	Stream Stream
	// Subscribed counts the names asked for, by type; -1 stands for all there are.
	Subscribed map[Type]int
	// Unacknowledged counts the responses Envoy has not answered yet, by type.
	Unacknowledged map[Type]int
}

// ResourceStatus is one published name. Versions are content hashes.
type ResourceStatus struct {
	Key
	Published string
	// Offered is empty when the resource was withdrawn because Envoy rejected it
	// and no accepted version was known.
	Offered string
	// Accepted is the version that an Envoy accepted last, or empty.
	Accepted string
	// Rejection holds Envoy's words about a published version, or is empty.
	Rejection string
}

// Status returns the current state of all streams and resources.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var st Status
	for _, ses := range s.sessions {
		x := StreamStatus{Stream: ses.info, Subscribed: map[Type]int{}, Unacknowledged: map[Type]int{}}
		for t, v := range ses.views {
			x.Subscribed[t] = len(v.names)
			if v.wildcard {
				x.Subscribed[t] = -1
			}
			x.Unacknowledged[t] = len(v.flights)
		}
		st.Streams = append(st.Streams, x)
	}
	slices.SortFunc(st.Streams, func(a, b StreamStatus) int { return cmp.Compare(a.Stream.ID, b.Stream.ID) })
	for k, e := range s.ledger {
		st.Resources = append(st.Resources, ResourceStatus{k, e.want.version, e.offer.version, e.good.version, e.nack.message})
	}
	slices.SortFunc(st.Resources, func(a, b ResourceStatus) int {
		return cmp.Or(
			cmp.Compare(slices.Index(offerOrder, a.Type), slices.Index(offerOrder, b.Type)),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return st
}
