// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

const twoPods = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: echo
    image: aether/echo
    args: [--http, ":8080", --tcp, ":9000", --server-first, ":9001"]
    env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
status: {podIP: 10.244.7.7}
spec:
  containers:
  - {name: client, image: aether/client}
`

// talk dials from a pod by the built-in client and returns its verdict.
func talk(t *testing.T, n *Node, pod string, args ...string) echo.Verdict {
	t.Helper()
	out, err := n.Output(t.Context(), pod, append([]string{"aether-client"}, args...)...)
	var v echo.Verdict
	if json.Unmarshal(out, &v) != nil {
		t.Fatalf("client in %s: %v: %s", pod, err, out)
	}
	return v
}

func TestPodsReachEachOther(t *testing.T) {
	begin := time.Now()
	n, _ := plain(t, "sbtest1", twoPods)
	t.Logf("up after %v", time.Since(begin))
	web := n.PodIP("web").String()
	v := talk(t, n, "client", "--mode", "http", web+":8080")
	var id echo.Identity
	if err := json.Unmarshal([]byte(v.Answer), &id); err != nil || v.Outcome != echo.OK {
		t.Fatalf("got %+v", v)
	}
	if id.Pod != "web" || id.Node != "n1" || id.Local != web+":8080" || id.Remote != v.Local {
		t.Errorf("the server is %+v, want web on n1 at %s, seeing %s", id, web, v.Local)
	}
	t.Logf("%+v", n.Status())
}
