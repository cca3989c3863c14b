// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// The account: every connection that a client of a hostile or fault test saw fail
// has a cause that is written down, in a line of the access log or in a counter.
// A test opts in with keepAccount before its first dial; from then on its clients
// must be captured pods.

// ledger holds the connections of one node's clients.
type ledger struct {
	mu    sync.Mutex
	kept  bool
	made  []entry
	ended []time.Time // when Envoy was ended on purpose
}

type entry struct {
	pod string
	v   echo.Verdict
}

// tally is an account's sum.
type tally struct {
	made, failed, caused int
	causes               map[string]int
}

func (a tally) add(b tally) tally {
	sum := tally{a.made + b.made, a.failed + b.failed, a.caused + b.caused, map[string]int{}}
	for _, causes := range []map[string]int{a.causes, b.causes} {
		for c, n := range causes {
			sum.causes[c] += n
		}
	}
	return sum
}

func (a tally) String() string {
	share := 1.0
	if a.failed > 0 {
		share = float64(a.caused) / float64(a.failed)
	}
	var causes []string
	for _, c := range slices.Sorted(maps.Keys(a.causes)) {
		causes = append(causes, fmt.Sprintf("%s %d", c, a.causes[c]))
	}
	return fmt.Sprintf("%d connections, %d failed, %d with a cause = %.2f (%s)", a.made, a.failed, a.caused, share, strings.Join(causes, ", "))
}

// accounts are those of all tests, for a summary at the end.
var accounts struct {
	sync.Mutex
	byTest map[string]tally
}

// printAccounts writes the summary, if there is anything to tell.
func printAccounts(w io.Writer) {
	accounts.Lock()
	defer accounts.Unlock()
	var all tally
	for _, name := range slices.Sorted(maps.Keys(accounts.byTest)) {
		a := accounts.byTest[name]
		all = all.add(a)
		fmt.Fprintf(w, "account: %s: %v\n", name, a)
	}
	if all.made > 0 {
		fmt.Fprintf(w, "account: in all: %v\n", all)
	}
}

// keepAccount has every later connection of a captured pod accounted for when
// the node ends.
func (n *node) keepAccount() {
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	n.ledger.kept = true
}

// enter takes connections into the account, but for those to port 53, which is
// not captured.
func (n *node) enter(pod string, vs ...echo.Verdict) {
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	if !n.ledger.kept {
		return
	}
	for _, v := range vs {
		if !strings.HasSuffix(v.Target, ":53") {
			n.ledger.made = append(n.ledger.made, entry{pod, v})
		}
	}
}

// KillEnvoy is sandbox.Node's; connections that end with it are so caused.
func (n *node) KillEnvoy() error {
	n.envoyEnds()
	return n.Node.KillEnvoy()
}

// envoyEnds notes that an Envoy is ended on purpose.
func (n *node) envoyEnds() {
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	n.ledger.ended = append(n.ledger.ended, time.Now())
}

// settleAccount looks for the cause of every failure, and reports those that have
// none.
func (n *node) settleAccount(t *testing.T) {
	t.Helper()
	n.ledger.mu.Lock()
	kept, made := n.ledger.kept, slices.Clone(n.ledger.made)
	n.ledger.mu.Unlock()
	if !kept {
		return
	}
	if len(made) == 0 {
		t.Error("an account of no connections")
	}
	var sum tally
	var without []entry
	if err := poll(settled, func() error {
		lines, err := n.log.Read()
		if err != nil {
			return err
		}
		sum, without = n.account(t, made, lines)
		if len(without) > 0 {
			return errors.New("there are failures without a cause")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	for i, e := range without {
		if i == 20 {
			t.Errorf("… and %d more", len(without)-i)
			break
		}
		t.Errorf("no log line and no counter says why %s saw, at %s: %s after %.0f ms, from %q",
			e.pod, e.v.Time.Format("15:04:05.000"), told(e.v), e.v.TotalMS, e.v.Local)
	}
	if sum.caused != sum.failed {
		t.Errorf("account: %v", sum)
	}
	t.Logf("account: %v", sum)
	accounts.Lock()
	defer accounts.Unlock()
	if accounts.byTest == nil {
		accounts.byTest = map[string]tally{}
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	accounts.byTest[name] = accounts.byTest[name].add(sum)
}

// account matches failures with what was written down, each line and each count
// once.
func (n *node) account(t *testing.T, made []entry, lines []logLine) (tally, []entry) {
	book := newBook(lines)
	var silent []entry // failures the log knows nothing of
	sum := tally{made: len(made), causes: map[string]int{}}
	for _, anonymous := range []bool{false, true} { // those who know their port first
		for _, e := range made {
			if ok(e.v) || (e.v.Local == "") != anonymous {
				continue
			}
			sum.failed++
			if cause := book.claim(e.v); cause != "" {
				sum.causes["log: "+cause]++
			} else {
				silent = append(silent, e)
			}
		}
	}
	left := sum.failed - len(silent)
	ctx := context.WithoutCancel(t.Context()) // a test that has ended still asks
	overflow, err := n.tryGauge(ctx, "listener.capture.downstream_global_cx_overflow")
	if err != nil {
		t.Errorf("read what was turned away: %v", err)
	}
	dropped := map[string]int{}
	var without []entry
	for _, e := range silent {
		switch {
		case n.whileEnvoyEnded(e.v):
			sum.causes["status: Envoy ended"]++
		case e.v.Outcome == echo.Timeout && e.v.Phase == echo.PhaseConnect && n.listenDrops(ctx, t, e.pod, dropped) > 0:
			dropped[e.pod]--
			sum.causes["kernel: ListenDrops"]++
		case (e.v.Outcome == echo.Closed || e.v.Outcome == echo.Reset) && overflow > 0:
			overflow--
			sum.causes["counter: downstream_global_cx_overflow"]++
		default:
			without = append(without, e)
			continue
		}
		left++
	}
	sum.caused = left
	return sum, without
}

// ok is false for what a client calls a failure.
func ok(v echo.Verdict) bool { return v.Outcome == echo.OK || v.Outcome == echo.Open }

// whileEnvoyEnded: the connection was open, or being made, when Envoy was ended
// or while the next one started, or its line was not written yet; and the
// supervisor says that Envoy ended.
func (n *node) whileEnvoyEnded(v echo.Verdict) bool {
	const (
		unwritten = time.Second // Envoy's log is written ten times a second
		back      = 5 * time.Second
	)
	over := v.Time.Add(time.Duration(v.TotalMS * float64(time.Millisecond)))
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	for _, at := range n.ledger.ended {
		if !over.Before(at.Add(-unwritten)) && v.Time.Before(at.Add(back)) {
			return n.Status().Envoy.LastExit != ""
		}
	}
	return false
}

// listenDrops reads, once per pod, how many connections the kernel dropped in
// the pod's namespace because a listener's queue was full.
func (n *node) listenDrops(ctx context.Context, t *testing.T, pod string, known map[string]int) int {
	t.Helper()
	if left, ok := known[pod]; ok {
		return left
	}
	out, err := n.Output(ctx, pod, "cat", "/proc/self/net/netstat")
	if err != nil {
		t.Errorf("read the kernel's counters in pod %s: %v", pod, err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		if i := slices.Index(names, "ListenDrops"); i >= 0 && i < len(fields) {
			known[pod], _ = strconv.Atoi(fields[i])
		}
	}
	return known[pod]
}

// book is the access log, to be claimed line by line.
type book struct {
	byPair, byTarget map[string][]*logEntry
}

type logEntry struct {
	logLine
	claimed bool
}

func newBook(lines []logLine) *book {
	b := &book{map[string][]*logEntry{}, map[string][]*logEntry{}}
	for _, l := range lines {
		e := &logEntry{logLine: l}
		b.byPair[l.Client+" "+l.Dialled] = append(b.byPair[l.Client+" "+l.Dialled], e)
		b.byTarget[l.Dialled] = append(b.byTarget[l.Dialled], e)
	}
	for _, es := range []map[string][]*logEntry{b.byPair, b.byTarget} {
		for _, e := range es {
			slices.SortStableFunc(e, func(a, b *logEntry) int { return a.Time.Compare(b.Time) })
		}
	}
	return b
}

// claim takes the line of a failed connection and returns the cause it gives, or
// nothing.
func (b *book) claim(v echo.Verdict) string {
	lines := b.byPair[v.Local+" "+v.Remote]
	if v.Local == "" {
		// To the kernel 0.0.0.0 is the loopback address.
		target := v.Target
		if port, ok := strings.CutPrefix(target, "0.0.0.0:"); ok {
			target = "127.0.0.1:" + port
		}
		lines = b.byTarget[target]
	}
	for _, l := range lines {
		if l.claimed || l.Time.Before(v.Time.Truncate(time.Millisecond)) {
			continue
		}
		if cause := l.cause(); cause != "" {
			l.claimed = true
			return cause
		}
	}
	return ""
}

// cause is what a line gives as the reason of a failure. A client that gave up
// by itself is told by its own close.
func (l *logEntry) cause() string {
	switch {
	case l.Outcome == "refused":
		return cmp.Or(l.Reason, "refused")
	case l.Outcome != "ok":
		return l.Outcome
	case l.CloseReason != "":
		return l.CloseReason
	case l.ClientClose == "RemoteReset":
		return "the client's own reset"
	}
	return ""
}
