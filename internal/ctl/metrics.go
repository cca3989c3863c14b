// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"

	"github.com/spf13/cobra"
)

// metricsPaths are where the agent serves whose metrics.
var metricsPaths = map[string]string{"agent": "/metrics", "envoy": "/metrics/envoy"}

func (c *cli) metricsCommand() *cobra.Command {
	var services bool
	cmd := &cobra.Command{
		Use:   "metrics [agent|envoy]",
		Short: "Print the metrics as Prometheus scrapes them",
		Long: `Metrics prints the agent's metrics, or Envoy's as the agent passes them on, in the
text form that Prometheus reads: what the agent serves on --metrics-address, which
may be the loopback of another network namespace.`,
		Example: `  aetherctl metrics
  aetherctl metrics envoy | grep refused`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"agent", "envoy"},
		RunE: func(cmd *cobra.Command, args []string) error {
			whose := "agent"
			if len(args) > 0 {
				whose = args[0]
			}
			path := metricsPaths[whose]
			if services {
				if whose != "envoy" {
					return badInput(program+" metrics envoy --services", "--services is for envoy")
				}
				path += "?detail=services"
			}
			a, err := c.agent(cmd.Context(), cmd.Flags().Changed("agent-socket"))
			if err != nil {
				return err
			}
			text, err := a.text(cmd.Context(), path)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.Out, text)
			return printed(err)
		},
	}
	cmd.Flags().BoolVar(&services, "services", false, "envoy: five series of each asked Service port too")
	return cmd
}
