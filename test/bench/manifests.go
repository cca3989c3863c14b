// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// The objects under measurement.
const (
	clientPod = "client"
	// Not captured: HAProxy's, and the one whose connections the kernel rewrites.
	// They are two, for an endpoint remembers the ends of connections by address.
	plainPod   = "plain"
	directPod  = "direct"
	webService = "web"
	webPort    = 80
	serverPort = 8080
	greetPort  = 9001 // says who answers, unasked
	// answerPath makes the built-in HTTP server answer with as little work as it can.
	answerPath = "/status?code=200"
)

var (
	webVIP    = netip.MustParseAddr("10.96.0.10")
	dnatVIP   = netip.MustParseAddr("10.96.0.20") // of no Service
	firstCold = netip.MustParseAddr("10.96.16.0")
	servers   = []netip.Addr{
		netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3"),
	}
)

// maxNames is how many cold Services fit between firstCold and the range's end.
const maxNames = 50_000

// manifests returns the pods, the Service web over the servers, and names Services
// over the same servers that nobody has dialled.
func manifests(names int) string {
	var b strings.Builder
	b.WriteString(pods())
	b.WriteString(service(webService, webVIP, servers...))
	for i, vip := range coldVIPs(names) {
		b.WriteString(service(fmt.Sprintf("cold-%d", i+1), vip, servers...))
	}
	return b.String()
}

// pods returns a captured client, two that are not, and three uncaptured servers.
func pods() string {
	var b strings.Builder
	b.WriteString(idlePod(clientPod, true))
	b.WriteString(idlePod(plainPod, false))
	b.WriteString(idlePod(directPod, false))
	for i, ip := range servers {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Pod
metadata: {name: web-%d, labels: {aether.io/managed: "false"}}
spec:
  containers:
    - name: main
      image: aether/echo
      args: ["--http", ":%d", "--server-first", ":%d"]
      readinessProbe: {tcpSocket: {port: %d}, periodSeconds: 1}
status: {podIP: %s}
`, i+1, serverPort, greetPort, serverPort, ip)
	}
	return b.String()
}

// idlePod returns a pod in which nothing runs but what is started there.
func idlePod(name string, captured bool) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {aether.io/managed: "%v"}}
spec:
  containers: [{name: main, image: aether/client, args: ["idle"]}]
`, name, captured)
}

// service returns a Service without selector and its slice.
func service(name string, vip netip.Addr, endpoints ...netip.Addr) string {
	return serviceAlone(name, vip, "") + slice(name, name, serverPort, endpoints...)
}

// serviceAlone returns a Service without selector, with annotations as YAML.
func serviceAlone(name string, vip netip.Addr, annotations string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %s, annotations: {%s}}
spec:
  clusterIP: %s
  ports: [{name: http, port: %d}]
`, name, annotations, vip, webPort)
}

// slice returns one EndpointSlice of a Service.
func slice(name, service string, port int, endpoints ...netip.Addr) string {
	var b strings.Builder
	fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: http, port: %d}]
endpoints: [`, name, service, port)
	for i, ip := range endpoints {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "{addresses: [%s]}", ip)
	}
	b.WriteString("]\n")
	return b.String()
}

// farEndpoints are addresses of pods on other nodes, where nobody answers.
func farEndpoints(from, n int) []netip.Addr {
	out := make([]netip.Addr, 0, n)
	for i := from; i < from+n; i++ {
		out = append(out, netip.AddrFrom4([4]byte{10, byte(128 + i>>16), byte(i >> 8), byte(i)}))
	}
	return out
}

func targetsOf(vips []netip.Addr) []string {
	out := make([]string, 0, len(vips))
	for _, vip := range vips {
		out = append(out, netip.AddrPortFrom(vip, webPort).String())
	}
	return out
}

func coldVIPs(names int) []netip.Addr {
	out := make([]netip.Addr, 0, names)
	for a := firstCold.Next(); len(out) < names; a = a.Next() {
		out = append(out, a)
	}
	return out
}

// clusterOf is the name of the cluster that a captured connection to a Service
// port must take.
func clusterOf(vip netip.Addr, port uint16) string {
	return "svc:" + netip.AddrPortFrom(vip, port).String()
}
