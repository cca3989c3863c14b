// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/explain"
	"aether.io/aether/internal/manifest"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// defaultServiceRange is the Service range where neither a ServiceCIDR nor a flag
// gives one. The sandbox has the same.
var defaultServiceRange = netip.MustParsePrefix("10.96.0.0/16")

var modes = []string{string(plan.ModePassthrough), string(plan.ModeBalance), string(plan.ModeEnforce)}

// offline answers from manifests alone.
type offline struct {
	dirs   []string
	node   string
	zone   string
	mode   string
	ranges []string
}

// world is what the manifests say, and for which node it is asked.
type world struct {
	state    *model.State
	settings plan.Settings
	selects  map[model.Name]bool // Services that have a selector
}

// load reads the manifests. A broken file is an error that names file, object and
// field, for an answer that rests on half the objects would be a wrong one.
func (c *cli) load(o offline) (*world, error) {
	if !slices.Contains(modes, o.mode) {
		return nil, badInput("", "mode %q: want one of %s", o.mode, strings.Join(modes, ", "))
	}
	var override []netip.Prefix
	for _, r := range o.ranges {
		p, ok := convert.ParsePrefix(strings.TrimSpace(r))
		if !ok || !p.Addr().Is4() {
			return nil, badInput("", "service range %q: want an IPv4 CIDR such as %s", r, defaultServiceRange)
		}
		override = append(override, p)
	}
	res, err := manifest.Load(o.dirs, manifest.Options{DefaultServiceCIDR: defaultServiceRange})
	if err != nil {
		return nil, badInput("", "%w", err)
	}
	if len(res.Problems) > 0 {
		return nil, badInput("", "read manifests:\n%w", problems(res.Problems))
	}
	for _, n := range res.Notes {
		c.note("%s", n)
	}
	st, _ := model.New(model.Options{RangeOverride: override}).Apply(res.Changes)
	s := plan.Settings{Mode: plan.Mode(o.mode), Node: o.node, Zone: o.zone}
	c.chooseNode(st, &s, nodeNames(res.Objects))
	w := &world{state: st, settings: s, selects: map[model.Name]bool{}}
	for _, svc := range res.Objects.Services {
		w.selects[model.Name{Namespace: svc.Namespace, Name: svc.Name}] = len(svc.Spec.Selector) > 0
	}
	return w, nil
}

// problems makes one error of all that is broken, a line each.
func problems(ps []manifest.Problem) error {
	var errs []error
	for _, p := range ps {
		errs = append(errs, fmt.Errorf("  %s", p))
	}
	return errors.Join(errs...)
}

// chooseNode takes the only Node for the node that is meant when none is named.
// Without one nothing is local and no hint names it, as kube-proxy has it.
func (c *cli) chooseNode(st *model.State, s *plan.Settings, nodes []string) {
	if s.Node == "" && len(nodes) == 1 {
		s.Node = nodes[0]
	}
	switch {
	case s.Node == "" && len(nodes) > 1:
		c.note("no --node given and the manifests hold %d Nodes (%s): no endpoint counts as local",
			len(nodes), strings.Join(nodes, ", "))
	case s.Node != "" && s.Zone == "" && len(nodes) > 0 && !slices.Contains(nodes, s.Node):
		c.note("no Node %q in the manifests (%s): its zone is not known, so zone hints do not apply (--zone gives it)",
			s.Node, strings.Join(nodes, ", "))
	}
	if s.Zone == "" {
		n, _ := st.Node(s.Node)
		s.Zone = n.Zone
	}
}

// explain decides on one target.
func (w *world) explain(t target) (api.Explanation, error) {
	addr := t.addr
	if !addr.IsValid() {
		var err error
		if addr, err = w.resolve(t); err != nil {
			return api.Explanation{}, err
		}
	}
	return explain.FromAnswer(plan.Decide(w.state, w.settings, addr)), nil
}

// awaitsSlices reports whether the Service has a selector and the manifests hold no
// slice for it: in a cluster a controller would have written one.
func (w *world) awaitsSlices(s *api.ServiceRef) bool {
	if s == nil {
		return false
	}
	n := model.Name{Namespace: s.Namespace, Name: s.Name}
	return w.selects[n] && len(w.state.Slices(n)) == 0
}

// resolve finds the address of a Service port by name.
func (w *world) resolve(t target) (netip.AddrPort, error) {
	name := model.Name{Namespace: t.ns, Name: t.service}
	svc, ok := w.state.Service(name)
	switch {
	case !ok:
		return netip.AddrPort{}, badInput("", "%q: no Service %s in the manifests", t.text, name)
	case !svc.VIP.IsValid():
		return netip.AddrPort{}, badInput("", "%q: Service %s owns no IPv4 ClusterIP (it is headless, ExternalName or IPv6 only)", t.text, name)
	}
	var declared []string
	for _, p := range svc.Ports {
		if p.Protocol != model.TCP {
			continue
		}
		if p.Name == t.port {
			return netip.AddrPortFrom(svc.VIP, p.Port), nil
		}
		declared = append(declared, strings.TrimPrefix(fmt.Sprintf("%s=%d", p.Name, p.Port), "="))
	}
	if n, err := portNumber(t.port); err == nil {
		return netip.AddrPortFrom(svc.VIP, n), nil
	}
	return netip.AddrPort{}, badInput("", "%q: Service %s has no TCP port named %q (it declares %s)",
		t.text, name, t.port, orDash(strings.Join(declared, ", ")))
}

// declared lists the Service's TCP ports: the name, or the number of one that has none.
func (w *world) declared(s *api.ServiceRef) (out []string) {
	if s == nil {
		return nil
	}
	if svc, ok := w.state.Service(model.Name{Namespace: s.Namespace, Name: s.Name}); ok {
		for _, p := range svc.Ports {
			if p.Protocol == model.TCP {
				out = append(out, portText(p))
			}
		}
	}
	return out
}

// names lists NAME.NAMESPACE:PORT of every Service port, for completion.
func (w *world) names() (out []string) {
	for svc := range w.state.Services() {
		for _, p := range svc.Ports {
			if p.Protocol == model.TCP && svc.VIP.IsValid() {
				out = append(out, serviceText(&api.ServiceRef{Namespace: svc.Name.Namespace, Name: svc.Name.Name, Port: portText(p)}))
			}
		}
	}
	slices.Sort(out)
	return out
}

func portText(p model.ServicePort) string {
	if p.Name != "" {
		return p.Name
	}
	return fmt.Sprint(p.Port)
}

// nodeNames lists the names of the Nodes, sorted.
func nodeNames(o manifest.Objects) (out []string) {
	for _, n := range o.Nodes {
		out = append(out, n.Name)
	}
	return out
}
