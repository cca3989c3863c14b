// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aether.io/aether/internal/agent/api"
)

// Ports of the pods that server makes, and what answers on them.
const (
	portHTTP        = 8080 // who it is, as JSON
	portEcho        = 9000 // every byte
	portServerFirst = 9001 // who it is as a line, then every byte
)

// server is a Pod of namespace default that runs the built-in echo on the ports
// above. labels is the inside of a YAML map; spec, when given, is further fields
// of the pod's spec such as "nodeName: n2".
func server(name, labels string, spec ...string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {%s}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: echo
    image: aether/echo
    args: [--name, %s, --http, ":%d", --tcp, ":%d", --server-first, ":%d"]
    readinessProbe: {tcpSocket: {port: %d}, periodSeconds: 1}
%s---
`, name, labels, name, portHTTP, portEcho, portServerFirst, portHTTP, indented(spec))
}

// client is a Pod of namespace default to dial from, with a ServiceAccount of
// the same name.
func client(name string, spec ...string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {role: client}}
spec:
  serviceAccountName: %s
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: aether/client, env: [{name: GORACE, value: %s}]}]
%s---
`, name, name, noWaitAtExit, indented(spec))
}

// outside is a Pod of the external world that holds an address and greets on a
// port as server-first.
func outside(name, address string, port int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {sandbox.aether.io/outside: "%s"}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: echo
    image: aether/echo
    args: [--name, %s, --server-first, "%s:%d"]
    readinessProbe: {tcpSocket: {port: %d, host: %s}, periodSeconds: 1}
---
`, name, address, name, address, port, port, address)
}

// nodes are two nodes of zone za, n1 (this one) and n2, and n3 of zone zb.
const nodes = `
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: za}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {topology.kubernetes.io/zone: za}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3, labels: {topology.kubernetes.io/zone: zb}}}
---
`

// service is a Service of namespace default. spec is the inside of a YAML map.
func service(name, vip, spec string) string {
	return fmt.Sprintf("\n{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {clusterIP: %s, %s}}\n---\n", name, vip, spec)
}

// slice is an EndpointSlice written by hand, of one port and some addresses.
// portName may be empty.
func slice(name, service, portName string, port int, addresses ...string) string {
	var endpoints strings.Builder
	for _, a := range addresses {
		fmt.Fprintf(&endpoints, "- {addresses: [%s]}\n", a)
	}
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: %q, port: %d}]
endpoints:
%s---
`, name, service, portName, port, endpoints.String())
}

func indented(lines []string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString("  " + l + "\n")
	}
	return b.String()
}

// markerVIP is the address of a Service of the harness's own.
const markerVIP = "10.96.255.253"

// awaitManifests waits until the agent has taken in everything that is written in
// the manifest directories now: it reads them all at once, so it has when it
// knows a port that is written last.
func (n *node) awaitManifests(t *testing.T) {
	t.Helper()
	n.mu.Lock()
	n.markers++
	port := n.markers
	n.mu.Unlock()
	n.write(t, "marker.yaml", service("marker", markerVIP, fmt.Sprintf("ports: [{port: %d}]", port)))
	n.awaitExplain(t, fmt.Sprintf("%s:%d", markerVIP, port), "known", func(e api.Explanation) bool { return e.Policy != nil })
}

// write puts a file into the node's manifest directory, or replaces it as a
// whole. Wait for what it changes, for instance with awaitExplain.
func (n *node) write(t *testing.T, file, yaml string) {
	t.Helper()
	early := filepath.Join(n.dir, "."+file+".new")
	if err := os.WriteFile(early, []byte(yaml), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(early, filepath.Join(n.dir, file)); err != nil {
		t.Fatal(err)
	}
}

// remove takes a file out of the node's manifest directory.
func (n *node) remove(t *testing.T, file string) {
	t.Helper()
	if err := os.Remove(filepath.Join(n.dir, file)); err != nil {
		t.Fatal(err)
	}
}
