// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"pgregory.net/rapid"

	"aether.io/aether/internal/plan"
)

var wanted = flag.Int64("oracle.states", 5_000, "compare at least `N` random states")

// longRun is from how many states on a run prints its progress and must have come
// across everything: every kind of outcome, every difference of the list.
const longRun = 100_000

// historyLength is the mean number of states in a history.
const historyLength = 8

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard()) // kube-proxy logs every port it ignores
	os.Exit(m.Run())
}

// tally counts what a run has seen.
type tally struct {
	states, comparisons, differing atomic.Int64
	failed                         atomic.Bool
	seen                           counters // by sight
	explained, alone               counters // by difference; alone: no other one applied
}

type counters map[string]*atomic.Int64

func newCounters(keys []string) counters {
	c := counters{}
	for _, k := range keys {
		c[k] = new(atomic.Int64)
	}
	return c
}

// sights are what a long run must have come across, each more than once.
var sights = []string{
	string(served), string(noEndpoints), string(noLocal), string(undeclared), string(unknown), string(passed),
	"served by zone hints", "served by node hints", "served by endpoints that terminate", "served by this node's endpoints", "served with ClientIP affinity",
}

func newTally() *tally {
	all := make([]string, 0, len(differences))
	for _, d := range differences {
		all = append(all, d.name)
	}
	return &tally{seen: newCounters(sights), explained: newCounters(all), alone: newCounters(all)}
}

// see counts what kind of answer it is.
func (n *tally) see(answer plan.Answer) {
	n.seen[string(outcomeOf(answer).kind)].Add(1)
	if answer.Verdict != plan.Balance {
		return
	}
	for what, is := range map[string]bool{
		"served by zone hints": !answer.Policy.InternalLocal && answer.Policy.Topology == plan.TopologyZone,
		"served by node hints": !answer.Policy.InternalLocal && answer.Policy.Topology == plan.TopologyNode,
		"served by endpoints that terminate": slices.ContainsFunc(answer.Candidates, func(c plan.Candidate) bool {
			return c.Chosen && !c.Ready
		}),
		"served by this node's endpoints": answer.Policy.InternalLocal,
		"served with ClientIP affinity":   answer.Policy.ClientIPAffinity,
	} {
		if is {
			n.seen[what].Add(1)
		}
	}
}

func (n *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d states, %d comparisons, %d differ from the running kube-proxy\n", n.states.Load(), n.comparisons.Load(), n.differing.Load())
	for _, what := range sights {
		fmt.Fprintf(&b, "  %10d %s\n", n.seen[what].Load(), what)
	}
	b.WriteString("what the differences explain, and what each explains alone:\n")
	for _, d := range differences {
		fmt.Fprintf(&b, "  %10d %10d %s: %s\n", n.explained[d.name].Load(), n.alone[d.name].Load(), d.name, d.why)
	}
	return b.String()
}

// complain reports what a long run must have seen and did not.
func (n *tally) complain(t *testing.T) {
	for _, what := range sights {
		if n.seen[what].Load() < 2 {
			t.Errorf("nothing was %s: the generators do not lead there", what)
		}
	}
	for _, d := range differences {
		if n.alone[d.name].Load() == 0 {
			t.Errorf("%s explained nothing by itself: it does not belong on the list, or the generators do not lead there", d.name)
		}
	}
}

// pair is a world and the two that are told of it.
type pair struct {
	world     *world
	kubeProxy *kubeProxy
	aether    *aether
	targets   []netip.AddrPort
}

func newPair(node string, targets []netip.AddrPort) *pair {
	return &pair{world: newWorld(node), kubeProxy: newKubeProxy(node), aether: newAether(node, targets), targets: targets}
}

func (p *pair) apply(events ...event) {
	for _, e := range events {
		p.world.apply(e)
		p.kubeProxy.apply(e)
		p.aether.apply(e)
	}
}

func (p *pair) sync() {
	p.kubeProxy.sync()
	p.aether.sync()
}

// check compares every target and returns the first that is not explained.
func (p *pair) check(n *tally) *finding {
	n.states.Add(1)
	fixed := restarted(corrected(p.world))
	for _, t := range p.targets {
		n.comparisons.Add(1)
		n.see(p.aether.answers[t])
		f := p.compare(t, fixed, n)
		if f.problem != "" {
			return f
		}
	}
	return nil
}

// compare holds one dial to the three rules: an address is passed through if and
// only if the list says so; what is not equals, without exception, what a restarted
// kube-proxy does with the input as the list corrects it; and what is not as the
// running kube-proxy does it, some difference of the list explains.
func (p *pair) compare(t netip.AddrPort, fixed *kubeProxy, n *tally) *finding {
	f := &finding{world: p.world, target: t, kubeProxy: p.kubeProxy.dial(t), corrected: fixed.dial(t), aether: p.aether.dial(t)}
	passing := f.applying(true)
	switch passes := f.aether.kind == passed; {
	case passes && len(passing) == 0:
		f.problem = "Aether passes it through, and nothing on the list says why"
	case !passes && len(passing) > 0:
		f.problem = "Aether does not pass it through, although: " + names(passing)
	case !passes && !f.aether.equal(f.corrected):
		f.problem = "Aether differs from a kube-proxy that was told of the input as corrected by the list"
	}
	if f.problem != "" || f.aether.equal(f.kubeProxy) {
		return f
	}
	n.differing.Add(1)
	why := passing
	if len(why) == 0 {
		why = f.applying(false)
	}
	for _, d := range why {
		n.explained[d.name].Add(1)
		if len(why) == 1 {
			n.alone[d.name].Add(1)
		}
	}
	if len(why) == 0 {
		f.problem = "Aether differs from kube-proxy, and nothing on the list says why"
	}
	return f
}

// history is the property: whatever happens, in whatever order, told in batches or
// one by one, every dial is answered as kube-proxy does or for a reason on the list.
func history(t *rapid.T, n *tally, shard string) {
	p := newPair(pick(t, "this node", "n1", "n1", "n1", "n1", "n1", ""), targets())
	drawStart(t, p.world, func(e event) { p.apply(e) })
	for range rapid.IntRange(0, 2*historyLength).Draw(t, "steps") {
		p.draw(t, rapid.IntRange(1, 3).Draw(t, "events"))
		p.sync()
		if f := p.check(n); f != nil {
			t.Fatal(f.save(shard))
		}
	}
}

// draw lets things happen, and either side look at them in between.
func (p *pair) draw(t *rapid.T, events int) {
	for range events {
		p.apply(drawEvents(t, p.world)...)
		switch pick(t, "look", "", "", "kube-proxy", "aether") {
		case "kube-proxy":
			p.kubeProxy.sync()
		case "aether":
			p.aether.sync()
		}
	}
}

// TestHistories compares at least -oracle.states random states.
func TestHistories(t *testing.T) {
	n, start := newTally(), time.Now()
	stop := progress(n, start)
	t.Run("shards", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			shard := fmt.Sprint(i)
			t.Run(shard, func(t *testing.T) {
				t.Parallel()
				defer func() {
					if t.Failed() {
						n.failed.Store(true)
					}
				}()
				for n.states.Load() < *wanted && !n.failed.Load() {
					rapid.Check(t, func(t *rapid.T) { history(t, n, shard) })
				}
			})
		}
	})
	stop()
	t.Logf("%v: %v", time.Since(start).Round(time.Second), n)
	if !t.Failed() && *wanted >= longRun {
		n.complain(t)
	}
}

// progress prints how far a long run is, until it is stopped.
func progress(n *tally, start time.Time) (stop func()) {
	if *wanted < longRun {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				states := n.states.Load()
				fmt.Fprintf(os.Stderr, "%8d of %d states, %.0f a second\n", states, *wanted, float64(states)/time.Since(start).Seconds())
			}
		}
	}()
	return func() { close(done); <-ended }
}
