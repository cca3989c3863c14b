// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
)

// differences is every way in which we may differ from kube-proxy. docs/answers.md
// tells users of each.
var differences = map[string]string{
	"reset-after-connect": "a refused dial: kube-proxy's client is refused when it connects, ours is connected and then reset",
	"no-local-endpoint":   "iTP Local and none here: kube-proxy drops, we reset",
	"unknown-address":     "nobody's address in the range: kube-proxy drops, we reset",
	"range-learned-late":  "the same in a range of which kube-proxy's rules do not know yet: nobody answers, we reset",
	"client-ip-affinity":  "kube-proxy picks at random and remembers, we hash: one endpoint each, not the same",
	"dead-endpoint":       "nobody listens there: kube-proxy's client fails, ours is answered by another",
	"faulty-address":      "an address that no endpoint may have: kube-proxy dials it, to us it is absent",
	"duplicate":           "one ip:port twice: kube-proxy's order of reading decides, our rule does",
	"slice-left":          "a slice whose service label changed: kube-proxy keeps its endpoints, we do not",
	"close-for-reset":     "on a machine out of CPU a client that talks may see a close in place of the reset",
}

// passed is every reason for which we may leave an address to kube-proxy.
var passed = map[string]string{
	"service-proxy-name": "labelled as another proxy's",
	"cilium-global":      "a global Service of Cilium",
	"opted-out":          "its annotation asks for it",
	"external-address":   "an externalIP or load-balancer address in the range",
	"outside-range":      "a node port, or a range that is no Service range",
}

// foreign says why a Service is left to others, empty when it is not.
func foreign(s *corev1.Service) string {
	switch _, labelled := s.Labels[labelProxyName]; {
	case labelled:
		return "service-proxy-name"
	case s.Annotations[annotationCilium] == "true":
		return "cilium-global"
	case s.Annotations[annotationEgress] == "passthrough":
		return "opted-out"
	}
	return ""
}

// target is one address that is dialled.
type target struct {
	to     netip.AddrPort
	family *family
	owner  *corev1.Service // whose address it is, if anybody's
	twin   *netip.AddrPort // the same port of the twin
	// external: an externalIP or load-balancer address; nodePort: the node's address.
	external, nodePort bool
	ranged             bool // in a Service range
}

// seen is all that is known of one target.
type seen struct {
	target
	kube, twin lab.Decision // by kube-proxy's rules; twin is kube without a twin
	why        []string     // the twin is there for
	row        api.ServiceRow
	hosts      []netip.AddrPort // Envoy's
	plain      []lab.Answer
	twinPlain  []lab.Answer
	captured   []lab.Answer
}

func (s *seen) affinity() bool {
	return s.owner != nil && s.owner.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
}

// judge compares both sides. It returns the names of the differences there are, why
// the address was left to kube-proxy if it was, and what cannot be explained.
func (s *seen) judge() (names []string, left, fault string) {
	if fault := conforms(s.plain, s.kube, s.affinity()); fault != "" {
		return nil, "", "uncaptured pod: " + fault
	}
	if s.target.twin != nil {
		if fault := conforms(s.twinPlain, s.twin, s.affinity()); fault != "" {
			return nil, "", "uncaptured pod, twin: " + fault
		}
	}
	if s.row.Live.Nack != "" {
		return nil, "", "Envoy refused it: " + s.row.Live.Nack
	}
	names, left, fault = s.judgeAnswer()
	if fault != "" {
		return nil, "", fault
	}
	for _, d := range names {
		if differences[d] == "" {
			return nil, "", "no such difference: " + d
		}
	}
	slices.Sort(names)
	return slices.Compact(names), left, ""
}

func (s *seen) judgeAnswer() (names []string, left, fault string) {
	answer := s.row.Answer
	if !s.ranged {
		answer = "passthrough"
	}
	switch answer {
	case "passthrough":
		left = s.whyPassed()
		if left == "" {
			return nil, "", fmt.Sprintf("we pass it through (class %s, looked %q), and nothing says why", s.row.Class, s.row.Live.Looked)
		}
		names, fault = s.judgePassed()
	case "refuse":
		names, fault = s.judgeRefused()
	case "balance":
		names, fault = s.judgeBalanced()
	default:
		fault = fmt.Sprintf("we answer %q", answer)
	}
	return names, left, fault
}

func (s *seen) whyPassed() string {
	switch {
	case !s.ranged:
		return "outside-range"
	case s.external:
		return "external-address"
	case s.owner != nil:
		return foreign(s.owner)
	}
	return ""
}

// judgePassed: we are a wire to kube-proxy.
func (s *seen) judgePassed() (names []string, fault string) {
	switch s.kube.Verdict {
	case lab.Serve:
		return nil, prefixed("captured pod, passed through: ", conforms(s.captured, s.kube, s.affinity()))
	case lab.Reject:
		names = append(names, "reset-after-connect")
	}
	for _, a := range s.captured {
		switch {
		case (a.Outcome == echo.Reset || a.Outcome == echo.Closed) && s.kube.Verdict == lab.Reject:
		case a.Outcome == echo.Timeout && s.kube.Verdict != lab.Reject: // Envoy gives up later than the client
		default:
			return nil, fmt.Sprintf("passed through to what kube-proxy's rules %s: %s", s.kube.Verdict, a)
		}
	}
	return names, ""
}

// judgeRefused: every reason is one verdict of kube-proxy's.
func (s *seen) judgeRefused() (names []string, fault string) {
	declared := s.owner != nil && slices.ContainsFunc(s.owner.Spec.Ports, func(q corev1.ServicePort) bool {
		return q.Port == int32(s.to.Port()) && q.Protocol == corev1.ProtocolTCP
	})
	want, expected := s.twin, ""
	switch want.Verdict {
	case lab.Reject:
		names, expected = append(names, "reset-after-connect"), "port-not-declared"
		if declared {
			expected = "no-endpoints"
		}
	case lab.Drop:
		names, expected = append(names, "no-local-endpoint"), "no-local-endpoints"
	case lab.None:
		names, expected = append(names, "unknown-address"), "no-service"
		if secondRange.Contains(s.to.Addr()) {
			names = []string{"range-learned-late"}
		}
	}
	if s.row.Reason != expected {
		return nil, fmt.Sprintf("we refuse with %q, kube-proxy's rules: %s %v", s.row.Reason, want.Verdict, want.Endpoints)
	}
	for _, a := range s.captured {
		switch a.Outcome {
		case echo.Reset:
		case echo.Closed:
			names = append(names, "close-for-reset")
		default:
			return nil, fmt.Sprintf("refused with %s, but %s", s.row.Reason, a)
		}
	}
	return append(names, s.byTwin()...), ""
}

// byTwin names the differences between kube-proxy's view and that of the input put
// right.
func (s *seen) byTwin() []string {
	if s.target.twin == nil || s.kube.Verdict == s.twin.Verdict && slices.Equal(s.kube.Endpoints, s.twin.Endpoints) {
		return nil
	}
	return s.why
}

// judgeBalanced: the endpoints are kube-proxy's, and so is who answers.
func (s *seen) judgeBalanced() (names []string, fault string) {
	want := s.twin
	if want.Verdict != lab.Serve || !slices.Equal(want.Endpoints, s.hosts) {
		return nil, fmt.Sprintf("we serve it with %v, kube-proxy's rules: %s %v", s.hosts, want.Verdict, want.Endpoints)
	}
	if s.row.Used != len(s.hosts) {
		return nil, fmt.Sprintf("the agent says that it uses %d endpoints, Envoy has %v", s.row.Used, s.hosts)
	}
	if fault := conforms(s.captured, want, s.affinity()); fault != "" {
		return nil, "captured pod: " + fault
	}
	names = s.byTwin()
	if fell(s.plain) && !fell(s.captured) {
		names = append(names, "dead-endpoint")
	}
	if ours, theirs := answered(s.captured), answered(s.plain); s.affinity() && len(ours) > 0 && len(theirs) > 0 && !slices.Equal(ours, theirs) {
		names = append(names, "client-ip-affinity")
	}
	return names, ""
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// answered are the endpoints that answered, sorted, as they saw themselves dialled.
func answered(dials []lab.Answer) (out []netip.AddrPort) {
	for _, a := range dials {
		if e, err := netip.ParseAddrPort(a.By.Local); err == nil && a.Outcome == echo.OK {
			e = netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
			if !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

func fell(dials []lab.Answer) bool {
	return slices.ContainsFunc(dials, func(a lab.Answer) bool { return a.Outcome != echo.OK })
}

func living(endpoints []netip.AddrPort) (out []netip.AddrPort) {
	for _, e := range endpoints {
		if live(e) {
			out = append(out, e)
		}
	}
	return out
}

// unanswerable reports whether packets to one of them lead nowhere at all.
func unanswerable(endpoints []netip.AddrPort) bool {
	return slices.ContainsFunc(endpoints, func(e netip.AddrPort) bool {
		return slices.Contains(faultyAddresses, e.Addr().String())
	})
}

// conforms says what of a pod's dials is not as a verdict has it.
func conforms(dials []lab.Answer, d lab.Decision, affinity bool) string {
	got, alive := answered(dials), living(d.Endpoints)
	for _, a := range dials {
		var ok bool
		switch d.Verdict {
		case lab.Serve:
			ok = a.Outcome == echo.OK || len(alive) < len(d.Endpoints)
		case lab.Reject:
			ok = a.Outcome == echo.Refused
		default:
			ok = a.Outcome == echo.Timeout && a.Phase == echo.PhaseConnect
		}
		if !ok {
			return fmt.Sprintf("%s, by the rules: %s %v", a, d.Verdict, d.Endpoints)
		}
	}
	for _, e := range got {
		if !slices.Contains(d.Endpoints, e) {
			return fmt.Sprintf("answered by %v, by the rules: %v", got, d.Endpoints)
		}
	}
	if d.Verdict == lab.Serve && !affinity && !unanswerable(d.Endpoints) && !slices.Equal(got, alive) {
		return fmt.Sprintf("only %v answered in %d dials, want %v", got, len(dials), alive)
	}
	return ""
}

// String says in words what both sides did.
func (s *seen) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n  kube-proxy's rules: %s %v\n", s.to, s.kube.Verdict, s.kube.Endpoints)
	if s.target.twin != nil {
		fmt.Fprintf(&b, "  its rules for the twin %s: %s %v\n", s.target.twin, s.twin.Verdict, s.twin.Endpoints)
	}
	fmt.Fprintf(&b, "  agent: %s %s %s, uses %d of %d; Envoy: %v\n", s.row.Class, s.row.Answer, s.row.Reason, s.row.Used, s.row.Total, s.hosts)
	for who, dials := range map[string][]lab.Answer{plain: s.plain, captured: s.captured} {
		fmt.Fprintf(&b, "  pod %s: %d dials, answered by %v", who, len(dials), answered(dials))
		for _, a := range dials[max(0, len(dials)-3):] {
			fmt.Fprintf(&b, "; %s", a)
		}
		b.WriteString("\n")
	}
	return b.String()
}
