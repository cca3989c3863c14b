// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// The node of every test unless it says otherwise.
const (
	thisNode = "n1"
	thisZone = "za"
	vip      = "10.96.0.10"
)

func enforce() plan.Settings {
	return plan.Settings{Mode: plan.ModeEnforce, Node: thisNode, Zone: thisZone}
}

func addr(s string) netip.Addr       { return netip.MustParseAddr(s) }
func target(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
func name(s string) model.Name {
	ns, n, _ := strings.Cut(s, "/")
	return model.Name{Namespace: ns, Name: n}
}
func deleteSlice(n string) model.Change { return model.DeleteSlice{Name: name(n)} }

// serviceRange is the range of every test.
func serviceRange() model.Change {
	return model.SetServiceCIDR{Name: "kubernetes", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
}

// state applies the changes to an empty State that knows the range.
func state(changes ...model.Change) *model.State {
	st, _ := model.New(model.Options{}).Apply(append([]model.Change{serviceRange()}, changes...))
	return st
}

// service makes a Service; ports are "name:number" or "name:number/UDP".
func service(n, clusterIP, ports string, options ...func(*model.Service)) model.Change {
	svc := model.Service{Name: name(n), UID: "uid-" + n}
	if clusterIP != "" {
		svc.VIP = addr(clusterIP)
	}
	for _, p := range parsePorts(ports) {
		svc.Ports = append(svc.Ports, model.ServicePort(p))
	}
	for _, o := range options {
		o(&svc)
	}
	return model.SetService{Service: svc}
}

func local(s *model.Service)    { s.InternalLocal = true }
func affinity(s *model.Service) { s.ClientIPAffinity = true }
func deleting(s *model.Service) { s.Deleting = true }

func foreign(f model.Foreign) func(*model.Service) {
	return func(s *model.Service) { s.Foreign = f }
}

func created(at int64) func(*model.Service) {
	return func(s *model.Service) { s.Created = at }
}

func externalIP(a string) func(*model.Service) {
	return func(s *model.Service) { s.ExternalIPs = append(s.ExternalIPs, addr(a)) }
}

// slice makes an EndpointSlice of a Service of its namespace.
func slice(n, svc, ports string, endpoints ...string) model.Change {
	sl := model.Slice{Name: name(n), Service: svc, Ports: parsePorts(ports)}
	for _, e := range endpoints {
		sl.Endpoints = append(sl.Endpoints, endpoint(e))
	}
	return model.SetSlice{Slice: sl}
}

// web and webSlice are the Service and slice of most tests.
func web(options ...func(*model.Service)) model.Change {
	return service("default/web", vip, "http:80", options...)
}

func webSlice(endpoints ...string) model.Change {
	return slice("default/web-a", "web", "http:8080", endpoints...)
}

func parsePorts(text string) []model.SlicePort {
	var out []model.SlicePort
	for _, f := range strings.Fields(text) {
		name, rest, _ := strings.Cut(f, ":")
		number, protocol, _ := strings.Cut(rest, "/")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			panic(fmt.Sprintf("port %q: %v", f, err))
		}
		if protocol == "" {
			protocol = "TCP"
		}
		out = append(out, model.SlicePort{Name: name, Port: uint16(n), Protocol: model.Protocol(protocol)})
	}
	return out
}

// endpoint reads "ADDRESS [r±][s±][t±] [@node] [zone=] [z:hint,…] [n:hint,…]
// [fault=…]". What is left out has the API's default: ready, serving, not
// terminating.
func endpoint(text string) model.Endpoint {
	fields := strings.Fields(text)
	ep := model.Endpoint{Text: fields[0], Ready: true, Serving: true}
	ep.Addr, _ = netip.ParseAddr(fields[0])
	for _, f := range fields[1:] {
		key, value, assigned := strings.Cut(f, "=")
		hint, hints, hinted := strings.Cut(f, ":")
		switch {
		case assigned && key == "zone":
			ep.Zone = value
		case assigned && key == "fault":
			ep.Fault = value
		case f[0] == '@':
			ep.Node = f[1:]
		case hinted && hint == "z":
			ep.ZoneHints = strings.Split(hints, ",")
		case hinted && hint == "n":
			ep.NodeHints = strings.Split(hints, ",")
		default:
			conditions(&ep, f)
		}
	}
	return ep
}

func conditions(ep *model.Endpoint, text string) {
	for i := 0; i+1 < len(text); i += 2 {
		on := text[i+1] == '+'
		if text[i+1] == '?' {
			continue
		}
		switch text[i] {
		case 'r':
			ep.Ready = on
		case 's':
			ep.Serving = on
		case 't':
			ep.Terminating = on
		default:
			panic("conditions " + text)
		}
	}
}

// used lists the endpoints an answer uses, or the reason or verdict when none.
func used(a plan.Answer) string {
	if a.Verdict != plan.Balance {
		if a.Reason != "" {
			return string(a.Reason)
		}
		return string(a.Verdict)
	}
	var out []string
	for _, c := range a.Candidates {
		if c.Chosen {
			out = append(out, c.Address)
		}
	}
	return strings.Join(out, " ")
}

// dial answers for VIP:80 in mode enforce.
func dial(st *model.State) plan.Answer {
	return plan.Decide(st, enforce(), target(vip+":80"))
}

// expect fails unless the answer uses exactly those endpoints (or has that
// reason or verdict).
func expect(t *testing.T, a plan.Answer, want string) {
	t.Helper()
	if got := used(a); got != want {
		t.Errorf("%s: used %q, want %q\n%s", a.Target, got, want, story(a))
	}
}

// whyOf returns the sentence on one candidate; of several, all of them.
func whyOf(a plan.Answer, address string) string {
	var out []string
	for _, c := range a.Candidates {
		if c.Address == address {
			out = append(out, c.Why)
		}
	}
	return strings.Join(out, " | ")
}

func story(a plan.Answer) string {
	lines := slices.Clone(a.Why)
	for _, c := range a.Candidates {
		lines = append(lines, fmt.Sprintf("%s chosen=%t: %s", c.Address, c.Chosen, c.Why))
	}
	return strings.Join(lines, "\n")
}

// step is one point in a history: changes, then what VIP:80 uses.
type step struct {
	changes []model.Change
	want    string
}

func do(want string, changes ...model.Change) step { return step{changes, want} }

// history applies the steps one after the other and checks each.
func history(t *testing.T, steps ...step) {
	t.Helper()
	st := state()
	for i, s := range steps {
		st, _ = st.Apply(s.changes)
		if got := used(dial(st)); got != s.want {
			t.Fatalf("step %d: used %q, want %q\n%s", i, got, s.want, story(dial(st)))
		}
	}
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, addr(a))
	}
	return out
}
