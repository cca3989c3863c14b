// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/capture"
)

func (c *cli) captureCommand() *cobra.Command {
	return group("capture", "Capture rules of pods", c.captureInstallCommand())
}

func (c *cli) captureInstallCommand() *cobra.Command {
	var netns string
	var annotations []string
	cmd := &cobra.Command{
		Use:   "install --netns PATH",
		Short: "Make the capture rules of a pod what they should be",
		Long: `Install writes the capture rules into a pod's network namespace, as the CNI plugin
does when the pod starts: for a pod whose rules somebody has changed or deleted.
What was there of ours before is replaced at once; connections keep what was
decided for them when they began. It needs root.`,
		Example: "  aetherctl capture install --netns /run/netns/cni-0e1f2a3b --annotation capture.aether.io/exclude-outbound-ports=3306",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			pairs := map[string]string{}
			for _, a := range annotations {
				key, value, ok := strings.Cut(a, "=")
				if !ok {
					return badInput("", "annotation %q: want KEY=VALUE", a)
				}
				pairs[key] = value
			}
			cfg, err := capture.ParseAnnotations(pairs, true)
			if err != nil {
				return badInput("", "%w", err)
			}
			if err := capture.Install(netns, cfg); err != nil {
				return failed("sudo "+program+" capture install --netns "+shellWord(netns), "%w", err)
			}
			_, err = fmt.Fprintf(c.Out, "the rules in %s are as they should be\n", netns)
			return printed(err)
		},
	}
	cmd.Flags().StringVar(&netns, "netns", "", "`path` of the pod's network namespace")
	cmd.Flags().StringArrayVar(&annotations, "annotation", nil, "annotation of the pod that says what is captured, as `key=value` (repeatable)")
	must(cmd.MarkFlagRequired("netns"))
	must(cmd.MarkFlagFilename("netns"))
	return cmd
}
