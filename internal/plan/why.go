// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strconv"
	"strings"

	"aether.io/aether/internal/model"
)

// The sentences of an Answer, for people. Nothing here decides anything, and
// nothing may be said that Affected does not know to be stale: a sentence rests
// on what the decision rests on.

func (d *decision) why(format string, args ...any) {
	d.answer.Why = append(d.answer.Why, fmt.Sprintf(format, args...))
}

func (d *decision) whyExternal(owner *model.Service) {
	switch {
	case !d.st.RangeKnown():
		d.why("the Service range is not known, so %s counts as outside it", d.addr)
	default:
		d.why("%s is outside the Service range (%s)", d.addr, rangeText(d.st))
	}
	if owner != nil {
		d.why("it is the ClusterIP of Service %s all the same", owner.Name)
	} else if external, ok := d.st.ServiceByExternalIP(d.addr); ok {
		d.why("it is an externalIP or load-balancer address of Service %s", external.Name)
	}
}

func (d *decision) whyInRange() {
	for _, p := range d.st.Range() {
		if p.Contains(d.addr) {
			d.why("%s is in the Service range (%s)", d.addr, p)
			return
		}
	}
}

// rangeText lists the range, cut short when it is long.
func rangeText(st *model.State) string {
	const most = 4
	var parts []string
	for i, p := range st.Range() {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(st.Range())-most))
			break
		}
		parts = append(parts, p.String())
	}
	return strings.Join(parts, ", ")
}

func (d *decision) whyOwner(owner *model.Service) {
	d.why("it is the ClusterIP of Service %s", owner.Name)
	for _, other := range d.st.ClaimsOnVIP(d.addr)[1:] {
		switch {
		case other.Deleting != owner.Deleting:
			d.why("Service %s claims it too, but is being deleted", other.Name)
		case other.Created != owner.Created:
			d.why("Service %s claims it too, but is younger", other.Name)
		default:
			d.why("Service %s claims it too and is as old, but its name sorts later", other.Name)
		}
	}
}

func (d *decision) whyUndeclared(svc *model.Service) {
	var tcp, same []string
	for _, p := range svc.Ports {
		switch {
		case p.Port == d.port:
			same = append(same, string(p.Protocol))
		case p.Protocol == model.TCP:
			tcp = append(tcp, strconv.Itoa(int(p.Port)))
		}
	}
	switch {
	case len(same) > 0:
		d.why("Service %s declares port %d for %s only, not for TCP", svc.Name, d.port, strings.Join(same, " and "))
	case len(tcp) > 0:
		d.why("Service %s declares no TCP port %d, only %s", svc.Name, d.port, strings.Join(tcp, ", "))
	default:
		d.why("Service %s declares no TCP port", svc.Name)
	}
}

func (d *decision) whyPort(svc *model.Service, port model.ServicePort) {
	if port.Name == "" {
		d.why("Service %s declares TCP port %d, without a name", svc.Name, port.Port)
		return
	}
	d.why("Service %s declares TCP port %d as %q", svc.Name, port.Port, port.Name)
}

// whyMeasured says what the other modes would do.
func (d *decision) whyMeasured(reason Reason, used int) {
	if reason != NoReason {
		d.why("mode passthrough: passed through (mode enforce would refuse it as %s)", reason)
		return
	}
	d.why("mode passthrough: passed through (mode balance would use %s)", count(used, "endpoint"))
}

func balancing(svc *model.Service) string {
	if svc.ClientIPAffinity {
		return "ring hash on the pod's address, for sessionAffinity ClientIP"
	}
	return "round robin"
}

func foreignText(f model.Foreign) string {
	switch f {
	case model.ServiceProxyName:
		return "labelled service.kubernetes.io/service-proxy-name"
	case model.CiliumGlobal:
		return "a Cilium global Service"
	case model.OptedOut:
		return "opted out by annotation aether.io/service-egress"
	default:
		return string(f)
	}
}

// tally counts the entries by what they are.
func (c *choice) tally(port model.ServicePort) string {
	var ready, fallback, rest, duplicates, faulty int
	for _, e := range c.entries {
		switch {
		case e.faulty():
			faulty++
		case e.absent:
			duplicates++
		case e.ep.Ready:
			ready++
		case e.fallback():
			fallback++
		default:
			rest++
		}
	}
	if len(c.entries) == 0 {
		return fmt.Sprintf("no EndpointSlice of the Service lists an endpoint for TCP port name %q", port.Name)
	}
	text := fmt.Sprintf("EndpointSlices list %s for it: %d ready", count(len(c.entries), "endpoint"), ready)
	for _, part := range []struct {
		n    int
		text string
	}{
		{fallback, "terminating but serving"},
		{rest, "not usable"},
		{duplicates, "duplicate"},
		{faulty, "with a bad address"},
	} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.text)
		}
	}
	return text
}

// steps says which hints were followed or why they were not.
func (h *hints) steps(node, zone string) []string {
	var out []string
	switch {
	case h.withNode == 0:
	case h.lacksNode != nil:
		out = append(out, fmt.Sprintf("node hints are ignored: ready endpoint %s has none", h.lacksNode.addr))
	case h.forNode == 0:
		out = append(out, fmt.Sprintf("node hints are ignored: none names this node (%q)", node))
	default:
		return append(out, fmt.Sprintf("every ready endpoint has a node hint and %d of %d name node %s: only these are chosen",
			h.forNode, h.ready, node))
	}
	switch {
	case h.withZone == 0:
	case h.lacksZone != nil:
		out = append(out, fmt.Sprintf("zone hints are ignored: ready endpoint %s has none", h.lacksZone.addr))
	case h.forZone == 0 && zone == "":
		out = append(out, "zone hints are ignored: this node's zone is not known")
	case h.forZone == 0:
		out = append(out, fmt.Sprintf("zone hints are ignored: none names this node's zone (%q)", zone))
	default:
		return append(out, fmt.Sprintf("every ready endpoint has a zone hint and %d of %d name zone %s: only these are chosen",
			h.forZone, h.ready, zone))
	}
	return append(out, "all ready endpoints are chosen")
}

// phrases makes the sentences for ready endpoints under one topology. A Service
// can have thousands of them, so each sentence is made once.
type phrases struct {
	topology Topology
	place    string            // what the hints must name
	leftOut  map[string]string // by the hints of the endpoint
	chosen   map[bool]string   // by whether it is terminating
}

func clusterWords(t Topology, node, zone string) phrases {
	p := phrases{topology: t, leftOut: map[string]string{}, chosen: map[bool]string{}}
	var hinted string
	switch t {
	case TopologyNode:
		p.place = "this node (" + node + ")"
		hinted = ", hinted for node " + node
	case TopologyZone:
		p.place = "this node's zone (" + zone + ")"
		hinted = ", hinted for zone " + zone
	}
	for _, terminating := range []bool{false, true} {
		p.chosen[terminating] = readyText(terminating) + hinted
	}
	return p
}

func (p phrases) ready(e *entry) string {
	if e.chosen {
		return p.chosen[e.ep.Terminating]
	}
	hints := e.ep.ZoneHints
	if p.topology == TopologyNode {
		hints = e.ep.NodeHints
	}
	others := strings.Join(hints, ", ")
	if _, made := p.leftOut[others]; !made {
		p.leftOut[others] = "left out: ready, but hinted for " + others + " and not for " + p.place
	}
	return p.leftOut[others]
}

func readyText(terminating bool) string {
	if terminating {
		return "ready (though terminating)"
	}
	return "ready"
}

// unusableText says why an endpoint that is not ready is not used; better says
// what keeps a terminating one that still serves from being used.
func unusableText(e *entry, better string) string {
	switch {
	case e.fallback():
		return "terminating: left out because " + better
	case e.ep.Terminating:
		return "terminating and not serving"
	default:
		return "not ready"
	}
}

func remoteText(e *entry, node string) string {
	switch {
	case node == "":
		return "left out by internalTrafficPolicy Local: this node's name is not known, so no endpoint is on it"
	case e.ep.Node == "":
		return "left out by internalTrafficPolicy Local: it names no node"
	default:
		return "left out by internalTrafficPolicy Local: on node " + e.ep.Node + ", not on " + node
	}
}

func faultText(ep *model.Endpoint) string {
	fault := ep.Fault
	if fault == "" {
		fault = "not an address"
	}
	return "bad address " + strconv.Quote(ep.Text) + ": " + fault
}

// duplicateText says which entry of the same ip:port won, and why.
func duplicateText(loser, winner *entry) string {
	where := "duplicate of the entry in slice " + winner.slice.Name.String() + ", which "
	l, w := loser.ep, winner.ep
	switch {
	case l.Terminating != w.Terminating:
		return where + "is not terminating"
	case l.Ready != w.Ready:
		return where + "is ready"
	case l.Serving != w.Serving:
		return where + "is serving"
	case loser.slice != winner.slice:
		return where + "sorts first by name"
	default:
		return where + "comes earlier in it"
	}
}

// count is "1 endpoint", "3 endpoints".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
