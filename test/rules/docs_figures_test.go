// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// figure is a constant of the program and the sentences of documents that quote
// it. Who changes the constant is told which sentences to change with it.
type figure struct {
	file, name, value string
	// quotes hold a document and words of it.
	quotes [][2]string
}

const (
	lifecycle = "docs/lifecycle.md"
	limits    = "docs/limits.md"
)

var figures = []figure{
	{"internal/envoy/listener.go", "connectAttempts", "5", [][2]string{
		{answers, "at most five attempts"}, {logReference, "in five attempts at most"}, {limits, "five attempts at most"},
	}},
	{"internal/envoy/listener.go", "onDemandTimeout", "3 * time.Second", [][2]string{
		{logReference, "no answer to its name came within 3 s"}, {lifecycle, "waits for the agent, 3 s at most"},
	}},
	{"internal/envoy/cluster.go", "connectTimeout", "2 * time.Second", [][2]string{
		{answers, "at most 2 s (connect timeout)"}, {logReference, "connect timeout of 2 s each"}, {limits, "costs 2 s per attempt"},
	}},
	{"internal/envoy/cluster.go", "passthroughConnectTimeout", "connectAttempts * connectTimeout", [][2]string{
		{answers, "is tried once, for 10 s"}, {logReference, "or the dialled address within 10 s"}, {limits, "one of 10 s"},
	}},
	{"internal/envoy/listener.go", "passthroughAttempts", "1", [][2]string{{answers, "is tried once, for 10 s"}}},
	{"internal/envoy/cluster.go", "userTimeout", "30 * time.Second", [][2]string{
		{logReference, "data unacknowledged for 30 s"}, {limits, "at most 30 s of unacknowledged data"},
	}},
	{"internal/envoy/cluster.go", "keepaliveIdle", "15 * time.Second", [][2]string{{logReference, "15 s + 3 × 5 s"}}},
	{"internal/envoy/cluster.go", "keepaliveInterval", "5 * time.Second", [][2]string{{logReference, "15 s + 3 × 5 s"}}},
	{"internal/envoy/cluster.go", "keepaliveProbes", "3", [][2]string{{logReference, "15 s + 3 × 5 s"}}},
	{"internal/envoy/count.go", "maxRefusedCounters", "5_000", [][2]string{
		{metricsReference, "5,000 series of refusals"}, {limits, "45,000 series of counters per node"},
	}},
	{"internal/envoy/count.go", "maxEgressCounters", "40_000", [][2]string{
		{metricsReference, "40,000 of the rest"}, {limits, "45,000 series of counters per node"},
	}},
	{"internal/envoy/bootstrap.go", "statsEviction", "time.Hour", [][2]string{{metricsReference, "stands still for one to two hours is forgotten"}}},
	{"internal/envoy/bootstrap.go", "xdsPingInterval", "15 * time.Second", [][2]string{{lifecycle, "an agent that hangs is left after 25 s"}}},
	{"internal/envoy/bootstrap.go", "xdsPingTimeout", "10 * time.Second", [][2]string{{lifecycle, "an agent that hangs is left after 25 s"}}},
	{"internal/envoy/bootstrap.go", "xdsRetryBase", "100 * time.Millisecond", [][2]string{{lifecycle, "reconnect after 100 ms, at most 1 s later each time"}}},
	{"internal/envoy/bootstrap.go", "xdsRetryMax", "time.Second", [][2]string{{lifecycle, "reconnect after 100 ms, at most 1 s later each time"}}},
	{"internal/envoy/settings.go", "DefaultPodConnectionLimit", "10_000", [][2]string{{limits, "`--pod-connection-limit` (10,000)"}}},
	{"internal/plan/demand/demand.go", "DefaultBudget", "1024", [][2]string{
		{answers, "at most 1,024 names"}, {limits, "1,024 names per node"}, {lifecycle, "the budget of 1,024"},
	}},
	{"internal/plan/demand/demand.go", "DefaultHold", "300 * time.Millisecond", [][2]string{
		{answers, "waits 300 ms (`--no-service-hold`)"}, {lifecycle, "`--no-service-hold` (300 ms)"},
	}},
	{"internal/plan/demand/demand.go", "DefaultWindow", "7 * 24 * time.Hour", [][2]string{{lifecycle, "`--demand-window` (7 days)"}}},
	{"internal/agent/loop.go", "sourceGap", "5 * time.Millisecond", [][2]string{{lifecycle, "within 5 ms are one turn"}}},
	{"internal/agent/pods.go", "podReplyTime", "2 * time.Second", [][2]string{
		{lifecycle, "took more than 2 s and goes on"}, {apiReference, "that took more than 2 s; it goes on"},
	}},
	{"internal/agent/status.go", "maxOverLimitRows", "1000", [][2]string{{apiReference, "turned away at most 1,000"}}},
	{"internal/agent/config.go", "DefaultScrapeInterval", "time.Minute", [][2]string{
		{apiReference, "the last reading, at most a minute old"}, {architecture, "connection counts, every minute"},
	}},
	{"internal/agent/http_cli.go", "freshTimeout", "500 * time.Millisecond", [][2]string{{apiReference, "does not answer within 500 ms"}}},
	{"internal/xds/server.go", "DefaultHoldTimeout", "2 * time.Second", [][2]string{{lifecycle, "looked at (2 s at most)"}}},
	{"internal/agent/pace.go", "pacedFrom", "500", [][2]string{{lifecycle, "port with 500 endpoints and more"}}},
	{"internal/agent/pace.go", "pacePerEndpoint", "200 * time.Microsecond", [][2]string{{lifecycle, "0.2 ms per endpoint"}}},
	{"internal/agent/pace.go", "maxPace", "time.Second", [][2]string{{lifecycle, "0.2 ms per endpoint, 1 s at most"}}},
	{"internal/manifest/watch.go", "settle", "20 * time.Millisecond", [][2]string{{manifestReference, "some 20 ms after it happened"}}},
	{"internal/manifest/watch.go", "settleMax", "200 * time.Millisecond", [][2]string{{manifestReference, "200 ms while changes go on"}}},
	{"internal/manifest/watch.go", "rescan", "5 * time.Second", [][2]string{{manifestReference, "within 5 s where the system does not report it"}}},
	{"internal/capture/config.go", "MaxExclusions", "1024", [][2]string{{manifestReference, "at most 1,024 elements"}}},
}

// constantText returns how a file writes the value of a constant.
func constantText(t *testing.T, path, name string) string {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, filepath.Join(repository(), path), nil, 0)
	if err != nil {
		t.Fatalf("parse %s: %v", path, err)
	}
	var text bytes.Buffer
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			for i, id := range v.Names {
				if id.Name == name && i < len(v.Values) {
					if err := printer.Fprint(&text, fset, v.Values[i]); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		return true
	})
	return text.String()
}

var space = regexp.MustCompile(`\s+`)

// TestFiguresOfDocuments: the figures that documents quote are the program's.
func TestFiguresOfDocuments(t *testing.T) {
	for _, f := range figures {
		if got := constantText(t, f.file, f.name); got != f.value {
			t.Errorf("%s: %s is %q, and the documents quote %q: change them, and the table of figures", f.file, f.name, got, f.value)
		}
		for _, q := range f.quotes {
			if text := space.ReplaceAllString(document(t, q[0]), " "); !strings.Contains(text, q[1]) {
				t.Errorf("%s does not say %q, as it should of %s", q[0], q[1], f.name)
			}
		}
	}
}

// TestAnswersNameEveryClass: docs/answers.md has a row for every class and mode.
func TestAnswersNameEveryClass(t *testing.T) {
	classes := map[string]bool{}
	for _, c := range firstColumn(t, answers, "Modes") {
		for _, known := range typedConstants(t, "internal/plan/answer.go", "Class") {
			classes[known] = classes[known] || c == known
		}
	}
	for class, there := range classes {
		if !there {
			t.Errorf("%s: there is no row of class %s", answers, class)
		}
	}
	modes := section(t, answers, "Modes")
	for _, mode := range typedConstants(t, "internal/plan/answer.go", "Mode") {
		if !strings.Contains(modes, "| `"+mode+"` |") {
			t.Errorf("%s: there is no column of mode %s", answers, mode)
		}
	}
}
