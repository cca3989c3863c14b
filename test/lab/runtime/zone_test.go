// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab/labtest"
)

// nodeChangesItsZone: hints follow the zone of the own Node object, and do not
// count while it has none or is not there.
func nodeChangesItsZone(t *testing.T) {
	s := labtest.New(t)
	var slice strings.Builder
	slice.WriteString(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: zoned-1, labels: {kubernetes.io/service-name: zoned}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:`)
	s.Apply(labtest.Client("captured", true),
		labtest.EchoPod("in-a", "zoned", "n2"), labtest.EchoPod("in-b", "zoned", "n2"), labtest.EchoPod("in-c", "zoned", "n3"))
	s.Ready("captured", "in-a", "in-b", "in-c")
	for _, z := range []string{"a", "b", "c"} {
		p, err := s.Client().CoreV1().Pods(s.Namespace).Get(t.Context(), "in-"+z, metav1.GetOptions{})
		s.Must(err)
		fmt.Fprintf(&slice, "\n- {addresses: [%s], conditions: {ready: true}, hints: {forZones: [{name: zone-%s}]}}", p.Status.PodIP, z)
	}
	s.Apply("{apiVersion: v1, kind: Service, metadata: {name: zoned}, spec: {ports: [{name: http, port: 80}]}}", slice.String())
	vip := s.VIP("zoned")
	s.Answers("captured", vip, 80)
	l := dialling(t, s, "/", []string{"captured"}, vip)

	all := []string{"in-a", "in-b", "in-c"}
	answers := func(when string, want ...string) {
		t.Helper()
		s.Eventually(when+" "+strings.Join(want, ", ")+" answer and no others", func() error {
			by := map[string]bool{}
			for range 12 {
				a := s.Try("captured", vip, 80)
				if a.Outcome != echo.OK {
					return errorOf(a)
				}
				by[a.By.Pod] = true
			}
			if got := slices.Sorted(maps.Keys(by)); !slices.Equal(got, want) {
				return errorf("%v do", got)
			}
			return nil
		})
	}
	t.Cleanup(func() {
		zone(context.Background(), t, s, `"zone-a"`)
		if err := s.KubeProxy.Restart(context.Background()); err != nil {
			t.Error(err)
		}
	})
	answers("in zone-a", "in-a")
	zone(t.Context(), t, s, `"zone-b"`)
	answers("in zone-b", "in-b")
	zone(t.Context(), t, s, "null")
	answers("without a zone", all...)
	zone(t.Context(), t, s, `"zone-nobody-has"`)
	answers("in a zone that no hint names", all...)
	zone(t.Context(), t, s, `"zone-c"`)
	answers("in zone-c", "in-c")

	// kube-proxy ends when its Node is deleted. We go on.
	node, err := s.Client().CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	s.Must(err)
	t.Cleanup(func() { restoreNode(t, s, node) })
	s.Must(s.Client().CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
	answers("without a Node object", all...)
	restoreNode(t, s, node)
	answers("in zone-c again", "in-c")
	l.unharmed(t, "the Service, whatever the zone")
}

// zone sets the zone of our node, in JSON.
func zone(ctx context.Context, t *testing.T, s *labtest.Space, value string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"topology.kubernetes.io/zone":%s}}}`, value)
	if _, err := s.Client().CoreV1().Nodes().Patch(ctx, "n1", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// restoreNode makes the Node again as it was, unless it is there.
func restoreNode(t *testing.T, s *labtest.Space, was *corev1.Node) {
	ctx := context.Background()
	node := was.DeepCopy()
	if _, err := s.Client().CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{}); err == nil {
		return
	}
	node.ResourceVersion, node.UID = "", ""
	made, err := s.Client().CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status = node.Status
	if _, err := s.Client().CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
