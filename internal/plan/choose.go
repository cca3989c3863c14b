// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"aether.io/aether/internal/model"
)

// Endpoint choice, as kube-proxy 1.37 does it for a ClusterIP: a filter, all or
// nothing, never a preference. It never reads trafficDistribution, the endpoints'
// zones, targetPort or any annotation, only the slices' conditions and hints
// (KEP-1669, KEP-2433, KEP-3015, KEP-2086).
//
// Where it differs from kube-proxy, on purpose:
//   - Of several entries for one ip:port the one used does not depend on the order
//     of arrival: one that is not terminating, then a ready one, then a serving
//     one, then the one of the slice whose name sorts first, then the earlier.
//   - An address that must not be dialled counts as absent everywhere: it neither
//     serves nor takes part in hints.

// entry is one endpoint of one slice, at the number the slice gives the port.
type entry struct {
	addr  netip.AddrPort // zero when the address is no address
	port  uint16
	slice *model.Slice
	place int // in the order of slices, their ports and their endpoints
	ep    *model.Endpoint
	// absent entries are listed and take no part: a faulty address, or a
	// duplicate that lost.
	absent bool
	chosen bool
	why    string
}

// fallback reports whether the endpoint may serve when no ready one can
// (KEP-1669). Ready is looked at first: with publishNotReadyAddresses an endpoint
// is ready and terminating at once.
func (e *entry) fallback() bool { return !e.ep.Ready && e.ep.Serving && e.ep.Terminating }

// usable reports whether the endpoint could serve on some node.
func (e *entry) usable() bool { return e.ep.Ready || e.fallback() }

// faulty reports whether the address must not be dialled.
func (e *entry) faulty() bool { return e.ep.Fault != "" || !e.ep.Addr.IsValid() }

// choice is the outcome for one Service port.
type choice struct {
	entries  []*entry // by address, then place
	used     int
	topology Topology
	empty    Reason // why none is used; NoReason when one is
	steps    []string
}

// choose picks the endpoints of a Service port for this node. local is
// internalTrafficPolicy Local. An empty node name makes no endpoint local; an
// empty zone matches only a hint for the empty zone.
func choose(sls []*model.Slice, port model.ServicePort, local bool, node, zone string) choice {
	c := choice{entries: collect(sls, port), topology: TopologyNone}
	resolveDuplicates(c.entries)
	c.steps = append(c.steps, c.tally(port))
	if local {
		c.chooseLocal(node)
	} else {
		c.chooseCluster(node, zone)
	}
	for _, e := range c.entries {
		if e.chosen {
			c.used++
		}
	}
	return c
}

// collect lists every endpoint behind the slices' ports of that name that are
// TCP, whatever their numbers: name and protocol together are the key, and empty
// matches only empty. The slices come sorted by name. The entries of one ip:port
// end up side by side, in the order of their slices and of their places in them.
func collect(sls []*model.Slice, port model.ServicePort) []*entry {
	matches := func(p model.SlicePort) bool { return p.Name == port.Name && p.Protocol == model.TCP }
	n := 0
	for _, sl := range sls {
		for _, p := range sl.Ports {
			if matches(p) {
				n += len(sl.Endpoints)
			}
		}
	}
	all, out := make([]entry, n), make([]*entry, n)
	n = 0
	for _, sl := range sls {
		for _, p := range sl.Ports {
			if !matches(p) {
				continue
			}
			for i := range sl.Endpoints {
				all[n] = newEntry(sl, &sl.Endpoints[i], p.Port)
				all[n].place = n
				out[n] = &all[n]
				n++
			}
		}
	}
	slices.SortFunc(out, func(a, b *entry) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return cmp.Compare(a.place, b.place)
	})
	return out
}

func newEntry(sl *model.Slice, ep *model.Endpoint, port uint16) entry {
	e := entry{port: port, slice: sl, ep: ep}
	if ep.Addr.IsValid() {
		e.addr = netip.AddrPortFrom(ep.Addr, port)
	}
	if e.faulty() {
		e.absent = true
		e.why = faultText(ep)
	}
	return e
}

// resolveDuplicates leaves one entry per ip:port in play. It runs before hints
// are read: a loser without hints does not turn them off.
func resolveDuplicates(entries []*entry) {
	for len(entries) > 0 {
		same := 1
		for same < len(entries) && entries[same].addr == entries[0].addr {
			same++
		}
		resolveRun(entries[:same])
		entries = entries[same:]
	}
}

// resolveRun picks the winner among the entries of one ip:port. They are sorted,
// so of equals the first wins.
func resolveRun(run []*entry) {
	winner := -1
	for i := range run {
		if !run[i].absent && (winner < 0 || rank(run[i].ep) > rank(run[winner].ep)) {
			winner = i
		}
	}
	for i := range run {
		if e := run[i]; i != winner && !e.absent {
			e.absent = true
			e.why = duplicateText(e, run[winner])
		}
	}
}

// rank orders entries of one ip:port by their conditions: not terminating weighs
// most (as in kube-proxy), then ready, then serving.
func rank(ep *model.Endpoint) int {
	r := 0
	if !ep.Terminating {
		r += 4
	}
	if ep.Ready {
		r += 2
	}
	if ep.Serving {
		r++
	}
	return r
}

// present calls f for every entry that takes part.
func (c *choice) present(f func(*entry)) {
	for _, e := range c.entries {
		if !e.absent {
			f(e)
		}
	}
}

// chooseCluster is internalTrafficPolicy Cluster: the ready endpoints that the
// hints leave for this node; when none is ready anywhere, those that terminate
// and still serve, whatever their hints.
func (c *choice) chooseCluster(node, zone string) {
	var h hints
	fallback := false
	c.present(func(e *entry) {
		h.count(e, node, zone)
		fallback = fallback || e.fallback()
	})
	c.topology = h.mode()
	switch {
	case h.ready > 0:
		c.steps = append(c.steps, h.steps(node, zone)...)
	case fallback:
		c.steps = append(c.steps, "no endpoint is ready: those that terminate and still serve are chosen")
	default:
		c.empty = NoEndpoints
		c.steps = append(c.steps, "no endpoint is usable anywhere")
	}
	words := clusterWords(c.topology, node, zone)
	c.present(func(e *entry) {
		switch {
		case e.ep.Ready:
			e.chosen = c.topology.admits(e.ep, node, zone)
			e.why = words.ready(e)
		case e.fallback() && h.ready == 0:
			e.chosen = true
			e.why = "serving and terminating: chosen because no endpoint is ready anywhere"
		default:
			e.why = unusableText(e, "another endpoint is ready")
		}
	})
}

// chooseLocal is internalTrafficPolicy Local (KEP-2086): the ready endpoints of
// this node, else those of this node that terminate and still serve, even when
// ready ones exist on other nodes. Hints are ignored.
func (c *choice) chooseLocal(node string) {
	localReady, localFallback, anywhere := 0, 0, 0
	c.present(func(e *entry) {
		if !e.usable() {
			return
		}
		anywhere++
		switch {
		case !isLocal(e.ep, node):
		case e.ep.Ready:
			localReady++
		default:
			localFallback++
		}
	})
	step := "internalTrafficPolicy Local: "
	switch {
	case localReady > 0:
		step += "the ready endpoints of this node are chosen, hints are ignored"
	case localFallback > 0:
		step += "no endpoint of this node is ready, those of it that terminate and still serve are chosen"
	case anywhere > 0:
		c.empty = NoLocalEndpoints
		step += "no usable endpoint is on this node, " + count(anywhere, "usable endpoint") + " elsewhere"
	default:
		c.empty = NoEndpoints
		step += "no endpoint is usable, here or elsewhere"
	}
	c.steps = append(c.steps, step)
	c.present(func(e *entry) {
		local := isLocal(e.ep, node)
		switch {
		case local && e.ep.Ready:
			e.chosen = true
			e.why = readyText(e.ep.Terminating) + ", on this node"
		case local && e.fallback() && localReady == 0:
			e.chosen = true
			e.why = "serving and terminating, on this node: chosen because no endpoint of this node is ready"
		case local || !e.usable():
			e.why = unusableText(e, "another endpoint of this node is ready")
		default:
			e.why = remoteText(e, node)
		}
	})
}

// isLocal reports whether the endpoint is on this node. An endpoint without a
// node, and every endpoint when this node's name is not known, is on another.
func isLocal(ep *model.Endpoint, node string) bool { return node != "" && ep.Node == node }

// hints counts what the ready endpoints' hints say. Hints of endpoints that are
// not ready count neither way.
type hints struct {
	ready                int
	withNode, withZone   int // ready endpoints that have such a hint
	forNode, forZone     int // of these, those that name this node, this zone
	lacksNode, lacksZone *entry
}

func (h *hints) count(e *entry, node, zone string) {
	if !e.ep.Ready {
		return
	}
	h.ready++
	if len(e.ep.NodeHints) > 0 {
		h.withNode++
	} else if h.lacksNode == nil {
		h.lacksNode = e
	}
	if len(e.ep.ZoneHints) > 0 {
		h.withZone++
	} else if h.lacksZone == nil {
		h.lacksZone = e
	}
	if slices.Contains(e.ep.NodeHints, node) {
		h.forNode++
	}
	if slices.Contains(e.ep.ZoneHints, zone) {
		h.forZone++
	}
}

// mode returns the topology in force: all or nothing, nodes before zones.
func (h *hints) mode() Topology {
	switch {
	case h.ready > 0 && h.withNode == h.ready && h.forNode > 0:
		return TopologyNode
	case h.ready > 0 && h.withZone == h.ready && h.forZone > 0:
		return TopologyZone
	default:
		return TopologyNone
	}
}

// admits reports whether the mode leaves a ready endpoint for this node.
func (t Topology) admits(ep *model.Endpoint, node, zone string) bool {
	switch t {
	case TopologyNode:
		return slices.Contains(ep.NodeHints, node)
	case TopologyZone:
		return slices.Contains(ep.ZoneHints, zone)
	default:
		return true
	}
}

// candidates returns the entries as facts, chosen ones first.
func (c *choice) candidates() []Candidate {
	if len(c.entries) == 0 {
		return nil
	}
	out := make([]Candidate, 0, len(c.entries))
	for _, chosen := range []bool{true, false} {
		for _, e := range c.entries {
			if e.chosen == chosen {
				out = append(out, e.candidate())
			}
		}
	}
	return out
}

func (e *entry) address() string {
	if !e.addr.IsValid() {
		return e.ep.Text + ":" + strconv.Itoa(int(e.port))
	}
	return e.addr.String()
}

func (e *entry) candidate() Candidate {
	return Candidate{
		Address: e.address(), AddrPort: e.addr,
		Node: e.ep.Node, Zone: e.ep.Zone,
		Ready: e.ep.Ready, Serving: e.ep.Serving, Terminating: e.ep.Terminating,
		Chosen: e.chosen, Why: e.why,
	}
}
