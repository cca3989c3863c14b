// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/agent/api"
)

func (c *cli) statusCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the node agent's own state",
		Long: `Status shows what the agent knows and serves: mode, Service range, whether its
sources have synced, whether Envoy is connected, the captured pods, how many names
were asked for, and every problem that needs a person.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := c.agent(cmd.Context(), cmd.Flags().Changed("agent-socket"))
			if err != nil {
				return err
			}
			st, err := a.status(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(out, st, func(wide bool) string { return statusText(st, wide) })
		},
	}
	addOutputFlag(cmd, &out)
	return cmd
}

func statusText(s api.Status, wide bool) string {
	facts := &table{head: []string{"NODE", s.Node}}
	add := func(name, value string, good bool) {
		style := stylePlain
		if !good {
			style = styleBad
		}
		facts.add(style, name, value)
	}
	envoy := "not connected"
	if s.Envoy.Connected {
		envoy = strings.TrimSpace("connected " + s.Envoy.Version)
	}
	add("ZONE", orDash(s.Zone), true)
	add("MODE", s.Mode, true)
	add("EGRESS SOURCE", s.EgressSource, true)
	add("SERVICE RANGE", rangeText(s), s.RangeKnown)
	add("SOURCES", map[bool]string{true: "synced", false: "not synced yet"}[s.Synced], s.Synced)
	add("ENVOY", envoy, s.Envoy.Connected)
	add("NAMES", namesText(s.Names), s.Names.OverLimit == 0)
	add("VERSION", orDash(s.Version), true)
	if wide {
		for _, k := range slices.Sorted(maps.Keys(s.Extra)) {
			add(strings.ToUpper(k), s.Extra[k], true)
		}
	}
	text := facts.render("")
	if len(s.Pods) > 0 {
		text += "\n" + podTable(s.Pods).render("")
	}
	if len(s.Problems) > 0 {
		t := &table{head: []string{"PROBLEM", "IN"}}
		for _, p := range s.Problems {
			t.add(styleBad, p.Text, orDash(p.Source))
		}
		text += "\n" + t.render("")
	}
	return text
}

func rangeText(s api.Status) string {
	if !s.RangeKnown {
		return "not known: no Service is served"
	}
	return strings.Join(s.Range, ", ")
}

func namesText(n api.NameCounts) string {
	return fmt.Sprintf("%s, %s, %d over the limit", plural(n.Services, "Service port"), plural(n.Other, "other name"), n.OverLimit)
}

func podTable(pods []api.PodStatus) *table {
	t := &table{head: []string{"NAMESPACE", "POD", "IP", "LISTENER", "NACK"}}
	for _, p := range pods {
		style := stylePlain
		if p.Listener == "rejected" {
			style = styleBad
		}
		t.add(style, p.Namespace, p.Name, p.IP, p.Listener, orDash(p.Nack))
	}
	return t
}
