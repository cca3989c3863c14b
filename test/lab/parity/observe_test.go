// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
)

// The two pods that dial.
const (
	captured = "captured"
	plain    = "plain"
)

const (
	// patience is how long a dial may take that is to be answered.
	patience = 5 * time.Second
	// silence is how long nothing must come where nothing is to come: longer than
	// the kernel waits with its second SYN.
	silence = 1200 * time.Millisecond
	// mostDials is how often an address is dialled, for each of its endpoints, until
	// all have answered: when they are picked at random, one is missed less than once
	// in 10^9.
	mostDials = 24
	// atOnce is how many addresses are dialled at the same time.
	atOnce = 64
)

// dialOnce makes one connection.
func (p *parity) dialOnce(ctx context.Context, pod string, to netip.AddrPort, most time.Duration) (lab.Answer, error) {
	p.dials.Add(1)
	return p.Cluster.Dial(ctx, p.Namespace+"/"+pod, echo.Client{Mode: "http", Target: to.String(), Timeout: most})
}

// dialAll dials as often as a verdict takes to be confirmed.
func (p *parity) dialAll(ctx context.Context, pod string, to netip.AddrPort, d lab.Decision, affinity bool) (out []lab.Answer, err error) {
	least, most, wait := 2, 2, patience
	switch {
	case d.Verdict != lab.Serve && d.Verdict != lab.Reject:
		least, most, wait = 1, 1, silence
	case unanswerable(d.Endpoints):
		least, most, wait = 1, 1, silence
	case d.Verdict == lab.Serve:
		least = 2 * len(d.Endpoints)
		if !affinity {
			most = mostDials * len(d.Endpoints)
		}
	}
	for len(out) < max(least, most) {
		if len(out) >= least && (affinity || slices.Equal(answered(out), living(d.Endpoints))) {
			break
		}
		a, err := p.dialOnce(ctx, pod, to, wait)
		if err != nil {
			return out, err
		}
		out = append(out, a)
	}
	return out, nil
}

// targets are all addresses of a family that are dialled: its ports and one that is
// not, its former addresses, its external ones, its node port, and nobody's.
func (p *parity) targets(f *family) (out []target) {
	add := func(a netip.Addr, port int32, external bool) {
		t := target{to: netip.AddrPortFrom(a, uint16(port)), family: f, external: external}
		for _, g := range p.families {
			if clusterIP(g.service) == a {
				t.owner = g.service
			}
		}
		if w := p.twins[f]; w != nil && t.owner == f.service {
			t.twin = new(netip.AddrPortFrom(clusterIP(w.service), t.to.Port()))
		}
		if external {
			t.owner = f.service
		}
		if !slices.ContainsFunc(out, func(other target) bool { return other.to == t.to }) {
			out = append(out, t)
		}
	}
	s := f.service
	if a := clusterIP(s); a.IsValid() {
		add(a, undeclaredPort, false)
		for _, q := range s.Spec.Ports {
			add(a, q.Port, false)
		}
	}
	for _, a := range f.old {
		add(a, portNumbers[0], false)
	}
	add(f.nobodys(), portNumbers[0], false)
	if f.index == 0 {
		add(after(secondRange.Addr(), 200), portNumbers[0], false)
	}
	if s == nil || s.Spec.Type == corev1.ServiceTypeExternalName || len(s.Spec.Ports) == 0 {
		return out
	}
	for _, a := range inRange(s) {
		add(a, s.Spec.Ports[0].Port, true)
		add(a, undeclaredPort, true)
	}
	for _, q := range s.Spec.Ports {
		if q.NodePort != 0 && q.Protocol == corev1.ProtocolTCP {
			out = append(out, target{to: netip.AddrPortFrom(nodeIP, uint16(q.NodePort)), family: f, nodePort: true, owner: s})
			break
		}
	}
	return out
}

// nodeIP is our node's address.
var nodeIP = netip.MustParseAddr("172.18.0.2")

var firstRange = netip.MustParsePrefix("10.96.0.0/16")

func (p *parity) inServiceRange(a netip.Addr) bool {
	return firstRange.Contains(a) || p.second && secondRange.Contains(a)
}

// look observes targets: kube-proxy's rules, then, once each name was asked for,
// the agent's answers and Envoy's endpoints; then it dials.
func (p *parity) look(ctx context.Context, targets []target) ([]*seen, error) {
	rules, err := p.KubeProxyRules(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]*seen, len(targets))
	for i, t := range targets {
		t.ranged = p.inServiceRange(t.to.Addr())
		s := &seen{target: t, kube: rules.Decide(t.to)}
		if t.nodePort {
			if s.kube = rules.DecideNodePort(int(t.to.Port())); s.kube.Verdict == lab.None {
				s.kube.Verdict = lab.Reject // by the node itself, on whose address nobody listens
			}
		}
		if s.twin = s.kube; t.twin != nil {
			s.twin, s.why = rules.Decide(*t.twin), p.twins[t.family].why
		}
		out[i] = s
	}
	if err := p.each(ctx, out, p.ask); err != nil {
		return nil, err
	}
	rows, err := p.AgentServices(ctx)
	if err != nil {
		return nil, err
	}
	hosts, err := p.EnvoyHosts(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range out {
		s.row, s.hosts = rows[s.to], hosts[s.to]
	}
	return out, p.each(ctx, out, p.confirm)
}

// each does something for all targets at the same time.
func (p *parity) each(ctx context.Context, all []*seen, do func(context.Context, *seen) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, s := range all {
		g.Go(func() error { return do(ctx, s) })
	}
	return g.Wait()
}

// ask has Envoy ask for a name that it does not know yet. How this first dial went
// is judged with the others.
func (p *parity) ask(ctx context.Context, s *seen) error {
	if _, known := p.asked.LoadOrStore(s.to, true); known || !s.ranged {
		return nil
	}
	wait := patience
	if s.kube.Verdict == lab.Drop || s.kube.Verdict == lab.None || unanswerable(s.kube.Endpoints) {
		wait = silence
	}
	a, err := p.dialOnce(ctx, captured, s.to, wait)
	s.captured = append(s.captured, a)
	return err
}

func (p *parity) confirm(ctx context.Context, s *seen) error {
	var err error
	if s.plain, err = p.dialAll(ctx, plain, s.to, s.kube, s.affinity()); err != nil {
		return err
	}
	if s.target.twin != nil {
		if s.twinPlain, err = p.dialAll(ctx, plain, *s.target.twin, s.twin, s.affinity()); err != nil {
			return err
		}
	}
	want := s.twin
	if s.row.Answer == "refuse" {
		want = lab.Decision{Verdict: lab.Reject}
	}
	more, err := p.dialAll(ctx, captured, s.to, want, s.affinity())
	s.captured = append(s.captured, more...)
	return err
}

// secondRangeName is the ServiceCIDR that comes and goes.
const secondRangeName = "second"

// awaitRange waits until the agent has the ranges the API server has.
func (p *parity) awaitRange(ctx context.Context) error {
	return lab.Poll(ctx, "the agent knows the Service ranges", func(ctx context.Context) error {
		_, err := p.Client().NetworkingV1().ServiceCIDRs().Get(ctx, secondRangeName, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		there := err == nil
		st, err := p.AgentStatus(ctx)
		if err != nil {
			return err
		}
		if known := slices.Contains(st.Range, secondRange.String()); known != there {
			return errorf("the second range is there: %v; the agent has %v", there, st.Range)
		}
		p.second = there
		return nil
	})
}
