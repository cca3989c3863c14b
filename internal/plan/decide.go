// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"strconv"

	"aether.io/aether/internal/model"
)

// Decide answers for one dialled address. It is total: any target gets an answer
// in any mode.
//
// A never-proxied target (0/8, 127/8, 169.254/16, 224/4) is of class external
// and refused as not-proxied in every mode, for that is what the capture listener
// does with it before it looks at anything else. An IPv4-mapped IPv6 target is
// the IPv4 address it holds; any other IPv6 target is external.
func Decide(st *model.State, s Settings, target netip.AddrPort) Answer {
	d := decision{
		st: st, settings: s,
		addr: target.Addr().Unmap(), port: target.Port(),
		answer: Answer{Target: target},
	}
	svc := d.classify()
	var used int
	declared := false
	if svc != nil {
		used, declared = d.describe(svc)
	}
	d.judge(svc, declared, used)
	return d.answer
}

// decision is one Decide under way.
type decision struct {
	st       *model.State
	settings Settings
	addr     netip.Addr
	port     uint16
	never    bool   // the target is never proxied
	empty    Reason // why no endpoint was chosen
	answer   Answer
}

// classify sets the class and returns the Service the address is of, or nil.
func (d *decision) classify() *model.Service {
	owner, owned := d.st.ServiceByVIP(d.addr)
	if isNeverProxied(d.addr) {
		d.never = true
		d.answer.Class = ClassExternal
		d.why("%s is never proxied: it is loopback, link-local, multicast or unspecified", d.addr)
		return owner
	}
	if vip, ok := d.st.APIServer(); ok && vip == d.addr {
		d.answer.Class = ClassAPIServer
		d.why("%s is the API server's ClusterIP (Service default/kubernetes): it must not depend on the agent", d.addr)
		owner, _ = d.st.APIServerService()
		return owner
	}
	if !d.st.InRange(d.addr) {
		d.answer.Class = ClassExternal
		d.whyExternal(owner)
		return owner
	}
	d.whyInRange()
	if owned && owner.Foreign != model.NotForeign {
		d.answer.Class = ClassForeign
		d.whyOwner(owner)
		d.why("the Service is %s: others balance it", foreignText(owner.Foreign))
		return owner
	}
	if external, ok := d.st.ServiceByExternalIP(d.addr); ok {
		d.answer.Class = ClassForeign
		d.why("it is an externalIP or load-balancer address of Service %s: others balance it", external.Name)
		return external
	}
	if owned {
		d.answer.Class = ClassService
		d.whyOwner(owner)
		return owner
	}
	if imported, ok := d.st.ImportByVIP(d.addr); ok {
		d.answer.Class = ClassForeign
		d.why("it is a ClusterSetIP of ServiceImport %s and no Service's ClusterIP: others balance it", imported.Name)
		return nil
	}
	d.answer.Class = ClassUnknown
	d.why("no Service has it")
	return nil
}

// describe fills in what is known of the Service port: its name, policy and
// endpoints. It returns how many endpoints are chosen and whether the port is
// declared for TCP.
func (d *decision) describe(svc *model.Service) (used int, declared bool) {
	a := &d.answer
	a.Service = &ServiceRef{Service: svc.Name, Port: strconv.Itoa(int(d.port))}
	port, ok := svc.TCPPort(d.port)
	if !ok {
		d.whyUndeclared(svc)
		return 0, false
	}
	if port.Name != "" {
		a.Service.Port = port.Name
	}
	d.whyPort(svc, port)
	zone := d.settings.Zone
	if zone == "" {
		node, _ := d.st.Node(d.settings.Node)
		zone = node.Zone
	}
	known := d.st.Slices(svc.Name)
	a.Awaited = svc.Selects && len(known) == 0
	c := choose(known, port, svc.InternalLocal, d.settings.Node, zone)
	a.Policy = &Policy{
		ClientIPAffinity: svc.ClientIPAffinity,
		InternalLocal:    svc.InternalLocal,
		Topology:         c.topology,
	}
	a.Candidates = c.candidates()
	a.Why = append(a.Why, c.steps...)
	d.empty = c.empty
	return c.used, true
}

// judge sets the verdict: what the mode makes of the class.
func (d *decision) judge(svc *model.Service, declared bool, used int) {
	a := &d.answer
	if d.never {
		a.Verdict, a.Reason = Refuse, NotProxied
		d.why("refused as %s, in every mode", NotProxied)
		return
	}
	var reason Reason
	switch {
	case a.Class == ClassUnknown:
		reason = NoService
	case a.Class != ClassService:
		a.Verdict = Passthrough
		d.why("passed through, in every mode")
		return
	case !declared:
		reason = PortNotDeclared
	case used == 0:
		reason = d.empty
	}
	switch {
	case d.settings.Mode == ModeEnforce && reason != NoReason:
		a.Verdict, a.Reason = Refuse, reason
		d.why("mode enforce: refused as %s", reason)
	case d.settings.Mode == ModeBalance && reason != NoReason:
		a.Verdict = Passthrough
		d.why("mode balance: passed through (mode enforce would refuse it as %s)", reason)
	case d.settings.Mode == ModeBalance || d.settings.Mode == ModeEnforce:
		a.Verdict = Balance
		d.why("mode %s: balanced over %s (%s)", d.settings.Mode, count(used, "endpoint"), balancing(svc))
	default:
		a.Verdict = Passthrough
		d.whyMeasured(reason, used)
	}
}
