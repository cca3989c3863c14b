// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/manifest"
)

// loaded reads files as the agent does.
func loaded(t *testing.T, files map[string]string) manifest.Result {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	res, err := manifest.Load([]string{dir}, manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Problems) != 0 {
		t.Fatalf("problems: %+v", res.Problems)
	}
	return res
}

// endpointsOf counts the addresses in slices, each once.
func endpointsOf(res manifest.Result) int {
	seen := map[string]bool{}
	for _, s := range res.Objects.EndpointSlices {
		for _, e := range s.Endpoints {
			for _, a := range e.Addresses {
				seen[a] = true
			}
		}
	}
	return len(seen)
}

func TestScaleObjects(t *testing.T) {
	for _, n := range []int{60, 100, 1000} {
		files := scaleObjects(n)
		res := loaded(t, files)
		if got := len(res.Objects.Services); got != n {
			t.Errorf("%d Services, want %d", got, n)
		}
		if got := len(res.Objects.EndpointSlices); got != n {
			t.Errorf("%d slices, want %d", got, n)
		}
		// Each churned Service has one address of its first step, which all share.
		if got, want := endpointsOf(res), (n-1)*perService+1-churned+1; got != want {
			t.Errorf("%d Services have %d addresses, want %d", n, got, want)
		}
		before := files[churnFile(3)]
		if churnSlice(3, 0) != before || churnSlice(3, 1) == before {
			t.Error("a churned slice does not begin where it is, or does not change")
		}
	}
	if movingSlice(0) == movingSlice(1) || movingSlice(0) != movingSlice(2) {
		t.Error("the moving Service does not move between two servers")
	}
}

func TestRollingObjects(t *testing.T) {
	files := map[string]string{"s.yaml": serviceAlone(rollingService, rollingVIP, "")}
	for i := range 50 {
		files[rollingFile(i)] = rollingSlice(i, perSlice, 0)
	}
	before := endpointsOf(loaded(t, files))
	next := maps.Clone(files)
	next[rollingFile(7)] = rollingSlice(7, perSlice, 1)
	after := endpointsOf(loaded(t, next))
	// At step 0 one address of each slice is the same.
	if before != 50*(perSlice-1)+1 || after != before+1 {
		t.Errorf("%d addresses, %d after a step", before, after)
	}
	asked, cold := rollingVIPs(RollingSettings{Asked: 20, Names: 5})
	if len(asked) != 20 || len(cold) != 5 || asked[0] != cold[4].Next() {
		t.Errorf("asked %v, cold %v", asked, cold)
	}
}

func TestMemoryObjects(t *testing.T) {
	res := loaded(t, map[string]string{"objects.yaml": memoryObjects(30)})
	if got := len(res.Objects.Services); got != 4*30+1 {
		t.Errorf("%d Services, want four of each name and one that greets", got)
	}
	seen := map[string]bool{}
	for block := range 5 {
		for _, vip := range memoryVIPs(block, 30) {
			seen[vip.String()] = true
		}
	}
	if len(seen) != 5*30 {
		t.Errorf("five blocks of 30 addresses are %d", len(seen))
	}
	m := Memory{Costs: []MemoryCost{{What: costService, Allocated: 50}, {What: costEndpoint, Allocated: 110}}}
	m.perEndpoint()
	if m.Costs[0].Allocated != 50 || m.Costs[1].Allocated != 3 {
		t.Errorf("a further endpoint costs %+v", m.Costs)
	}
}

func TestChurn(t *testing.T) {
	steps := make(chan int, 1000)
	c := churn(t.Context(), 1000, time.Minute, func(i int) error { steps <- i; return nil })
	for i := range 60 {
		if got := <-steps; got != i {
			t.Fatalf("step %d is numbered %d", i, got)
		}
	}
	if n, err := c.end(); err != nil || n < 60 {
		t.Errorf("%d steps, %v", n, err)
	}
	c = churn(t.Context(), 1000, time.Minute, func(int) error { return errors.New("no more") })
	err := <-c.done
	c.stop()
	wantError(t, err, "no more")
}

func TestReadMetrics(t *testing.T) {
	const text = "# HELP a what\n# TYPE a counter\na 3\nb_sum{type=\"x y\"} 0.25\n"
	m, err := readMetrics(strings.NewReader(text))
	if err != nil || m["a"] != 3 || m[`b_sum{type="x y"}`] != 0.25 || m.since(agentMetrics{"a": 1}, "a") != 2 {
		t.Errorf("read %v, %v", m, err)
	}
	_, err = readMetrics(strings.NewReader("a three\n"))
	wantError(t, err, "metric a")
	_, err = readMetrics(strings.NewReader(""))
	wantError(t, err, "no metrics")
}
