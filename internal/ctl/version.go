// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/daemon"
)

// Version is what `aetherctl version -o json` prints.
type Version struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (c *cli) versionCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := Version{Version: daemon.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			return c.print(out, v, func(bool) string {
				return fmt.Sprintf("%s %s, %s, %s\n", program, v.Version, v.Go, v.Platform)
			})
		},
	}
	addOutputFlag(cmd, &out)
	return cmd
}
