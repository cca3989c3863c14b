// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/agent/api"
)

func (c *cli) modeCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "mode [" + strings.Join(modes, "|") + "]",
		Short: "Show or change how far the node takes over Service egress",
		Long: `Mode shows the mode of the node, or changes it at once. No connection is dropped.

  passthrough  measure only: no change of path
  balance      serve what can be served, pass the rest through
  enforce      serve, or refuse by name

The change holds until the agent restarts: then its flag --service-egress counts
again.`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return modes, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.mode(cmd, args, out)
		},
	}
	addOutputFlag(cmd, &out)
	return cmd
}

func (c *cli) mode(cmd *cobra.Command, args []string, out format) error {
	if len(args) == 1 && !slices.Contains(modes, args[0]) {
		return badInput(program+" mode enforce", "mode %q: want one of %s", args[0], strings.Join(modes, ", "))
	}
	ctx := cmd.Context()
	a, err := c.agent(ctx, cmd.Flags().Changed("agent-socket"))
	if err != nil {
		return err
	}
	before, err := a.mode(ctx)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return c.print(out, before, func(bool) string { return before.Mode + "\n" })
	}
	now, err := a.setMode(ctx, args[0])
	if err != nil {
		return err
	}
	c.note("a restart of the agent returns to its flag --service-egress")
	return c.print(out, now, func(bool) string { return changeText(before, now) })
}

func changeText(before, now api.Mode) string {
	if before == now {
		return fmt.Sprintf("%s (as before)\n", now.Mode)
	}
	return fmt.Sprintf("%s (was %s)\n", now.Mode, before.Mode)
}
