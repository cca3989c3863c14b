// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"aether.io/aether/internal/agent/api"
)

// observeFlags are what is asked of observe.
type observeFlags struct {
	follow                           bool
	pod, namespace, serviceAccount   string
	service, to, endpoint            string
	verdict, reason, since           string
	refused, failed, openConnections bool
	lines                            int
}

// defaultLines is how many remembered connections are shown.
const defaultLines = 50

func (c *cli) observeCommand() *cobra.Command {
	var out format
	var o observeFlags
	cmd := &cobra.Command{
		Use:   "observe",
		Short: "Show the connections of captured pods: who, to what, what was decided, why",
		Long: `Observe shows one line per connection: when it was accepted, the pod that dialled
and its ServiceAccount, the Service and address it dialled, the endpoint that Envoy
chose, what the node proxy did and how it ended, bytes, duration, and how long the
connection waited until its endpoint was dialled.

Without -f it shows those that ended lately and those that are open; with -f also
what comes. A connection is shown when it ends. One that stays open is shown once
more, when the agent is first told of it: after some 10 s (--record-interval of the
agent). Envoy tells the agent of so many connections a second and no more
(--record-rate); what is not shown is counted, and said at the end.`,
		Example: `  aetherctl observe -f --refused
  aetherctl observe --pod shop/client-0 --since 5m
  aetherctl observe --service web.shop --open -o wide
  aetherctl observe -f --failed -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.observe(cmd, o, out)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what comes, until interrupted")
	f.StringVar(&o.pod, "pod", "", "only connections of this `pod`: NAMESPACE/NAME, or NAME in default")
	f.StringVar(&o.namespace, "namespace", "", "only connections of pods of this `namespace`")
	f.StringVar(&o.serviceAccount, "service-account", "", "only connections of pods of this `account`: NAMESPACE/NAME, or NAME in any namespace")
	f.StringVar(&o.service, "service", "", "only connections to this `service`: NAMESPACE/NAME or NAME.NAMESPACE, with :PORT to be exact")
	f.StringVar(&o.to, "to", "", "only connections to this dialled `address`, with or without a port")
	f.StringVar(&o.endpoint, "endpoint", "", "only connections to this endpoint's `address`, with or without a port")
	f.StringVar(&o.verdict, "verdict", "", "only this `word`: balance, passthrough, refuse or none, or an outcome such as connect-failed")
	f.StringVar(&o.reason, "reason", "", "only connections refused for this `reason`")
	f.BoolVar(&o.refused, "refused", false, "only refused connections")
	f.BoolVar(&o.failed, "failed", false, "only connections that failed; with --refused: those too")
	f.BoolVar(&o.openConnections, "open", false, "only open connections; with -f each time something new is known of one")
	f.StringVar(&o.since, "since", "", "only what ended since then or is open: a `time` in RFC 3339, or a duration such as 5m")
	f.IntVarP(&o.lines, "lines", "n", defaultLines, "how many remembered connections to show at most; 0 for none")
	addOutputFlag(cmd, &out)
	return cmd
}

// query returns the question in the agent's words.
func (o observeFlags) query() (url.Values, error) {
	if o.lines < 0 {
		return nil, badInput(program+" observe -n 20", "--lines %d: want a number from 0", o.lines)
	}
	q := url.Values{"limit": {strconv.Itoa(o.lines)}}
	set := func(key, value string) {
		if value != "" {
			q.Set(key, value)
		}
	}
	pod := o.pod
	if pod != "" && !strings.Contains(pod, "/") {
		pod = "default/" + pod
	}
	set("pod", pod)
	set("namespace", o.namespace)
	set("serviceAccount", o.serviceAccount)
	set("service", serviceQuery(o.service))
	set("dialled", o.to)
	set("endpoint", o.endpoint)
	set("verdict", o.verdict)
	set("reason", o.reason)
	set("since", o.since)
	for key, b := range map[string]bool{
		"refused": o.refused, "failed": o.failed, "open": o.openConnections,
		"follow": o.follow, "updates": o.follow && o.openConnections,
	} {
		if b {
			q.Set(key, "true")
		}
	}
	return q, nil
}

// serviceQuery makes namespace/name[:port] of name.namespace[:port].
func serviceQuery(s string) string {
	if s == "" || strings.Contains(s, "/") {
		return s
	}
	host, port, found := strings.Cut(s, ":")
	for _, suffix := range []string{".svc.cluster.local", ".svc"} {
		host = strings.TrimSuffix(host, suffix)
	}
	name, namespace, ok := strings.Cut(host, ".")
	if !ok {
		namespace = "default"
	}
	s = namespace + "/" + name
	if found {
		s += ":" + port
	}
	return s
}

func (c *cli) observe(cmd *cobra.Command, o observeFlags, out format) error {
	q, err := o.query()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	a, err := c.agent(ctx, cmd.Flags().Changed("agent-socket"))
	if err != nil {
		return err
	}
	if o.follow {
		return c.followConnections(ctx, a, q, out)
	}
	got := api.Observation{Connections: []api.Connection{}}
	err = a.stream(ctx, "/v1/observe?"+q.Encode(), func(line []byte) error {
		var l api.ObserveLine
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		if l.Connection != nil {
			got.Connections = append(got.Connections, *l.Connection)
		}
		if l.Missing != nil {
			got.Missing = *l.Missing
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.print(out, got, func(wide bool) string { return connectionsText(got.Connections, wide) }); err != nil {
		return err
	}
	if out == formatText || out == formatWide {
		c.tellMissing(got.Missing, o.openConnections)
	}
	return nil
}

// followConnections prints connections as they come until it is interrupted or the
// agent ends.
func (c *cli) followConnections(ctx context.Context, a *agentClient, q url.Values, out format) error {
	before, err := a.missing(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	text := newConnectionPrinter(c, out == formatWide)
	var skipped uint64
	err = a.stream(ctx, "/v1/observe?"+q.Encode(), func(line []byte) error {
		var l api.ObserveLine
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		if l.Missing != nil {
			skipped = l.Missing.Skipped
		}
		switch {
		case out == formatJSON:
			_, err := fmt.Fprintf(c.Out, "%s\n", line)
			return printed(err)
		case out == formatYAML:
			b, err := yaml.JSONToYAML(line)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Out, "---\n%s", b)
			return printed(err)
		case l.Connection != nil:
			return text.print(*l.Connection)
		}
		return nil
	})
	interrupted := ctx.Err() != nil
	if err != nil && !interrupted {
		return err
	}
	m, err := a.missing(context.WithoutCancel(ctx))
	switch {
	case err != nil && !interrupted:
		return failed(program+" status"+a.flags, "the agent at %s has ended", a.socket)
	case err != nil:
		return nil // it ended as well
	}
	m.Skipped = skipped
	if out == formatJSON || out == formatYAML {
		if out == formatJSON {
			return printed(json.NewEncoder(c.Out).Encode(api.ObserveLine{Missing: &m}))
		}
		b, err := yaml.Marshal(api.ObserveLine{Missing: &m})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.Out, "---\n%s", b)
		return printed(err)
	}
	// What happened before is not what was followed.
	m.Since, m.Forgotten = began.UTC().Format(time.RFC3339), 0
	m.NotTold -= min(m.NotTold, before.NotTold)
	c.tellMissing(m, false)
	return nil
}

// tellMissing says on standard error what was not shown.
func (c *cli) tellMissing(m api.Missing, open bool) {
	since := m.Since
	if t, err := time.Parse(time.RFC3339, m.Since); err == nil {
		since = t.Local().Format("15:04:05")
	}
	if !m.Counted {
		c.note("Envoy's count of connections cannot be read: how many are not shown is not known")
	}
	if m.NotTold > 0 {
		c.note("%s not shown: ended since %s beyond the rate (--record-rate of the agent), or lost on the way", connections(m.NotTold), since)
	}
	if m.Forgotten > 0 {
		c.note("%s not shown: ended since %s and no longer remembered", connections(m.Forgotten), since)
	}
	if m.Skipped > 0 {
		c.note("%s not shown: this command was too slow for them", connections(m.Skipped))
	}
	if m.OpenNotTold > 0 && open {
		c.note("%s open and not shown: the agent is told of one after some 10 s (--record-interval)", connections(m.OpenNotTold))
	}
}

func connections(n uint64) string {
	if n == 1 {
		return "1 connection"
	}
	return thousands(n) + " connections"
}

// thousands writes a number with commas.
func thousands(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
