// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox/echo"
)

const captured = twoPods + `
---
apiVersion: v1
kind: Pod
metadata: {name: free, labels: {aether.io/managed: "false"}}
spec: {containers: [{name: client, image: aether/client}]}
---
apiVersion: v1
kind: Pod
metadata: {name: excluded, annotations: {capture.aether.io/exclude-outbound-ports: "9000"}}
spec: {serviceAccountName: robot, containers: [{name: client, image: aether/client}]}
`

// TestCaptureOfPods: the agent is told of each captured pod before it runs, and
// its connections are diverted. Nobody listens where they are diverted to here,
// so a captured connection is refused.
func TestCaptureOfPods(t *testing.T) {
	n, dir := plain(t, "sbtest30", captured, fakes(t))
	web := n.PodIP("web").String()
	for _, c := range []struct {
		pod, target string
		want        echo.Outcome
	}{
		{"client", web + ":9000", echo.Refused},
		{"free", web + ":9000", echo.OK},
		{"excluded", web + ":9000", echo.OK},
		{"excluded", web + ":9001", echo.Refused},
	} {
		if v := talk(t, n, c.pod, c.target); v.Outcome != c.want {
			t.Errorf("from %s to %s: got %+v, want %s", c.pod, c.target, v, c.want)
		}
	}
	told := func() string {
		entries, err := os.ReadDir(n.paths.agentState())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}
	if got := told(); got != "default.client default.excluded default.web" {
		t.Errorf("the agent knows %s", got)
	}
	b, err := os.ReadFile(filepath.Join(n.paths.agentState(), "default.excluded"))
	if err != nil {
		t.Fatal(err)
	}
	var p api.Pod
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	if p.IP != n.PodIP("excluded").String() || !strings.HasPrefix(p.NetNS, "/run/netns/aether-sbtest30-default.excluded.") || p.ServiceAccount != "robot" ||
		p.UID == "" || len(p.Annotations) != 1 {
		t.Errorf("the agent was told %+v", p)
	}
	without, _, _ := strings.Cut(captured, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: excluded")
	writeManifests(t, dir, without)
	eventually(t, "the agent is told that the pod is gone, before its namespace is", func() bool {
		return told() == "default.client default.web" && len(n.Status().Pods) == 3
	})
}

func TestAgentAndEnvoyAreKeptRunning(t *testing.T) {
	n, dir := plain(t, "sbtest31", twoPods, fakes(t))
	agent, envoy := n.AgentPID(), n.EnvoyPID()
	if agent == 0 || envoy == 0 || !alive(agent) || !alive(envoy) {
		t.Fatalf("agent %d, envoy %d", agent, envoy)
	}
	inside, err := processesIn([]string{n.nodeNS})
	if err != nil || !slices.Contains(inside, agent) || !slices.Contains(inside, envoy) {
		t.Errorf("agent and envoy are not in the node's namespace: %v (%v)", inside, err)
	}
	b, err := n.AdminGet(t.Context(), "/")
	limit := fmt.Sprintf("limit %d of %[1]d, source pod", n.openFiles)
	if err != nil || !strings.Contains(string(b), limit) || !strings.Contains(string(b), `"--concurrency" "2"`) {
		t.Errorf("envoy says %q (%v)", b, err)
	}

	if err := errors.Join(n.KillAgent(), n.KillEnvoy()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are back", func() bool {
		st := n.Status()
		return st.Agent.PID != 0 && st.Agent.PID != agent && st.Envoy.PID != 0 && st.Envoy.PID != envoy &&
			st.Agent.Restarts == 1 && st.Envoy.Restarts == 1 && strings.Contains(st.Agent.LastExit, "killed")
	})

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := n.StopAgent(ctx); err != nil {
		t.Fatal(err)
	}
	if st := n.Status(); st.Agent.State != "stopped" || st.Agent.PID != 0 || n.AgentPID() != 0 {
		t.Errorf("a stopped agent: %+v", st.Agent)
	}
	// A pod that comes while the agent is down is not started until it is back.
	writeManifests(t, dir, twoPods+"---"+strings.NewReplacer("{name: client}", "{name: new}", "10.244.7.7", "10.244.7.8").
		Replace(twoPods[strings.LastIndex(twoPods, "---")+3:]))
	eventually(t, "the new pod waits", func() bool {
		i := slices.IndexFunc(n.Status().Pods, func(p PodStatus) bool { return p.Name == "new" })
		return i >= 0 && strings.Contains(n.Status().Pods[i].Problem, "tell the agent")
	})
	if err := n.StartAgent(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, "new"); err != nil {
		t.Fatal(err)
	}

	// Other settings: Envoy is restarted only when its bootstrap changes.
	envoy = n.EnvoyPID()
	if err := n.RestartAgent(ctx, AgentSettings{Mode: "balance"}); err != nil || n.EnvoyPID() != envoy {
		t.Errorf("mode: envoy was %d and is %d (%v)", envoy, n.EnvoyPID(), err)
	}
	if err := n.RestartAgent(ctx, AgentSettings{EgressSource: "node"}); err != nil || n.EnvoyPID() == envoy {
		t.Errorf("egress source: envoy is still %d (%v)", envoy, err)
	}
	st := n.Status()
	if st.Mode != "balance" || st.EgressSource != "node" || st.Agent.Restarts != 1 || st.Envoy.Restarts != 1 {
		t.Errorf("after restarts on purpose: %+v", st)
	}
}

func TestAgentThatDoesNotStayUp(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	writeManifests(t, dir, twoPods)
	c := Config{Name: "sbtest32", Dirs: []string{dir}, StateDir: t.TempDir(), AgentArgs: []string{"--broken"}}
	fakes(t)(&c)
	begin := time.Now()
	n, err := Up(t.Context(), c)
	if err == nil {
		_ = n.Down(context.Background())
	}
	if err == nil || !strings.Contains(err.Error(), "agent does not stay up") || !strings.Contains(err.Error(), "told to end at once") {
		t.Errorf("got %v, want the agent's own words", err)
	}
	if time.Since(begin) > 10*time.Second {
		t.Errorf("it took %v", time.Since(begin))
	}
	if left, _ := sandboxNetNS(c.Name); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
}
