// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"aether.io/aether/internal/agent/api"
)

// topFlags are what is asked of top.
type topFlags struct {
	by               string
	rounds, rows     int
	window, interval time.Duration
}

func (c *cli) topCommand() *cobra.Command {
	var out format
	var o topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the busiest pods, Services or ServiceAccounts",
		Long: `Top adds up the connections of captured pods that ended within the window, and
those that are open: per second how many ended, failed and were refused, and bytes
both ways; how long they lasted and how long they waited for their endpoint. On a
terminal it goes on until interrupted.`,
		Example: `  aetherctl top
  aetherctl top --by service -n 1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.top(cmd, o, out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.by, "by", "pod", "add up by this `word`: pod, service or sa")
	f.IntVarP(&o.rounds, "rounds", "n", 0, "how many times to show it (default: until interrupted on a terminal, else once)")
	f.IntVar(&o.rows, "rows", 20, "how many rows to show at most; 0 for all")
	f.DurationVar(&o.window, "window", 10*time.Second, "what time the rates are over")
	f.DurationVar(&o.interval, "interval", 2*time.Second, "how often it is shown anew")
	must(cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"pod", "service", "sa"}, cobra.ShellCompDirectiveNoFileComp)))
	addOutputFlag(cmd, &out)
	return cmd
}

// minInterval keeps a person from asking the agent without a pause.
const minInterval = 100 * time.Millisecond

func (c *cli) top(cmd *cobra.Command, o topFlags, out format) error {
	if o.rounds < 0 || o.rows < 0 || o.interval < minInterval {
		return badInput(program+" top -n 1", "want --rounds and --rows from 0 and --interval from %s", minInterval)
	}
	ctx := cmd.Context()
	a, err := c.agent(ctx, cmd.Flags().Changed("agent-socket"))
	if err != nil {
		return err
	}
	screen := c.isTerminal() && out != formatJSON && out != formatYAML
	rounds := o.rounds
	if rounds == 0 && !screen {
		rounds = 1
	}
	for round := 1; ; round++ {
		t, err := a.top(ctx, o.by, o.window.String())
		if err != nil {
			return unlessInterrupted(ctx, err)
		}
		if o.rows > 0 && len(t.Rows) > o.rows {
			t.Rows = t.Rows[:o.rows]
		}
		if err := c.print(out, t, func(bool) string {
			if screen && rounds != 1 {
				return "\x1b[H\x1b[2J" + topText(t)
			}
			return topText(t)
		}); err != nil {
			return err
		}
		if round == rounds {
			return nil
		}
		select {
		case <-time.After(o.interval):
		case <-ctx.Done():
			return nil
		}
	}
}

func unlessInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// isTerminal reports whether a person sees the output as it is written.
func (c *cli) isTerminal() bool {
	f, ok := c.Out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func topText(t api.Top) string {
	var b strings.Builder
	fmt.Fprintf(&b, "By %s, over %.0f s.", t.By, t.WindowSeconds)
	if t.Missing.NotTold > 0 {
		fmt.Fprintf(&b, " %s not in it since %s: more than the rate.", connections(t.Missing.NotTold), clock(t.Missing.Since)[:8])
	}
	b.WriteString("\n")
	if len(t.Rows) == 0 {
		b.WriteString("no connections\n")
		return b.String()
	}
	l := &table{head: []string{strings.ToUpper(t.By), "CONNS/S", "FAILED/S", "REFUSED/S", "BYTES/S", "OPEN", "LASTED P50", "P99", "WAIT P50", "P99"}}
	ms := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return lasted(*v)
	}
	per := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	for _, r := range t.Rows {
		style := stylePlain
		switch {
		case r.Refused > 0:
			style = styleBad
		case r.Failed > 0:
			style = stylePass
		}
		l.add(style, r.Name, per(r.Connections), per(r.Failed), per(r.Refused), bytesText(r.BytesPerSec), strconv.Itoa(r.Open),
			ms(r.DurationP50Ms), ms(r.DurationP99Ms), ms(r.WaitP50Ms), ms(r.WaitP99Ms))
	}
	b.WriteString(l.render(""))
	return b.String()
}
