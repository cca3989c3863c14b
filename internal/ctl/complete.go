// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/manifest"
)

// completeTimeout bounds what a shell waits for names.
const completeTimeout = 2 * time.Second

// quiet is the same run without words: a shell shows only what it completes.
func (c *cli) quiet() *cli {
	q := *c
	q.Out, q.Err = io.Discard, io.Discard
	return &q
}

// completeTargets offers Service ports: with -f those of the manifests, else those
// that the node was asked for, and all of a sandbox.
func (c *cli) completeTargets(cmd *cobra.Command, args []string, o offline) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		return nil, none
	}
	if len(o.dirs) > 0 {
		w, err := c.quiet().load(o)
		if err != nil {
			return nil, none
		}
		return w.names(), none
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	a, err := c.quiet().agent(ctx, cmd.Flags().Changed("agent-socket"))
	if err != nil {
		return nil, none
	}
	rows, err := a.services(ctx)
	if err != nil {
		return nil, none
	}
	seen := map[string]bool{}
	var out []string
	add := func(text, address string) {
		if !seen[text] {
			seen[text] = true
			out = append(out, text+"\t"+address)
		}
	}
	for _, r := range listed(rows, "") {
		if r.Service != nil {
			add(serviceText(r.Service), r.Address)
			continue
		}
		add(r.Address, r.Class)
	}
	if a.sandbox != "" {
		_, st, err := c.quiet().sandboxStatus(ctx, a.sandbox)
		if err != nil {
			return out, none
		}
		for _, s := range st.Services {
			for name, address := range sandboxPorts(s) {
				add(s.Name+"."+s.Namespace+":"+name, address)
			}
		}
	}
	slices.Sort(out)
	return out, none
}

// completeNodes offers the Nodes of the manifests.
func (c *cli) completeNodes(o offline) []string {
	if len(o.dirs) == 0 {
		return nil
	}
	res, err := manifest.Load(o.dirs, manifest.Options{})
	if err != nil {
		return nil
	}
	return nodeNames(res.Objects)
}

// completePods offers the pods of the sandbox.
func (c *cli) completePods(ctx context.Context) (out []string) {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	_, st, err := c.quiet().anySandbox(ctx)
	if err != nil {
		return nil
	}
	for _, p := range st.Pods {
		if p.Namespace == "default" {
			out = append(out, p.Name)
			continue
		}
		out = append(out, p.Namespace+"/"+p.Name)
	}
	slices.Sort(out)
	return out
}

// completeSandboxes offers the sandboxes that run.
func (c *cli) completeSandboxes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	return c.runningSandboxes(ctx), cobra.ShellCompDirectiveNoFileComp
}
