// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// places is who had which address when. An app has the name of its Service.
type places struct {
	s      *labtest.Space
	at     map[string]netip.Addr // of each app now
	tenure map[netip.Addr][]*tenure
	took   []time.Duration // from a Service's creation until it was served
}

// tenure is one Service's time at an address.
type tenure struct {
	app string
	// from is before its creation was asked for. From served on it must be answered,
	// until its deletion is asked for.
	from, served, until time.Time
}

func (p *places) remove(t *testing.T, app string) {
	t.Helper()
	had := p.tenure[p.at[app]]
	had[len(had)-1].until = time.Now()
	p.s.Must(p.s.Client().CoreV1().Services(p.s.Namespace).Delete(t.Context(), app, metav1.DeleteOptions{}))
}

func (p *places) create(t *testing.T, app string, vip netip.Addr) {
	t.Helper()
	p.at[app] = vip
	p.tenure[vip] = append(p.tenure[vip], &tenure{app: app, from: time.Now()})
	p.s.Eventually("Service "+app+" can be created", func() error {
		err := p.s.Cluster.Apply(t.Context(), p.s.Namespace, serviceAt(app, app, vip.String()))
		if err != nil && !apierrors.IsInvalid(err) { // the address may not be free yet
			t.Fatal(err)
		}
		return err
	})
}

// settle waits until every Service is served at its address by its own.
func (p *places) settle(t *testing.T) {
	t.Helper()
	for app, vip := range p.at {
		now := p.tenure[vip][len(p.tenure[vip])-1]
		if !now.served.IsZero() {
			continue
		}
		created := time.Now()
		answers := func() error {
			a := p.s.Try("prober", vip, 80)
			if a.Outcome != echo.OK || appOf(a) != app {
				return errorOf(a)
			}
			return nil
		}
		p.s.Eventually(app+" answers at "+vip.String(), answers)
		p.took = append(p.took, time.Since(created))
		// At first it may be by the slices of its predecessor of that name, which are
		// collected as garbage, perhaps before there are others.
		p.s.Eventually("the slices of "+app+" are its own", func() error { return p.ownSlices(app) })
		p.s.Eventually(app+" answers at "+vip.String()+" for good", func() error {
			for range 5 {
				if err := answers(); err != nil {
					return err
				}
			}
			return nil
		})
		now.served = time.Now()
	}
}

// ownSlices is nil when all slices that have a Service's name belong to it.
func (p *places) ownSlices(app string) error {
	ctx := context.Background()
	svc, err := p.s.Client().CoreV1().Services(p.s.Namespace).Get(ctx, app, metav1.GetOptions{})
	if err != nil {
		return err
	}
	list, err := p.s.Client().DiscoveryV1().EndpointSlices(p.s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + app})
	if err != nil {
		return err
	}
	ready := 0
	for i := range list.Items {
		if !metav1.IsControlledBy(&list.Items[i], svc) {
			return errorf("slice %s is another's", list.Items[i].Name)
		}
		ready += len(list.Items[i].Endpoints)
	}
	if ready != 2 {
		return errorf("they have %d endpoints", ready)
	}
	return nil
}

// appOf is whose pod answered.
func appOf(a lab.Answer) string {
	app, _, _ := strings.Cut(a.By.Pod, "-")
	return app
}

// servicesChangePlaces: Services are deleted and made again, at the same address,
// at another, and each at the other's, under dials of all the addresses. Nobody is
// answered by a Service that never had the address, nor by one that had it before
// once its successor has answered; what is there is served. Only what the node's proxy
// answers is judged so: what it passes through, when it cannot be certain, is answered
// by kube-proxy, which follows at its own pace.
func servicesChangePlaces(t *testing.T) {
	const rounds = 24
	s := labtest.New(t)
	s.Apply(server("red", 2), server("blue", 2), server("grey", 2), labtest.Client("captured", true), labtest.Client("prober", true))
	s.Ready("captured", "prober")
	for _, app := range []string{"red", "blue", "grey"} {
		s.Endpoints(app, 2)
	}
	p := &places{s: s, at: map[string]netip.Addr{}, tenure: map[netip.Addr][]*tenure{}}
	began := time.Now()
	for _, app := range []string{"red", "blue", "grey"} {
		p.at[app] = s.VIP(app)
		p.tenure[p.at[app]] = []*tenure{{app: app, from: began}}
	}
	p.settle(t)
	p.took = nil
	s.Apply(serviceAt("spare", "nobody", ""))
	free := s.VIP("spare")
	s.Remove(serviceAt("spare", "nobody", ""))
	var loads []*load
	for _, vip := range []netip.Addr{p.at["red"], p.at["blue"], p.at["grey"], free} {
		loads = append(loads, dialling(t, s, "/", []string{"captured"}, vip))
	}
	for i := range rounds {
		red, blue := p.at["red"], p.at["blue"]
		switch i % 3 {
		case 0:
			p.remove(t, "red")
			p.create(t, "red", red)
		case 1:
			p.remove(t, "red")
			p.create(t, "red", free)
			free = red
		case 2:
			p.remove(t, "red")
			p.remove(t, "blue")
			p.create(t, "red", blue)
			p.create(t, "blue", red)
		}
		p.settle(t)
		loads[i%len(loads)].more(20)
	}
	var made []lab.Answer
	for _, l := range loads {
		made = append(made, l.end()...)
	}
	sum := settle(t, s, made)
	passed := passedThroughOf(t, s)
	count := 0
	for _, l := range loads {
		mine := slices.DeleteFunc(slices.Clone(l.made), func(a lab.Answer) bool { return passed[a.Local+" "+a.Remote] })
		count += len(l.made) - len(mine)
		p.judge(t, mine)
	}
	if count > len(made)/100 {
		t.Errorf("%d of %d connections were passed through, want next to none: the agent knows who has an address", count, len(made))
	}
	slices.Sort(p.took)
	t.Logf("%d rounds: %v, %d passed through; a Service that came was served after p50 %v, at most %v", rounds, sum, count,
		p.took[len(p.took)/2].Round(time.Millisecond), p.took[len(p.took)-1].Round(time.Millisecond))
}

// passedThroughOf returns the connections, by both ends, that went to the dialled address
// itself.
func passedThroughOf(t *testing.T, s *labtest.Space) map[string]bool {
	t.Helper()
	lines, err := s.AccessLog()
	s.Must(err)
	out := map[string]bool{}
	for _, l := range lines {
		if l.Endpoint == l.Dialled {
			out[l.Client+" "+l.Dialled] = true
		}
	}
	return out
}

// posted is how much later than another a thread of Envoy may learn who has an
// address now.
const posted = 250 * time.Millisecond

// judge checks the connections of one dialler, which are in their order.
func (p *places) judge(t *testing.T, made []lab.Answer) {
	t.Helper()
	type sighting struct {
		number int
		at     time.Time
	}
	var seen []sighting
	for _, a := range made {
		vip := netip.MustParseAddrPort(a.Target).Addr()
		end := a.Time.Add(time.Duration(a.TotalMS * float64(time.Millisecond)))
		if a.Outcome != echo.OK {
			if n := p.settled(vip, a.Time, end); n != nil {
				line, err := p.s.Logged(within(t), a.Verdict)
				t.Errorf("%s belonged to %s, which was served for %v: %s after %.0f ms, logged %s as %s %s (%v)", vip, n.app,
					a.Time.Sub(n.served), a, a.TotalMS, line.Time.Format("15:04:05.000"), line.Outcome, line.Reason, err)
			}
			continue
		}
		number := -1
		for i, n := range p.tenure[vip] {
			if n.app == appOf(a) && !n.from.After(end) {
				number = i
			}
		}
		if number < 0 {
			t.Errorf("%s at %s, which never had the address until then", a, a.Time.Format("15:04:05.000"))
		}
		for _, was := range seen {
			if was.number > number && was.at.Before(a.Time.Add(-posted)) {
				t.Errorf("%s at %s, %v after its successor had answered", a, a.Time.Format("15:04:05.000"), a.Time.Sub(was.at))
			}
		}
		if len(seen) == 0 || seen[len(seen)-1].number < number {
			seen = append(seen, sighting{number, end})
		}
	}
}

// settled returns whose an address was, and served there, from one time to another;
// nothing when it was nobody's throughout.
func (p *places) settled(vip netip.Addr, from, to time.Time) *tenure {
	for _, n := range p.tenure[vip] {
		if !n.served.IsZero() && n.served.Add(posted).Before(from) && (n.until.IsZero() || n.until.After(to)) {
			return n
		}
	}
	return nil
}
