// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"strconv"
	"strings"

	"aether.io/aether/internal/agent/api"
)

// The symbols of an answer and of an endpoint.
const (
	signServed  = "✔"
	signRefused = "✖"
	signPassed  = "➜"
	signUnused  = "·"
)

// explanationText draws a decision: what was asked, the path to the answer, the
// endpoints, and what to try when it is a refusal.
func explanationText(e api.Explanation, from origin, wide bool) string {
	var b strings.Builder
	head := e.Address
	if e.Service != nil {
		head += "  " + serviceText(e.Service)
	}
	fmt.Fprintf(&b, "%s  %s\n", styleHead.Render(printable(head)), styleDim.Render("class "+e.Class))
	fmt.Fprintf(&b, "%s\n\n", styleDim.Render(printable("asked: "+from.text())))

	fmt.Fprintf(&b, "  ◉ %s\n", printable(e.Address))
	for _, step := range e.Path {
		fmt.Fprintf(&b, "  │ %s\n", printable(step))
	}
	fmt.Fprintf(&b, "  ▼\n  %s\n", answerStyle(e.Answer).Render(answerText(e)))
	if e.Policy != nil {
		fmt.Fprintf(&b, "    %s\n", styleDim.Render(policyText(e.Policy)))
	}
	if len(e.Endpoints) > 0 {
		b.WriteString("\n" + endpointTable(e.Endpoints, wide).render(tableIndent))
	}
	if e.Live != nil {
		b.WriteString("\n" + liveText(e.Live))
	}
	if next := nextAfter(e, from); next != "" {
		fmt.Fprintf(&b, "\nNext: %s\n", printable(next))
	}
	return b.String()
}

// answerText is the answer in one line.
func answerText(e api.Explanation) string {
	used := 0
	for _, ep := range e.Endpoints {
		if ep.Used {
			used++
		}
	}
	switch e.Answer {
	case "balance", "mesh":
		return fmt.Sprintf("%s %s over %d of %s", signServed, e.Answer, used, plural(len(e.Endpoints), "endpoint"))
	case "refuse":
		return fmt.Sprintf("%s refuse: %s (the client's connection is reset)", signRefused, e.Reason)
	default:
		return fmt.Sprintf("%s %s to the dialled address", signPassed, e.Answer)
	}
}

func policyText(p *api.Policy) string {
	return fmt.Sprintf("affinity %s · internalTrafficPolicy %s · topology %s · %s",
		p.Affinity, p.InternalTrafficPolicy, p.Topology, p.Balancing)
}

// endpointTable lists the endpoints; used ones are marked.
func endpointTable(eps []api.Endpoint, wide bool) *table {
	t := &table{head: []string{" ", "ENDPOINT", "NODE", "ZONE", "STATE", "WHY"}}
	if wide {
		t.head = []string{" ", "ENDPOINT", "NODE", "ZONE", "READY", "SERVING", "TERMINATING", "USED", "WHY"}
	}
	for _, e := range eps {
		sign, style := signUnused, styleDim
		if e.Used {
			sign, style = signServed, styleGood
		}
		if wide {
			t.add(style, sign, e.Address, orDash(e.Node), orDash(e.Zone), strconv.FormatBool(e.Ready),
				strconv.FormatBool(e.Serving), strconv.FormatBool(e.Terminating), strconv.FormatBool(e.Used), e.Why)
			continue
		}
		t.add(style, sign, e.Address, orDash(e.Node), orDash(e.Zone), stateText(e), e.Why)
	}
	return t
}

// stateText says what the conditions mean.
func stateText(e api.Endpoint) string {
	switch {
	case e.Ready && e.Terminating:
		return "ready, terminating"
	case e.Ready:
		return "ready"
	case e.Terminating && e.Serving:
		return "draining"
	case e.Terminating:
		return "terminating"
	default:
		return "not ready"
	}
}

func liveText(l *api.Live) string {
	asked := "not asked for yet"
	if l.Asked {
		asked = fmt.Sprintf("asked for · %s, %d open", plural(int(l.Connections), "connection"), l.Active)
	}
	if l.LastDial != "" {
		asked += " · last dial " + l.LastDial
	}
	s := tableIndent + printable(asked) + "\n"
	if l.Nack != "" {
		s += tableIndent + styleBad.Render("Envoy rejected the last version: "+printable(l.Nack)) + "\n"
	}
	return s
}

// serviceText is NAME.NAMESPACE:PORT, which explain takes as its argument.
func serviceText(s *api.ServiceRef) string { return s.Name + "." + s.Namespace + ":" + s.Port }

// nextAfter is the command to try after a refusal, or empty.
func nextAfter(e api.Explanation, from origin) string {
	if e.Answer != "refuse" {
		return ""
	}
	host, _, _ := strings.Cut(e.Address, ":")
	switch {
	case e.Reason == "not-proxied": // in the pod: such addresses are left to its own routes
		return "ip -4 route get " + host
	case len(from.dirs) > 0:
		return nextOffline(e, from, host)
	case from.sandbox != "":
		return from.status
	default:
		return nextInCluster(e, host)
	}
}

func nextOffline(e api.Explanation, from origin, host string) string {
	dirs := ""
	for _, d := range from.dirs {
		dirs += " " + shellWord(d)
	}
	switch e.Reason {
	case "no-local-endpoints":
		for _, ep := range e.Endpoints {
			if ep.Node != "" && ep.Node != from.settings.Node && (ep.Ready || ep.Serving && ep.Terminating) {
				return program + " explain " + e.Address + from.offlineFlags(ep.Node)
			}
		}
		return "grep -rn nodeName:" + dirs
	case "no-endpoints":
		if from.awaits {
			return program + " sandbox up" + from.offlineFlags("")
		}
		return "grep -rn 'kubernetes.io/service-name.*" + e.Service.Name + "'" + dirs
	case "port-not-declared":
		if len(from.declared) > 0 {
			s := *e.Service
			s.Port = from.declared[0]
			return program + " explain " + serviceText(&s) + from.offlineFlags(from.settings.Node)
		}
		return "grep -rn 'name: " + e.Service.Name + "'" + dirs
	default: // no-service
		return "grep -rnF " + host + dirs
	}
}

func nextInCluster(e api.Explanation, host string) string {
	if e.Service == nil {
		return "kubectl get services -A -o wide | grep -wF " + host
	}
	ns, name := shellWord(e.Service.Namespace), shellWord(e.Service.Name)
	switch e.Reason {
	case "no-endpoints":
		return fmt.Sprintf("kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s -o yaml", ns, name)
	case "no-local-endpoints":
		return fmt.Sprintf("kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s -o jsonpath='{.items[*].endpoints[*].nodeName}'", ns, name)
	default: // port-not-declared
		return fmt.Sprintf("kubectl get service -n %s %s -o jsonpath='{.spec.ports}'", ns, name)
	}
}
