// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/kube"
	"aether.io/aether/internal/kube/apitest"
	"aether.io/aether/internal/model"
)

const (
	node     = "n1"
	protobuf = "application/vnd.kubernetes.protobuf"
	vip      = "10.96.0.10"
)

var web = model.Name{Namespace: "default", Name: "web"}

// cluster is an API server, and a source that reads it into a State.
type cluster struct {
	*apitest.Server
	source   *kube.Source
	registry *prometheus.Registry
	options  apitest.Options
	settings kube.Options
	log      logged

	mu       sync.Mutex
	state    *model.State
	problems []api.Problem
	synced   bool
	changes  []model.Change
	// always is asked after every batch once the source has synced.
	always func(*model.State) string
	broken []string
}

// inCluster runs a test in a bubble, where an hour of outage takes no time. before
// is done to the API server before the source starts.
func inCluster(t *testing.T, o apitest.Options, k kube.Options, before func(*apitest.Server), f func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o.InMemory = true
		s := apitest.Start(t, o)
		if before != nil {
			before(s)
		}
		c := &cluster{Server: s, options: o, settings: k, state: model.New(model.Options{}), registry: prometheus.NewRegistry()}
		c.start(t)
		f(t, c)
	})
}

// start runs the source until the test ends.
func (c *cluster) start(t *testing.T) {
	t.Helper()
	client, err := kube.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	k := c.settings
	k.Node, k.Registry, k.Log = node, c.registry, slog.New(slog.NewTextHandler(&c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if c.source, err = kube.New(client, k); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.source.Run(ctx, c.sink); err != nil {
			t.Errorf("the source ended: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		for _, text := range c.broken {
			t.Error(text)
		}
	})
}

func (c *cluster) sink(b kube.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, _ = c.state.Apply(b.Changes)
	c.changes = append(c.changes, b.Changes...)
	if c.synced && !b.Synced {
		c.broken = append(c.broken, "synced, then not")
	}
	c.problems, c.synced = b.Problems, b.Synced
	if c.synced && c.always != nil {
		if text := c.always(c.state); text != "" {
			c.broken = append(c.broken, text)
		}
	}
}

// logged keeps what was logged.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// warnings returns the lines of level WARN or above.
func (l *logged) warnings() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			out = append(out, line)
		}
	}
	return out
}

func (c *cluster) now() (state *model.State, synced bool, problems []api.Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, c.synced, c.problems
}

// told returns the changes since the last call.
func (c *cluster) told() []model.Change {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.changes
	c.changes = nil
	return out
}

// keep has a condition hold after every batch from now on.
func (c *cluster) keep(always func(*model.State) string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.always = always
}

// eventually waits until the condition holds; in a bubble that takes no time.
func eventually(t *testing.T, what string, within time.Duration, holds func() bool) {
	t.Helper()
	for began, pause := time.Now(), time.Millisecond; ; pause = min(2*pause, time.Second) {
		synctest.Wait()
		if holds() {
			return
		}
		if time.Since(began) > within {
			t.Fatalf("not within %s: %s", within, what)
		}
		time.Sleep(pause)
	}
}

// settle waits until the source has synced and its State is what a fresh look at
// every object gives.
func (c *cluster) settle(t *testing.T) {
	t.Helper()
	c.settleWithin(t, 5*time.Minute)
}

func (c *cluster) settleWithin(t *testing.T, within time.Duration) {
	t.Helper()
	diff := "not synced"
	for began, pause := time.Now(), time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		synctest.Wait()
		if state, synced, _ := c.now(); synced {
			if diff = difference(c.truth(), state); diff == "" {
				return
			}
		}
		if time.Since(began) > within {
			_, _, problems := c.now()
			t.Fatalf("not settled within %s; problems %v; (-there is +told)\n%s", within, problems, diff)
		}
		time.Sleep(pause)
	}
}

// truth is the State that the stored objects make, converted one by one.
func (c *cluster) truth() *model.State {
	var changes []model.Change
	for _, o := range c.Objects("services") {
		s, _ := convert.Service(o.(*corev1.Service))
		changes = append(changes, model.SetService{Service: s})
	}
	for _, o := range c.Objects("endpointslices") {
		s := o.(*discoveryv1.EndpointSlice)
		if _, headless := s.Labels[corev1.IsHeadlessService]; headless {
			continue
		}
		if out, ok := convert.Slice(s); ok {
			changes = append(changes, model.SetSlice{Slice: out})
		}
	}
	if minor := c.options.Minor; minor == 0 || minor >= 33 {
		for _, o := range c.Objects("servicecidrs") {
			changes = append(changes, model.SetServiceCIDR{Name: o.GetName(), Prefixes: convert.ServiceCIDR(o.(*networkingv1.ServiceCIDR))})
		}
	}
	for _, o := range c.Objects("serviceimports") {
		var im convert.ServiceImport
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.(runtime.Unstructured).UnstructuredContent(), &im); err != nil {
			panic(err)
		}
		if out, ok := convert.Import(&im); ok {
			changes = append(changes, model.SetImport{Import: out})
		}
	}
	for _, o := range c.Objects("nodes") {
		if o.GetName() == node {
			changes = append(changes, model.SetNode{Node: convert.Node(o.(*corev1.Node))})
		}
	}
	s, _ := model.New(model.Options{}).Apply(changes)
	return s
}

// contents is everything that a State can be asked, for a world of few names and
// addresses.
func contents(s *model.State, of []*model.State) map[string]any {
	names, vips := map[model.Name]bool{}, map[netip.Addr]bool{}
	for _, one := range of {
		for svc := range one.Services() {
			names[svc.Name] = true
			vips[svc.VIP] = true
			for _, a := range svc.ExternalIPs {
				vips[a] = true
			}
		}
	}
	for _, name := range everyName {
		names[model.Name{Namespace: "default", Name: name}] = true
	}
	for _, text := range everyVIP {
		vips[netip.MustParseAddr(text)] = true
	}
	out := map[string]any{"range": s.Range(), "range known": s.RangeKnown()}
	for _, n := range slices.SortedFunc(maps.Keys(names), model.Name.Compare) {
		if svc, ok := s.Service(n); ok {
			out["service "+n.String()] = *svc
		}
		if list := s.Slices(n); len(list) > 0 {
			out["slices of "+n.String()] = list
		}
	}
	for a := range vips {
		if claims := s.ClaimsOnVIP(a); len(claims) > 0 {
			out[fmt.Sprintf("claims on %s", a)] = claims
		}
		if svc, ok := s.ServiceByExternalIP(a); ok {
			out[fmt.Sprintf("external %s", a)] = svc.Name
		}
		if im, ok := s.ImportByVIP(a); ok {
			out[fmt.Sprintf("import at %s", a)] = *im
		}
	}
	for _, n := range []string{node, "n2"} {
		if it, ok := s.Node(n); ok {
			out["node "+n] = it
		}
	}
	return out
}

// everyName and everyVIP are what random histories draw from, beside what the
// States know themselves.
var (
	everyName = []string{"web", "api", "shop", "dns"}
	everyVIP  = []string{vip, "10.96.0.11", "10.96.0.12", "203.0.113.7", "243.0.0.5", "243.0.0.6"}
)

// difference tells what two States answer differently.
func difference(want, got *model.State) string {
	both := []*model.State{want, got}
	return cmp.Diff(contents(want, both), contents(got, both), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty())
}

// metric returns a metric's value: a counter's or gauge's value, or a histogram's
// sum and count.
func (c *cluster) metric(t *testing.T, name string, labels ...string) (value, count float64) {
	t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	metrics:
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if i := slices.Index(labels, l.GetName()); i >= 0 && labels[i+1] != l.GetValue() {
					continue metrics
				}
			}
			if h := m.GetHistogram(); h != nil {
				return h.GetSampleSum(), float64(h.GetSampleCount())
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue(), 0
		}
	}
	t.Fatalf("no metric %s %v", name, labels)
	return 0, 0
}

// problem returns the text of the problem that a source has; empty for none.
func (c *cluster) problem(source string) string {
	_, _, problems := c.now()
	for _, p := range problems {
		if strings.HasPrefix(p.Source, source) {
			return p.Text
		}
	}
	return ""
}

func service(name, ip string, ports ...int32) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}},
	}
	if len(ports) == 0 {
		ports = []int32{80}
	}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: p, Protocol: corev1.ProtocolTCP})
	}
	return s
}

func endpoints(name, of string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: of}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	port, portName, tcp := int32(8080), "p80", corev1.ProtocolTCP
	s.Ports = []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &tcp}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func cidr(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

func theNode(name, zone string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return n
}

func pod(name, of, managed string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"aether.io/managed": managed}},
		Spec: corev1.PodSpec{NodeName: of, Containers: []corev1.Container{{
			Name: "main", Command: []string{"sh", "-c", "nc -z ledger 80"},
		}}},
	}
}

// usual is a small cluster: a Service with two endpoints, the default range, two
// Nodes.
func usual(s *apitest.Server) {
	s.Apply(service("web", vip), endpoints("web-1", "web", "10.1.1.1", "10.1.1.2"), cidr("kubernetes", "10.96.0.0/16"),
		theNode(node, "za"), theNode("n2", "zb"))
}

// served is a condition to keep: web has its endpoints, never fewer than n.
func served(n int) func(*model.State) string {
	return func(s *model.State) string {
		svc, ok := s.ServiceByVIP(netip.MustParseAddr(vip))
		if !ok {
			return "web is gone for a moment"
		}
		have := 0
		for _, sl := range s.Slices(svc.Name) {
			have += len(sl.Endpoints)
		}
		if have < n {
			return fmt.Sprintf("web has %d endpoints for a moment", have)
		}
		if !s.RangeKnown() {
			return "the Service range is unknown for a moment"
		}
		return ""
	}
}
