// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// Defaults of the global flags.
const (
	defaultAgentSocket = "/run/aether/agent.sock"
	envSandbox         = "AETHER_SANDBOX"
	program            = "aetherctl"
)

// IO is what a run reads and writes.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
}

// cli is one run of the tool.
type cli struct {
	IO
	agentSocket string // flag --agent-socket
	sandboxName string // flag --sandbox, else $AETHER_SANDBOX
	sandboxDir  string // flag --sandbox-dir
	started     bool   // a command's own code runs: the line was understood
}

// Main runs the tool with the arguments after the program's name and returns the
// exit code. Ending ctx ends what runs.
func Main(ctx context.Context, args []string, s IO) int {
	c := &cli{IO: s, sandboxName: os.Getenv(envSandbox)}
	root := c.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case c.started:
		return report(s.Err, cmd.CommandPath(), err, exitFailed, "")
	default:
		return report(s.Err, cmd.CommandPath(), err, exitInput, cmd.CommandPath()+" --help")
	}
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   program,
		Short: "Ask a node what it does with a connection, and why",
		Long: `aetherctl asks the node agent, or answers from Kubernetes manifests alone, what
happens to a connection that a captured pod makes: which Service it is, which
endpoints serve it, and why it is refused when it is.`,
		Example: `  aetherctl svc list
  aetherctl explain 10.96.0.10:80
  aetherctl explain web.shop:http -f manifests/ --node n1
  aetherctl sandbox up -f manifests/`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          showHelp,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmd.ValidateRequiredFlags(); err != nil {
				return err
			}
			c.started = true
			return nil
		},
	}
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	f := root.PersistentFlags()
	f.StringVar(&c.agentSocket, "agent-socket", defaultAgentSocket, "Unix `socket` of the agent to ask")
	f.StringVar(&c.sandboxName, "sandbox", c.sandboxName, "`name` of the sandbox to ask (default $"+envSandbox+")")
	f.StringVar(&c.sandboxDir, "sandbox-dir", "", "`directory` where sandboxes live (default /run/aether-sandbox; without root a directory of your own)")
	must(root.RegisterFlagCompletionFunc("sandbox", c.completeSandboxes))
	must(root.MarkPersistentFlagFilename("agent-socket"))
	must(root.MarkPersistentFlagDirname("sandbox-dir"))
	root.AddCommand(c.explainCommand(), c.svcCommand(), c.statusCommand(), c.modeCommand(),
		c.proxyCommand(), c.sandboxCommand(), c.versionCommand())
	root.AddCommand(c.checkCommand(), c.metricsCommand(), c.captureCommand())
	root.AddCommand(c.observeCommand(), c.previewCommand(), c.topCommand())
	return root
}

// group is a command that only holds others.
func group(use, short string, children ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: showHelp}
	g.AddCommand(children...)
	return g
}

func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// note tells a person something beside the answer.
func (c *cli) note(format string, args ...any) {
	fmt.Fprintf(c.Err, "note: "+format+"\n", args...)
}

// must is for calls that fail only when a flag is named that does not exist.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
