// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"aether.io/aether/internal/model"
)

func genPods(t *rapid.T) []model.Workload {
	var ws []model.Workload
	for i := range rapid.IntRange(0, 4).Draw(t, "pods") {
		ws = append(ws, model.Workload{
			Name:           model.Name{Namespace: "default", Name: fmt.Sprintf("web-%d", i)},
			UID:            rapid.StringMatching(`[0-9a-f]{0,8}`).Draw(t, "uid"),
			ServiceAccount: rapid.StringMatching(`[a-z]{1,5}`).Draw(t, "serviceAccount"),
			IP:             netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}),
			NetNS:          "/var/run/netns/" + rapid.StringMatching(`[a-zA-Z"\\]{1,5}`).Draw(t, "netns"),
		})
	}
	return ws
}

func TestPodRecordsSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := genPods(t)
		got, err := decodePods(encodePods(ws, noAnnotations))
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 && len(ws) == 0 {
			return
		}
		if d := cmp.Diff(ws, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Fatalf("pods (-want +got):\n%s", d)
		}
	})
}

// A write that was cut short anywhere loads whole or is refused whole.
func TestEveryPrefixOfPodRecordsLoadsWholeOrNotAtAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := encodePods(genPods(t), noAnnotations)
		for n := range len(data) {
			got, err := decodePods(data[:n])
			if err == nil && string(encodePods(got, noAnnotations)) != string(data) {
				t.Fatalf("prefix of %d bytes half loads: %v", n, got)
			}
			if err != nil && got != nil {
				t.Fatalf("prefix of %d bytes: pods with the error %v", n, err)
			}
		}
	})
}

func TestPodRecordsThatAreRefused(t *testing.T) {
	pod := `{"namespace":"a","name":"b","serviceAccount":"c","ip":"10.0.0.1","netns":"/n"}`
	for _, c := range []struct{ data, want string }{
		{``, "parse JSON"},
		{`{}`, "version: missing"},
		{`{"version":2,"pods":[]}`, "reads version 1, the file has 2"},
		{`{"version":1}`, "pods: missing"},
		{`{"version":1,"pods":[]} {}`, "something follows"},
		{`{"version":1,"pods":[` + pod + `,` + pod + `]}`, "pods[1]: a/b is there twice"},
		{`{"version":1,"pods":[{"namespace":"a"}]}`, `pods[0].name: ""`},
	} {
		if _, err := decodePods([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.data, err, c.want)
		}
	}
}

func noAnnotations(model.Name) map[string]string { return nil }

// Annotations that say what is captured are kept with the pod, and no others.
func TestAnnotationsAreKept(t *testing.T) {
	name := model.Name{Namespace: "shop", Name: "web"}
	kept := captureAnnotations(map[string]string{
		"capture.aether.io/redirect-all": "false", "capture.aether.io/": "x", "example.org/owner": "jo",
	})
	w := model.Workload{Name: name, ServiceAccount: "web", IP: netip.MustParseAddr("10.244.0.2"), NetNS: "/run/netns/web"}
	data := encodePods([]model.Workload{w}, func(model.Name) map[string]string { return kept })
	got := restoreAnnotations(data)
	want := map[model.Name]map[string]string{name: {"capture.aether.io/redirect-all": "false"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("annotations (-want +got):\n%s", d)
	}
	if ws, err := decodePods(data); err != nil || len(ws) != 1 || ws[0] != w {
		t.Errorf("the pods are %v, %v", ws, err)
	}
	if captureAnnotations(map[string]string{"example.org/owner": "jo"}) != nil {
		t.Error("annotations that say nothing of capture are kept")
	}
}

// Pod records are in two places, and one good copy is enough: a running pod is
// reported once only.
func TestPodRecordsSurviveALostCopy(t *testing.T) {
	pods := func(name string) string {
		return string(encodePods([]model.Workload{{
			Name: model.Name{Namespace: "default", Name: name}, ServiceAccount: "a", IP: netip.MustParseAddr("10.244.0.2"), NetNS: "/n",
		}}, noAnnotations))
	}
	for _, c := range []struct {
		name, run, state string // contents, empty for no file
		want             string
		damaged          bool
	}{
		{"both", pods("run"), pods("state"), "run", false},
		{"the state directory's is lost", pods("run"), "", "run", false},
		{"the run directory's is lost", "", pods("state"), "state", false},
		{"the run directory's is damaged", pods("run")[:20], pods("state"), "state", true},
		{"both are damaged", "{", "{", "", true},
		{"neither", "", "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{RunDir: t.TempDir(), StateDir: t.TempDir()}
			for dir, content := range map[string]string{cfg.RunDir: c.run, cfg.StateDir: c.state} {
				if content == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, podsFile), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r := restore(cfg, func(string) error { return nil }, slog.New(slog.DiscardHandler))
			got := ""
			if len(r.pods) == 1 {
				got = r.pods[0].Name.Name
			}
			if _, damaged := r.damaged[podsFile]; got != c.want || damaged != c.damaged {
				t.Errorf("pods %v, damaged %v; want pod %q, damaged %t", r.pods, r.damaged, c.want, c.damaged)
			}
		})
	}
}

// A directory that vanished is made again with the next write.
func TestStoreMakesAVanishedDirectory(t *testing.T) {
	cfg := Config{RunDir: t.TempDir(), StateDir: filepath.Join(t.TempDir(), "gone", "state")}
	for _, name := range stateFiles {
		if err := cfg.store(name, []byte("x")); err != nil {
			t.Error(err)
		}
		for _, dir := range cfg.places(name) {
			if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != "x" {
				t.Errorf("%s in %s: %q, %v", name, dir, b, err)
			}
		}
	}
}

// The demand file is written at once after a quiet time, and then at a pace, however
// many names are asked for; what is written last has them all.
func TestDemandFileHasAPace(t *testing.T) {
	n := bigNode(t, 40)
	writes := make(chan write, len(stateFiles))
	n.writes = writes
	n.clock.Advance(second)
	count, last := 0, ""
	written := func() bool {
		select {
		case w := <-writes:
			last = string(w.encode())
			count++
			n.turn([]message{saved{w.file, w.seq, nil}})
			return true
		default:
			return false
		}
	}
	n.ask(t, bigTarget(0))
	if !written() {
		t.Fatal("the first name is not written at once")
	}
	for i := range 39 {
		n.clock.Advance(demandGap / 13)
		n.ask(t, bigTarget(1+i))
		written()
	}
	if count < 3 || count > 4 {
		t.Errorf("written %d times in three times the shortest pause, want 4", count)
	}
	at, ok := n.wake()
	if !ok || at.Sub(n.clock.Now()) > demandGap {
		t.Fatalf("the loop wakes at %v (%v), now it is %v", at, ok, n.clock.Now())
	}
	n.clock.Advance(at.Sub(n.clock.Now()))
	n.turn(nil)
	if !written() {
		t.Fatal("nothing is written though names came")
	}
	for i := range 40 {
		if !strings.Contains(last, `"`+bigTarget(i).String()+`"`) {
			t.Errorf("the last file lacks %s", bigTarget(i))
		}
	}
}
