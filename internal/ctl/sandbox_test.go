// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"strings"
	"testing"

	"aether.io/aether/internal/sandbox"
)

func aSandbox() sandbox.Status {
	return sandbox.Status{
		Name: "default", Node: "n1", NodeIP: "172.18.0.2", PID: 100, Mode: "enforce", EgressSource: "pod",
		Agent: sandbox.ProcessStatus{State: "running", PID: 101},
		Envoy: sandbox.ProcessStatus{State: "running", PID: 102, Restarts: 1, LastExit: "signal: killed"},
		Pods: []sandbox.PodStatus{
			{
				Namespace: "shop", Name: "client", Node: "n1", IP: "10.244.0.2", Captured: true, Phase: "Running", Ready: true, NetNS: "/run/netns/client",
				Containers: []sandbox.ContainerStatus{{Name: "c", Log: "/run/aether-sandbox/default/logs/shop_client_c.log"}},
			},
			{Namespace: "shop", Name: "web-1", Node: "n2", IP: "10.244.0.3", Phase: "Running", Ready: true, Terminating: true},
			{Namespace: "shop", Name: "broken", Node: "n1", Phase: "Pending", Problem: "image nginx: not a built-in image and no command given"},
		},
		Services: []sandbox.ServiceStatus{{Namespace: "shop", Name: "web", VIP: "10.96.0.10", Ports: []string{"http:80/TCP", "53/UDP"}}},
		Problems: []sandbox.Problem{{File: "web.yaml", Object: "Service shop/web", Field: "spec.ports[0].port", Text: "is 0"}},
		Notes:    []string{"Deployment shop/web is skipped"},
		Paths:    sandbox.Paths{AgentSocket: "/run/aether-sandbox/default/run/agent.sock", AgentLog: "agent.log", EnvoyLog: "envoy.log", AccessLog: "access.log", Generated: "generated"},
	}
}

func TestSandboxText(t *testing.T) {
	for name, f := range map[string]format{"sandbox.txt": formatText, "sandbox-wide.txt": formatWide} {
		var out bytes.Buffer
		c := &cli{IO: IO{Out: &out}}
		if err := c.print(f, aSandbox(), func(wide bool) string { return sandboxText(aSandbox(), wide) }); err != nil {
			t.Fatal(err)
		}
		golden(t, name, out.String())
	}
}

// TestSandboxPort: a Service port by name, as the sandbox lists its ports.
func TestSandboxPort(t *testing.T) {
	s := sandbox.ServiceStatus{Namespace: "shop", Name: "web", VIP: "10.96.0.10", Ports: []string{"http:80/TCP", "dns:53/UDP", "8080/TCP"}}
	for port, want := range map[string]string{"http": "10.96.0.10:80", "80": "10.96.0.10:80", "8080": "10.96.0.10:8080", "99": "10.96.0.10:99", "dns": "", "grpc": ""} {
		got, err := sandboxPort(s, target{text: "web.shop:" + port, ns: "shop", service: "web", port: port})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", port, got, err, want)
		}
	}
}

func TestHavePod(t *testing.T) {
	st := sandbox.Status{Pods: []sandbox.PodStatus{{Namespace: "default", Name: "a"}, {Namespace: "shop", Name: "b"}}}
	for pod, says := range map[string]string{
		"a": "", "default/a": "", "shop/b": "", "b": "but it has shop/b", "shop/a": "no pod \"shop/a\"", "": "no pod \"\"",
	} {
		switch err := (&cli{}).havePod(st, pod); {
		case says == "" && err != nil:
			t.Errorf("%q: %v", pod, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
			t.Errorf("%q: %v, want it to say %s", pod, err, says)
		}
	}
}
