// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestLargeServices: K-1 and K-2, a Service of many endpoints is served whole,
// however they are spread over slices. The manifests would be too long to read.
func TestLargeServices(t *testing.T) {
	for _, c := range []struct {
		name             string
		slices, perSlice int
	}{
		{"K-1 5,000 endpoints in 50 slices", 50, 100},
		{"K-2 1,500 endpoints in 2 slices", 2, 750},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.WriteFile("large.yaml", []byte(largeService(c.slices, c.perSlice)), 0o644); err != nil {
				t.Fatal(err)
			}
			got := run(t, []string{"explain", "10.96.0.10:80", "-f", "large.yaml", "--node", "n1", "-o", "json"})
			used := map[any]bool{}
			eps, _ := got["endpoints"].([]any)
			for _, e := range eps {
				if m, _ := e.(map[string]any); m["used"] == true {
					used[m["address"]] = true
				}
			}
			if want := c.slices * c.perSlice; got["answer"] != "balance" || len(eps) != want || len(used) != want {
				t.Errorf("answer %v with %d endpoints, %d of them used; want balance with %d, all used", got["answer"], len(eps), len(used), want)
			}
		})
	}
}

func largeService(slices, perSlice int) string {
	var b strings.Builder
	b.WriteString("{apiVersion: v1, kind: Service, metadata: {name: large}, spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}}\n")
	for s := range slices {
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: large-%d, labels: {kubernetes.io/service-name: large}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
`, s)
		for i := range perSlice {
			n := s*perSlice + i
			fmt.Fprintf(&b, "- addresses: [10.244.%d.%d]\n", n/250, n%250+1)
		}
	}
	return b.String()
}
