// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
)

func assessSources(f Facts) []api.Finding {
	a := f.Agent
	synced := ok("sources-synced", "Services and EndpointSlices are complete")
	if !a.Synced {
		synced = finding("sources-synced", api.FindingFailed, "the sources have not synced yet", statusCommand+"   # what they complain of")
	}
	problems := ok("source-problems", "the sources have no complaint")
	if len(a.Problems) > 0 {
		var seen []string
		for _, p := range a.Problems {
			seen = append(seen, strings.TrimPrefix(p.Source+": "+p.Text, ": "))
		}
		problems = finding("source-problems", api.FindingWarning,
			fmt.Sprintf("%s: %s", plural(len(seen), "complaint"), list(seen)),
			"mend the file, object or right named; it is read again by itself", statusCommand)
	}
	known := ok("service-range", "the Service range is %s, mode %s", strings.Join(a.Range, ", "), a.Mode)
	if !a.RangeKnown {
		known = finding("service-range", api.FindingFailed, "no Service range is known: no ServiceCIDR, and no --service-range",
			"aether-agent --service-range 10.96.0.0/16 ...",
			"add a ServiceCIDR object:\n"+serviceCIDR)
	}
	return slices.Concat([]api.Finding{synced}, assessAPIServer(f), assessUnknown(f), []api.Finding{problems, known})
}

const serviceCIDR = `apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}`

// reportAgain is how a pod is set up anew.
func reportAgain(pod string) string {
	namespace, name, _ := strings.Cut(pod, "/")
	return fmt.Sprintf("kubectl delete pod -n %s %s   # in a sandbox: take its manifest away and put it back", namespace, name)
}

func assessPods(f Facts) []api.Finding {
	if len(f.Pods) == 0 {
		return []api.Finding{finding("pod-listeners", api.FindingNote, "this node has no captured pod, so nothing was looked at in one",
			"label a pod aether.io/managed: \"true\"")}
	}
	out := []api.Finding{notChecked("pod-listeners", "no Envoy is connected that could have them")}
	if len(f.Envoy.Connected) > 0 {
		out = listeners(f.Pods)
	}
	out = append(out, namespaces(f.Pods, f.RunDir)...)
	bound, captured, ports := sights(f)
	return slices.Concat(out, bound, captured, ports, rates(f.Pods))
}

// rates judges whether pods met their connection rates, where that could be seen.
func rates(pods []Pod) (out []api.Finding) {
	const id = "pod-rate"
	within := 0
	for _, p := range pods {
		switch s := p.Sight; {
		case p.NetNSErr != "" || s.Err != "": // said already
		case s.Value.Slowed == 0:
			within++
		default:
			out = append(out, finding(id, api.FindingWarning,
				fmt.Sprintf("pod %s was slowed: its connection rate held back %s", p.Name, plural(int(s.Value.Slowed), "first segment")),
				"raise or remove the pod's annotation capture.aether.io/connection-rate, if it may dial that often"))
		}
	}
	return summed(out, ok(id, "no connection rate has slowed %s", all(within, len(pods))), within)
}

func listeners(pods []Pod) (out []api.Finding) {
	const id = "pod-listeners"
	ready := 0
	for _, p := range pods {
		switch p.Listener {
		case "ready":
			ready++
		case "rejected":
			out = append(out, finding(id, api.FindingFailed, fmt.Sprintf("pod %s: Envoy rejected its listener: %s", p.Name, p.Nack), reportAgain(p.Name)))
		default:
			out = append(out, finding(id, api.FindingFailed, fmt.Sprintf("pod %s: Envoy has not taken its listener (%s)", p.Name, p.Listener), statusCommand))
		}
	}
	return summed(out, ok(id, "Envoy has the listeners of %s", all(ready, len(pods))), ready)
}

// summed puts what is ok before what is not, if anything is.
func summed(bad []api.Finding, good api.Finding, n int) []api.Finding {
	if n == 0 {
		return bad
	}
	return append([]api.Finding{good}, bad...)
}

func all(n, of int) string {
	if n == of {
		return "all " + plural(of, "pod")
	}
	return fmt.Sprintf("%d of %s", n, plural(of, "pod"))
}

func namespaces(pods []Pod, runDir string) (out []api.Finding) {
	const id = "pod-namespaces"
	there := 0
	for _, p := range pods {
		if p.NetNSErr == "" {
			there++
			continue
		}
		namespace, name, _ := strings.Cut(p.Name, "/")
		out = append(out, finding(id, api.FindingFailed, fmt.Sprintf("pod %s: %s", p.Name, p.NetNSErr), reportAgain(p.Name),
			fmt.Sprintf("curl -X DELETE --unix-socket %s/cni.sock http://agent/v1/pods/%s/%s   # if the pod is gone", runDir, namespace, name)))
	}
	return summed(out, ok(id, "the network namespaces of %s are there", all(there, len(pods))), there)
}

// sights judges what was seen in the namespaces that are there.
func sights(f Facts) (bound, captured, ports []api.Finding) {
	var listening, equal, wide, looked int
	for _, p := range f.Pods {
		if p.NetNSErr != "" {
			continue // said already
		}
		if p.Sight.Err != "" {
			for _, s := range []struct {
				id  string
				out *[]api.Finding
			}{{"pod-bound", &bound}, {"pod-capture", &captured}} {
				*s.out = append(*s.out, notChecked(s.id, fmt.Sprintf("pod %s: %s", p.Name, p.Sight.Err)))
			}
			continue
		}
		looked++
		s := p.Sight.Value
		if s.Listening {
			listening++
		} else {
			bound = append(bound, finding("pod-bound", api.FindingFailed,
				fmt.Sprintf("pod %s: nobody listens on 127.0.0.1:18001 in %s", p.Name, p.NetNS), reportAgain(p.Name)))
		}
		if len(s.Differences) == 0 {
			equal++
		} else {
			captured = append(captured, finding("pod-capture", api.FindingFailed,
				fmt.Sprintf("pod %s: %s", p.Name, strings.Join(s.Differences, "; ")), s.Repair))
		}
		if s.Ports == 0 || s.Ports >= fewPorts {
			wide++
		} else {
			ports = append(ports, finding("pod-ports", api.FindingWarning,
				fmt.Sprintf("pod %s has %d ports to dial from", p.Name, s.Ports),
				fmt.Sprintf(`nsenter --net=%s sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, p.NetNS)))
		}
	}
	bound = summed(bound, ok("pod-bound", "Envoy listens in the namespaces of %s", all(listening, len(f.Pods))), listening)
	captured = summed(captured, ok("pod-capture", "the capture rules of %s are as they should be", all(equal, len(f.Pods))), equal)
	if wide == looked && looked > 0 {
		ports = []api.Finding{ok("pod-ports", "%s have at least %d ports to dial from", all(wide, len(f.Pods)), fewPorts)}
	}
	return bound, captured, ports
}

func assessTraffic(f Facts) []api.Finding {
	e := f.Envoy
	since := "since Envoy started"
	if e.Server.Err == "" {
		since = fmt.Sprintf("in the %s since Envoy started", e.Server.Value.Uptime)
	}
	out := make([]api.Finding, 0, 5)
	if e.Stats.Err != "" {
		why := "Envoy's statistics cannot be read: " + e.Stats.Err
		for _, id := range []string{"node-connections", "pod-connections", "first-dials"} {
			out = append(out, notChecked(id, why))
		}
		return append(out, budget(f.Names), total(f.Names))
	}
	s := e.Stats.Value
	out = append(out, nodeConnections(e, s, since))
	pod := ok("pod-connections", "no connection met a pod's limit of %d %s", e.PodLimit, since)
	if s.PodLimited > 0 {
		pod = finding("pod-connections", api.FindingWarning,
			fmt.Sprintf("%d connections were turned away by a pod's limit of %d %s", s.PodLimited, e.PodLimit, since),
			"aetherctl top   # who connects the most",
			fmt.Sprintf("aether-agent --pod-connection-limit %d ...", 2*uint64(e.PodLimit)))
	}
	dials := ok("first-dials", "every first dial was answered in time %s", since)
	if s.OnDemandTimeouts > 0 {
		dials = finding("first-dials", api.FindingWarning,
			fmt.Sprintf("%d first dials got no answer in time %s", s.OnDemandTimeouts, since),
			"aetherctl observe --verdict unanswered   # and of the address: aetherctl explain ADDRESS:PORT")
	}
	return append(out, pod, dials, budget(f.Names), total(f.Names))
}

func nodeConnections(e Envoy, s Stats, since string) api.Finding {
	const id = "node-connections"
	most := "unknown"
	if e.MaxConnections.Err == "" {
		most = fmt.Sprint(e.MaxConnections.Value)
	}
	seen := fmt.Sprintf("%d captured connections are open, the node's limit is %s", s.Connections, most)
	switch {
	case s.NodeOverflow > 0:
		return finding(id, api.FindingWarning, fmt.Sprintf("%s; %d were turned away %s", seen, s.NodeOverflow, since), raiseNoFile)
	case e.MaxConnections.Err == "" && s.Connections*100 >= e.MaxConnections.Value*nearly:
		return finding(id, api.FindingWarning, seen, raiseNoFile)
	}
	return ok(id, "%s; none was turned away %s", seen, since)
}

func budget(n Names) api.Finding {
	const id = "names-budget"
	used := n.Other + n.Held
	seen := fmt.Sprintf("%d of %d names that are no Service port's are in use", used, n.Budget)
	fix := []string{
		"aetherctl observe --reason no-service   # who dials them",
		"aetherctl proxy restart   # the new Envoy begins without them, when the old one has ended",
	}
	switch {
	case n.OverLimit > 0:
		return finding(id, api.FindingWarning, fmt.Sprintf("%s; %d were turned away since the agent started", seen, n.OverLimit),
			append(fix, "restart the agent, which counts anew")...)
	case used*100 >= n.Budget*nearly:
		return finding(id, api.FindingWarning, seen, fix...)
	}
	return ok(id, "%s; none was turned away", seen)
}

func total(n Names) api.Finding {
	const id = "names-total"
	if n.CompactAt == 0 {
		return ok(id, "Envoy asked for %d names; a new process for their sake is never asked for", n.All)
	}
	seen := fmt.Sprintf("Envoy asked for %d names; past %d a hot restart is asked for, which forgets them", n.All, n.CompactAt)
	if n.All*100 >= n.CompactAt*nearly {
		return finding(id, api.FindingWarning, seen, "aetherctl proxy restart   # a hot restart: no new connection fails", "restart Envoy, which forgets names nobody dials")
	}
	return ok(id, "%s", seen)
}

func assessProbes(f Facts) []api.Finding {
	const id = "connect-only"
	standing := finding(id, api.FindingNote,
		"always so: a probe or client that only connects passes against a dead Service. Of clients only their commands can be looked at, not what a program does inside",
		"let probes read an answer (httpGet, grpc, or a command that speaks the protocol) instead of connecting only")
	if f.ConnectOnly.Err != "" {
		return []api.Finding{standing, notChecked(id, "commands and probes of pods: "+f.ConnectOnly.Err)}
	}
	out := []api.Finding{standing}
	own := 0
	for _, c := range f.ConnectOnly.Value {
		if c.Own {
			own++
			continue
		}
		out = append(out, finding(id, api.FindingWarning, fmt.Sprintf("pod %s: %s only connects: %s", c.Pod, c.Where, c.What),
			"replace it by something that reads an answer (httpGet, grpc, or a command that speaks the protocol)"))
	}
	if own > 0 {
		out = append(out, ok(id, "%s to the pod's own port are not captured and say what they should", plural(own, "tcpSocket probe")))
	}
	if len(out) == 1 {
		out = append(out, ok(id, "no command or probe in the manifests of this node's pods is known to connect only"))
	}
	return out
}

// roughly is a duration for people.
func roughly(d time.Duration) string {
	if d < 0 {
		return "-" + roughly(-d)
	}
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
