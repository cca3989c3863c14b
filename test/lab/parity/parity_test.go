// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"aether.io/aether/test/lab/labtest"
)

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

// parity is one run.
type parity struct {
	*labtest.Space
	t        *testing.T
	families []*family
	twins    map[*family]*twin
	round    int
	zone     string
	second   bool // the second range is there
	asked    sync.Map
	dials    atomic.Int64

	states, refused, twinsMade, late int
	differ, left                     map[string]int // targets by name
	verdicts                         map[string]int
	faults                           int
}

// settleWithin is how long both sides may take to agree on what they have been
// told: the time between the moment a change is in the rules of one and in Envoy.
const settleWithin = 20 * time.Second

func TestParity(t *testing.T) {
	p := &parity{
		Space: labtest.New(t), t: t, zone: "zone-a",
		differ: map[string]int{}, left: map[string]int{}, verdicts: map[string]int{},
	}
	began := time.Now()
	t.Logf("seed %d, %d rounds", *seed, *rounds)
	p.Must(p.Node.InNode(unlimitedRejects))
	p.makePods()
	for i := range families {
		p.families = append(p.families, newFamily(*seed, i))
	}
	t.Cleanup(p.forgetRange)
	for p.round = range *rounds {
		p.Must(p.doRound(t.Context()))
		if p.faults > 5 {
			t.Error("there is more of it; ended early")
			break
		}
	}
	t.Logf("seed %d: %d states, %d dials, %d twins, %d objects refused by the API server, %d addresses agreed late, %d faults, %.1f minutes",
		*seed, p.states, p.dials.Load(), p.twinsMade, p.refused, p.late, p.faults, time.Since(began).Minutes())
	for _, counts := range []map[string]int{p.verdicts, p.left, p.differ} {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			t.Logf("  %5d %-26s %s%s", counts[name], name, passed[name], differences[name])
		}
	}
	p.wantVariety()
}

// wantVariety: a run that meets too little shows too little.
func (p *parity) wantVariety() {
	if want := families * *rounds * 5 / 6; p.states < want {
		p.t.Errorf("%d states, want at least %d", p.states, want)
	}
	if *rounds < 40 {
		return
	}
	balanced := 0
	for name, n := range p.verdicts {
		if strings.HasPrefix(name, "we: balance") {
			balanced += n
		}
	}
	if want := families * *rounds / 3; balanced < want {
		p.t.Errorf("%d addresses balanced, want at least %d", balanced, want)
	}
	// What chance decides, or a slow machine, need not be met.
	chance := []string{"close-for-reset", "client-ip-affinity", "duplicate"}
	for name := range differences {
		if p.differ[name] == 0 && !slices.Contains(chance, name) {
			p.t.Errorf("difference %s was not met once", name)
		}
	}
	for name := range passed {
		if p.left[name] == 0 {
			p.t.Errorf("nothing was left to kube-proxy as %s", name)
		}
	}
}

// unlimitedRejects lifts the kernel's limits for ICMP errors, by which kube-proxy
// rejects: else only some of many dials at once are, and the others hang.
func unlimitedRejects() error {
	for name, value := range map[string]string{"icmp_ratelimit": "0", "icmp_msgs_per_sec": "1000000", "icmp_msgs_burst": "1000000"} {
		err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // the last two are not in every kernel's namespaces
			return fmt.Errorf("set sysctl %s: %w", name, err)
		}
	}
	return nil
}

// makePods makes the servers and the two clients.
func (p *parity) makePods() {
	p.t.Helper()
	var docs, names []string
	for _, s := range servers {
		labels := `aether.io/managed: "false"`
		for _, g := range s.groups {
			labels += fmt.Sprintf(", %s: %q", groupLabel(g), "yes")
		}
		docs = append(docs, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels: {%s}
  annotations: {lab.aether.io/pod-ip: %s, sandbox.aether.io/ready: %q}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers:
  - name: echo
    image: aether/echo
    args: [--http, ":%d", --http, ":%d"]
    ports: [{name: http, containerPort: %d}, {name: alt, containerPort: %d}]`,
			s.name, labels, s.ip, fmt.Sprint(s.ready), s.node, livePort1, livePort2, s.http, s.alt))
		if s.ready {
			names = append(names, s.name)
		}
	}
	p.Apply(append(docs, labtest.Client(captured, true), labtest.Client(plain, false))...)
	p.Ready(append(names, captured, plain)...)
	for _, s := range servers {
		for _, port := range []int32{livePort1, livePort2} {
			p.Answers(plain, s.ip, int(port))
		}
	}
}

func (p *parity) doRound(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*labtest.Patience)
	defer cancel()
	if err := p.changeRange(ctx); err != nil {
		return err
	}
	if p.round%4 == 3 { // the order is part of the plan: every zone follows every other
		if err := p.setZone(ctx, []string{"zone-b", "", "zone-a"}[p.round/4%3]); err != nil {
			return err
		}
	}
	var g errgroup.Group
	for _, f := range p.families {
		g.Go(func() error { return p.change(ctx, f) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		p.awaitControllers, p.makeTwins, p.setMarker, p.awaitMarker, p.compare, p.removeTwins,
	} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("round %d: %w", p.round, err)
		}
	}
	for _, f := range p.families {
		p.refused += f.rejected
		if f.accepted > 0 {
			p.states++
		}
	}
	return nil
}

// changeRange has a second Service range come early and asks it to go late, which
// it does when nobody has an address of it any more.
func (p *parity) changeRange(ctx context.Context) error {
	ranges := p.Client().NetworkingV1().ServiceCIDRs()
	switch p.round {
	case *rounds / 6:
		_, err := ranges.Create(ctx, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: secondRangeName},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{secondRange.String()}},
		}, metav1.CreateOptions{})
		return err
	case *rounds * 3 / 4:
		return ranges.Delete(ctx, secondRangeName, metav1.DeleteOptions{})
	}
	return nil
}

// forgetRange asks the second range to go, wherever the test ended.
func (p *parity) forgetRange() {
	_ = p.Client().NetworkingV1().ServiceCIDRs().Delete(context.Background(), secondRangeName, metav1.DeleteOptions{})
}

// compare looks at all families and looks again at what differs, until it agrees or
// there is no time left: the rules of one side may be a moment ahead of the other's.
func (p *parity) compare(ctx context.Context) error {
	var targets []target
	for _, f := range p.families {
		targets = append(targets, p.targets(f)...)
	}
	for deadline, first := time.Now().Add(settleWithin), true; len(targets) > 0; first = false {
		if err := p.awaitRange(ctx); err != nil {
			return err
		}
		all, err := p.look(ctx, targets)
		if err != nil {
			return err
		}
		again := targets[:0:0]
		for _, s := range all {
			names, left, fault := s.judge()
			switch {
			case fault == "":
				p.book(s, names, left)
			case time.Now().Before(deadline):
				again = append(again, s.target)
			default:
				p.report(ctx, s, fault)
			}
		}
		if first {
			p.late += len(again)
		}
		targets = again
	}
	return nil
}

func (p *parity) book(s *seen, names []string, left string) {
	p.verdicts["kube-proxy: "+string(s.kube.Verdict)]++
	switch s.row.Answer {
	case "balance":
		p.verdicts[fmt.Sprintf("we: balance over %d", len(s.hosts))]++
	case "refuse":
		p.verdicts["we: refuse "+s.row.Reason]++
	default:
		p.verdicts["we: passthrough"]++
	}
	if left != "" {
		p.left[left]++
	}
	for _, n := range names {
		p.differ[n]++
	}
	for _, a := range s.captured {
		if s.row.Answer == "refuse" {
			p.verdicts["a refused dial saw: "+string(a.Outcome)]++
		}
	}
}

// report prints all there is to know of a difference that nothing explains.
func (p *parity) report(ctx context.Context, s *seen, fault string) {
	p.faults++
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, round %d, zone %q, family %d: %s\n%s", *seed, p.round, p.zone, s.family.index, fault, s)
	fmt.Fprintf(&b, "  changed in this round: %s\n", strings.Join(s.family.changes, "; "))
	write := func(o any) {
		y, err := yaml.Marshal(o)
		if err != nil {
			y = []byte(err.Error())
		}
		fmt.Fprintf(&b, "---\n%s", y)
	}
	if s.owner != nil {
		owner := s.owner.DeepCopy()
		owner.ManagedFields = nil
		write(owner)
	}
	of, err := p.slicesByService(ctx)
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	for _, slice := range of[s.family.name()] {
		slice.ManagedFields = nil
		write(slice)
	}
	p.t.Error(b.String())
}
