// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"net/netip"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// served is the answer of a declared Service port with these chosen endpoints.
func served(vip, name, port string, endpoints ...string) plan.Answer {
	a := plan.Answer{
		Target:  netip.MustParseAddrPort(vip),
		Class:   plan.ClassService,
		Verdict: plan.Balance,
		Service: &plan.ServiceRef{Service: model.Name{Namespace: "default", Name: name}, Port: port},
		Policy:  &plan.Policy{},
	}
	for _, e := range endpoints {
		a.Candidates = append(a.Candidates, plan.Candidate{Address: e, AddrPort: netip.MustParseAddrPort(e), Chosen: true})
	}
	return a
}

// noEndpoints is the answer of a declared Service port that has none to use.
func noEndpoints(vip, name, port string) plan.Answer {
	a := served(vip, name, port)
	a.Verdict, a.Reason = plan.Refuse, plan.NoEndpoints
	return a
}

func noService(vip string) plan.Answer {
	return plan.Answer{
		Target: netip.MustParseAddrPort(vip), Class: plan.ClassUnknown, Verdict: plan.Refuse, Reason: plan.NoService,
	}
}

func portNotDeclared(vip, name, port string) plan.Answer {
	a := served(vip, name, port)
	a.Verdict, a.Reason, a.Policy = plan.Refuse, plan.PortNotDeclared, nil
	return a
}

func passedThrough(a plan.Answer) plan.Answer {
	a.Verdict, a.Reason = plan.Passthrough, plan.NoReason
	return a
}

func clientIP(a plan.Answer) plan.Answer {
	p := *a.Policy
	p.ClientIPAffinity = true
	a.Policy = &p
	return a
}

func testWorkload() model.Workload {
	return model.Workload{
		Name: model.Name{Namespace: "default", Name: "web-0"}, UID: "u1", ServiceAccount: "web",
		IP: netip.MustParseAddr("10.244.1.7"), NetNS: "/run/netns/cni-1",
	}
}

// testCapture is what a node in mode enforce tells apart.
func testCapture() plan.Capture {
	var never []netip.Prefix
	for _, p := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4"} {
		never = append(never, netip.MustParsePrefix(p))
	}
	return plan.Capture{
		NeverProxied: never,
		APIServer:    []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Service:      []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("241.0.0.5/32")},
		OnDemand:     true,
	}
}

func nodeSettings() Settings {
	s := DefaultSettings()
	s.EgressSource = NodeSource
	return s
}

func testBootstrap() BootstrapSettings {
	return BootstrapSettings{
		NodeID: "n1", XDSSocket: "/run/aether/xds.sock", RecordSocket: "/run/aether/als.sock", AdminSocket: "/run/aether/envoy-admin.sock",
		DescriptorLimit: 65_536, AccessLogSuccessPercent: 1,
	}
}
