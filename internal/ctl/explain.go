// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/plan"
)

func (c *cli) explainCommand() *cobra.Command {
	var out format
	var o offline
	cmd := &cobra.Command{
		Use:   "explain ADDRESS:PORT | SERVICE[.NAMESPACE]:PORT",
		Short: "Say what happens to a connection to an address, and why",
		Long: `Explain draws the decision on one dialled address as a path: which class of
destination it is, what it is answered with, and for each endpoint of the Service
port whether it is used and why.

Without -f the node's agent is asked. With -f the answer comes from Kubernetes
manifests alone, and nothing needs to run: EndpointSlices give the endpoints,
Node manifests the zone, ServiceCIDRs the range (10.96.0.0/16 when there is none).
Without --node the only Node of the manifests is meant; when there is none, or
more than one, no endpoint counts as local, as on a node without a name.`,
		Example: `  aetherctl explain 10.96.0.10:80
  aetherctl explain web.shop:http -o json
  aetherctl explain 10.96.0.10:80 -f manifests/ --node n1 --zone za --mode balance`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return c.completeTargets(cmd, args, o)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.explain(cmd, args[0], o, out)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.dirs, "filename", "f", nil, "answer from the manifests in `directory` (repeatable; a later one wins)")
	f.StringVar(&o.node, "node", "", "with -f: `name` of this node (default the only Node of the manifests)")
	f.StringVar(&o.zone, "zone", "", "with -f: `zone` of this node (default the Node's label)")
	f.StringVar(&o.mode, "mode", string(plan.ModeEnforce), "with -f: `mode` of the node: "+strings.Join(modes, ", "))
	f.StringSliceVar(&o.ranges, "service-range", nil, "with -f: Service `range`, comma-separated CIDRs, instead of ServiceCIDRs")
	addOutputFlag(cmd, &out)
	must(cmd.MarkFlagDirname("filename"))
	must(cmd.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("node", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return c.completeNodes(o), cobra.ShellCompDirectiveNoFileComp
	}))
	return cmd
}

func (c *cli) explain(cmd *cobra.Command, text string, o offline, out format) error {
	t, err := parseTarget(text)
	if err != nil {
		return err
	}
	var e api.Explanation
	var from origin
	if len(o.dirs) > 0 {
		e, from, err = c.explainOffline(t, o)
	} else {
		e, from, err = c.explainLive(cmd, t)
	}
	if err != nil {
		return err
	}
	return c.print(out, e, func(wide bool) string { return explanationText(e, from, wide) })
}

func (c *cli) explainOffline(t target, o offline) (api.Explanation, origin, error) {
	w, err := c.load(o)
	if err != nil {
		return api.Explanation{}, origin{}, err
	}
	e, err := w.explain(t)
	awaits := err == nil && w.awaitsSlices(e.Service)
	if awaits {
		c.note("the manifests hold no EndpointSlice for Service %s/%s, which a cluster writes from its selector; so does `%s sandbox up`",
			e.Service.Namespace, e.Service.Name, program)
	}
	return e, origin{dirs: o.dirs, settings: w.settings, declared: w.declared(e.Service), awaits: awaits}, err
}

func (c *cli) explainLive(cmd *cobra.Command, t target) (api.Explanation, origin, error) {
	for _, name := range []string{"node", "zone", "mode", "service-range"} {
		if cmd.Flags().Changed(name) {
			return api.Explanation{}, origin{}, badInput(program+" explain "+t.text+" -f DIR --"+name+" …",
				"--%s goes with -f only: a running agent has its own", name)
		}
	}
	ctx := cmd.Context()
	a, err := c.agent(ctx, cmd.Flags().Changed("agent-socket"))
	if err != nil {
		return api.Explanation{}, origin{}, failed(program+" explain "+shellWord(t.text)+" -f DIR", "%w", err)
	}
	address := t.addr.String()
	if !t.addr.IsValid() {
		if address, err = c.resolveLive(ctx, a, t); err != nil {
			return api.Explanation{}, origin{}, err
		}
	}
	e, err := a.explain(ctx, address)
	return e, origin{socket: a.socket, sandbox: a.sandbox, status: a.next}, err
}

// resolveLive finds the address of a Service port by name: among the Services of
// the sandbox, else among the names that the node was asked for.
func (c *cli) resolveLive(ctx context.Context, a *agentClient, t target) (string, error) {
	if a.sandbox != "" {
		_, st, err := c.sandboxStatus(ctx, a.sandbox)
		if err != nil {
			return "", err
		}
		for _, s := range st.Services {
			if s.Namespace == t.ns && s.Name == t.service {
				return sandboxPort(s, t)
			}
		}
		return "", badInput(a.next, "%q: the sandbox has no Service %s/%s with a ClusterIP", t.text, t.ns, t.service)
	}
	rows, err := a.services(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range rows {
		if s := r.Service; s != nil && s.Namespace == t.ns && s.Name == t.service {
			if s.Port == t.port || strings.HasSuffix(r.Address, ":"+t.port) {
				return r.Address, nil
			}
		}
	}
	return "", badInput(fmt.Sprintf("kubectl get service -n %s %s", t.ns, t.service),
		"%q: the node was not asked for that Service port yet, so its address is not known here: give the ClusterIP", t.text)
}

// origin says where an explanation comes from, and so what to try next.
type origin struct {
	dirs     []string // offline
	settings plan.Settings
	declared []string // TCP ports of the Service that was asked about
	awaits   bool     // that Service has a selector, and no slice is in the manifests
	socket   string   // live
	sandbox  string
	status   string // the command that shows the sandbox
}

func (o origin) text() string {
	if len(o.dirs) == 0 {
		s := "the agent at " + o.socket
		if o.sandbox != "" {
			s = "sandbox " + o.sandbox
		}
		return s
	}
	parts := append([]string{}, o.dirs...)
	if o.settings.Node == "" {
		parts = append(parts, "no node")
	} else {
		parts = append(parts, "node "+o.settings.Node)
	}
	if o.settings.Zone != "" {
		parts = append(parts, "zone "+o.settings.Zone)
	}
	return strings.Join(append(parts, "mode "+string(o.settings.Mode)), ", ")
}

// offlineFlags repeats the flags of an offline question.
func (o origin) offlineFlags(node string) string {
	var b strings.Builder
	for _, d := range o.dirs {
		b.WriteString(" -f " + shellWord(d))
	}
	if node != "" {
		b.WriteString(" --node " + shellWord(node))
	}
	return b.String()
}

// shellWord quotes s for a shell where it needs it.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,@%+", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
