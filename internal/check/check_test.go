// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"aether.io/aether/internal/agent/api"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// healthy is a node of which everything is known and well.
func healthy() Facts {
	pod := func(name string) Pod {
		return Pod{
			Name: "shop/" + name, NetNS: "/run/netns/" + name, Listener: "ready",
			Sight: Saw(PodSight{Listening: true, Ports: 28232, Conntrack: Conntrack{Count: 3, Max: 262144}}, nil),
		}
	}
	space := Saw(Space{FreeBytes: 50 << 30, Bytes: 100 << 30, FreeInodes: 900, Inodes: 1000}, nil)
	return Facts{
		Now: now,
		Agent: Agent{
			Node: "n1", Version: "v1", Mode: "enforce", EgressSource: "pod", Synced: true, RangeKnown: true, Range: []string{"10.96.0.0/16"},
		},
		Envoy: Envoy{
			Connected: []string{"1.40.0"},
			Server:    Saw(Server{Version: "1.40.0", State: "LIVE", Uptime: time.Hour}, nil),
			Stats:     Saw(Stats{Connections: 12}, nil), PID: Saw(7, nil), Files: Saw(Files{Limit: 131072, Open: 90}, nil),
			MaxConnections: Saw(uint64(39321), nil), PodLimit: 10_000,
			Supervisor: Saw(Supervisor{Epochs: 1, State: "serving"}, nil),
		},
		Pods:      []Pod{pod("web"), pod("client")},
		Names:     Names{Services: 20, Other: 3, All: 23, Budget: 1024, CompactAt: 16_000},
		APIServer: &APIServer{Address: "https://10.96.0.1:443"},
		Looks:     &Looks{},
		Refuser:   Saw(6*time.Millisecond, nil),
		Disk: Disk{
			StateDir: "/var/lib/aether", Files: []File{{Name: "demand.json"}, {Name: "pods.json"}}, Space: space,
			AccessLog: "/var/log/aether/access.log", LogSpace: space,
		},
		Clock: Clock{
			Boot: Saw(now.Add(-time.Hour), nil), Newest: Saw(Newest{"/var/lib/aether/demand.json", now.Add(-time.Minute)}, nil),
			Step: Saw(time.Millisecond, nil), Synchronised: Saw(true, nil),
		},
		Kernel: Kernel{
			Release: Saw("6.8.0-31-generic", nil), Ports: Saw(28232, nil), Conntrack: Saw(Conntrack{Count: 10, Max: 1000}, nil), Backlog: Saw(4096, nil),
		},
		ConnectOnly: Saw([]ConnectOnly{{Pod: "shop/web", Where: "spec.containers[0].readinessProbe", What: "tcpSocket 80", Own: true}}, nil),
	}
}

func TestHealthy(t *testing.T) {
	got := Answered(Assess(healthy()), "v1", "/run/aether/agent.sock")
	if got.State != api.FindingOK || got.Failed+got.Warnings+got.NotChecked != 0 {
		t.Errorf("a healthy node is %s: %+v", got.State, notOK(got))
	}
	seen := map[string]bool{}
	for _, f := range findings(got) {
		seen[f.ID] = true
	}
	for _, id := range IDs() {
		if !seen[id] {
			t.Errorf("nothing was said of %s", id)
		}
	}
}

// findings returns every finding, notOK those that count.
func findings(c api.Check) (out []api.Finding) {
	for _, s := range c.Sections {
		out = append(out, s.Findings...)
	}
	return out
}

func notOK(c api.Check) (out []string) {
	for _, f := range findings(c) {
		if f.State != api.FindingOK && f.State != api.FindingNote {
			out = append(out, f.State+" "+f.ID+": "+f.Seen)
		}
	}
	return out
}

var errBroken = errors.New("permission denied")

// breaks are one thing at a time that is not well, and the findings on it:
// "state id: beginning of what was seen".
var breaks = []struct {
	name  string
	spoil func(*Facts)
	want  []string
}{
	{"not synced", func(f *Facts) { f.Agent.Synced = false }, []string{"failed sources-synced: the sources have not synced"}},
	{"a manifest is broken", func(f *Facts) {
		f.Agent.Problems = []api.Problem{{Source: "a.yaml: Service shop/web: spec.clusterIP", Text: "is no address"}}
	}, []string{"warning source-problems: 1 complaint: a.yaml: Service shop/web: spec.clusterIP: is no address"}},
	{"API server away", func(f *Facts) {
		f.APIServer.UnreachableSince, f.APIServer.Err, f.APIServer.Stale = now.Add(-2*time.Minute), "connection refused", []string{"services"}
	}, []string{"failed api-server: the API server https://10.96.0.1:443 is unreachable since 2026-03-04T05:04:07Z (2m0s): connection refused"}},
	{"stale", func(f *Facts) { f.APIServer.Stale = []string{"services", "pods"} }, []string{
		"warning api-server: the API server https://10.96.0.1:443 answers, but what is known of services, pods may be out of date",
	}},
	{"looks are forbidden", func(f *Facts) { *f.Looks = Looks{"forbidden", now.Add(-time.Minute)} }, []string{
		"warning unknown-addresses: whose an unknown address is cannot be seen since 2026-03-04T05:05:07Z (1m0s): forbidden",
	}},
	{"an old cluster", func(f *Facts) { *f.Looks = Looks{"not-served", now.Add(-time.Hour)} }, nil},
	{"no range", func(f *Facts) { f.Agent.RangeKnown, f.Agent.Range = false, nil }, []string{"failed service-range: no Service range is known"}},

	{"Envoy away", func(f *Facts) { f.Envoy.Connected = nil }, []string{
		"failed envoy-connected: no Envoy is connected", "not-checked pod-listeners: not checked: no Envoy",
	}},
	{"admin away", func(f *Facts) { f.Envoy.Server = Saw(Server{}, errBroken) }, []string{
		"not-checked envoy-version: not checked: Envoy's admin socket", "failed envoy-state: Envoy's admin socket does not answer",
	}},
	{"an old Envoy", func(f *Facts) { f.Envoy.Server.Value.Version = "1.39.2" }, []string{"failed envoy-version: Envoy is of version 1.39.2"}},
	{"a newer Envoy", func(f *Facts) { f.Envoy.Server.Value.Version = "1.41.0-dev" }, []string{"warning envoy-version: Envoy is of version 1.41.0-dev"}},
	{"a patched Envoy", func(f *Facts) { f.Envoy.Server.Value.Version = "1.40.3" }, nil},
	{"a version that is none", func(f *Facts) { f.Envoy.Server.Value.Version = "main" }, []string{"failed envoy-version: Envoy is of version main"}},
	{"draining", func(f *Facts) { f.Envoy.Server.Value.State = "DRAINING" }, []string{"warning envoy-state: Envoy is DRAINING"}},
	{"not supervised", func(f *Facts) { f.Envoy.Supervisor = Saw(Supervisor{Absent: true}, nil) }, []string{
		"not-checked envoy-processes: not checked: Envoy is not supervised", "not-checked envoy-restarts: not checked: Envoy is not supervised",
	}},
	{"the supervisor hangs", func(f *Facts) { f.Envoy.Supervisor = Saw(Supervisor{}, errBroken) }, []string{
		"not-checked envoy-processes: not checked", "not-checked envoy-supervised: not checked", "not-checked envoy-restarts: not checked",
	}},
	{"a hot restart", func(f *Facts) { f.Envoy.Supervisor.Value.Epochs, f.Envoy.Connected = 2, []string{"1.40.0", "1.40.0"} }, nil},
	{"three processes", func(f *Facts) { f.Envoy.Supervisor.Value.Epochs = 3 }, []string{"warning envoy-processes: 3 Envoy processes run"}},
	{"Envoy crashed", func(f *Facts) { f.Envoy.Supervisor.Value.Restarts, f.Envoy.Supervisor.Value.LastExit = 2, "signal 11" }, []string{
		"warning envoy-restarts: Envoy ended unasked 2 times since its supervisor started, last: signal 11",
	}},
	{"warming for long", func(f *Facts) { f.Envoy.StillWarming = Warming{Clusters: 2, Listeners: 1} }, []string{
		"warning envoy-warming: 2 clusters and 1 listener have been warming",
	}},
	{"a rejected cluster", func(f *Facts) { f.Agent.Rejected = []Rejected{{"cluster", "svc:10.96.0.10:80", "no such thing"}} }, []string{
		"failed envoy-rejections: Envoy rejected cluster svc:10.96.0.10:80: no such thing",
	}},
	{"a process nobody knows", func(f *Facts) { f.Envoy.PID = Saw(0, errBroken) }, []string{"not-checked envoy-descriptors: not checked: Envoy's process is not known"}},
	{"descriptors out of reach", func(f *Facts) { f.Envoy.Files = Saw(Files{}, errBroken) }, []string{"not-checked envoy-descriptors: not checked: process 7: permission"}},
	{"no limit to read", func(f *Facts) { f.Envoy.MaxConnections = Saw(uint64(0), errBroken) }, []string{"not-checked envoy-descriptors: not checked: Envoy's connection limit"}},
	{"no limit", func(f *Facts) { f.Envoy.MaxConnections.Value = 0 }, []string{
		"failed envoy-descriptors: Envoy (pid 7) has 90 of 131072", "warning node-connections: 12 captured",
	}},
	{"a limit for more descriptors", func(f *Facts) { f.Envoy.Files.Value.Limit = 20_000 }, []string{"failed envoy-descriptors: Envoy (pid 7) has 90 of 20000"}},
	{"descriptors nearly used", func(f *Facts) { f.Envoy.Files.Value.Open = 120_000 }, []string{"failed envoy-descriptors: Envoy (pid 7) has 120000 of 131072"}},
	{"few descriptors", func(f *Facts) { f.Envoy.Files.Value.Limit, f.Envoy.MaxConnections.Value = 3000, 900 }, []string{"warning envoy-descriptors: Envoy (pid 7) has 90 of 3000"}},
	{"the refuser is away", func(f *Facts) { f.Refuser = Saw(time.Duration(0), errBroken) }, []string{"failed refuser: a connection to the refuser was not reset"}},
	{"the refuser is slow", func(f *Facts) { f.Refuser.Value = 2 * time.Second }, []string{"warning refuser: the refuser took 2s"}},

	{"a pending listener", func(f *Facts) { f.Pods[0].Listener = "pending" }, []string{"failed pod-listeners: pod shop/web: Envoy has not taken its listener"}},
	{"a rejected listener", func(f *Facts) { f.Pods[1].Listener, f.Pods[1].Nack = "rejected", "failed to open netns" }, []string{
		"failed pod-listeners: pod shop/client: Envoy rejected its listener: failed to open netns",
	}},
	{"a namespace is gone", func(f *Facts) {
		f.Pods[0].NetNSErr, f.Pods[0].Sight = "/run/netns/web does not exist", Look[PodSight]{}
	}, []string{
		"failed pod-namespaces: pod shop/web: /run/netns/web does not exist",
	}},
	{"a namespace out of reach", func(f *Facts) { f.Pods[0].Sight = Saw(PodSight{}, errBroken) }, []string{
		"not-checked pod-bound: not checked: pod shop/web: permission", "not-checked pod-capture: not checked: pod shop/web: permission",
	}},
	{"nobody listens", func(f *Facts) { f.Pods[0].Sight.Value.Listening = false }, []string{"failed pod-bound: pod shop/web: nobody listens"}},
	{"no rules", func(f *Facts) {
		f.Pods[0].Sight.Value.Differences = []string{"there is no nft table"}
		f.Pods[0].Sight.Value.Repair = "aetherctl capture install --netns /run/netns/web"
	}, []string{"failed pod-capture: pod shop/web: there is no nft table"}},
	{"few ports", func(f *Facts) { f.Pods[0].Sight.Value.Ports = 100 }, []string{"warning pod-ports: pod shop/web has 100 ports"}},
	{"a pod beyond its rate", func(f *Facts) { f.Pods[0].Sight.Value.Slowed = 7 }, []string{
		"warning pod-rate: pod shop/web was slowed: its connection rate held back 7 first segments",
	}},
	{"a pod's conntrack is full", func(f *Facts) { f.Pods[0].Sight.Value.Conntrack.Count = 262000 }, []string{
		"failed conntrack: 262000 of at most 262144 connections are tracked in the namespace of pod shop/web",
	}},

	{"no statistics", func(f *Facts) { f.Envoy.Stats = Saw(Stats{}, errBroken) }, []string{
		"not-checked envoy-warming: not checked", "not-checked node-connections: not checked", "not-checked pod-connections: not checked",
		"not-checked first-dials: not checked", "not-checked statistics: not checked", "not-checked access-log: not checked: whether records were lost",
	}},
	{"the node's limit was hit", func(f *Facts) { f.Envoy.Stats.Value.NodeOverflow = 5 }, []string{"warning node-connections: 12 captured connections are open, the node's limit is 39321; 5 were turned away"}},
	{"the node's limit is near", func(f *Facts) { f.Envoy.Stats.Value.Connections = 39000 }, []string{"warning node-connections: 39000 captured"}},
	{"a pod's limit was hit", func(f *Facts) { f.Envoy.Stats.Value.PodLimited = 7 }, []string{"warning pod-connections: 7 connections were turned away"}},
	{"first dials unanswered", func(f *Facts) { f.Envoy.Stats.Value.OnDemandTimeouts = 2 }, []string{"warning first-dials: 2 first dials"}},
	{"budget used", func(f *Facts) { f.Names.Other = 1000 }, []string{"warning names-budget: 1000 of 1024"}},
	{"over the budget", func(f *Facts) { f.Names.OverLimit = 9 }, []string{"warning names-budget: 3 of 1024 names that are no Service port's are in use; 9 were turned away"}},
	{"many names", func(f *Facts) { f.Names.All = 15_000 }, []string{"warning names-total: Envoy asked for 15000 names"}},
	{"never a restart for names", func(f *Facts) { f.Names.All, f.Names.CompactAt = 15_000, 0 }, nil},

	{"counters do not fit", func(f *Facts) { f.Envoy.Stats.Value.StatsOverflow = 4 }, []string{"warning statistics: 4 counts did not fit"}},
	{"log not writable", func(f *Facts) { f.Disk.LogWritable = Saw(struct{}{}, errBroken) }, []string{"failed access-log: Envoy cannot log: permission denied"}},
	{"the log was taken away", func(f *Facts) { f.Disk.LogMissing = true }, []string{"failed access-log: /var/log/aether/access.log is not there"}},
	{"no log and no pods yet", func(f *Facts) { f.Disk.LogMissing, f.Pods = true, nil }, []string{"not-checked kernel: not checked"}},
	{"log writes failed", func(f *Facts) { f.Envoy.Stats.Value.LogWriteFailed = 3 }, []string{"failed access-log: 3 writes"}},
	{"log records dropped", func(f *Facts) { f.Envoy.Stats.Value.LogDropped = 3 }, []string{"warning access-log: 3 lines"}},
	{"records not sent", func(f *Facts) { f.Envoy.Stats.Value.RecordsDropped = 3 }, []string{"warning access-log: 3 records could not be sent"}},
	{"a damaged file", func(f *Facts) { f.Disk.Files[0].Damaged = "parse JSON; set aside: x" }, []string{"warning state-files: demand.json was damaged"}},
	{"an unsaved file", func(f *Facts) { f.Disk.Files[1].Unsaved = "no space left" }, []string{"failed state-files: pods.json cannot be written: no space left"}},
	{"a read-only directory", func(f *Facts) { f.Disk.Writable = Saw(struct{}{}, errBroken) }, []string{"failed state-directory: nothing can be written: permission denied"}},
	{"a full disk", func(f *Facts) { f.Disk.Space.Value.FreeBytes = 1000 }, []string{"failed disk-space: 0 MiB of 102400 are free where /var/lib/aether is"}},
	{"little space", func(f *Facts) { f.Disk.LogSpace.Value.FreeBytes = 1 << 30 }, []string{"warning disk-space: 1024 MiB of 102400 are free where /var/log/aether/access.log is"}},
	{"few inodes", func(f *Facts) { f.Disk.Space.Value.FreeInodes = 3 }, []string{"warning disk-space: 51200 MiB of 102400 are free where /var/lib/aether is, but only 3 of 1000 inodes"}},
	{"no inodes to count", func(f *Facts) { f.Disk.Space.Value.FreeInodes, f.Disk.Space.Value.Inodes = 0, 0 }, nil},
	{"a log on no disk", func(f *Facts) { f.Disk.LogSpace = NotLooked[Space]("/dev/stdout is no file") }, []string{"not-checked disk-space: not checked: /dev/stdout"}},

	{"a clock from long ago", func(f *Facts) { f.Clock.Boot.Value = time.Unix(90, 0) }, []string{"failed clock: by the wall clock"}},
	{"a file of the future", func(f *Facts) { f.Clock.Newest.Value.At = now.Add(time.Hour) }, []string{"warning clock: /var/lib/aether/demand.json was written 1h0m0s from now"}},
	{"no file", func(f *Facts) { f.Clock.Newest.Value = Newest{} }, nil},
	{"a step back", func(f *Facts) { f.Clock.Step.Value = -90 * time.Second }, []string{"warning clock: the wall clock stepped by -1m30s"}},
	{"a step ahead", func(f *Facts) { f.Clock.Step.Value = 3 * time.Second }, []string{"warning clock: the wall clock stepped by 3s"}},
	{"not synchronised", func(f *Facts) { f.Clock.Synchronised.Value = false }, nil}, // a note
	{"clocks out of reach", func(f *Facts) {
		f.Clock = Clock{Saw(time.Time{}, errBroken), Saw(Newest{}, errBroken), Saw(time.Duration(0), errBroken), Saw(false, errBroken)}
	}, []string{
		"not-checked clock: not checked: when the machine started", "not-checked clock: not checked: times of files",
		"not-checked clock: not checked: steps", "not-checked clock: not checked: whether it is synchronised",
	}},
	{"an old kernel", func(f *Facts) { f.Kernel.Release.Value = "5.4.0-100" }, []string{"failed kernel: Linux 5.4.0-100"}},
	{"the oldest kernel", func(f *Facts) { f.Kernel.Release.Value = "5.9-rc1" }, nil},
	{"a kernel of no number", func(f *Facts) { f.Kernel.Release.Value = "x" }, []string{"failed kernel: Linux x"}},
	{"node-sourced, few ports", func(f *Facts) { f.Agent.EgressSource, f.Kernel.Ports.Value = "node", 5000 }, []string{"warning node-ports: the node has 5000 ports"}},
	{"pod-sourced, few ports of the node", func(f *Facts) { f.Kernel.Ports.Value = 5000 }, nil},
	{"ports out of reach", func(f *Facts) { f.Agent.EgressSource, f.Kernel.Ports = "node", Saw(0, errBroken) }, []string{"not-checked node-ports: not checked: permission"}},
	{"conntrack nearly full", func(f *Facts) { f.Kernel.Conntrack.Value.Count = 850 }, []string{"warning conntrack: 850 of at most 1000"}},
	{"conntrack full", func(f *Facts) { f.Kernel.Conntrack.Value.Count = 1000 }, []string{"failed conntrack: 1000 of at most 1000"}},
	{"no conntrack", func(f *Facts) { f.Kernel.Conntrack.Value = Conntrack{Off: true} }, nil},
	{"a short backlog", func(f *Facts) { f.Kernel.Backlog.Value = 128 }, []string{"warning backlog: net.core.somaxconn is 128"}},
	{"a probe that only connects", func(f *Facts) {
		f.ConnectOnly.Value = []ConnectOnly{{Pod: "shop/web", Where: "spec.initContainers[0].command", What: "nc -z ledger 5432"}}
	}, []string{"warning connect-only: pod shop/web: spec.initContainers[0].command only connects: nc -z ledger 5432"}},
	{"no specs of pods", func(f *Facts) { f.ConnectOnly = NotLooked[[]ConnectOnly]("nobody knows them") }, []string{"not-checked connect-only: not checked: commands and probes of pods: nobody"}},
	{"no pods", func(f *Facts) { f.Pods = nil }, []string{"not-checked kernel: not checked: Linux 6.8.0-31-generic is new enough, but no pod"}},
}

// One thing at a time is not well: exactly that is found, with a reason and a fix.
func TestOneThingAtATime(t *testing.T) {
	for _, b := range breaks {
		t.Run(b.name, func(t *testing.T) {
			f := healthy()
			b.spoil(&f)
			got := Assess(f)
			found := notOK(got)
			if len(found) != len(b.want) {
				t.Fatalf("found %q, want %q", found, b.want)
			}
			for i, want := range b.want {
				if !strings.HasPrefix(found[i], want) {
					t.Errorf("found %q, want %q", found[i], want)
				}
			}
			checkForm(t, got)
		})
	}
}

// checkForm checks what holds of every check.
func checkForm(t interface{ Errorf(string, ...any) }, c api.Check) {
	var failed, warnings, notChecked int
	for _, f := range findings(c) {
		switch f.State {
		case api.FindingFailed:
			failed++
		case api.FindingWarning:
			warnings++
		case api.FindingNotChecked:
			notChecked++
		}
		if (f.State == api.FindingOK) != (f.Why == "") {
			t.Errorf("%s is %s and says why: %q", f.ID, f.State, f.Why)
		}
		if (f.State == api.FindingFailed || f.State == api.FindingWarning) && len(f.Fix) == 0 {
			t.Errorf("%s is %s without a fix: %s", f.ID, f.State, f.Seen)
		}
		for _, fix := range f.Fix {
			if strings.TrimSpace(fix) == "" {
				t.Errorf("%s has an empty fix", f.ID)
			}
		}
		if f.Docs != "docs/check.md#"+f.ID || f.Seen == "" {
			t.Errorf("%+v", f)
		}
	}
	worst := api.FindingOK
	if warnings > 0 {
		worst = api.FindingWarning
	}
	if failed > 0 {
		worst = api.FindingFailed
	}
	if c.State != worst || c.Failed != failed || c.Warnings != warnings || c.NotChecked != notChecked {
		t.Errorf("the sum is %s, %d, %d, %d, want %s, %d, %d, %d", c.State, c.Failed, c.Warnings, c.NotChecked, worst, failed, warnings, notChecked)
	}
}

// Several things at a time are all found.
func TestSeveralThings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := healthy()
		chosen := rapid.SliceOfNDistinct(rapid.IntRange(0, len(breaks)-1), 0, 6, rapid.ID).Draw(t, "breaks")
		for _, i := range chosen {
			pods := f.Pods
			if breaks[i].spoil(&f); f.Pods == nil {
				f.Pods = pods // for the others to spoil
			}
		}
		checkForm(t, Assess(f))
	})
}

func TestNotChecked(t *testing.T) {
	away := Away(now, "ask the agent: no socket", "pgrep -a aether-agent")
	checkForm(t, away)
	if away.Failed != 1 || away.NotChecked != len(IDs())-2 {
		t.Errorf("without the agent %d failed and %d were not checked, want 1 and %d", away.Failed, away.NotChecked, len(IDs())-2)
	}
	if got := findings(away)[0]; got.ID != "agent-answers" || got.State != api.FindingFailed || got.Fix[0] != "pgrep -a aether-agent" {
		t.Errorf("%+v", got)
	}
	other := Answered(Assess(healthy()), "v2", "/run/aether/agent.sock")
	checkForm(t, other)
	if want := []string{`warning agent-version: the agent is of version "v1", this tool of "v2"`}; !slices.Equal(notOK(other), want) {
		t.Errorf("another version: %q", notOK(other))
	}
}

// An assessor makes no finding that it does not announce.
func TestAssessorsAnnounce(t *testing.T) {
	announced := []string{"agent-answers", "agent-version"}
	for _, s := range assessors {
		announced = append(announced, s.ids...)
		for _, b := range breaks {
			f := healthy()
			b.spoil(&f)
			for _, x := range s.assess(f) {
				if !slices.Contains(s.ids, x.ID) {
					t.Errorf("section %s makes %s", s.name, x.ID)
				}
			}
		}
	}
	slices.Sort(announced)
	if d := cmp.Diff(IDs(), announced); d != "" {
		t.Errorf("identifiers (-with a reason +announced):\n%s", d)
	}
}
