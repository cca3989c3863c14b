// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"aether.io/aether/internal/sandbox/echo"
)

// worldServer is a pod of the external world that greets on several ports of an
// address.
func worldServer(name, address string, ports ...int) string {
	args := fmt.Sprintf("--name, %s", name)
	for _, p := range ports {
		args += fmt.Sprintf(", --server-first, %q", fmt.Sprintf("%s:%d", address, p))
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {sandbox.aether.io/outside: %q}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: echo
    image: aether/echo
    args: [%s]
    readinessProbe: {tcpSocket: {port: %d, host: %s}, periodSeconds: 1}
---
`, name, address, args, ports[0], address)
}

// settingsClient is a client pod with labels and annotations, each the inside of a
// YAML map, and a server on its own loopback.
func settingsClient(name, labels, annotations string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {%[2]s}, annotations: {%[3]s}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: echo, image: aether/echo, args: [--name, loopback-of-%[1]s, --server-first, "127.0.0.1:80"]}]
---
`, name, labels, annotations)
}

// TestExclusions: what a pod's settings, or its address, keep from capture is not
// captured: it works, and the node proxy does not know of it.
func TestExclusions(t *testing.T) {
	const world, excluded, metadata = "203.0.113.80", "192.0.2.7", "169.254.169.254"
	n := upReady(t, firstRange+
		worldServer("world", world, 80, 53, 3306, 9000, 9050, 9100, 18081, 18082)+
		worldServer("excluded", excluded, 80)+worldServer("excluded-too", "172.16.5.5", 80)+
		worldServer("metadata", metadata, 80)+
		settingsClient("usual", "", "")+
		settingsClient("tuned", "", `capture.aether.io/exclude-outbound-ports: "3306, 9000-9099", capture.aether.io/exclude-outbound-ip-ranges: "172.16.0.0/12, 192.0.2.7"`)+
		settingsClient("meshonly", "", `capture.aether.io/redirect-all: "false"`)+
		settingsClient("meshtuned", "", `capture.aether.io/redirect-all: "false", capture.aether.io/exclude-outbound-ports: "18082"`)+
		settingsClient("unmanaged", `aether.io/managed: "false"`, ""))
	all := []string{
		world + ":80", world + ":53", world + ":3306", world + ":9000", world + ":9050", world + ":9100",
		world + ":18081", world + ":18082", excluded + ":80", "172.16.5.5:80", metadata + ":80", "127.0.0.1:80",
	}
	for _, c := range []struct {
		pod      string
		captured []string
	}{
		{"usual", []string{
			world + ":80", world + ":3306", world + ":9000", world + ":9050", world + ":9100",
			world + ":18081", world + ":18082", excluded + ":80", "172.16.5.5:80",
		}},
		{"tuned", []string{world + ":80", world + ":9100", world + ":18081", world + ":18082"}},
		{"meshonly", []string{world + ":18081", world + ":18082"}},
		{"meshtuned", []string{world + ":18081"}},
		{"unmanaged", nil},
	} {
		t.Run(c.pod, func(t *testing.T) {
			eventually(t, settled, "the pod's own server listens", func() error {
				if v := n.dial(t, c.pod, serverFirst("127.0.0.1:80")); v.Outcome != echo.OK {
					return errors.New(told(v))
				}
				return nil
			})
			dialled := map[string]echo.Verdict{}
			for _, target := range all {
				v := n.dial(t, c.pod, serverFirst(target))
				if answeredBy(t, v) == "" {
					t.Errorf("%s: not answered", target)
				}
				dialled[target] = v
			}
			// Whatever the log will hold of them it holds before the line of a
			// connection that is made and ends after them.
			n.awaitLogged(t, n.dial(t, "usual", serverFirst(world+":80")))
			for _, target := range all {
				_, err := n.logged(dialled[target])
				if got, want := err == nil, slices.Contains(c.captured, target); got != want {
					t.Errorf("%s: captured %t, want %t", target, got, want)
				}
			}
		})
	}
	if got, want := n.listeners(t), []string{"capture:default/meshonly", "capture:default/meshtuned", "capture:default/tuned", "capture:default/usual"}; !slices.Equal(got, want) {
		t.Errorf("Envoy has listeners %v, want %v", got, want)
	}
}
