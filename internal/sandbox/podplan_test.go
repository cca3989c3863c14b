// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"aether.io/aether/internal/model"
)

func podMap(t testing.TB, texts ...string) map[model.Name]*corev1.Pod {
	m := map[model.Name]*corev1.Pod{}
	for _, s := range texts {
		o := parse[corev1.Pod](t, s)
		m[objectName(o)] = o
	}
	return m
}

func TestPlanPods(t *testing.T) {
	const spec = "spec: {containers: [{name: c, image: aether/echo}]"
	meta := func(extra string) string { return "metadata: {name: p, namespace: default" + extra + "}\n" }
	cases := []struct {
		name, text string
		check      func(podPlan) bool
	}{
		{"ours by default, captured", meta("") + spec + "}", func(p podPlan) bool { return p.node == "n1" && p.captured && p.grace.Seconds() == 30 }},
		{"of another node", meta("") + spec + ", nodeName: n2}", func(p podPlan) bool { return p.node == "n2" && !p.captured }},
		{"labelled unmanaged", meta(", labels: {aether.io/managed: 'false'}") + spec + "}", func(p podPlan) bool { return !p.captured }},
		{"labelled managed", meta(", labels: {aether.io/managed: 'true'}") + spec + "}", func(p podPlan) bool { return p.captured }},
		{"host network of this node", meta("") + spec + ", hostNetwork: true}", func(p podPlan) bool { return p.hostNetwork && !p.captured }},
		{"host network of another is an ordinary pod", meta("") + spec + ", hostNetwork: true, nodeName: n2}", func(p podPlan) bool { return !p.hostNetwork }},
		{"outside", meta(", annotations: {sandbox.aether.io/outside: '203.0.113.7, 10.96.0.1'}") + spec + "}", func(p podPlan) bool {
			return p.node == "" && !p.captured && slices.Equal(p.outside, []netip.Addr{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("10.96.0.1")})
		}},
		{"fixed address", meta("") + spec + "}\nstatus: {podIP: 10.244.9.9}", func(p podPlan) bool { return p.fixedIP.String() == "10.244.9.9" }},
		{"not ready by annotation", meta(", annotations: {sandbox.aether.io/ready: 'false'}") + spec + "}", func(p podPlan) bool { return p.forced != nil && !*p.forced }},
		{"grace", meta("") + spec + ", terminationGracePeriodSeconds: 0}", func(p podPlan) bool { return p.grace == 0 }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			plans, problems := planPods(podMap(t, c.text), "n1")
			p, ok := plans[model.Name{Namespace: "default", Name: "p"}]
			if !ok || len(problems) > 0 || !c.check(p) {
				t.Errorf("got %+v, problems %v", p, problems)
			}
		})
	}
}

func TestPodsThatCannotRun(t *testing.T) {
	const spec = "\nspec: {containers: [{name: c, image: aether/echo}]}"
	cases := []struct{ name, text, field, says string }{
		{"an image", "metadata: {name: p}\nspec: {containers: [{name: c, image: aether/echo}, {name: d, image: nginx}]}", "spec.containers[1]", "nginx"},
		{"an init image", "metadata: {name: p}\nspec: {initContainers: [{name: i, image: x}], containers: [{name: c, image: aether/echo}]}", "spec.initContainers[0]", "aether/echo"},
		{"no containers", "metadata: {name: p}", "spec.containers", "at least one"},
		{"bad outside", "metadata: {name: p, annotations: {sandbox.aether.io/outside: '203.0.113.7,x'}}" + spec, "outside", `"x"`},
		{"loopback outside", "metadata: {name: p, annotations: {sandbox.aether.io/outside: 127.0.0.1}}" + spec, "outside", "127.0.0.1"},
		{"bad podIP", "metadata: {name: p}" + spec + "\nstatus: {podIP: '169.254.1.1'}", "status.podIP", "169.254.1.1"},
		{"bad ready", "metadata: {name: p, annotations: {sandbox.aether.io/ready: maybe}}" + spec, "ready", "true or false"},
		{"bad capture annotation", "metadata: {name: p, annotations: {capture.aether.io/exclude-outbound-ports: http}}" + spec, "metadata.annotations", "exclude-outbound-ports"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			good := "metadata: {name: good}" + spec
			plans, problems := planPods(podMap(t, c.text, good), "n1")
			if len(plans) != 1 || len(problems) != 1 {
				t.Fatalf("got %d plans and problems %v, want the good pod and one problem", len(plans), problems)
			}
			if p := problems[0]; p.Object != "Pod /p" || !strings.Contains(p.Field, c.field) || !strings.Contains(p.Text, c.says) {
				t.Errorf("got %+v, want one at %s that says %s", p, c.field, c.says)
			}
		})
	}
	same := "\nspec: {containers: [{name: c, image: aether/echo}]}\nstatus: {podIP: 10.0.0.1}"
	plans, problems := planPods(podMap(t, "metadata: {name: a}"+same, "metadata: {name: b}"+same), "n1")
	if len(plans) != 1 || len(problems) != 1 || problems[0].Object != "Pod /b" {
		t.Errorf("two pods with one address: got %d plans, %v", len(plans), problems)
	}
}

func TestPodIdentity(t *testing.T) {
	const text = "metadata: {name: p, labels: {a: b}, annotations: {x: y}}\nspec: {containers: [{name: c, image: aether/echo}]}"
	base, _ := planPod(parse[corev1.Pod](t, text), "n1")
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		same   bool
	}{
		"labels":             {func(p *corev1.Pod) { p.Labels["a"] = "c" }, true},
		"other annotations":  {func(p *corev1.Pod) { p.Annotations["x"] = "z" }, true},
		"ready switch":       {func(p *corev1.Pod) { p.Annotations[readyAnnotation] = "false" }, true},
		"capture annotation": {func(p *corev1.Pod) { p.Annotations["capture.aether.io/redirect-all"] = "false" }, false},
		"managed label":      {func(p *corev1.Pod) { p.Labels[managedLabel] = "false" }, false},
		"args":               {func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"--http", ":1"} }, false},
		"address":            {func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }, false},
		"node":               {func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, false},
	} {
		pod := parse[corev1.Pod](t, text)
		c.change(pod)
		got, _ := planPod(pod, "n1")
		if (got.identity == base.identity) != c.same {
			t.Errorf("%s: same identity is %v, want %v", name, !c.same, c.same)
		}
	}
}

func TestRestartPolicy(t *testing.T) {
	for _, c := range []struct {
		policy     corev1.RestartPolicy
		init, side bool
		code       int
		want       bool
	}{
		{"", false, false, 0, true},
		{"Always", false, false, 1, true},
		{"OnFailure", false, false, 0, false},
		{"OnFailure", false, false, 1, true},
		{"Never", false, false, 1, false},
		{"Always", true, false, 0, false},
		{"Always", true, false, 1, true},
		{"Never", true, false, 1, false},
		{"Never", true, true, 0, true},
	} {
		spec := &corev1.Container{}
		if c.side {
			always := corev1.ContainerRestartPolicyAlways
			spec.RestartPolicy = &always
		}
		p := podPlan{pod: &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: c.policy}}}
		if got := p.restarts(spec, c.init, c.code); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}

func TestContainerCommandAndEnv(t *testing.T) {
	t.Setenv("PATH", "/bin")
	c := parse[corev1.Container](t, `
name: c
command: [sh, -c, "echo $(GREETING) $(MISSING) $$(GREETING)"]
args: [$(POD)]
env:
- {name: GREETING, value: "hello $(WHO)"}
- {name: WHO, value: world}
- {name: AGAIN, value: "$(WHO)!"}
- {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: TEAM, valueFrom: {fieldRef: {fieldPath: "metadata.labels['team']"}}}
- {name: MAYBE, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}`)
	facts := podFacts{
		name: model.Name{Namespace: "default", Name: "p"}, ip: netip.MustParseAddr("10.0.0.1"),
		labels: map[string]string{"team": "a"},
	}
	env, err := containerEnv(c, facts, "p")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PATH=/bin", "HOME=/root", "HOSTNAME=p", "GREETING=hello $(WHO)", "WHO=world", "AGAIN=world!", "POD=p", "IP=10.0.0.1", "TEAM=a",
	}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Error(diff)
	}
	argv, err := containerCommand(c)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"sh", "-c", "echo hello $(WHO) $(MISSING) $(GREETING)", "p"}, expandAll(argv, env)); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{
		"{name: c, env: [{name: X, valueFrom: {configMapKeyRef: {name: m, key: k}}}]}",
		"{name: c, envFrom: [{secretRef: {name: s}}]}",
		"{name: c, env: [{name: X, valueFrom: {fieldRef: {fieldPath: spec.secret}}}]}",
	} {
		if env, err := containerEnv(parse[corev1.Container](t, bad), facts, "p"); err == nil {
			t.Errorf("%s gave %v", bad, env)
		}
	}
}

func TestContainerCaps(t *testing.T) {
	has := func(text string, number int) bool {
		caps, err := containerCaps(parse[corev1.Container](t, "{name: c, securityContext: "+text+"}"))
		if err != nil {
			t.Fatal(err)
		}
		return caps == nil || slices.Contains(caps, number)
	}
	for _, c := range []struct {
		text   string
		number int
		want   bool
	}{
		{"null", unix.CAP_NET_RAW, true},
		{"null", unix.CAP_NET_ADMIN, false},
		{"null", unix.CAP_SYS_ADMIN, false},
		{"{privileged: true}", unix.CAP_SYS_ADMIN, true},
		{"{capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}", unix.CAP_NET_RAW, false},
		{"{capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}", unix.CAP_NET_BIND_SERVICE, true},
		{"{capabilities: {drop: [CAP_NET_RAW]}}", unix.CAP_NET_RAW, false},
		{"{capabilities: {add: [net_admin]}}", unix.CAP_NET_ADMIN, true},
		{"{capabilities: {add: [ALL]}}", unix.CAP_SYS_ADMIN, true},
	} {
		if got := has(c.text, c.number); got != c.want {
			t.Errorf("%s: capability %d: got %v", c.text, c.number, got)
		}
	}
	if _, err := containerCaps(parse[corev1.Container](t, "{name: c, securityContext: {capabilities: {add: [FLY]}}}")); err == nil {
		t.Error("an unknown capability is no error")
	}
}

func TestHostsFile(t *testing.T) {
	addr := netip.MustParseAddr
	n := names{
		services: map[model.Name][]netip.Addr{
			{Namespace: "default", Name: "web"}:   {addr("10.96.0.5")},
			{Namespace: "other", Name: "web"}:     {addr("10.96.0.6")},
			{Namespace: "default", Name: "heads"}: {addr("10.244.0.2"), addr("10.244.0.3")},
		},
		pods: map[model.Name]netip.Addr{
			{Namespace: "default", Name: "web"}:   addr("10.244.0.9"), // a Service has its short name
			{Namespace: "default", Name: "me"}:    addr("10.244.0.1"),
			{Namespace: "default", Name: "web-1"}: addr("10.244.0.2"),
			{Namespace: "other", Name: "web-1"}:   addr("10.244.0.4"),
		},
	}
	want := `# Written by the sandbox; it follows the Services.
127.0.0.1	localhost
::1	localhost
10.244.0.1	me
10.244.0.2	heads.default.svc.cluster.local heads.default.svc heads.default heads
10.244.0.3	heads.default.svc.cluster.local heads.default.svc heads.default heads
10.96.0.5	web.default.svc.cluster.local web.default.svc web.default web
10.96.0.6	web.other.svc.cluster.local web.other.svc web.other
10.244.0.1	me.default.pod
10.244.0.9	web.default.pod
10.244.0.2	web-1.default.pod web-1
10.244.0.4	web-1.other.pod
`
	got := hostsFile(model.Name{Namespace: "default", Name: "me"}, "me", addr("10.244.0.1"), n)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
