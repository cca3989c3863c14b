// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// TestWhyCandidate holds the sentence on each kind of endpoint.
func TestWhyCandidate(t *testing.T) {
	noNode := plan.Settings{Mode: plan.ModeEnforce}
	for _, c := range []struct {
		name      string
		service   func(*model.Service)
		settings  plan.Settings
		endpoints []string // the sentence is on the first
		want      string
	}{
		{"ready", nil, enforce(), []string{"10.1.1.1"}, "ready"},
		{"ready and terminating", nil, enforce(), []string{"10.1.1.1 t+"}, "ready (though terminating)"},
		{"zone", nil, enforce(), []string{"10.1.1.1 z:za,zb"}, "ready, hinted for zone za"},
		{"node", nil, enforce(), []string{"10.1.1.1 n:n1"}, "ready, hinted for node n1"},
		{"another zone", nil, enforce(), []string{"10.1.1.1 z:zb,zc", "10.1.1.2 z:za"}, "left out: ready, but hinted for zb, zc and not for this node's zone (za)"},
		{"another node", nil, enforce(), []string{"10.1.1.1 z:za n:n2", "10.1.1.2 n:n1"}, "left out: ready, but hinted for n2 and not for this node (n1)"},
		{"not ready", nil, enforce(), []string{"10.1.1.1 r-"}, "not ready"},
		{"terminating, not serving", nil, enforce(), []string{"10.1.1.1 r-s-t+"}, "terminating and not serving"},
		{"terminating, others ready", nil, enforce(), []string{"10.1.1.1 r-s+t+", "10.1.1.2"}, "terminating: left out because another endpoint is ready"},
		{"terminating, none ready", nil, enforce(), []string{"10.1.1.1 r-s+t+"}, "serving and terminating: chosen because no endpoint is ready anywhere"},
		{"bad address", nil, enforce(), []string{"169.254.1.1 fault=link-local"}, `bad address "169.254.1.1": link-local`},
		{"Local, here", local, enforce(), []string{"10.1.1.1 @n1"}, "ready, on this node"},
		{"Local, elsewhere", local, enforce(), []string{"10.1.1.1 @n2"}, "left out by internalTrafficPolicy Local: on node n2, not on n1"},
		{"Local, nowhere", local, enforce(), []string{"10.1.1.1"}, "left out by internalTrafficPolicy Local: it names no node"},
		{"Local, own name not known", local, noNode, []string{"10.1.1.1 @n1"}, "left out by internalTrafficPolicy Local: this node's name is not known, so no endpoint is on it"},
		{"Local, not ready elsewhere", local, enforce(), []string{"10.1.1.1 r- @n2"}, "not ready"},
		{
			"Local, draining here", local, enforce(),
			[]string{"10.1.1.1 r-s+t+ @n1", "10.1.1.2 @n2"},
			"serving and terminating, on this node: chosen because no endpoint of this node is ready",
		},
		{
			"Local, draining beside a ready one", local, enforce(),
			[]string{"10.1.1.1 r-s+t+ @n1", "10.1.1.2 @n1"},
			"terminating: left out because another endpoint of this node is ready",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := c.service
			if svc == nil {
				svc = func(*model.Service) {}
			}
			a := plan.Decide(state(web(svc), webSlice(c.endpoints...)), c.settings, target(vip+":80"))
			address, _, _ := strings.Cut(c.endpoints[0], " ")
			if got := whyOf(a, address+":8080"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

var whyState = everyClass()

// mode is the settings of most tests in another mode.
func mode(m plan.Mode) plan.Settings {
	s := enforce()
	s.Mode = m
	return s
}

func inRange(a string) string { return a + " is in the Service range (10.96.0.0/16)" }

var whyAnswers = []struct {
	name     string
	st       *model.State
	settings plan.Settings
	dial     string
	want     []string
}{
	{"balanced", whyState, mode(plan.ModeEnforce), vip + ":80", []string{
		inRange(vip), "it is the ClusterIP of Service default/web", `Service default/web declares TCP port 80 as "http"`,
		"EndpointSlices list 1 endpoint for it: 1 ready", "all ready endpoints are chosen", "mode enforce: balanced over 1 endpoint (round robin)",
	}},
	{"measured", whyState, mode(plan.ModePassthrough), vip + ":80", []string{
		inRange(vip), "it is the ClusterIP of Service default/web", `Service default/web declares TCP port 80 as "http"`,
		"EndpointSlices list 1 endpoint for it: 1 ready", "all ready endpoints are chosen", "mode passthrough: passed through (mode balance would use 1 endpoint)",
	}},
	{"measured, would be refused", whyState, mode(plan.ModePassthrough), "10.96.0.99:80", []string{
		inRange("10.96.0.99"), "no Service has it", "mode passthrough: passed through (mode enforce would refuse it as no-service)",
	}},
	{"passed through", whyState, mode(plan.ModeBalance), vip + ":81", []string{
		inRange(vip), "it is the ClusterIP of Service default/web", "Service default/web declares no TCP port 81, only 80",
		"mode balance: passed through (mode enforce would refuse it as port-not-declared)",
	}},
	{"UDP only", whyState, mode(plan.ModeEnforce), "10.96.0.13:53", []string{
		inRange("10.96.0.13"), "it is the ClusterIP of Service default/dns", "Service default/dns declares port 53 for UDP only, not for TCP",
		"mode enforce: refused as port-not-declared",
	}},
	{"no TCP port", whyState, mode(plan.ModeEnforce), "10.96.0.13:80", []string{
		inRange("10.96.0.13"), "it is the ClusterIP of Service default/dns", "Service default/dns declares no TCP port",
		"mode enforce: refused as port-not-declared",
	}},
	{"no endpoints", whyState, mode(plan.ModeEnforce), "10.96.0.11:80", []string{
		inRange("10.96.0.11"), "it is the ClusterIP of Service default/empty", `Service default/empty declares TCP port 80 as "http"`,
		`no EndpointSlice of the Service lists an endpoint for TCP port name "http"`, "no endpoint is usable anywhere",
		"mode enforce: refused as no-endpoints",
	}},
	{"no local endpoints", whyState, mode(plan.ModeEnforce), "10.96.0.12:80", []string{
		inRange("10.96.0.12"), "it is the ClusterIP of Service default/remote", `Service default/remote declares TCP port 80 as "http"`,
		"EndpointSlices list 1 endpoint for it: 1 ready",
		"internalTrafficPolicy Local: no usable endpoint is on this node, 1 usable endpoint elsewhere",
		"mode enforce: refused as no-local-endpoints",
	}},
	{"foreign", whyState, mode(plan.ModeEnforce), "10.96.0.15:80", []string{
		inRange("10.96.0.15"), "it is the ClusterIP of Service default/global", "the Service is a Cilium global Service: others balance it",
		`Service default/global declares TCP port 80 as "http"`, `no EndpointSlice of the Service lists an endpoint for TCP port name "http"`,
		"no endpoint is usable anywhere", "passed through, in every mode",
	}},
	{"import", whyState, mode(plan.ModeEnforce), "243.0.0.5:80", []string{
		"243.0.0.5 is in the Service range (243.0.0.5/32)",
		"it is a ClusterSetIP of ServiceImport shop/api and no Service's ClusterIP: others balance it", "passed through, in every mode",
	}},
	{"external", whyState, mode(plan.ModeEnforce), "1.2.3.4:80", []string{
		"1.2.3.4 is outside the Service range (10.96.0.0/16, 243.0.0.5/32)",
		"it is an externalIP or load-balancer address of Service default/lb", "passed through, in every mode",
	}},
	{"never proxied", whyState, mode(plan.ModeEnforce), "169.254.169.254:80", []string{
		"169.254.169.254 is never proxied: it is loopback, link-local, multicast or unspecified", "refused as not-proxied, in every mode",
	}},
	{"range not known", model.New(model.Options{}), mode(plan.ModeEnforce), "10.96.0.1:80", []string{
		"the Service range is not known, so 10.96.0.1 counts as outside it", "passed through, in every mode",
	}},
	{"hints, affinity, every kind of endpoint", state(web(affinity), webSlice(
		"10.1.1.1 z:za", "10.1.1.2 z:zb", "10.1.1.3 r-s+t+", "10.1.1.4 r-", "10.1.1.1 t+", "127.0.0.1 fault=loopback")), mode(plan.ModeEnforce), vip + ":80", []string{
		inRange(vip), "it is the ClusterIP of Service default/web", `Service default/web declares TCP port 80 as "http"`,
		"EndpointSlices list 6 endpoints for it: 2 ready, 1 terminating but serving, 1 not usable, 1 duplicate, 1 with a bad address",
		"every ready endpoint has a zone hint and 1 of 2 name zone za: only these are chosen",
		"mode enforce: balanced over 1 endpoint (ring hash on the pod's address, for sessionAffinity ClientIP)",
	}},
	{"claims", state(service("default/c", vip, "", created(1), deleting), service("default/b", vip, "", created(3)),
		service("default/a", vip, ":80", created(2)), service("default/d", vip, "", created(2))), mode(plan.ModeEnforce), vip + ":80", []string{
		inRange(vip), "it is the ClusterIP of Service default/a",
		"Service default/d claims it too and is as old, but its name sorts later",
		"Service default/b claims it too, but is younger", "Service default/c claims it too, but is being deleted",
		"Service default/a declares TCP port 80, without a name", `no EndpointSlice of the Service lists an endpoint for TCP port name ""`,
		"no endpoint is usable anywhere", "mode enforce: refused as no-endpoints",
	}},
}

// TestWhyAnswer holds the path of a decision as people read it.
func TestWhyAnswer(t *testing.T) {
	for _, c := range whyAnswers {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, plan.Decide(c.st, c.settings, target(c.dial)).Why); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWhyHints holds what is said of hints that are not followed.
func TestWhyHints(t *testing.T) {
	for _, c := range []struct {
		name      string
		zone      string
		endpoints []string
		want      []string
	}{
		{"none", "za", []string{"10.1.1.1"}, []string{"all ready endpoints are chosen"}},
		{
			"zone hint lacking", "za",
			[]string{"10.1.1.1 z:za", "10.1.1.2"},
			[]string{"zone hints are ignored: ready endpoint 10.1.1.2:8080 has none", "all ready endpoints are chosen"},
		},
		{
			"no hint for this zone", "zx",
			[]string{"10.1.1.1 z:za"},
			[]string{`zone hints are ignored: none names this node's zone ("zx")`, "all ready endpoints are chosen"},
		},
		{
			"zone not known", "",
			[]string{"10.1.1.1 z:za"},
			[]string{"zone hints are ignored: this node's zone is not known", "all ready endpoints are chosen"},
		},
		{
			"node hint lacking", "za",
			[]string{"10.1.1.1 n:n1", "10.1.1.2"},
			[]string{"node hints are ignored: ready endpoint 10.1.1.2:8080 has none", "all ready endpoints are chosen"},
		},
		{"no hint for this node, but for its zone", "za", []string{"10.1.1.1 n:n2 z:za"}, []string{
			`node hints are ignored: none names this node ("n1")`, "every ready endpoint has a zone hint and 1 of 1 name zone za: only these are chosen",
		}},
		{
			"for this node", "za",
			[]string{"10.1.1.1 n:n1 z:zb"},
			[]string{"every ready endpoint has a node hint and 1 of 1 name node n1: only these are chosen"},
		},
		{
			"none ready", "za",
			[]string{"10.1.1.1 r-s+t+ z:za"},
			[]string{"no endpoint is ready: those that terminate and still serve are chosen"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := enforce()
			s.Zone = c.zone
			why := plan.Decide(state(web(), webSlice(c.endpoints...)), s, target(vip+":80")).Why
			if diff := cmp.Diff(c.want, why[4:len(why)-1]); diff != "" {
				t.Error(diff)
			}
		})
	}
}
