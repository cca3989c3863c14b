// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/check"
	"aether.io/aether/internal/daemon"
)

func (c *cli) checkCommand() *cobra.Command {
	var out format
	var strict bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say in words whether the node is healthy, with the fix of what is not",
		Long: `Check has the agent look at everything the node needs: sources, Envoy, pods with
their listeners and rules, names, records, the machine. Each finding says what was
seen and, when it is not ok, why it matters, what to do and where to read on.
What could not be looked at is said to be not checked, never to be ok.

It exits 1 when something failed, and 0 with warnings, unless --strict is given.`,
		Example: `  aetherctl check
  aetherctl check -o json | jq '.sections[].findings[] | select(.state == "failed")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.check(cmd, out, strict)
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "exit 1 for warnings and for what was not checked too")
	addOutputFlag(cmd, &out)
	return cmd
}

func (c *cli) check(cmd *cobra.Command, out format, strict bool) error {
	a, err := c.agent(cmd.Context(), cmd.Flags().Changed("agent-socket"))
	var got api.Check
	if err == nil {
		got, err = a.check(cmd.Context())
	}
	if err == nil {
		got = check.Answered(got, daemon.Version(), a.socket)
	} else {
		var e *exitError
		next := ""
		if errors.As(err, &e) {
			next = e.next
		}
		got = check.Away(time.Now(), err.Error(), next)
	}
	if err := c.print(out, got, func(wide bool) string { return checkText(got, wide) }); err != nil {
		return err
	}
	if got.Failed > 0 || strict && got.Warnings+got.NotChecked > 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}

// findingMarks are what stands before a finding, and how it is painted.
var findingMarks = map[string]struct {
	mark  string
	style lipgloss.Style
}{
	api.FindingOK:         {"ok  ", styleGood},
	api.FindingNote:       {"note", styleDim},
	api.FindingNotChecked: {"????", stylePass},
	api.FindingWarning:    {"warn", stylePass},
	api.FindingFailed:     {"FAIL", styleBad},
}

func checkText(got api.Check, wide bool) string {
	var b strings.Builder
	for i, s := range got.Sections {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(styleHead.Render(s.Name) + "\n")
		for _, f := range s.Findings {
			m := findingMarks[f.State]
			b.WriteString(m.style.Render(m.mark) + "  " + printable(f.Seen) + "\n")
			if f.Why != "" {
				b.WriteString("      " + styleDim.Render("why: "+f.Why) + "\n")
			}
			for _, fix := range f.Fix {
				for j, line := range strings.Split(fix, "\n") {
					b.WriteString("      " + map[bool]string{true: "fix: ", false: "     "}[j == 0] + printable(line) + "\n")
				}
			}
			if f.State != api.FindingOK || wide {
				b.WriteString("      " + styleDim.Render("see: "+f.Docs) + "\n")
			}
		}
	}
	b.WriteString("\n" + verdict(got) + "\n")
	return b.String()
}

// verdict never calls a node healthy of which something was not looked at.
func verdict(got api.Check) string {
	var parts []string
	add := func(n int, style lipgloss.Style, text string) {
		if n > 0 {
			parts = append(parts, style.Render(fmt.Sprintf("%d %s", n, text)))
		}
	}
	add(got.Failed, styleBad, "failed")
	add(got.Warnings, stylePass, map[bool]string{true: "warning", false: "warnings"}[got.Warnings == 1])
	add(got.NotChecked, stylePass, "not checked")
	if len(parts) == 0 {
		return styleGood.Render("node " + got.Node + " is healthy")
	}
	return strings.TrimSpace("node "+printable(got.Node)) + ": " + strings.Join(parts, ", ")
}
