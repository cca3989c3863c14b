// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// coldServices makes n Services that nobody has dialled yet, all served by the
// ledger.
func coldServices(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata: {name: cold-%[1]d, namespace: shop}
spec:
  clusterIP: 10.96.1.%[1]d
  ports: [{name: sql, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: cold-%[1]d
  namespace: shop
  labels: {kubernetes.io/service-name: cold-%[1]d}
addressType: IPv4
ports: [{name: sql, port: 5432}]
endpoints: [{addresses: [203.0.113.20]}]
`, i)
	}
	return b.String()
}

// halfDead is a Service with one endpoint that answers and one where nothing
// listens.
const halfDead = `apiVersion: v1
kind: Service
metadata: {name: half-dead, namespace: shop}
spec:
  clusterIP: 10.96.0.50
  ports: [{name: sql, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: half-dead
  namespace: shop
  labels: {kubernetes.io/service-name: half-dead}
addressType: IPv4
ports: [{name: sql, port: 5432}]
endpoints: [{addresses: [203.0.113.20]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: half-dead-too
  namespace: shop
  labels: {kubernetes.io/service-name: half-dead}
addressType: IPv4
ports: [{name: sql, port: 5999}]
endpoints: [{addresses: [203.0.113.20]}]
`

// secondRange is a ServiceCIDR added at run time, with a Service in it.
const secondRange = `apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: second}
spec:
  cidrs: [198.51.100.0/24]
---
apiVersion: v1
kind: Service
metadata: {name: late, namespace: shop}
spec:
  clusterIP: 198.51.100.10
  ports: [{name: sql, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: late
  namespace: shop
  labels: {kubernetes.io/service-name: late}
addressType: IPv4
ports: [{name: sql, port: 5432}]
endpoints: [{addresses: [203.0.113.20]}]
`
