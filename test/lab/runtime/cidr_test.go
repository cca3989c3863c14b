// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"bufio"
	"bytes"
	"context"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/test/lab/labtest"
)

// serviceCIDRComesAndGoes: a range is used as soon as it is there, without a
// listener that drains, and stays one until its object is gone, however long
// Services hold it up.
func serviceCIDRComesAndGoes(t *testing.T) {
	s := labtest.New(t)
	s.Apply(server("web", 2), labtest.Client("captured", true), labtest.Client("beside", true))
	s.Ready("captured", "beside")
	s.Endpoints("web", 2)
	web := s.VIP("web")
	endpoints, err := s.Cluster.Endpoints(t.Context(), s.Namespace+"/web")
	s.Must(err)
	isServed(t, s, "captured", web, "web")
	open := []*held{hold(t, s, "captured", web, 81), hold(t, s, "captured", endpoints[0], talkPort), hold(t, s, "beside", web, 81)}
	old := dialling(t, s, "/", []string{"captured", "beside"}, web)

	before := listeners(t, s)
	s.Apply("{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: late}, spec: {cidrs: [203.0.113.0/24]}}")
	s.Eventually("the range can be used", func() error { return cidrIs(s, metav1.ConditionTrue) })
	vip := netip.MustParseAddr("203.0.113.10")
	stranded(t, s, "web", vip)
	s.Apply(serviceAt("late", "web", vip.String()))
	added := dialling(t, s, "/", []string{"captured"}, vip)
	s.Eventually("the new range is ours", func() error { return served(within(t), s, "captured", vip, "late") })
	s.Eventually("every listener knows the range", func() error { return served(within(t), s, "beside", vip, "late") })
	added.more(20)

	// It stays while a Service has an address of it, and is ours that long.
	s.Must(s.Client().NetworkingV1().ServiceCIDRs().Delete(t.Context(), "late", metav1.DeleteOptions{}))
	s.Eventually("the range is being deleted", func() error { return cidrIs(s, metav1.ConditionFalse) })
	for range 10 {
		isServed(t, s, "captured", vip, "late")
		added.more(10)
	}
	s.Must(cidrIs(s, metav1.ConditionFalse))
	added.unharmed(t, "the Service of the new range, from its creation on")
	s.Remove(serviceAt("late", "web", vip.String()))
	s.Eventually("the range is gone", func() error {
		_, err := s.Client().NetworkingV1().ServiceCIDRs().Get(t.Context(), "late", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		// Until then it is ours: nobody's address in it is refused.
		if err := refused(within(t), s, "captured", vip, "no-service"); err != nil {
			return err
		}
		return errorf("still there, %v", err)
	})
	s.Must(s.KubeProxy.Restart(t.Context())) // it drops what is of a range until its next full sync
	s.Eventually("its addresses are not ours any more", func() error { return passedThrough(within(t), s, "captured", vip, outside) })

	old.unharmed(t, "the Service of the old range")
	lived(t, open...)
	after := listeners(t, s)
	pods := 2
	if got := after["listener_in_place_updated"] - before["listener_in_place_updated"]; got < 2*pods {
		t.Errorf("%d listeners were updated in place, want two updates of %d", got, pods)
	}
	// The listeners of pods that ended drain, and no others.
	ended := after["listener_removed"] - before["listener_removed"]
	draining := after["total_listeners_draining"] - before["total_listeners_draining"]
	if chains := after["total_filter_chains_draining"]; chains != 0 || draining > ended {
		t.Errorf("%d chains and %d listeners drain, want none of %d pods that did not end", chains, draining-ended, pods)
	}
	t.Logf("updates in place %d, listeners and chains that drain 0", after["listener_in_place_updated"]-before["listener_in_place_updated"])
}

// cidrIs: the range is there, and ready or not.
func cidrIs(s *labtest.Space, ready metav1.ConditionStatus) error {
	c, err := s.Client().NetworkingV1().ServiceCIDRs().Get(context.Background(), "late", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, cond := range c.Status.Conditions {
		if cond.Type == networkingv1.ServiceCIDRConditionReady && cond.Status == ready {
			return nil
		}
	}
	return errorf("its conditions are %v", c.Status.Conditions)
}

// listeners are Envoy's counters of what became of listeners.
func listeners(t *testing.T, s *labtest.Space) map[string]int {
	t.Helper()
	b, err := s.Node.AdminGet(t.Context(), "/stats?filter=^listener_manager")
	s.Must(err)
	out := map[string]int{}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		if n, err := strconv.Atoi(value); err == nil {
			out[strings.TrimPrefix(name, "listener_manager.")] = n
		}
	}
	if _, ok := out["listener_in_place_updated"]; !ok {
		t.Fatalf("Envoy's counters of listeners: %s", b)
	}
	return out
}
