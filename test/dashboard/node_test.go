// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

const (
	sandboxName = "dashboard"
	// scrapes are made as fast as they come and told to be scrapeEvery apart, so
	// that rates over minutes have something to go by.
	scrapes     = 24
	scrapeEvery = 15 * time.Second
)

// root is the repository.
var root = sync.OnceValue(func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
})

// node is a sandbox that runs.
type node struct {
	bin    string
	socket string // of the agent
}

// startNode builds the programs, unless $AETHER_BIN has them, and brings up the
// example shop.
func startNode(t *testing.T) node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("run as root: this test makes network namespaces")
	}
	bin := os.Getenv("AETHER_BIN")
	if bin == "" {
		bin = t.TempDir()
		build := exec.Command("go", "build", "-buildvcs=false", "-o", bin+"/", "./cmd/...")
		build.Dir = root()
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the programs: %v\n%s", err, out)
		}
	}
	n := node{bin: bin}
	_, _ = n.ctl("sandbox", "down") // of a run that was killed
	up := []string{"sandbox", "up", "-q", "-f", filepath.Join(root(), "examples/shop")}
	if p := filepath.Join(root(), ".build/envoy/envoy"); os.Getenv("AETHER_ENVOY") == "" && exists(p) {
		up = append(up, "--envoy", p)
	}
	if out, err := n.ctl(up...); err != nil {
		t.Fatalf("bring a sandbox up (no Envoy? run `make envoy`): %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := n.ctl("sandbox", "down"); err != nil {
			t.Errorf("take the sandbox down: %v\n%s", err, out)
		}
	})
	out, err := n.ctl("sandbox", "status", "-o", "json")
	if err != nil {
		t.Fatalf("ask the sandbox: %v\n%s", err, out)
	}
	var st struct {
		Paths struct {
			AgentSocket string `json:"agentSocket"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(out, &st); err != nil || st.Paths.AgentSocket == "" {
		t.Fatalf("where is the agent's socket? %v\n%s", err, out)
	}
	n.socket = st.Paths.AgentSocket
	return n
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ctl runs aetherctl.
func (n node) ctl(args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(n.bin, "aetherctl"), append([]string{"--sandbox", sandboxName}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.Bytes(), err
}

// dialling are what the pods do meanwhile: connections that are served, refused
// for each reason, passed through, and that fail.
var dialling = [][]string{
	{"shop/client", "--mode", "http", "--count", "3", "10.96.0.10:80"},      // web
	{"shop/client", "--mode", "http", "--count", "2", "10.96.0.30:80"},      // orders: no endpoints
	{"shop/batch", "--mode", "http", "10.96.0.10:81"},                       // a port it has not
	{"shop/batch", "--mode", "http", "--count", "2", "10.96.0.99:80"},       // nobody's
	{"shop/batch", "--mode", "http", "--count", "2", "203.0.113.80:80"},     // outside
	{"shop/client", "--mode", "http", "--count", "2", "203.0.113.80:65000"}, // where nobody listens
}

// dial has the pods make connections, which may fail: that is what they are for.
func (n node) dial(t *testing.T) {
	t.Helper()
	for _, d := range dialling {
		args := append([]string{"sandbox", "exec", d[0], "--", "aether-client"}, d[1:]...)
		out, err := n.ctl(args...)
		if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() > 1) {
			t.Errorf("%s: %v\n%s", strings.Join(d, " "), err, out)
		}
	}
}

// jobs are what is scraped, by the names and paths of the example configuration.
var jobs = map[string]string{"aether-agent": "/metrics", "aether-envoy": "/metrics/envoy"}

// scrape reads one job into the storage, as if at that time.
func (n node) scrape(t *testing.T, into *store, job string, at time.Time) {
	t.Helper()
	body, kind, err := n.get(jobs[job])
	if err != nil {
		t.Fatal(err)
	}
	parser, err := textparse.New(body, kind, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		t.Fatalf("scrape %s: %v", job, err)
	}
	add := func(l labels.Labels, v float64) {
		b := labels.NewBuilder(l)
		b.Set("job", job)
		b.Set("instance", "n1")
		into.add(b.Labels(), at, v)
	}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("scrape %s: %v", job, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, v := parser.Series()
		var l labels.Labels
		parser.Labels(&l)
		add(l, v)
	}
	add(labels.FromStrings("__name__", "up"), 1)
}

// get asks the agent's socket, which serves what the metrics address does.
func (n node) get(path string) (body []byte, contentType string, err error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", n.socket)
		},
		DisableKeepAlives: true,
	}}
	resp, err := client.Get("http://agent" + path)
	if err != nil {
		return nil, "", fmt.Errorf("scrape %s: %w", path, err)
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		return nil, "", fmt.Errorf("scrape %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("scrape %s: %s: %s", path, resp.Status, body)
	}
	return body, resp.Header.Get("Content-Type"), nil
}

// change makes a pod not ready, and waits until the agent has published what that
// changes.
func (n node) change(t *testing.T) {
	t.Helper()
	before := n.published(t)
	if out, err := n.ctl("sandbox", "set", "shop/web-1", "not-ready"); err != nil {
		t.Fatalf("change a pod: %v\n%s", err, out)
	}
	for deadline := time.Now().Add(30 * time.Second); n.published(t) == before; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the agent publishes nothing of a pod that is not ready")
		}
	}
}

var publications = regexp.MustCompile(`(?m)^aether_agent_source_lag_seconds_count (\S+)$`)

// published is the agent's count of changes that it published.
func (n node) published(t *testing.T) string {
	t.Helper()
	body, _, err := n.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	m := publications.FindSubmatch(body)
	if m == nil {
		t.Fatal("the agent does not count what it publishes")
	}
	return string(m[1])
}

// record scrapes a node during traffic and returns the storage and the time of
// the last scrape.
func (n node) record(t *testing.T) (*store, time.Time) {
	t.Helper()
	recorded := newStore()
	at := time.Unix(1_700_000_000, 0)
	for i := range scrapes {
		switch i {
		case scrapes / 3, 2 * scrapes / 3:
			n.dial(t)
		case scrapes / 2:
			n.change(t)
		}
		at = at.Add(scrapeEvery)
		for job := range jobs {
			n.scrape(t, recorded, job, at)
		}
	}
	return recorded, at
}
