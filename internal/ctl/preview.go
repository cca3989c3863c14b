// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/plan"
)

func (c *cli) previewCommand() *cobra.Command {
	var out format
	var mode string
	cmd := &cobra.Command{
		Use:   "preview",
		Short: "Say what another mode would alter for what pods really dial",
		Long: `Preview looks at every destination that captured pods of this node have dialled
since the agent began to watch, and says which of them would take another path or
be refused in the other mode. It changes nothing. The answers are the agent's own
decisions by the Services and endpoints of now.`,
		Example: `  aetherctl preview
  aetherctl preview --mode balance -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(modes, mode) {
				return badInput(program+" preview --mode enforce", "mode %q: want one of %s", mode, strings.Join(modes, ", "))
			}
			a, err := c.agent(cmd.Context(), cmd.Flags().Changed("agent-socket"))
			if err != nil {
				return err
			}
			p, err := a.preview(cmd.Context(), mode)
			if err != nil {
				return err
			}
			return c.print(out, p, func(bool) string { return previewText(p, a.flags) })
		},
	}
	cmd.Flags().StringVar(&mode, "mode", string(plan.ModeEnforce), "`mode` to look at: "+strings.Join(modes, ", "))
	must(cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp)))
	addOutputFlag(cmd, &out)
	return cmd
}

func previewText(p api.Preview, flags string) string {
	var b strings.Builder
	refused := 0
	for _, r := range p.Changes {
		if r.Then == "refuse" {
			refused++
		}
	}
	all := len(p.Changes) + p.Unchanged
	switch {
	case p.Mode == p.Preview:
		fmt.Fprintf(&b, "The mode is %s already.\n", p.Mode)
	case all == 0:
		fmt.Fprintf(&b, "Nothing was dialled yet: nothing can be said of mode %s.\n", p.Preview)
	case len(p.Changes) == 0:
		fmt.Fprintf(&b, "Mode %s would alter nothing for %s.\n", p.Preview, plural(all, "destination"))
	default:
		fmt.Fprintf(&b, "From mode %s to %s: %d of %s would take another path, %d of them would be refused.\n",
			p.Mode, p.Preview, len(p.Changes), plural(all, "destination"), refused)
	}
	since, missed := p.Missing.Since, "none was missed"
	if t, err := time.Parse(time.RFC3339, since); err == nil {
		since = t.Local().Format("2006-01-02 15:04:05")
	}
	switch {
	case !p.Missing.Counted:
		missed = "how many were missed is not known"
	case p.Missing.NotTold > 0:
		missed = connections(p.Missing.NotTold) + " missed: there may be more destinations"
	}
	fmt.Fprintf(&b, "Watched since %s: %s, %s.\n", since, connections(p.Missing.Told), missed)
	if p.ForgottenDestinations > 0 {
		fmt.Fprintf(&b, "%s destinations were too many to remember and are not looked at.\n", thousands(p.ForgottenDestinations))
	}
	if len(p.Changes) == 0 {
		return b.String()
	}
	t := &table{head: []string{"SOURCE", "SERVICE", "ADDRESS", "TIMES", "LAST", "NOW", "THEN", "REASON"}}
	for _, r := range p.Changes {
		service := "-"
		if r.Service != nil {
			service = serviceText(r.Service)
		}
		t.add(answerStyle(r.Then), orDash(strings.Trim(r.Namespace+"/"+r.ServiceAccount, "/")), service, r.Dialled,
			strconv.FormatUint(r.Times, 10), clock(r.Last)[:8], r.Now, r.Then, orDash(r.Reason))
	}
	b.WriteString("\n" + t.render(""))
	fmt.Fprintf(&b, "\ntry: %s explain %s%s\n", program, p.Changes[0].Dialled, flags)
	return b.String()
}
