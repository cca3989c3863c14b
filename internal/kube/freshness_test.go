// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

var (
	errRefused   = errors.New("dial tcp 127.0.0.1:1: connect: connection refused")
	errForbidden = apierrors.NewForbidden(schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}, "", errors.New("no"))
)

// healthTest has a clock that the test moves.
type healthTest struct {
	*health
	at time.Time
}

func newHealthTest() *healthTest {
	h := &healthTest{at: time.Unix(1000, 0)}
	h.health = newHealth(func() time.Time { return h.at }, time.Minute, func() {})
	return h
}

func (h *healthTest) ready() {
	for _, k := range Kinds() {
		h.opened(k, func() {})
		h.listed(k)
	}
}

func TestStale(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(h *healthTest)
		stale bool
	}{
		"never listed":                   {func(*healthTest) {}, true},
		"all well":                       {func(h *healthTest) { h.ready() }, false},
		"pods never listed":              {func(h *healthTest) { h.ready(); *h.kinds[Pods] = contact{} }, false},
		"quiet":                          {func(h *healthTest) { h.ready(); h.at = h.at.Add(time.Minute) }, false},
		"silent":                         {func(h *healthTest) { h.ready(); h.at = h.at.Add(time.Minute + 1) }, true},
		"bookmarks":                      {func(h *healthTest) { h.ready(); h.at = h.at.Add(time.Hour); h.everywhere() }, false},
		"unreachable":                    {func(h *healthTest) { h.ready(); h.failed(Services, errRefused) }, true},
		"unreachable, then a list alone": {func(h *healthTest) { h.ready(); h.failed(Services, errRefused); h.listed(Services) }, true},
		"unreachable, then a watch":      {func(h *healthTest) { h.ready(); h.failed(Services, errRefused); h.opened(Services, func() {}) }, false},
		"a watch ended":                  {func(h *healthTest) { h.ready(); h.closed(Services); h.at = h.at.Add(grace) }, false},
		"no other follows":               {func(h *healthTest) { h.ready(); h.closed(Services); h.at = h.at.Add(grace + 1) }, true},
		"another follows": {func(h *healthTest) {
			h.ready()
			h.closed(Services)
			h.opened(Services, func() {})
			h.at = h.at.Add(grace + 1)
		}, false},
		"no ServiceCIDRs there":          {func(h *healthTest) { h.ready(); h.gone(ServiceCIDRs); h.at = h.at.Add(time.Hour); h.everywhere() }, false},
		"whether there are is not known": {func(h *healthTest) { h.ready(); h.gone(ServiceCIDRs); h.failed(ServiceCIDRs, errRefused) }, true},
	} {
		h := newHealthTest()
		c.do(h)
		if got := h.freshness().Stale(); got != c.stale {
			t.Errorf("%s: stale is %t", name, got)
		}
	}
}

// everywhere hears of every kind.
func (h *healthTest) everywhere() {
	for _, k := range Kinds() {
		h.heard(k, true)
	}
}

// The API server counts as unreachable from the first kind's first failure on; one
// that refuses is reached.
func TestUnreachableSince(t *testing.T) {
	h := newHealthTest()
	h.ready()
	first := h.at
	h.failed(EndpointSlices, errRefused)
	h.at = h.at.Add(time.Second)
	h.failed(EndpointSlices, errRefused)
	h.failed(Services, errRefused)
	h.failed(Pods, errForbidden)
	if got := h.freshness().UnreachableSince; !got.Equal(first) {
		t.Errorf("unreachable since %v, want %v", got, first)
	}
	h.opened(Services, func() {})
	h.opened(EndpointSlices, func() {})
	if got := h.freshness(); !got.UnreachableSince.IsZero() || got.Of(Pods).Err == nil {
		t.Errorf("%+v", got)
	}
}

// A watch that falls silent is ended when bookmarks were heard of it.
func TestSilentWatchIsCut(t *testing.T) {
	h := newHealthTest()
	var cut []string
	h.opened(Services, func() { cut = append(cut, "services") })
	h.opened(Pods, func() { cut = append(cut, "pods") })
	h.heard(Services, true)
	h.at = h.at.Add(time.Minute)
	if h.cutSilent(); len(cut) > 0 {
		t.Errorf("cut too soon: %v", cut)
	}
	h.at = h.at.Add(time.Second)
	if got := h.cutSilent(); !slices.Equal(cut, []string{"services"}) || !slices.Equal(got, []Kind{Services}) {
		t.Errorf("cut %v, said %v", cut, got)
	}
	if h.cutSilent(); len(cut) != 1 {
		t.Errorf("cut twice: %v", cut)
	}
	h.closed(Pods)
	h.heard(Pods, true)
	h.at = h.at.Add(time.Hour)
	if h.cutSilent(); len(cut) != 1 {
		t.Errorf("a watch that had ended was cut: %v", cut)
	}
}

func TestFailureOf(t *testing.T) {
	r := schema.GroupResource{Resource: "services"}
	for _, c := range []struct {
		err  error
		want failure
	}{
		{errRefused, failUnreachable},
		{errForbidden, failForbidden},
		{apierrors.NewUnauthorized("who"), failForbidden},
		{apierrors.NewNotFound(r, ""), failAbsent},
		{apierrors.NewResourceExpired("old"), failExpired},
		{apierrors.NewTooManyRequests("later", 1), failThrottled},
		{apierrors.NewInternalError(errors.New("etcd")), failServer},
		{apierrors.NewServiceUnavailable("etcd"), failServer},
	} {
		if got := failureOf(c.err); got != c.want || !slices.Contains(failures(), got) {
			t.Errorf("%v is %s, want %s", c.err, got, c.want)
		}
	}
}

// Problems name the API server, the right that is missing, the object and the field.
func TestProblems(t *testing.T) {
	at := time.Unix(1000, 0).UTC()
	c, err := NewClient(&rest.Config{Host: "https://127.0.0.1:1"})
	must(t, err)
	s, err := New(c, Options{Node: "n1", Now: func() time.Time { return at }})
	must(t, err)
	for _, k := range Kinds() {
		s.health.opened(k, func() {})
		s.health.listed(k)
	}
	if got := s.problems(); len(got) > 0 {
		t.Errorf("all is well, and: %v", got)
	}
	s.health.gone(ServiceCIDRs)
	s.health.failed(EndpointSlices, errForbidden)
	s.health.failed(Services, errRefused)
	s.health.failed(Nodes, apierrors.NewServiceUnavailable("etcd"))
	s.health.failed(Pods, apierrors.NewUnauthorized("who"))
	must(t, s.stores[EndpointSlices].Add(slice("web-1", "web", "127.0.0.1")))
	for range mostComplaints + 1 {
		must(t, s.stores[Services].Add(service("s"+string(rune('a'+s.stores[Services].count())), "1", "nonsense")))
	}
	has := func(want bool, source, text string) {
		t.Helper()
		for _, p := range s.problems() {
			if p.Source == source && strings.Contains(p.Text, text) {
				if !want {
					t.Errorf("too soon: %+v", p)
				}
				return
			}
		}
		if want {
			t.Errorf("nothing of %s says %q in %+v", source, text, s.problems())
		}
	}
	has(false, "API server https://127.0.0.1:1", "")
	has(false, "nodes", "")
	at = at.Add(grace)
	has(true, "API server https://127.0.0.1:1", "unreachable since 1970-01-01T00:16:40Z: dial tcp")
	has(true, "nodes", "cannot be watched since 1970-01-01T00:16:40Z: ")
	has(true, "endpointslices.discovery.k8s.io", `needs apiGroups: ["discovery.k8s.io"], resources: [endpointslices], verbs: [list, watch]: `)
	has(true, "pods", "does not accept the agent's credentials: who")
	has(true, "servicecidrs.networking.k8s.io", "give --service-range")
	has(true, "EndpointSlice default/web-1 endpoints[0].addresses[0]", `"127.0.0.1": loopback; the endpoint is left out`)
	has(true, "Service default/sa spec.clusterIP", `"nonsense" is not an IP address`)
	has(true, "services", "1 more complaints of this kind are not listed")
	s.o.RangeGiven = true
	has(false, "servicecidrs.networking.k8s.io", "")
}

// A source with nothing to do is seldom woken, one with a failure every second.
func TestPause(t *testing.T) {
	h := newHealthTest()
	s := &Source{health: h.health}
	for _, step := range []struct {
		name string
		do   func()
		want time.Duration
	}{
		{"before the first list", func() {}, housekeeping},
		{"all well", h.ready, quietHousekeeping},
		{"a kind is forbidden", func() { h.failed(Pods, errForbidden) }, housekeeping},
		{"it is watched again", func() { h.opened(Pods, func() {}) }, quietHousekeeping},
		{"silence", func() { h.at = h.at.Add(time.Hour) }, housekeeping},
	} {
		step.do()
		if got := s.pause(); got != step.want {
			t.Errorf("%s: looked at after %s, want %s", step.name, got, step.want)
		}
	}
}
