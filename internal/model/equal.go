// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
)

// Lists compare by their entries, in order: a missing list and an empty one are
// the same (Kubernetes issue 136502: slices rewritten for ever, ports nil against
// empty). Another order is a difference, because of two equal entries for one
// address the earlier is used.

func (s *Service) equal(o *Service) bool {
	return s.Name == o.Name && s.UID == o.UID &&
		s.Created == o.Created && s.Deleting == o.Deleting &&
		s.VIP == o.VIP && slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(s.Ports, o.Ports) &&
		s.InternalLocal == o.InternalLocal && s.ClientIPAffinity == o.ClientIPAffinity &&
		s.Foreign == o.Foreign
}

func (s *Slice) equal(o *Slice) bool {
	return s.Name == o.Name && s.Service == o.Service &&
		slices.Equal(s.Ports, o.Ports) &&
		slices.EqualFunc(s.Endpoints, o.Endpoints, Endpoint.equal)
}

func (e Endpoint) equal(o Endpoint) bool {
	return e.Addr == o.Addr && e.Text == o.Text && e.Fault == o.Fault &&
		e.Node == o.Node && e.Zone == o.Zone &&
		e.Ready == o.Ready && e.Serving == o.Serving && e.Terminating == o.Terminating &&
		slices.Equal(e.ZoneHints, o.ZoneHints) && slices.Equal(e.NodeHints, o.NodeHints)
}

// externalIPs returns the distinct external addresses.
func (s *Service) externalIPs() []netip.Addr { return distinct(s.ExternalIPs) }

// service returns the name of the Service the slice belongs to.
func (s *Slice) service() Name { return Name{Namespace: s.Name.Namespace, Name: s.Service} }

func (s *Slice) name() Name { return s.Name }

func (i *Import) name() Name { return i.Name }

// distinct returns the valid addresses of a list, each once.
func distinct(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for i, a := range addrs {
		if a.IsValid() && !slices.Contains(addrs[:i], a) {
			out = append(out, a)
		}
	}
	return out
}
