// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"aether.io/aether/internal/kube/apitest"
	"aether.io/aether/internal/plan"
)

const kubernetesVIP = "10.96.0.1"

var asked = netip.MustParseAddr("10.96.9.9")

// newTestLooker makes a looker and the source beside it, which does not run unless
// the test runs it.
func newTestLooker(t *testing.T, config *rest.Config) (*Looker, *Source) {
	t.Helper()
	c, err := NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(c, Options{Node: "n1", Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLooker(c, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	return l, s
}

// knowKubernetes tells the source of the API server's own Service.
func knowKubernetes(t *testing.T, s *Source) {
	t.Helper()
	err := s.stores[Services].Add(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Spec: corev1.ServiceSpec{
			ClusterIP: kubernetesVIP, ClusterIPs: []string{kubernetesVIP}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 443, Protocol: corev1.ProtocolTCP}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func allocated(ip, group, resource, namespace, name string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Group: group, Resource: resource, Namespace: namespace, Name: name,
		}},
	}
}

func TestLook(t *testing.T) {
	for _, c := range []struct {
		name   string
		object *networkingv1.IPAddress
		want   plan.Look
	}{
		{"nobody has it", nil, plan.Look{Sight: plan.Absent}},
		{
			"a Service has it", allocated("10.96.9.9", "", "services", "shop", "cart"),
			plan.Look{Sight: plan.OfService, Owner: "shop/cart"},
		},
		{
			"a Gateway has it", allocated("10.96.9.9", "gateway.networking.k8s.io", "gateways", "shop", "gw"),
			plan.Look{Sight: plan.OfOther, Owner: "gateways.gateway.networking.k8s.io shop/gw"},
		},
		{
			"something of another group called services has it", allocated("10.96.9.9", "serving.example", "services", "shop", "cart"),
			plan.Look{Sight: plan.OfOther, Owner: "services.serving.example shop/cart"},
		},
		{
			"something of the cluster has it", allocated("10.96.9.9", "", "nodes", "", "n2"),
			plan.Look{Sight: plan.OfOther, Owner: "nodes n2"},
		},
		{
			"it does not say who", &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.96.9.9"}},
			plan.Look{Sight: plan.OfOther, Owner: "an IPAddress object without an owner"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := apitest.Start(t, apitest.Options{})
			server.Apply(allocated(kubernetesVIP, "", "services", "default", "kubernetes"))
			if c.object != nil {
				server.Apply(c.object)
			}
			l, s := newTestLooker(t, server.Config())
			knowKubernetes(t, s)
			if got := l.Look(t.Context(), asked); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			for _, r := range server.Requests("ipaddresses") {
				if r.Verb != "get" || strings.Contains(r.Query.Encode(), "resourceVersion") {
					t.Errorf("request %+v, want a get of what is so now", r)
				}
			}
		})
	}
}

func TestLookIsBlind(t *testing.T) {
	kubernetes := allocated(kubernetesVIP, "", "services", "default", "kubernetes")
	for _, c := range []struct {
		name    string
		options apitest.Options
		spoil   func(*testing.T, *apitest.Server)
		want    plan.Cause
	}{
		{"before 1.33", apitest.Options{Minor: 32}, func(*testing.T, *apitest.Server) {}, plan.NotServed},
		{"1.32 with the beta", apitest.Options{Minor: 32, BetaNetworking: true}, func(*testing.T, *apitest.Server) {}, plan.NotServed},
		{"before the group", apitest.Options{Minor: 28}, func(*testing.T, *apitest.Server) {}, plan.NotServed},
		{"addresses are allocated without objects", apitest.Options{}, func(t *testing.T, s *apitest.Server) { must(t, s.Delete(kubernetes)) }, plan.NotServed},
		{"forbidden", apitest.Options{}, failing(403), plan.Forbidden},
		{"not authenticated", apitest.Options{}, failing(401), plan.Forbidden},
		{"overload", apitest.Options{}, failing(429), plan.Refused},
		{"broken", apitest.Options{}, failing(500), plan.Refused},
		{"unavailable", apitest.Options{}, failing(503), plan.Refused},
		{"away", apitest.Options{}, func(_ *testing.T, s *apitest.Server) { s.Down() }, plan.Unreachable},
		{"silent", apitest.Options{}, func(_ *testing.T, s *apitest.Server) { s.Freeze() }, plan.TimedOut},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := apitest.Start(t, c.options)
			if c.options.Minor == 0 {
				server.Apply(kubernetes)
			}
			c.spoil(t, server)
			l, s := newTestLooker(t, server.Config())
			knowKubernetes(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if got := l.Look(ctx, asked); got.Sight != plan.Blind || got.Cause != c.want {
				t.Errorf("%+v, want blind, %s", got, c.want)
			}
			if n := len(server.Requests("ipaddresses")); n > 2 {
				t.Errorf("%d requests: it asked again", n)
			}
		})
	}
}

func failing(code int) func(*testing.T, *apitest.Server) {
	return func(_ *testing.T, s *apitest.Server) {
		s.Fail("ipaddresses", apitest.Failure{Code: code, RetryAfter: time.Second})
	}
}

// What something between the agent and the API server says is never "absent".
func TestLookThroughSomethingElse(t *testing.T) {
	for _, c := range []struct {
		name, contentType, body string
		code                    int
		want                    plan.Cause
	}{
		{"a page that is not found", "text/html", "<h1>404</h1>", 404, plan.NotServed},
		{"no words", "", "", 404, plan.NotServed},
		{"a Status without details", "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, 404, plan.NotServed},
		{
			"a Status about another object", "application/json",
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"details":{"name":"10.96.9.8","kind":"ipaddresses"}}`,
			404, plan.NotServed,
		},
		{"a login page", "text/html", "<h1>Hello</h1>", 200, plan.Malformed},
		{"nothing", "application/json", "", 200, plan.Malformed},
		{"half an object", "application/json", `{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","met`, 200, plan.Malformed},
		{"noise", "application/vnd.kubernetes.protobuf", "k8s\x00\xff\xff\xff", 200, plan.Malformed},
		{"another object", "application/json", `{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"10.96.9.8"}}`, 200, plan.Malformed},
		{"a redirect", "text/html", "", 302, plan.Refused},
		{"a gateway's error", "text/html", "", 502, plan.Refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.contentType)
				w.WriteHeader(c.code)
				_, _ = io.WriteString(w, c.body)
			}))
			t.Cleanup(server.Close)
			l, s := newTestLooker(t, &rest.Config{Host: server.URL})
			knowKubernetes(t, s)
			if got := l.Look(t.Context(), asked); got.Sight != plan.Blind || got.Cause != c.want {
				t.Errorf("%+v, want blind, %s", got, c.want)
			}
		})
	}
}

// That Services have IPAddress objects is proven by one, once in a while.
func TestProof(t *testing.T) {
	server := apitest.Start(t, apitest.Options{})
	l, s := newTestLooker(t, server.Config())
	now := time.Now()
	l.now = func() time.Time { return now }
	if got := l.Look(t.Context(), asked); got.Cause != plan.NotServed {
		t.Errorf("no Service is known: %+v", got)
	}
	knowKubernetes(t, s)
	if got := l.Look(t.Context(), asked); got.Cause != plan.NotServed {
		t.Errorf("the known Service has no object: %+v", got)
	}
	server.Apply(allocated(kubernetesVIP, "", "services", "default", "kubernetes"))
	server.ForgetRequests()
	for range 3 {
		if got := l.Look(t.Context(), asked); got.Sight != plan.Absent {
			t.Errorf("%+v", got)
		}
	}
	if n := len(server.Requests("ipaddresses")); n != 4 {
		t.Errorf("%d requests, want one for each look and one for the proof", n)
	}
	must(t, server.Delete(allocated(kubernetesVIP, "", "services", "default", "kubernetes")))
	now = now.Add(proofAge)
	if got := l.Look(t.Context(), asked); got.Cause != plan.NotServed {
		t.Errorf("the proof is old: %+v", got)
	}
}

// Looks may be made at once, and take nothing of the rate of the watches' client.
func TestManyLooksAtOnce(t *testing.T) {
	server := apitest.Start(t, apitest.Options{})
	server.Apply(allocated(kubernetesVIP, "", "services", "default", "kubernetes"))
	l, s := newTestLooker(t, server.Config())
	knowKubernetes(t, s)
	const looks = 2 * requestBurst
	var under sync.WaitGroup
	found := make(chan plan.Look, looks)
	for i := range looks {
		under.Go(func() {
			found <- l.Look(t.Context(), netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}))
		})
	}
	under.Wait()
	close(found)
	for f := range found {
		if f.Sight != plan.Absent {
			t.Fatalf("%+v", f)
		}
	}
	for i := range requestBurst {
		if !s.client.config.RateLimiter.TryAccept() {
			t.Fatalf("the watches may make %d requests at once, want %d", i, requestBurst)
		}
	}
}

func TestLookerIsBehindWithTheServices(t *testing.T) {
	l, s := newTestLooker(t, &rest.Config{Host: "http://127.0.0.1:1"})
	now := time.Now()
	s.health.now = func() time.Time { return now }
	l.now = s.health.now
	if l.Behind().IsZero() {
		t.Error("not behind before anything was listed")
	}
	s.health.listed(Services)
	s.health.opened(Services, func() {})
	s.health.gone(ServiceImports)
	if at := l.Behind(); !at.IsZero() {
		t.Errorf("behind since %v", at)
	}
	now = now.Add(time.Second)
	s.health.failed(Services, io.ErrUnexpectedEOF)
	if at := l.Behind(); !at.Equal(now) {
		t.Errorf("behind since %v, want %v", at, now)
	}
	s.health.opened(Services, func() {})
	if at := l.Behind(); !at.IsZero() {
		t.Errorf("behind since %v", at)
	}
	s.health.failed(EndpointSlices, io.ErrUnexpectedEOF) // they own no address
	if at := l.Behind(); !at.IsZero() {
		t.Errorf("behind since %v", at)
	}
	last := now
	now = now.Add(s.o.StaleAfter + 1)
	if at := l.Behind(); !at.Equal(last) {
		t.Errorf("silent: behind since %v, want %v", at, last)
	}
}
