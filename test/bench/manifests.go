// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// The objects under measurement.
const (
	clientPod  = "client"
	webService = "web"
	webPort    = 80
	serverPort = 8080
	// answerPath makes the built-in HTTP server answer with as little work as it can.
	answerPath = "/status?code=200"
)

var (
	webVIP    = netip.MustParseAddr("10.96.0.10")
	firstCold = netip.MustParseAddr("10.96.16.0")
	servers   = []netip.Addr{
		netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3"),
	}
)

// maxNames is how many cold Services fit between firstCold and the range's end.
const maxNames = 50_000

// manifests returns a captured client, three uncaptured servers, the Service web
// over them, and names Services over the same servers that nobody has dialled.
func manifests(names int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  containers: [{name: main, image: aether/client, args: ["idle"]}]
`, clientPod)
	for i, ip := range servers {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Pod
metadata: {name: web-%d, labels: {aether.io/managed: "false"}}
spec:
  containers:
    - name: main
      image: aether/echo
      args: ["--http", ":%d"]
      readinessProbe: {tcpSocket: {port: %d}, periodSeconds: 1}
status: {podIP: %s}
`, i+1, serverPort, serverPort, ip)
	}
	b.WriteString(service(webService, webVIP))
	for i, vip := range coldVIPs(names) {
		b.WriteString(service(fmt.Sprintf("cold-%d", i+1), vip))
	}
	return b.String()
}

// service returns a Service without selector and its slice.
func service(name string, vip netip.Addr) string {
	var endpoints []string
	for _, ip := range servers {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%s]}", ip))
	}
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  clusterIP: %[2]s
  ports: [{name: http, port: %[3]d}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: %[4]d}]
endpoints: [%[5]s]
`, name, vip, webPort, serverPort, strings.Join(endpoints, ", "))
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
