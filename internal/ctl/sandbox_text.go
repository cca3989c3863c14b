// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"strconv"
	"strings"

	"aether.io/aether/internal/sandbox"
)

// sandboxText shows a sandbox: facts, pods, Services, what is wrong.
func sandboxText(s sandbox.Status, wide bool) string {
	facts := &table{head: []string{"SANDBOX", s.Name}}
	facts.add(stylePlain, "NODE", s.Node+" "+s.NodeIP)
	if s.Owner != nil {
		facts.add(stylePlain, "USER", s.Owner.String()+", without root")
	}
	facts.add(stylePlain, "MODE", s.Mode+", egress source "+s.EgressSource)
	facts.add(stylePlain, "AGENT", processText(s.Agent))
	facts.add(stylePlain, "ENVOY", processText(s.Envoy))
	if wide {
		facts.add(stylePlain, "AGENT SOCKET", s.Paths.AgentSocket)
		facts.add(stylePlain, "LOGS", strings.Join([]string{s.Paths.AgentLog, s.Paths.EnvoyLog, s.Paths.AccessLog}, " "))
		facts.add(stylePlain, "GENERATED", s.Paths.Generated)
	}
	text := facts.render("")
	if len(s.Pods) > 0 {
		text += "\n" + sandboxPods(s.Pods, wide).render("")
	}
	if len(s.Services) > 0 {
		t := &table{head: []string{"NAMESPACE", "SERVICE", "ADDRESS", "PORTS"}}
		for _, v := range s.Services {
			t.add(stylePlain, v.Namespace, v.Name, v.VIP, strings.Join(v.Ports, ","))
		}
		text += "\n" + t.render("")
	}
	if len(s.Problems) > 0 {
		t := &table{head: []string{"PROBLEM", "IN"}}
		for _, p := range s.Problems {
			t.add(styleBad, p.Text, orDash(strings.TrimSpace(strings.Join([]string{p.File, p.Object, p.Field}, " "))))
		}
		text += "\n" + t.render("")
	}
	for _, n := range s.Notes {
		text += styleDim.Render("note: "+printable(n)) + "\n"
	}
	return text
}

func processText(p sandbox.ProcessStatus) string {
	text := p.State
	if p.PID != 0 {
		text += ", pid " + strconv.Itoa(p.PID)
	}
	if p.Restarts > 0 {
		text += fmt.Sprintf(", restarted %s (%s)", plural(p.Restarts, "time"), p.LastExit)
	}
	return text
}

func sandboxPods(pods []sandbox.PodStatus, wide bool) *table {
	t := &table{head: []string{"NAMESPACE", "POD", "NODE", "IP", "CAPTURED", "PHASE", "READY", "PROBLEM"}}
	if wide {
		t.head = append(t.head, "NETNS", "LOG")
	}
	for _, p := range pods {
		phase := p.Phase
		if p.Terminating {
			phase += " (terminating)"
		}
		cells := []string{p.Namespace, p.Name, p.Node, orDash(p.IP), yesNo(p.Captured), phase, yesNo(p.Ready), orDash(p.Problem)}
		if wide {
			var logs []string
			for _, k := range p.Containers {
				logs = append(logs, k.Log)
			}
			cells = append(cells, orDash(p.NetNS), orDash(strings.Join(logs, ",")))
		}
		style := stylePlain
		if p.Problem != "" {
			style = styleBad
		}
		t.add(style, cells...)
	}
	return t
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
