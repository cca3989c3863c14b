// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
)

// document is where every finding has a heading.
const document = "docs/check.md"

// whys holds every identifier, and why what it stands for matters.
var whys = map[string]string{
	"agent-answers":     "Without the agent no new name is answered and no new pod is captured; what Envoy has goes on.",
	"agent-version":     "The tool may read replies of another version wrongly.",
	"sources-synced":    "Nothing is answered before the sources are complete: first connections to Services fail after 3 s.",
	"api-server":        "While the API server cannot be watched the node goes by what it last knew: what works goes on, changes do not arrive.",
	"unknown-addresses": "Unless it is certain that nobody has an address it is passed through, in enforce, too.",
	"source-problems":   "What cannot be read keeps its last good content, or counts as absent when there was none.",
	"service-range":     "While no Service range is known every Service address is passed through, whatever the mode.",
	"envoy-connected":   "An Envoy that is away carries nothing: connections of captured pods are reset.",
	"envoy-version":     "The node's behaviour is proven with Envoy 1.40; an older one lacks what capture is made of.",
	"envoy-state":       "An Envoy that is not LIVE is starting, or draining and about to end.",
	"envoy-processes":   "More than two Envoy processes means that one that was to end did not.",
	"envoy-supervised":  "Without a supervisor nobody starts Envoy again after a crash, and a hot restart cannot be asked for.",
	"envoy-restarts":    "Each end of Envoy ends every captured connection of the node.",
	"envoy-warming":     "What warms is not in use: pods without a listener are reset, first dials of a name wait.",
	"envoy-rejections":  "The last version that Envoy accepted stays in force, so the node does not follow what has changed.",
	"envoy-descriptors": "Envoy 1.40 crashes when it runs out of descriptors; its connection limit must keep it well below.",
	"node-connections":  "Connections beyond the node's limit are closed as they are accepted, from whichever pod.",
	"pod-connections":   "Connections beyond a pod's limit are closed at once; the pod sees them end without an answer.",
	"first-dials":       "A first dial that gets no answer within 3 s fails as `unanswered`.",
	"statistics":        "Counters that do not fit are not counted: dashboards and alerts miss what happens there.",
	"access-log":        "Refusals and failures are explained by the access log; what is not written has no explanation.",
	"refuser":           "A refusal is a connection to the refuser, which resets it; without it clients see a plain close.",
	"pod-listeners":     "A captured pod without its listener has no network: what it dials is reset.",
	"pod-namespaces":    "Envoy listens and dials in the namespace by its path; without it the pod's connections fail.",
	"pod-bound":         "Captured connections are handed to a socket in the pod's namespace; without it they are reset.",
	"pod-capture":       "Without its rules a pod passes the proxy by; with rules of somebody else it may lose its network.",
	"pod-ports":         "A pod that dials one endpoint from few ports runs out of them.",
	"pod-rate":          "What a pod dials beyond its connection rate waits a second or more.",
	"names-budget":      "Addresses that are no Service port's share one budget; beyond it they fail without a reason.",
	"names-total":       "Envoy keeps one to two KiB for every name it ever asked for, until a new process begins.",
	"state-files":       "What is not on disk is forgotten by a restart: first connections wait again, pods are reported anew.",
	"state-directory":   "Demand and pods are remembered there.",
	"disk-space":        "A full disk stops the state files and the access log, not the traffic.",
	"clock":             "Last dials and log lines are judged by the wall clock, and identities by their validity.",
	"kernel":            "Capture needs nft with tproxy, ct, fib and reject in the prerouting hook (Linux 5.9).",
	"node-ports":        "With --egress-source=node all pods of the node share its ports towards each endpoint.",
	"conntrack":         "A full table drops new connections of the node, captured or not, and a connection that is not tracked is not captured.",
	"backlog":           "Connections that arrive faster than they are accepted are dropped beyond the backlog.",
	"connect-only":      "Through a transparent proxy connect() succeeds before the proxy decides: a probe that only connects passes against a dead Service.",
}

// IDs returns the identifiers of all findings, sorted.
func IDs() []string {
	out := make([]string, 0, len(whys))
	for id := range whys {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// finding makes one. Only what is ok needs no reason.
func finding(id, state, seen string, fix ...string) api.Finding {
	why, known := whys[id]
	if !known {
		panic("no such finding: " + id)
	}
	f := api.Finding{ID: id, State: state, Seen: seen, Docs: document + "#" + id}
	if state != api.FindingOK {
		f.Why, f.Fix = why, fix
	}
	return f
}

func ok(id, format string, args ...any) api.Finding {
	return finding(id, api.FindingOK, fmt.Sprintf(format, args...))
}

func notChecked(id, why string) api.Finding {
	return finding(id, api.FindingNotChecked, "not checked: "+why)
}

// Sum puts the sections together and counts.
func Sum(c api.Check) api.Check {
	c.State, c.Failed, c.Warnings, c.NotChecked = api.FindingOK, 0, 0, 0
	for _, s := range c.Sections {
		for _, f := range s.Findings {
			switch f.State {
			case api.FindingFailed:
				c.Failed++
			case api.FindingWarning:
				c.Warnings++
			case api.FindingNotChecked:
				c.NotChecked++
			}
		}
	}
	switch {
	case c.Failed > 0:
		c.State = api.FindingFailed
	case c.Warnings > 0:
		c.State = api.FindingWarning
	}
	return c
}

// Away is the check of a node whose agent could not be asked: why says how, and
// next what to try.
func Away(now time.Time, why, next string) api.Check {
	var fix []string
	if next != "" {
		fix = []string{next}
	}
	sections := []api.CheckSection{{Name: "agent", Findings: []api.Finding{
		finding("agent-answers", api.FindingFailed, why, fix...),
	}}}
	for _, s := range assessors {
		section := api.CheckSection{Name: s.name, Findings: []api.Finding{}}
		for _, id := range s.ids {
			section.Findings = append(section.Findings, notChecked(id, "the agent does not answer, and it is the agent that looks"))
		}
		sections = append(sections, section)
	}
	return Sum(api.Check{Time: stamp(now), Sections: sections})
}

// Answered is the finding on an agent that was asked by a tool of version own.
// It returns the check with it put first.
func Answered(c api.Check, own, socket string) api.Check {
	version := ok("agent-version", "tool and agent are both of version %s", own)
	if c.Version != own {
		version = finding("agent-version", api.FindingWarning,
			fmt.Sprintf("the agent is of version %q, this tool of %q", c.Version, own),
			"use the tool that was installed with the agent")
	}
	first := api.CheckSection{Name: "agent", Findings: []api.Finding{ok("agent-answers", "the agent answers at %s", socket), version}}
	c.Sections = append([]api.CheckSection{first}, c.Sections...)
	return Sum(c)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Assess makes the findings on the facts.
func Assess(f Facts) api.Check {
	c := api.Check{Node: f.Agent.Node, Version: f.Agent.Version, Time: stamp(f.Now), Sections: []api.CheckSection{}}
	for _, s := range assessors {
		c.Sections = append(c.Sections, api.CheckSection{Name: s.name, Findings: s.assess(f)})
	}
	return Sum(c)
}

// assessor makes the findings of a section. ids are all it can make.
type assessor struct {
	name   string
	ids    []string
	assess func(Facts) []api.Finding
}

var assessors = []assessor{
	{"sources", []string{"sources-synced", "api-server", "unknown-addresses", "source-problems", "service-range"}, assessSources},
	{"envoy", []string{
		"envoy-connected", "envoy-version", "envoy-state", "envoy-processes", "envoy-supervised", "envoy-restarts", "envoy-warming",
		"envoy-rejections", "envoy-descriptors", "refuser",
	}, assessEnvoy},
	{"pods", []string{"pod-listeners", "pod-namespaces", "pod-bound", "pod-capture", "pod-ports", "pod-rate"}, assessPods},
	{"traffic", []string{"node-connections", "pod-connections", "first-dials", "names-budget", "names-total"}, assessTraffic},
	{"records", []string{"statistics", "access-log", "state-files", "state-directory", "disk-space"}, assessRecords},
	{"machine", []string{"clock", "kernel", "node-ports", "conntrack", "backlog"}, assessMachine},
	{"probes", []string{"connect-only"}, assessProbes},
}

// list names some of many.
func list(items []string) string {
	const most = 5
	if len(items) <= most {
		return strings.Join(items, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(items[:most], ", "), len(items)-most)
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
