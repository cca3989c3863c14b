// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"aether.io/aether/internal/kube/apitest"
	"aether.io/aether/internal/model"
)

// step is one thing that happens to a cluster. Histories are drawn before they
// are played, for what is drawn must not depend on time.
type step struct {
	text string
	do   func(c *cluster)
}

// script is a whole history.
type script struct {
	options apitest.Options
	steps   []step
}

func (s script) String() string {
	var out []string
	for _, st := range s.steps {
		out = append(out, st.text)
	}
	return fmt.Sprintf("1.%d plain=%t history=%d:\n  %s", s.options.Minor, s.options.PlainLists, s.options.History, strings.Join(out, "\n  "))
}

func drawScript(t *rapid.T) script {
	s := script{options: apitest.Options{
		Minor:      rapid.SampledFrom([]int{37, 37, 36, 32, 29}).Draw(t, "minor"),
		PlainLists: rapid.Bool().Draw(t, "plain"),
		History:    rapid.SampledFrom([]int{10_000, 3}).Draw(t, "history"),
	}}
	for range rapid.IntRange(1, 25).Draw(t, "steps") {
		if rapid.IntRange(0, 2).Draw(t, "what") == 0 {
			s.steps = append(s.steps, drawFault(t))
		} else {
			s.steps = append(s.steps, drawChange(t))
		}
	}
	return s
}

// drawChange draws a change of an object. Names and addresses are few, so that
// things collide.
func drawChange(t *rapid.T) step {
	name := rapid.SampledFrom(everyName).Draw(t, "name")
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1, 2:
		return apply(drawService(t, name))
	case 3, 4, 5:
		return apply(drawSlice(t, name))
	case 6:
		var o apitest.Object = service(name, vip)
		switch rapid.IntRange(0, 3).Draw(t, "of") {
		case 0:
			o = endpoints(name, "")
		case 1:
			o = cidr(name)
		case 2:
			o = apitest.ServiceImport("default", name)
		}
		return step{fmt.Sprintf("delete %T %s", o, name), func(c *cluster) { _ = c.Delete(o) }} // there may be none
	case 7:
		some := rapid.SliceOfN(rapid.SampledFrom([]string{"10.96.0.0/16", "10.96.0.8/29", "203.0.113.0/24", "fd00::/108", "nonsense"}), 1, 2)
		return apply(cidr(name, some.Draw(t, "cidrs")...))
	case 8:
		some := rapid.SliceOfN(rapid.SampledFrom([]string{"243.0.0.5", "243.0.0.6", vip, "fd00::5"}), 0, 2)
		im := apitest.ServiceImport("default", name, some.Draw(t, "ips")...)
		return step{"apply " + name + " as an import", func(c *cluster) {
			if apierrors.IsAlreadyExists(c.Create(im)) { // or there is no CRD
				_ = c.Update(im)
			}
		}}
	default:
		return apply(theNode(rapid.SampledFrom([]string{node, "n2"}).Draw(t, "node"), rapid.SampledFrom([]string{"za", "zb", ""}).Draw(t, "zone")))
	}
}

func apply(o apitest.Object) step {
	return step{fmt.Sprintf("apply %T %s", o, o.GetName()), func(c *cluster) { c.Apply(o) }}
}

func drawService(t *rapid.T, name string) *corev1.Service {
	s := service(name, rapid.SampledFrom(append([]string{"None", "fd00::1"}, everyVIP[:4]...)).Draw(t, "vip"))
	s.UID = types.UID(rapid.SampledFrom([]string{"u1", "u2"}).Draw(t, "uid"))
	if rapid.Bool().Draw(t, "external") {
		s.Spec.ExternalIPs = []string{rapid.SampledFrom(everyVIP).Draw(t, "external IP")}
	}
	if rapid.IntRange(0, 4).Draw(t, "foreign") == 0 {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
	}
	if rapid.IntRange(0, 4).Draw(t, "type") == 0 {
		s.Spec.Type = corev1.ServiceTypeExternalName
	}
	if rapid.IntRange(0, 4).Draw(t, "finalizer") == 0 {
		s.Finalizers = []string{"example.com/hold"}
	}
	return s
}

func drawSlice(t *rapid.T, name string) *discoveryv1.EndpointSlice {
	s := endpoints(name, rapid.SampledFrom([]string{"web", "api", "shop"}).Draw(t, "of"),
		rapid.SliceOfN(rapid.SampledFrom([]string{"10.1.1.1", "10.1.1.2", "10.1.1.3", "127.0.0.1", "fd00::9"}), 0, 4).Draw(t, "addresses")...)
	switch rapid.IntRange(0, 7).Draw(t, "odd") {
	case 0:
		s.Labels[corev1.IsHeadlessService] = ""
	case 1:
		delete(s.Labels, discoveryv1.LabelServiceName)
	case 2:
		s.AddressType = discoveryv1.AddressTypeIPv6
	case 3:
		for i := range s.Endpoints {
			s.Endpoints[i].Conditions.Ready = ptr.To(false)
			s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "za"}}}
		}
	}
	return s
}

// drawFault draws something that goes wrong, or time that passes.
func drawFault(t *rapid.T) step {
	a := rapid.SampledFrom([]step{
		{"watches end", func(c *cluster) { c.EndWatches() }},
		{"watches break", func(c *cluster) { c.BreakWatches() }},
		{"watches expire", func(c *cluster) { c.ExpireWatches() }},
		{"the history is forgotten", func(c *cluster) { c.Compact() }},
		{"the server restarts", func(c *cluster) { c.Restart() }},
		{"the server goes down", func(c *cluster) { c.Down() }},
		{"the server comes up", func(c *cluster) { _ = c.Up() }}, // pipes are always there
		{"the network freezes", func(c *cluster) { c.Freeze() }},
		{"the network thaws", func(c *cluster) { c.Thaw() }},
		{"streams stall", func(c *cluster) { c.StallWatches() }},
		{"streams are slow", func(c *cluster) { c.Slow(300) }},
		{"streams break in their second frame", func(c *cluster) { c.BreakWithin(2) }},
		{"lists are cut", func(c *cluster) { c.TruncateLists(3) }},
		{"faults heal", func(c *cluster) { c.Heal() }},
		{"the CRD comes", func(c *cluster) { c.InstallServiceImports("v1beta1") }},
		{"the CRD is of the old version", func(c *cluster) { c.InstallServiceImports("v1alpha1") }},
		{"the CRD goes", func(c *cluster) { c.RemoveServiceImports() }},
		{"other objects are written", func(c *cluster) { c.Advance(7) }},
	})
	if rapid.IntRange(0, 1).Draw(t, "fault") == 0 {
		return a.Draw(t, "a")
	}
	if rapid.Bool().Draw(t, "failure") {
		resource := rapid.SampledFrom([]string{"services", "endpointslices", "servicecidrs", "serviceimports", "nodes", ""}).Draw(t, "resource")
		f := apitest.Failure{
			Code: rapid.SampledFrom([]int{403, 404, 410, 429, 500, 503}).Draw(t, "code"), RetryAfter: rapid.SampledFrom([]time.Duration{0, 2 * time.Second}).Draw(t, "after"),
			Times: rapid.SampledFrom([]int{1, 3, 30}).Draw(t, "times"), Verb: rapid.SampledFrom([]string{"", "list", "watch"}).Draw(t, "verb"),
		}
		if (resource == "servicecidrs" || resource == "") && f.Code == 404 {
			f.Code = 500 // that something is served no more is no fault, but news
		}
		return step{fmt.Sprintf("%q fails %+v", resource, f), func(c *cluster) { c.Fail(resource, f) }}
	}
	d := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 20 * time.Second, 4 * time.Minute, 11 * time.Minute}).Draw(t, "pause")
	return step{"after " + d.String(), func(*cluster) { time.Sleep(d) }}
}

// past is what each object has been, in order, and how far of it was told.
type past struct {
	been map[string][]string // "" for not being there
	told map[string]int
}

// facts lists a State's objects as text.
func facts(s *model.State) map[string]string {
	out := map[string]string{}
	for name, v := range contents(s, []*model.State{s}) {
		for _, prefix := range []string{"service ", "node "} {
			if strings.HasPrefix(name, prefix) {
				out[name] = fmt.Sprintf("%+v", v)
			}
		}
		if list, ok := v.([]*model.Slice); ok {
			for _, sl := range list {
				out["slice "+sl.Name.String()] = fmt.Sprintf("%+v", *sl)
			}
		}
		if im, ok := v.(model.Import); ok {
			out["import "+im.Name.String()] = fmt.Sprintf("%+v", im)
		}
	}
	return out
}

// witness adds what is there now.
func (p *past) witness(s *model.State) {
	now := facts(s)
	for name := range now {
		if p.been[name] == nil {
			p.been[name] = []string{""}
		}
	}
	for name, list := range p.been {
		if list[len(list)-1] != now[name] {
			p.been[name] = append(list, now[name])
		}
	}
}

// check tells what of a State was never so, or was told to be over before.
func (p *past) check(s *model.State) string {
	now := facts(s)
	for name := range now {
		if p.been[name] == nil {
			return fmt.Sprintf("told %s, which never was", name)
		}
	}
	for name, list := range p.been {
		i := p.told[name]
		for i < len(list) && list[i] != now[name] {
			i++
		}
		if i == len(list) {
			return fmt.Sprintf("told %s is %q, after %q; it has been %q", name, now[name], list[p.told[name]], list)
		}
		p.told[name] = i
	}
	return ""
}

// TestAnyHistoryOfTheCluster: whatever changes and whatever goes wrong meanwhile,
// once all is well again the node knows what is there, as if it had only ever seen
// that. On the way every object is told as it once was, never as it was before
// what was told of it last, and synced never ends.
func TestAnyHistoryOfTheCluster(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScript(rt)
		if wrong := play(t, s); wrong != "" {
			rt.Fatalf("%s\n%s", s, wrong)
		}
	})
}

// play plays a history and returns what was wrong.
func play(t *testing.T, s script) (wrong string) {
	synctest.Test(t, func(t *testing.T) {
		s.options.InMemory = true
		c := &cluster{
			Server: apitest.Start(t, s.options), options: s.options, state: model.New(model.Options{}), registry: prometheus.NewRegistry(),
		}
		usual(c.Server)
		c.start(t)
		if wrong = c.becomes(10 * time.Minute); wrong != "" {
			wrong = "in the beginning: " + wrong
			return
		}
		p := &past{been: map[string][]string{}, told: map[string]int{}}
		p.witness(c.truth())
		c.keep(func(s *model.State) string {
			p.witness(c.truth()) // what is told may be newer than the last look
			return p.check(s)
		})
		for _, st := range s.steps {
			st.do(c)
			c.mu.Lock()
			p.witness(c.truth())
			c.mu.Unlock()
		}
		c.Heal()
		c.Thaw()
		if err := c.Up(); err != nil {
			t.Fatal(err)
		}
		wrong = c.becomes(20 * time.Minute)
		c.mu.Lock()
		broken := c.broken
		c.broken = nil
		c.mu.Unlock()
		if len(broken) > 0 {
			wrong = broken[0]
		}
		if wrong != "" {
			return
		}
		time.Sleep(10 * time.Minute)
		if f := c.source.Freshness(); f.Stale() || !f.UnreachableSince.IsZero() {
			wrong = fmt.Sprintf("not fresh after all is well: %+v", f)
		}
	})
	return wrong
}

// becomes waits until the State is what is there, and returns the difference if it
// never is.
func (c *cluster) becomes(within time.Duration) string {
	for began, pause := time.Now(), time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		synctest.Wait()
		state, synced, problems := c.now()
		diff := "not synced"
		if synced {
			diff = difference(c.truth(), state)
		}
		if diff == "" {
			return ""
		}
		if time.Since(began) > within {
			return fmt.Sprintf("not within %s; problems %v\n%s", within, problems, diff)
		}
		time.Sleep(pause)
	}
}
