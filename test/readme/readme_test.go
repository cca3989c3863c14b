// SPDX-License-Identifier: Apache-2.0

package readme

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/test/markdown"
)

func TestMain(m *testing.M) {
	if handled, code := sandbox.BuiltinMain(os.Args); handled {
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

const (
	root = "../.."
	// The README gives its sandbox no name.
	sandboxName = "default"
	stateDir    = "/run/aether-sandbox"
	settled     = 15 * time.Second
)

// walk is one reading of the README.
type walk struct {
	env []string
	dir string // where the commands are typed
}

// mostCommands is how many a newcomer types from the clone to the end of the node.
const mostCommands = 10

// TestTryItYourself does what the README's section of that name says, in a clone:
// what is committed is what a newcomer gets.
func TestTryItYourself(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run as root: the documents' paths are those of root's sandbox")
	}
	found, err := sandbox.FindEnvoy("")
	if err != nil {
		t.Fatal(err) // says how to get one
	}
	w := walk{dir: t.TempDir(), env: append(os.Environ(), "REPOSITORY="+repository(t), "AETHER_ENVOY="+found,
		"AETHER_SANDBOX="+sandboxName, "NO_COLOR=1",
		// The repository may belong to another user than the one that tests.
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")}
	text, ok := markdown.Section(read(t, "README.md"), "Try it yourself")
	if !ok {
		t.Fatal("README.md has no section that invites to try")
	}
	typed, shown, refused, down := 0, 0, 0, 0
	for _, f := range markdown.Fences(text) {
		for _, c := range f.Commands() {
			typed++
			folder, enters := strings.CutPrefix(c.Line, "cd ")
			switch {
			case enters:
				w.dir = filepath.Join(w.dir, folder)
			case strings.Contains(c.Line, " sandbox up "):
				t.Cleanup(func() { endSandbox(t) })
				w.sh(t, c.Line)
			case strings.Contains(c.Line, " sandbox down"):
				down++
				checkLog(t)
				checkStatistics(t)
				w.checkReference(t, found)
				w.sh(t, c.Line)
			case f.Info == "sh":
				w.sh(t, c.Line)
			default:
				shown++
				w.shows(t, c.Line, c.Output)
			}
			if strings.Contains(c.Line, " observe") && strings.Contains(c.Output, "no-endpoints") {
				refused = typed
			}
		}
	}
	if typed > mostCommands || shown < 4 || refused == 0 || down != 1 {
		t.Errorf("%d commands, %d answers, a refusal observed after %d, %d times down: want at most %d commands, and all of it",
			typed, shown, refused, down, mostCommands)
	}
}

// repository returns what a newcomer clones: this one, or one made of the files
// here when they came without their history.
func repository(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(path, ".git")); err == nil {
		return path
	}
	made := t.TempDir()
	const fill = `tar -C "$0" --exclude=./.build -cf - . | tar -xf - && git init -q && git add -A &&
		git -c user.name=test -c user.email=test@localhost commit -qm files`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", fill, path)
	cmd.Dir = made
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make a repository of %s: %v\n%s", path, err, out)
	}
	return made
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// run types a line into a shell.
func (w walk) run(t *testing.T, line string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env = w.dir, w.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// sh wants a command to succeed.
func (w walk) sh(t *testing.T, line string) {
	t.Helper()
	if out, errs, err := w.run(t, line); err != nil {
		t.Fatalf("`%s`: %v\n%s%s", line, err, out, errs)
	}
}

// shows compares a command's answer with the README's. What is asked of the node
// is asked again for a while: Envoy writes its log a moment later. A connection is
// made once.
func (w walk) shows(t *testing.T, line, sample string) {
	t.Helper()
	once := strings.Contains(line, " sandbox exec ")
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		out, errs, _ := w.run(t, line) // a refused client exits 1
		err := markdown.Match(sample, out)
		if err == nil {
			return
		}
		if once || time.Since(began) > settled {
			t.Errorf("`%s`: %v%s", line, err, errs)
			return
		}
	}
}

// endSandbox takes down what a failed test has left running.
func endSandbox(t *testing.T) {
	ctx := context.Background()
	c, err := sandbox.Dial(ctx, stateDir, sandboxName)
	if errors.Is(err, sandbox.ErrNotRunning) {
		return
	}
	if err == nil {
		err = c.Down(ctx)
	}
	if err != nil {
		t.Errorf("end the sandbox: %v", err)
	}
}

// checkLog: every line that Envoy wrote has the keys of the schema, in the order
// in which the reference says they come.
func checkLog(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(stateDir, sandboxName, "logs", "access.log"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range envoy.LogSchema() {
		want = append(want, f.Key)
	}
	slices.Sort(want)
	lines := 0
	for text := range bytes.Lines(b) {
		lines++
		var got []string
		d := json.NewDecoder(bytes.NewReader(text))
		for {
			key, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("a line of the access log: %v\n%s", err, text)
			}
			if _, ok := key.(json.Delim); ok {
				continue
			}
			got = append(got, key.(string))
			if _, err := d.Token(); err != nil { // its value
				t.Fatalf("a line of the access log: %v\n%s", err, text)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("keys of a line of the access log (-schema +line):\n%s", diff)
		}
	}
	if lines < 2 {
		t.Errorf("the access log has %d lines, want one of each connection", lines)
	}
}

// runDir is the sandbox's for a node's /run/aether.
func runDir(socket string) string { return filepath.Join(stateDir, sandboxName, "run", socket) }

// admin asks Envoy.
func admin(t *testing.T, path string) string {
	t.Helper()
	return request(t, http.MethodGet, runDir("envoy-admin.sock"), "http://envoy"+path)
}

// request makes one request on a Unix socket and wants it answered.
func request(t *testing.T, method, socket, url string) string {
	t.Helper()
	hc := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s on %s: %s %v", method, url, socket, resp.Status, err)
	}
	return string(b)
}

// checkStatistics: Envoy has every statistic and counter of the reference.
func checkStatistics(t *testing.T) {
	t.Helper()
	const reference = "docs/reference/metrics.md"
	text := read(t, reference)
	var names []string
	column := func(text, prefix string) {
		for _, row := range markdown.Rows(text) {
			for _, name := range markdown.Code(row[0]) {
				names = append(names, prefix+name)
			}
		}
	}
	watched, ok := markdown.Section(text, "Other statistics of Envoy worth an alert")
	_, ofPorts, found := strings.Cut(watched, "Of each asked Service port")
	if !ok || !found {
		t.Fatalf("%s has no tables of Envoy's statistics", reference)
	}
	column(watched, "")
	column(ofPorts, "cluster.svc.shop.web.http.")
	if len(names) < 20 {
		t.Errorf("%s names %d statistics: that is too few to be true", reference, len(names))
	}
	has := "\n" + admin(t, "/stats")
	for _, name := range names {
		if !strings.Contains(has, "\n"+name+":") {
			t.Errorf("Envoy has no statistic %s, which %s tells people to watch", name, reference)
		}
	}
	counters, ok := markdown.Section(text, "Counters of connections")
	if !ok {
		t.Fatalf("%s has no section on counters", reference)
	}
	prometheus := admin(t, "/stats/prometheus")
	for _, row := range markdown.Rows(counters) {
		var labels strings.Builder
		for i, label := range markdown.Code(row[1]) {
			if i > 0 {
				labels.WriteByte(',')
			}
			labels.WriteString(label + `="[^"]*"`)
		}
		name := markdown.Code(row[0])[0]
		if !regexp.MustCompile(`(?m)^` + name + `\{` + labels.String() + `\} \d+$`).MatchString(prometheus) {
			t.Errorf("Envoy has no counter %s with the labels %s", name, row[1])
		}
	}
}

var curlLine = regexp.MustCompile(`^curl (?:-X (\w+) )?--unix-socket /run/aether/(\S+) '([^']+)'$`)

// checkReference does what the reference documents tell people to type: requests to
// the sockets, which need no curl here, and the bootstrap that Envoy starts with.
func (w walk) checkReference(t *testing.T, envoyBinary string) {
	t.Helper()
	docs, err := filepath.Glob(filepath.Join(root, "docs/reference/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	requests, bootstraps := 0, 0
	bootstrap := filepath.Join(t.TempDir(), "envoy.json")
	for _, doc := range docs {
		for _, f := range markdown.Fences(read(t, strings.TrimPrefix(doc, root+"/"))) {
			for _, c := range f.Commands() {
				m := curlLine.FindStringSubmatch(c.Line)
				switch {
				case m != nil:
					requests++
					request(t, m[1], runDir(m[2]), m[3])
				case strings.HasPrefix(c.Line, "aether-agent bootstrap "):
					bootstraps++
					w.sh(t, ".build/bin/"+strings.Replace(c.Line, "envoy.json", bootstrap, 1))
				case strings.HasPrefix(c.Line, "aether-agent proxy "): // runs until it is told to end: is it understood?
					w.sh(t, ".build/bin/"+c.Line+" --help")
				case strings.HasPrefix(c.Line, "aetherctl "):
					w.sh(t, ".build/bin/"+c.Line)
				case c.Line == "envoy -c envoy.json":
					w.sh(t, envoyBinary+" --mode validate --log-level error -c "+bootstrap)
				default:
					t.Errorf("%s:%d: `%s`: this test does not know how to try it", doc, f.Line, c.Line)
				}
			}
		}
	}
	if requests < 2 || bootstraps != 1 {
		t.Errorf("the reference has %d requests and %d bootstraps to try", requests, bootstraps)
	}
}
