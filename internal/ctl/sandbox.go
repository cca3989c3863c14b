// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/sandbox"
)

// defaultSandbox is the name of a sandbox nobody named.
const defaultSandbox = "default"

func (c *cli) sandboxCommand() *cobra.Command {
	g := group("sandbox", "A Kubernetes node on this machine, made of network namespaces",
		c.sandboxUpCommand(), c.sandboxExecCommand(), c.sandboxSetCommand(),
		c.sandboxStatusCommand(), c.sandboxDownCommand())
	g.Long = `A sandbox is a node on one machine: every Pod manifest becomes a network namespace in
which its command runs, Services get their EndpointSlices, and the agent and Envoy
run as they do on a node. There is no kube-proxy in it. Without root all of it lives in
user, mount, network, PID and IPC namespaces of your own, where the system allows them.`
	return g
}

func (c *cli) sandboxUpCommand() *cobra.Command {
	var cfg sandbox.Config
	var quiet bool
	cmd := &cobra.Command{
		Use:     "up -f DIR",
		Short:   "Start a sandbox from Kubernetes manifests",
		Example: "  aetherctl sandbox up -f manifests/\n  aetherctl sandbox exec client -- curl -s http://web.default:80/",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Name, cfg.StateDir = orDefault(c.sandboxName), c.sandboxDir
			if !quiet {
				cfg.Progress = func(s string) { fmt.Fprintln(c.Err, s) }
			}
			return c.sandboxUp(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&cfg.Dirs, "filename", "f", nil, "`directory` of manifests (repeatable; a later one wins)")
	f.StringVar(&cfg.Node, "node", "n1", "`name` of this node")
	f.StringVar(&cfg.Mode, "mode", "enforce", "`mode` to start in: "+strings.Join(modes, ", "))
	f.StringVar(&cfg.EgressSource, "egress-source", "pod", "source address that servers see: `pod or node`")
	f.StringVar(&cfg.AgentPath, "agent", "", "aether-agent `binary` (default beside this program, else in PATH)")
	f.StringVar(&cfg.EnvoyPath, "envoy", "", "Envoy `binary` (default $AETHER_ENVOY, else in PATH, else .build/envoy/envoy)")
	f.BoolVar(&cfg.NoProxy, "no-proxy", false, "pods, Services and slices only: no agent, no Envoy, no capture")
	f.BoolVarP(&quiet, "quiet", "q", false, "do not say what is being done")
	must(cmd.MarkFlagRequired("filename"))
	must(cmd.MarkFlagDirname("filename"))
	must(cmd.MarkFlagFilename("agent"))
	must(cmd.MarkFlagFilename("envoy"))
	must(cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("egress-source", cobra.FixedCompletions([]string{"pod", "node"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (c *cli) sandboxUp(ctx context.Context, cfg sandbox.Config) error {
	for _, d := range cfg.Dirs {
		if _, err := os.Stat(d); err != nil {
			return badInput("", "start the sandbox: %w", err)
		}
	}
	if !slices.Contains(modes, cfg.Mode) {
		return badInput("", "mode %q: want one of %s", cfg.Mode, strings.Join(modes, ", "))
	}
	cl, err := sandbox.Start(ctx, cfg)
	switch {
	case errors.Is(err, sandbox.ErrRunning):
		return failed(c.sandboxHint("down", cfg.Name), "start the sandbox %q: %w", cfg.Name, err)
	case err != nil:
		return failed("", "start the sandbox %q: %w", cfg.Name, err)
	}
	st, err := cl.Status(ctx)
	if err != nil {
		return failed("", "read the sandbox's status: %w", err)
	}
	return c.print(formatText, st, func(wide bool) string { return sandboxText(st, wide) })
}

func (c *cli) sandboxExecCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "exec POD -- COMMAND [ARGUMENT…]",
		Short:   "Run a command in a pod of the sandbox",
		Long:    "Exec runs a command in a pod (NAME, or NAMESPACE/NAME) and exits with its exit code.",
		Example: "  aetherctl sandbox exec client -- curl -s http://10.96.0.10/",
		Args:    cobra.MinimumNArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return c.completePods(cmd.Context()), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			pod, argv := args[0], args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return badInput(program+" sandbox exec "+pod+" -- ip addr", "no command given")
			}
			return c.sandboxExec(cmd.Context(), pod, argv)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows POD is the command's
	return cmd
}

func (c *cli) sandboxExec(ctx context.Context, pod string, argv []string) error {
	cl, st, err := c.anySandbox(ctx)
	if err != nil {
		return err
	}
	if err := c.havePod(st, pod); err != nil {
		return err
	}
	code, err := cl.Exec(ctx, pod, argv, sandbox.Stdio{In: c.In, Out: c.Out, Err: c.Err})
	switch {
	case err != nil:
		return failed("", "run a command in pod %s: %w", pod, err)
	case code != 0:
		return &exitError{code: code}
	}
	return nil
}

// podStates are the words of `sandbox set`, and what each does.
var podStates = []struct {
	word, does string
	set        func(context.Context, *sandbox.Client, string) error
}{
	{"ready", "ready, whatever the probe says", func(ctx context.Context, cl *sandbox.Client, pod string) error {
		return cl.SetReady(ctx, pod, "", true)
	}},
	{"not-ready", "not ready, whatever the probe says", func(ctx context.Context, cl *sandbox.Client, pod string) error {
		return cl.SetReady(ctx, pod, "", false)
	}},
	{"probed", "as ready as its probe says", func(ctx context.Context, cl *sandbox.Client, pod string) error {
		return cl.ResetReady(ctx, pod, "")
	}},
	{"terminating", "terminating, though it goes on running", func(ctx context.Context, cl *sandbox.Client, pod string) error {
		return cl.SetTerminating(ctx, pod, true)
	}},
	{"running", "no longer terminating", func(ctx context.Context, cl *sandbox.Client, pod string) error {
		return cl.SetTerminating(ctx, pod, false)
	}},
}

func (c *cli) sandboxSetCommand() *cobra.Command {
	long := "Set changes what the EndpointSlices of the sandbox say about a pod (NAME, or NAMESPACE/NAME):\n\n"
	var words []string
	for _, s := range podStates {
		long += fmt.Sprintf("  %-12s %s\n", s.word, s.does)
		words = append(words, s.word)
	}
	return &cobra.Command{
		Use:     "set POD " + strings.Join(words, "|"),
		Short:   "Make a pod ready, not ready or terminating",
		Long:    strings.TrimSuffix(long, "\n"),
		Example: "  aetherctl sandbox set shop/web-1 terminating",
		Args:    cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return c.completePods(cmd.Context()), cobra.ShellCompDirectiveNoFileComp
			case 1:
				return words, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.sandboxSet(cmd.Context(), args[0], args[1], words)
		},
	}
}

func (c *cli) sandboxSet(ctx context.Context, pod, word string, words []string) error {
	i := slices.Index(words, word)
	if i < 0 {
		return badInput("", "state %q: want one of %s", word, strings.Join(words, ", "))
	}
	cl, st, err := c.anySandbox(ctx)
	if err != nil {
		return err
	}
	if err := c.havePod(st, pod); err != nil {
		return err
	}
	if err := podStates[i].set(ctx, cl, pod); err != nil {
		return failed("", "set pod %s %s: %w", pod, word, err)
	}
	_, err = fmt.Fprintf(c.Out, "%s is %s\n", pod, podStates[i].does)
	return printed(err)
}

func (c *cli) sandboxStatusCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show a sandbox: its pods, Services, processes and problems",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, st, err := c.anySandbox(cmd.Context())
			if err != nil {
				return err
			}
			return c.print(out, st, func(wide bool) string { return sandboxText(st, wide) })
		},
	}
	addOutputFlag(cmd, &out)
	return cmd
}

func (c *cli) sandboxDownCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End a sandbox and remove everything of it",
		Long: `Down ends a sandbox with all its pods and removes its files. What a sandbox that
died has left behind is removed too.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.sandboxDown(cmd.Context())
		},
	}
}

func (c *cli) sandboxDown(ctx context.Context) error {
	name := c.sandboxName
	if names := c.runningSandboxes(ctx); name == "" && len(names) == 1 {
		name = names[0]
	}
	name = orDefault(name)
	cl, err := sandbox.Dial(ctx, c.sandboxDir, name)
	if errors.Is(err, sandbox.ErrNotRunning) {
		removed, err := sandbox.Clean(ctx, c.sandboxDir, name)
		if err != nil {
			return failed("", "remove what is left of the sandbox %q: %w", name, err)
		}
		if len(removed) == 0 {
			return failed(program+" sandbox up -f DIR", "no sandbox %q is running, and nothing is left of one", name)
		}
		_, err = fmt.Fprintf(c.Out, "sandbox %s was not running; removed %s\n", name, strings.Join(removed, ", "))
		return printed(err)
	}
	if err != nil {
		return failed("", "reach the sandbox %q: %w", name, err)
	}
	if err := cl.Down(ctx); err != nil {
		return failed(c.sandboxHint("status", name), "end the sandbox %q: %w", name, err)
	}
	_, err = fmt.Fprintf(c.Out, "sandbox %s is gone\n", name)
	return printed(err)
}

// anySandbox is the named sandbox, or else the only one that runs.
func (c *cli) anySandbox(ctx context.Context) (*sandbox.Client, sandbox.Status, error) {
	if c.sandboxName != "" {
		return c.sandboxStatus(ctx, c.sandboxName)
	}
	switch names := c.runningSandboxes(ctx); len(names) {
	case 0:
		return c.sandboxStatus(ctx, defaultSandbox)
	case 1:
		return c.sandboxStatus(ctx, names[0])
	default:
		return nil, sandbox.Status{}, badInput(c.sandboxHint("status", names[0]),
			"%d sandboxes are running (%s): name one with --sandbox", len(names), strings.Join(names, ", "))
	}
}

func (c *cli) sandboxStatus(ctx context.Context, name string) (*sandbox.Client, sandbox.Status, error) {
	cl, err := sandbox.Dial(ctx, c.sandboxDir, name)
	if err == nil {
		var st sandbox.Status
		if st, err = cl.Status(ctx); err == nil {
			return cl, st, nil
		}
	}
	if errors.Is(err, sandbox.ErrNotRunning) {
		return nil, sandbox.Status{}, failed(c.sandboxHint("up -f DIR", name), "no sandbox %q is running", name)
	}
	return nil, sandbox.Status{}, failed("", "reach the sandbox %q: %w", name, err)
}

// havePod is nil when the sandbox has the pod: "namespace/name", or "name" in
// namespace default.
func (c *cli) havePod(st sandbox.Status, pod string) error {
	ns, name, found := strings.Cut(pod, "/")
	if !found {
		ns, name = "default", pod
	}
	var alike []string
	for _, p := range st.Pods {
		switch {
		case p.Namespace == ns && p.Name == name:
			return nil
		case !found && p.Name == name:
			alike = append(alike, p.Namespace+"/"+p.Name)
		}
	}
	if len(alike) > 0 {
		return badInput("", "the sandbox %q has no pod %q in namespace default, but it has %s", st.Name, pod, strings.Join(alike, ", "))
	}
	return badInput(c.sandboxHint("status", st.Name), "the sandbox %q has no pod %q", st.Name, pod)
}

// sandboxPorts are the TCP ports of a Service: the name, or the number of one that
// has none, and the address.
func sandboxPorts(s sandbox.ServiceStatus) map[string]string {
	out := map[string]string{}
	for _, p := range s.Ports { // name:number/protocol or number/protocol
		text, isTCP := strings.CutSuffix(p, "/TCP")
		if !isTCP {
			continue
		}
		name, number, named := strings.Cut(text, ":")
		if !named {
			number = name
		}
		out[name] = s.VIP + ":" + number
	}
	return out
}

// sandboxPort returns the address of a Service port that a person named.
func sandboxPort(s sandbox.ServiceStatus, t target) (string, error) {
	if address, ok := sandboxPorts(s)[t.port]; ok {
		return address, nil
	}
	if _, err := portNumber(t.port); err == nil {
		return s.VIP + ":" + t.port, nil
	}
	return "", badInput("", "%q: Service %s/%s has no TCP port named %q (it declares %s)",
		t.text, s.Namespace, s.Name, t.port, strings.Join(s.Ports, ", "))
}

// sandboxHint is the command `sandbox WHAT` for that sandbox.
func (c *cli) sandboxHint(what, name string) string {
	return program + " sandbox " + what + c.sandboxFlags(name)
}

// sandboxFlags names a sandbox on a command line.
func (c *cli) sandboxFlags(name string) string {
	flags := ""
	if name != defaultSandbox {
		flags += " --sandbox " + shellWord(name)
	}
	if c.sandboxDir != "" {
		flags += " --sandbox-dir " + shellWord(c.sandboxDir)
	}
	return flags
}

// sandboxDirectory is --sandbox-dir, or this user's default.
func (c *cli) sandboxDirectory() string {
	return cmp.Or(c.sandboxDir, sandbox.DefaultStateDir())
}

func orDefault(name string) string {
	if name == "" {
		return defaultSandbox
	}
	return name
}
