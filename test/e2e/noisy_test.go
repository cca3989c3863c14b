// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

const (
	// noisyPairs is how many quiet and noisy windows are measured in turn, and
	// toldPairs how many where the outcome is only told.
	noisyPairs  = 5
	toldPairs   = 3
	noisyWindow = time.Second
	// noisyRest is between two windows: a storm is forgotten.
	noisyRest = 700 * time.Millisecond
	// noisyTries is how often it is measured: what else this machine does can make
	// a neighbour slower, never faster, so that one good try shows what holds.
	noisyTries = 3
	// noisyTimes is how many times its quiet p99 a neighbour may need.
	noisyTimes = 2
)

// TestNoisyNeighbour: one pod retries in a tight loop what is refused, and opens
// and closes connections to what is served as fast as it can. Another pod's p99
// is at most twice what it is in the quiet windows between.
//
// The attacker has the CPU that the kubelet gives a pod of QoS class BestEffort
// with a CPU limit of 500m: on two cores it would otherwise take the CPU itself
// from Envoy and its neighbours, which no proxy can help. The server that it
// floods shares the limit: it is nobody's but the attacker's. What the attacker
// does without a limit is measured too, and only told.
func TestNoisyNeighbour(t *testing.T) {
	limited := bestEffort(t, 0.5) // before the node, so that it goes after it
	n := upReady(t, firstRange+server("web", "app: web")+server("other", "app: other")+client("neighbour")+client("attacker")+
		service("web", "10.96.0.10", "selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}]")+
		service("empty", "10.96.0.11", "selector: {app: nobody}, ports: [{name: greet, port: 80}]")+
		service("other", "10.96.0.12", "selector: {app: other}, ports: [{name: greet, port: 80, targetPort: 9001}]"), plainAgent(t))
	n.keepAccount()
	envoyPID := n.EnvoyPID()
	n.limitServer(t, limited, "other")
	for name, args := range map[string][]string{
		"retry storm":      {"--mode", "silent", "--concurrency", "32", "10.96.0.11:80"},
		"connection flood": {"--mode", "server-first", "--concurrency", "32", "10.96.0.12:80"},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			holds := false
			for try := 0; try < noisyTries && !holds; try++ {
				m := n.besideAttack(t, noisyPairs, limited, args)
				told, holds = append(told, m.String()), m.times() <= noisyTimes
			}
			t.Logf("attacker as BestEffort with 500m: %v", told)
			if !holds {
				t.Errorf("the neighbour's p99 is more than %d times its quiet one in every try", noisyTimes)
			}
			t.Logf("attacker without a limit: %v", n.besideAttack(t, toldPairs, nil, args))
		})
	}
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
}

// neighbourTimes are medians over windows, in milliseconds.
type neighbourTimes struct {
	rate                 float64 // of the attacker, connections per second
	quiet50, quiet99     float64
	noisy50, noisy99     float64
	quietSpread, noisies []float64 // every window's p99
}

func (m neighbourTimes) times() float64 { return m.noisy99 / m.quiet99 }

func (m neighbourTimes) String() string {
	return fmt.Sprintf("%.0f connections/s; neighbour p50 %.2f → %.2f ms, p99 %.2f → %.2f ms (×%.2f; windows %.1f → %.1f)",
		m.rate, m.quiet50, m.noisy50, m.quiet99, m.noisy99, m.times(), m.quietSpread, m.noisies)
}

// besideAttack measures the neighbour in quiet and in noisy windows by turns.
func (n *node) besideAttack(t *testing.T, pairs int, wrap, args []string) neighbourTimes {
	t.Helper()
	ended := make(chan struct{})
	beside := n.loadTo(t, "neighbour", "10.96.0.10:80", ended)
	type window struct{ from, to time.Time }
	var quiet, noisy []window
	made := 0
	for range pairs {
		from := time.Now()
		time.Sleep(noisyWindow)
		quiet = append(quiet, window{from, time.Now()})
		vs := n.clientAs(t, "attacker", wrap, append([]string{"--timeout", "15s", "--duration", noisyWindow.String()}, args...)...)
		if len(vs) == 0 {
			t.Fatal("the attacker made no connection")
		}
		made += len(vs)
		first := slices.MinFunc(vs, func(a, b echo.Verdict) int { return a.Time.Compare(b.Time) }).Time
		noisy = append(noisy, window{first, first.Add(noisyWindow)})
		time.Sleep(noisyRest)
	}
	close(ended)
	vs := beside()
	wantAllOK(t, vs)
	in := func(ws []window, p float64) []float64 {
		var out []float64
		for _, w := range ws {
			out = append(out, percentile(slices.DeleteFunc(slices.Clone(vs), func(v echo.Verdict) bool {
				return v.Time.Before(w.from) || !v.Time.Before(w.to)
			}), p))
		}
		return out
	}
	m := neighbourTimes{
		rate:        float64(made) / (float64(pairs) * noisyWindow.Seconds()),
		quietSpread: in(quiet, 99), noisies: in(noisy, 99),
		quiet50: median(in(quiet, 50)), noisy50: median(in(noisy, 50)),
	}
	m.quiet99, m.noisy99 = median(m.quietSpread), median(m.noisies)
	return m
}

// limitServer puts a pod's processes where the command of bestEffort runs.
func (n *node) limitServer(t *testing.T, wrap []string, pod string) {
	t.Helper()
	for _, p := range n.Status().Pods {
		for _, c := range p.Containers {
			if p.Name != pod {
				continue
			}
			join := exec.Command("renice", "-n", "19", "-p", strconv.Itoa(c.PID))
			if dir, ok := strings.CutPrefix(wrap[len(wrap)-1], "limited "); ok {
				join = exec.Command("sh", "-c", fmt.Sprintf("echo %d > %s/cgroup.procs", c.PID, dir))
			}
			if out, err := join.CombinedOutput(); err != nil {
				t.Fatalf("limit pod %s: %v: %s", pod, err, out)
			}
		}
	}
}

// median of some values, 0 of none.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return 0
	}
	return s[len(s)/2]
}

// bestEffort makes a control group with the lowest CPU weight and a limit, in
// CPUs, as the kubelet does, and returns a command that runs another one in it.
// Without control groups to use it is the lowest priority of nice(1).
func bestEffort(t *testing.T, cpus float64) []string {
	t.Helper()
	const period = 100_000 // microseconds, the kubelet's
	quota := int(cpus * period)
	for _, g := range []struct {
		parent string
		files  map[string]string
	}{
		{"/sys/fs/cgroup/cpu", map[string]string{"cpu.shares": "2", "cpu.cfs_quota_us": strconv.Itoa(quota)}},
		{"/sys/fs/cgroup", map[string]string{"cpu.weight": "1", "cpu.max": fmt.Sprintf("%d %d", quota, period)}},
	} {
		dir := filepath.Join(g.parent, "aether-"+sandboxName(t))
		err := os.Mkdir(dir, 0o755)
		if err != nil && !errors.Is(err, os.ErrExist) {
			continue
		}
		t.Cleanup(func() {
			if err := poll(settled, func() error { return os.Remove(dir) }); err != nil {
				t.Errorf("remove control group: %v", err)
			}
		})
		var errs []error
		for name, value := range g.files {
			// Without O_CREATE: a file that is not there is a controller that is not.
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteString(value)
				err = errors.Join(err, f.Close())
			}
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); err != nil {
			t.Logf("%s is of no use: %v", dir, err)
			continue
		}
		t.Logf("the attacker is in %s: %v", dir, g.files)
		return []string{"sh", "-c", fmt.Sprintf("echo $$ > %s/cgroup.procs && exec \"$@\"", dir), "limited " + dir}
	}
	t.Log("no control group to use: the attacker is niced")
	return []string{"nice", "-n", "19"}
}
