// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/manifest"
	"aether.io/aether/internal/sandbox/echo"
)

// shop has a Service over pods in two zones, one of them of another node.
const shop = `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: za}}
status: {addresses: [{type: InternalIP, address: 172.20.0.9}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {topology.kubernetes.io/zone: zb}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, trafficDistribution: PreferSameNode, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: heads}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: given, namespace: other}
spec: {clusterIP: 10.96.0.30, selector: {app: none}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, labels: {app: web}}
spec:
  containers:
  - name: echo
    image: aether/echo
    args: [--http, ":8080"]
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, labels: {app: web}}
spec:
  nodeName: n2
  terminationGracePeriodSeconds: 1
  containers:
  - name: echo
    image: aether/echo
    args: [--http, ":9090", --drain, 500ms]
    ports: [{name: http, containerPort: 9090}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec: {containers: [{name: client, image: aether/client}]}
`

// generated reads the generated objects with the reader the agent uses, and
// writes the slices of a Service as show does.
func generated(t *testing.T, n *Node) string {
	t.Helper()
	r, err := manifest.Load([]string{n.paths.generated()}, manifest.Options{})
	if err != nil || len(r.Problems) > 0 || len(r.Notes) > 0 {
		t.Fatalf("the generated objects: %v, problems %v, notes %v", err, r.Problems, r.Notes)
	}
	return show(r.Objects.EndpointSlices)
}

// becomes waits for the generated slices to be these.
func becomes(t *testing.T, n *Node, format string, args ...any) {
	t.Helper()
	want := fmt.Sprintf(format, args...)
	var got string
	deadline := time.Now().Add(10 * time.Second)
	for got = generated(t, n); got != want; got = generated(t, n) {
		if time.Now().After(deadline) {
			t.Fatalf("the slices are\n%s, want\n%s", got, want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestServicesFollowThePods(t *testing.T) {
	n, dir := plain(t, "sbtest10", shop)
	one, two := n.PodIP("web-1").String(), n.PodIP("web-2").String()
	rest := fmt.Sprintf("heads-sandbox-0 [=80/TCP] %s %%s %s %%s\n", one, two)
	slices := func(oneState, twoState, oneHints, twoHints string) string {
		return fmt.Sprintf(rest, oneState, twoState) +
			fmt.Sprintf("web-sandbox-0 [http=8080/TCP] %s %s%s\nweb-sandbox-1 [http=9090/TCP] %s %s%s\n", one, oneState, oneHints, two, twoState, twoHints) +
			"given-sandbox-0 []\n"
	}
	const a, b = " zone=za node=n1", " zone=zb node=n2"
	becomes(t, n, "%s", slices("r+s+t-", "r+s+t-", a, b))
	if n.nodeIP.String() != "172.20.0.9" {
		t.Errorf("the node's address is %s, want the Node object's", n.nodeIP)
	}

	if err := n.SetReady("web-1", "echo", false); err != nil {
		t.Fatal(err)
	}
	becomes(t, n, "%s", slices("r-s-t-", "r+s+t-", "", b))
	if err := n.ResetReady("default/web-1", ""); err != nil {
		t.Fatal(err)
	}
	becomes(t, n, "%s", slices("r+s+t-", "r+s+t-", a, b))
	if err := n.SetTerminating("web-1", true); err != nil {
		t.Fatal(err)
	}
	becomes(t, n, "%s", slices("r-s+t+", "r+s+t-", "", b))
	if err := n.SetTerminating("web-1", false); err != nil {
		t.Fatal(err)
	}
	// By annotation, while it runs: the pod stays the same.
	pid := n.Status().Pods[1].Containers[0].PID
	writeManifests(t, dir, strings.Replace(shop, "{name: web-1, labels: {app: web}}", "{name: web-1, labels: {app: web}, annotations: {sandbox.aether.io/ready: 'false'}}", 1))
	becomes(t, n, "%s", slices("r-s-t-", "r+s+t-", "", b))
	if got := n.Status().Pods[1].Containers[0].PID; got != pid || pid == 0 {
		t.Errorf("the pod's process was %d and is %d", pid, got)
	}
	writeManifests(t, dir, shop)
	becomes(t, n, "%s", slices("r+s+t-", "r+s+t-", a, b))

	// A pod that is deleted serves on while it ends, then it is gone.
	var ended string
	for _, p := range n.Status().Pods {
		if p.Name == "web-2" {
			ended = p.NetNS
		}
	}
	if _, err := os.Stat(ended); err != nil {
		t.Fatalf("the pod's namespace: %v", err)
	}
	without, _, _ := strings.Cut(shop, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web-2")
	client := shop[strings.LastIndex(shop, "---"):]
	writeManifests(t, dir, without+client)
	becomes(t, n, "%s", slices("r+s+t-", "r-s+t+", a, ""))
	becomes(t, n, "heads-sandbox-0 [=80/TCP] %[1]s r+s+t-\nweb-sandbox-0 [http=8080/TCP] %[1]s r+s+t-%[2]s\ngiven-sandbox-0 []\n", one, a)
	eventually(t, "the pod's namespace is gone", func() bool {
		_, err := os.Stat(ended)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestServiceNamesAndVIPs(t *testing.T) {
	n, dir := plain(t, "sbtest11", shop)
	if got := n.VIP("other/given").String(); got != "10.96.0.30" {
		t.Errorf("given has %s", got)
	}
	vip := n.VIP("web")
	if !vip.IsValid() || n.VIP("heads").IsValid() || n.VIP("nothing").IsValid() {
		t.Fatalf("web has %s, heads %s", vip, n.VIP("heads"))
	}
	lookup := func(name string) string {
		out, err := n.Output(t.Context(), "client", "getent", "ahostsv4", name)
		if err != nil {
			return err.Error()
		}
		var addrs []string
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); f[1] == "STREAM" {
				addrs = append(addrs, f[0])
			}
		}
		return strings.Join(addrs, " ")
	}
	for name, want := range map[string]string{
		"web": vip.String(), "web.default": vip.String(), "web.default.svc": vip.String(), "web.default.svc.cluster.local": vip.String(),
		"given.other": "10.96.0.30", "web-1": n.PodIP("web-1").String(),
		"heads": n.PodIP("web-1").String() + " " + n.PodIP("web-2").String(),
	} {
		if got := lookup(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	begin := time.Now()
	if got := lookup("given"); !strings.Contains(got, "exit code 2") || time.Since(begin) > 2*time.Second {
		t.Errorf("a Service of another namespace by its short name: %s after %v", got, time.Since(begin))
	}
	// A file that breaks changes nothing; its Services and pods stay, and the
	// status says where it is wrong. What is right elsewhere is taken.
	if err := os.WriteFile(filepath.Join(dir, "more.yaml"), []byte("apiVersion: v1\nkind: Service\nmetadata: {name: late}\nspec: {ports: [{port: 1}]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	writeManifests(t, dir, shop+"\n---\napiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: many}]}\n")
	eventually(t, "the broken file is reported and the good one taken", func() bool {
		st := n.Status()
		return n.VIP("late").IsValid() && len(st.Problems) > 0 && strings.HasSuffix(st.Problems[0].File, "all.yaml")
	})
	if n.VIP("web") != vip || !n.PodIP("web-1").IsValid() {
		t.Errorf("web has %s, and the pod %s", n.VIP("web"), n.PodIP("web-1"))
	}
	eventually(t, "hosts files follow", func() bool { return lookup("late") == n.VIP("late").String() })
	writeManifests(t, dir, shop)
	eventually(t, "the repaired file is fine", func() bool { return len(n.Status().Problems) == 0 })
}

func TestPodChangesAtRunTime(t *testing.T) {
	n, dir := plain(t, "sbtest12", twoPods)
	before := n.Status()
	// Another command and the same fixed address: the pod is replaced.
	writeManifests(t, dir, strings.Replace(twoPods, "{name: client, image: aether/client}", "{name: client, command: [sleep, '1000']}", 1)+
		"---\napiVersion: v1\nkind: Pod\nmetadata: {name: late}\nspec: {containers: [{name: c, image: nginx}]}\n")
	eventually(t, "the client is replaced at its address", func() bool {
		st := n.Status()
		return st.Pods[0].Ready && st.Pods[0].Containers[0].PID != before.Pods[0].Containers[0].PID && st.Pods[0].IP == "10.244.7.7" &&
			!st.Pods[0].Terminating
	})
	if st := n.Status(); st.Pods[1].Containers[0].PID != before.Pods[1].Containers[0].PID {
		t.Error("the other pod was replaced too")
	}
	if st := n.Status(); len(st.Problems) != 1 || st.Problems[0].Object != "Pod default/late" {
		t.Errorf("problems %v, want the image of late", st.Problems)
	}
}

func TestContainerLife(t *testing.T) {
	file := filepath.Join(t.TempDir(), "order")
	n, _ := plain(t, "sbtest13", strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: ordered}
spec:
  initContainers:
  - {name: first, command: [sh, -c, "test -e FILE.once && echo first >> FILE || { touch FILE.once; exit 1; }"]}
  - {name: side, restartPolicy: Always, command: [sh, -c, "echo side >> FILE; exec sleep 1000"]}
  - {name: second, command: [sh, -c, "while ! grep -q side FILE; do sleep 0.01; done; echo second >> FILE"]}
  containers:
  - {name: main, command: [sh, -c, "echo main >> FILE; exec sleep 1000"]}
---
apiVersion: v1
kind: Pod
metadata: {name: crashing}
spec: {containers: [{name: c, command: [sh, -c, "echo crashed; exit 7"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: missing}
spec: {containers: [{name: c, command: [nosuchprogram]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: once, labels: {app: once}}
spec: {restartPolicy: Never, containers: [{name: c, command: ["true"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: failing, labels: {app: once}}
spec: {restartPolicy: Never, containers: [{name: c, command: ["false"]}]}
---
apiVersion: v1
kind: Service
metadata: {name: once}
spec: {selector: {app: once}, ports: [{port: 80}]}
`, "FILE", file), func(c *Config) { c.ReadyTimeout = 300 * time.Millisecond })
	eventually(t, "everything ran its course", func() bool {
		st := n.Status()
		crashing, failing, missing, once, ordered := st.Pods[0], st.Pods[1], st.Pods[2], st.Pods[3], st.Pods[4]
		return crashing.Containers[0].Restarts >= 2 && failing.Phase == "Failed" && once.Phase == "Succeeded" && ordered.Ready &&
			strings.Contains(missing.Containers[0].Reason, "127")
	})
	eventually(t, "the containers ran in their order", func() bool { // running is not yet having written
		b, err := os.ReadFile(file)
		return err == nil && string(b) == "first\nside\nsecond\nmain\n"
	})
	st := n.Status()
	if r := st.Pods[4].Containers[0].Restarts; r != 1 {
		log, _ := os.ReadFile(st.Pods[4].Containers[0].Log)
		t.Errorf("the first init container was restarted %d times, want once: %s", r, log)
	}
	if log, err := os.ReadFile(st.Pods[0].Containers[0].Log); err != nil || !bytes.HasPrefix(log, []byte("crashed\ncrashed\n")) {
		t.Errorf("the log is %q (%v)", log, err)
	}
	if log, _ := os.ReadFile(st.Pods[2].Containers[0].Log); !bytes.Contains(log, []byte("nosuchprogram")) {
		t.Errorf("the log of a missing program is %q", log)
	}
	becomes(t, n, "once-sandbox-0 []\n") // terminal pods are never listed
}

func TestProbesForReal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	n, _ := plain(t, "sbtest14", strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: command}
spec: {containers: [{name: c, command: [sleep, '1000'], readinessProbe: {exec: {command: [test, -e, FILE]}, periodSeconds: 1, failureThreshold: 1}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: late}
spec: {containers: [{name: c, image: aether/echo, args: [--tcp, ":9000", --delay, 700ms], readinessProbe: {tcpSocket: {port: 9000}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: status}
spec: {containers: [{name: c, image: aether/echo, args: [--http, ":8080"], readinessProbe: {httpGet: {path: "/status?code=503", port: 8080}}}]}
`, "FILE", file), func(c *Config) { c.ReadyTimeout = 100 * time.Millisecond })
	ready := func() string {
		var s []string
		for _, p := range n.Status().Pods {
			s = append(s, fmt.Sprintf("%s=%v", p.Name, p.Ready))
		}
		return strings.Join(s, " ")
	}
	if got := ready(); got != "command=false late=false status=false" {
		t.Errorf("at first: %s", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := n.WaitReady(ctx, "late"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, "command"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command fails", func() bool { return ready() == "command=false late=true status=false" })
	if reason := n.Status().Pods[2].Containers[0].Reason; !strings.Contains(reason, "status 503") {
		t.Errorf("the reason is %q", reason)
	}
	if err := n.SetReady("status", "c", true); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(ctx, "status"); err != nil {
		t.Errorf("the switch does not win over the probe: %v", err)
	}
}

func TestExec(t *testing.T) {
	n, _ := plain(t, "sbtest15", twoPods)
	for _, c := range []struct {
		argv []string
		code int
		out  string
	}{
		{[]string{"sh", "-c", "echo $HOSTNAME; hostname; exit 3"}, 3, "client\nclient\n"},
		{[]string{"nosuchprogram"}, 127, ""},
		{[]string{"/etc/hosts"}, 126, ""},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137, ""},
		{[]string{"cat", "/etc/resolv.conf"}, 0, resolvConf},
		{[]string{"sh", "-c", "mount -t tmpfs none /mnt 2>/dev/null || echo no"}, 0, "no\n"}, // not privileged
	} {
		var out bytes.Buffer
		code, err := n.Exec(t.Context(), "client", c.argv, Stdio{Out: &out})
		if err != nil || code != c.code || out.String() != c.out {
			t.Errorf("%v: got %d, %q (%v); want %d, %q", c.argv, code, out.String(), err, c.code, c.out)
		}
	}
	in := strings.NewReader("through\n")
	var out bytes.Buffer
	if code, err := n.Exec(t.Context(), "client", []string{"cat"}, Stdio{In: in, Out: &out}); err != nil || code != 0 || out.String() != "through\n" {
		t.Errorf("stdin: got %d, %q (%v)", code, out.String(), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := n.Exec(ctx, "client", []string{"sh", "-c", "sleep 1000; true"}, Stdio{Out: &out}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 5*time.Second {
		t.Errorf("a command whose time is over: %v after %v", err, time.Since(begin))
	}
	for _, pod := range []string{"nobody", "other/client"} {
		if _, err := n.Exec(t.Context(), pod, []string{"true"}, Stdio{}); err == nil {
			t.Errorf("exec in %s works", pod)
		}
	}
	var v echo.Verdict
	if b, err := n.Output(t.Context(), "client", "aether-client", "--mark", "0xae71", "127.0.0.1:1"); json.Unmarshal(b, &v) != nil || v.Outcome != echo.Refused {
		t.Errorf("a pod may set socket marks: got %s (%v)", b, err)
	}
}
