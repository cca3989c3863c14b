// SPDX-License-Identifier: Apache-2.0

package labtest

import "fmt"

// EchoPort is where the pods of EchoPod and EchoDeployment answer over HTTP. They
// say who they are.
const EchoPort = 8080

// echoContainers is ready when it listens; it ends at once on SIGTERM.
const echoContainers = `
      containers:
      - name: echo
        image: aether/echo
        args: [--http, ":8080"]
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {tcpSocket: {port: http}, periodSeconds: 1, failureThreshold: 1}`

// EchoPod is a pod with label app that answers over HTTP; it is uncaptured unless
// it runs on our node. An empty node: the lab takes the next one.
func EchoPod(name, app, node string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
      nodeName: %q
      terminationGracePeriodSeconds: 2%s`, name, app, node, echoContainers)
}

// EchoDeployment is a Deployment of such pods, of the app of its name.
func EchoDeployment(name string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 2%[3]s`, name, replicas, echoContainers)
}

// Client is a pod on our node that does nothing: tests dial from it. A captured
// one goes through us, the other through kube-proxy.
func Client(name string, captured bool) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {aether.io/managed: %q}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 0
  containers: [{name: client, image: aether/client}]`, name, fmt.Sprint(captured))
}

// Service is a ClusterIP Service of an app: port 80 leads to EchoPort.
func Service(name, app string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {selector: {app: %s}, ports: [{name: http, port: 80, targetPort: 8080}]}`, name, app)
}
