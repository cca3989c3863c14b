// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"aether.io/aether/internal/agent/api"
)

const (
	proxySocket = "proxy.sock"
	// restartTimeout bounds a restart: the supervisor answers when the new Envoy
	// serves, or that it has to wait.
	restartTimeout = 2 * time.Minute
	maxReason      = 200 // bytes
	// findSupervisor is the command to try when no supervisor answers on a node.
	findSupervisor = "pgrep -a -f 'aether-agent proxy'"
)

func (c *cli) proxyCommand() *cobra.Command {
	g := group("proxy", "Ask the supervisor of the node's Envoy, or have it restart Envoy",
		c.proxyStatusCommand(), c.proxyRestartCommand())
	g.Long = `Proxy asks the supervisor of the node's Envoy (aether-agent proxy), whose socket is
beside the agent's.`
	return g
}

func (c *cli) proxyStatusCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the node's Envoy processes and their restarts",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.supervisor(cmd.Context(), cmd.Flags().Changed("agent-socket"))
			if err != nil {
				return err
			}
			var st api.ProxyStatus
			if err := p.call(cmd.Context(), http.MethodGet, "/v1/status", nil, &st); err != nil {
				return err
			}
			return c.print(out, st, func(bool) string { return proxyText(st) })
		},
	}
	addOutputFlag(cmd, &out)
	return cmd
}

func (c *cli) proxyRestartCommand() *cobra.Command {
	var out format
	var q api.ProxyRestartRequest
	cmd := &cobra.Command{
		Use:   "restart",
		Short: "Replace the node's Envoy without losing a connection, for an upgrade or a new bootstrap",
		Long: `Restart has the supervisor start another Envoy, from the binary and the bootstrap as
they are now, which takes over all listening sockets. No new connection fails, and
established ones stay with the old Envoy until the supervisor's --shutdown-time is
over. If the new one does not work the old one goes on. While an older one still
drains, the restart waits for its end, unless --now is given.`,
		Example: "  aetherctl proxy restart\n  aetherctl proxy restart --reason 'Envoy 1.40.1'\n  aetherctl proxy restart --full",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Full && q.Now {
				return badInput(program+" proxy restart --full", "--full and --now: want one of them, --full waits for nothing")
			}
			if n := len(strings.TrimSpace(q.Reason)); n == 0 || n > maxReason {
				return badInput(program+" proxy restart --reason upgrade", "reason: want 1 to %d bytes", maxReason)
			}
			p, err := c.supervisor(cmd.Context(), cmd.Flags().Changed("agent-socket"))
			if err != nil {
				return err
			}
			p.http.Timeout = restartTimeout
			var done api.ProxyRestart
			if err := p.call(cmd.Context(), http.MethodPost, "/v1/restart", q, &done); err != nil {
				return err
			}
			return c.print(out, done, func(bool) string { return restartText(done) })
		},
	}
	cmd.Flags().StringVar(&q.Reason, "reason", "asked for by hand", "`words` for the log and the status")
	cmd.Flags().BoolVar(&q.Full, "full", false, "end every Envoy, and every connection, first: for a binary that cannot take over")
	cmd.Flags().BoolVar(&q.Now, "now", false, "do not wait for an older Envoy's end: it ends now, and its connections with it")
	addOutputFlag(cmd, &out)
	return cmd
}

// supervisor finds the supervisor of the node whose agent would be asked.
func (c *cli) supervisor(ctx context.Context, socketGiven bool) (*agentClient, error) {
	a, err := c.agent(ctx, socketGiven)
	if err != nil {
		return nil, err
	}
	next := findSupervisor
	if a.sandbox != "" {
		next = a.next
	}
	p := newAgentClient(filepath.Join(filepath.Dir(a.socket), proxySocket), a.sandbox, a.flags, next)
	p.who, p.look = "Envoy's supervisor", program+" proxy status"+a.flags
	return p, nil
}

func proxyText(s api.ProxyStatus) string {
	facts := &table{head: []string{"STATE", s.State}}
	add := func(name, value string, good bool) {
		style := stylePlain
		if !good {
			style = styleBad
		}
		facts.add(style, name, value)
	}
	add("ENVOY", strings.TrimSpace(s.Envoy+" "+s.Version), true)
	add("BOOTSTRAP", s.Bootstrap, true)
	if len(s.Changed) > 0 {
		add("CHANGED SINCE", strings.Join(s.Changed, ", "), false)
	}
	add("HOT RESTARTS", fmt.Sprintf("%d, %d failed", s.HotRestarts, s.FailedRestarts), s.FailedRestarts == 0)
	add("ENDED UNASKED", fmt.Sprint(s.Restarts), s.Restarts == 0)
	if s.LastExit != "" {
		add("LAST EXIT", s.LastExit, true)
	}
	if r := s.LastRestart; r != nil {
		add("LAST RESTART", strings.TrimSpace(fmt.Sprintf("%s %s: %s %s", r.Time, r.State, r.Reason, r.Error)), r.State != "failed")
	}
	if s.Scheduled != "" {
		add("WAITING RESTART", s.Scheduled, true)
	}
	add("DRAIN, SHUTDOWN TIME", fmt.Sprintf("%s, %s", secondsText(s.DrainTime), secondsText(s.ShutdownTime)), true)
	epochs := &table{head: []string{"PID", "STATE", "BASE ID", "EPOCH", "SINCE", "UNTIL"}}
	for _, e := range s.Epochs {
		epochs.add(stylePlain, strconv.Itoa(e.PID), e.State, strconv.FormatUint(uint64(e.BaseID), 10), strconv.Itoa(e.Epoch), e.Since, orDash(e.Until))
	}
	return facts.render("") + "\n" + epochs.render("")
}

func secondsText(s int) string { return (time.Duration(s) * time.Second).String() }

func restartText(r api.ProxyRestart) string {
	if r.State == "scheduled" {
		return fmt.Sprintf("scheduled: %s\n", r.Error)
	}
	return fmt.Sprintf("done: Envoy is process %d, it served after %d ms\n", r.PID, r.TookMS)
}
