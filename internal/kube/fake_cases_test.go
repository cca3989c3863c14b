// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"aether.io/aether/internal/kube"
	"aether.io/aether/internal/kube/apitest"
	"aether.io/aether/internal/plan"
)

// answers returns what a dialled address is answered by what was told, as
// "balance" or a reason, and the endpoints used.
func (c *cluster) answers(t *testing.T, address string) (verdict string, used []string) {
	t.Helper()
	state, synced, _ := c.now()
	if !synced {
		t.Fatal("not synced")
	}
	a := plan.Decide(state, plan.Settings{Mode: plan.ModeEnforce, Node: node}, netip.MustParseAddrPort(address))
	verdict = string(a.Verdict)
	if a.Verdict == plan.Refuse {
		verdict = string(a.Reason)
	}
	for _, x := range a.Candidates {
		if x.Chosen && a.Verdict == plan.Balance {
			used = append(used, x.Address)
		}
	}
	return verdict, used
}

func (c *cluster) expectAnswer(t *testing.T, address, verdict string, endpoints ...string) {
	t.Helper()
	got, used := c.answers(t, address)
	if got != verdict || !slices.Equal(used, endpoints) {
		t.Errorf("%s is answered %s %v, want %s %v", address, got, used, verdict, endpoints)
	}
}

// many makes slices of a hundred endpoints, as their controller writes them.
func many(s *apitest.Server, of string, n int) {
	for i := range n / 100 {
		sl := endpoints(fmt.Sprintf("%s-%03d", of, i), of)
		for j := range 100 {
			sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 2+i/100, i%100, j+1)}})
		}
		s.Apply(sl)
	}
}

// K-1 (kubernetes#73324), K-2 (kubernetes#103520, prometheus#9467): a Service of any
// size is read whole, for slices have no cap.
func TestCasesSize(t *testing.T) {
	for name, n := range map[string]int{"K-1 ten thousand endpoints": 10_000, "K-2 fifteen hundred endpoints": 1_500} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, apitest.Options{PlainLists: n > 5_000}, kube.Options{}, func(s *apitest.Server) {
				s.Apply(service("web", vip), cidr("kubernetes", "10.96.0.0/16"), theNode(node, "za"))
				many(s, "web", n)
			}, func(t *testing.T, c *cluster) {
				c.settle(t)
				if verdict, used := c.answers(t, vip+":80"); verdict != "balance" || len(used) != n {
					t.Errorf("%s over %d endpoints, want all %d", verdict, len(used), n)
				}
			})
		})
	}
}

func TestCasesTiming(t *testing.T) {
	// kubernetes#98570
	t.Run("K-5 a slice that is made empty and filled later", func(t *testing.T) {
		calm(t, apitest.Options{}, func(t *testing.T, c *cluster) {
			c.Apply(service("api", "10.96.0.11"), endpoints("api-1", "api"))
			synctest.Wait()
			c.expectAnswer(t, "10.96.0.11:80", "no-endpoints")
			c.Apply(endpoints("api-1", "api", "10.1.2.1"))
			synctest.Wait()
			c.expectAnswer(t, "10.96.0.11:80", "balance", "10.1.2.1:8080")
			c.Apply(endpoints("api-1", "api"))
			synctest.Wait()
			c.expectAnswer(t, "10.96.0.11:80", "no-endpoints")
		})
	})
	// restate-operator#204: the pod is Ready before its slice says so. What the
	// slice says counts, and counts as soon as it comes.
	t.Run("K-6 a Ready pod that is no usable endpoint yet", func(t *testing.T) {
		calm(t, apitest.Options{}, func(t *testing.T, c *cluster) {
			starting := endpoints("api-1", "api", "10.1.2.1")
			starting.Endpoints[0].Conditions.Ready = ptr.To(false)
			ready := pod("api-x", node, "true")
			ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			c.Apply(service("api", "10.96.0.11"), starting, ready)
			time.Sleep(time.Second)
			c.expectAnswer(t, "10.96.0.11:80", "no-endpoints")
			c.Apply(endpoints("api-1", "api", "10.1.2.1"))
			synctest.Wait()
			c.expectAnswer(t, "10.96.0.11:80", "balance", "10.1.2.1:8080")
		})
	})
}

func TestCasesDualStack(t *testing.T) {
	// kubernetes#94505: a slice that holds addresses of the other family.
	t.Run("M-1 an address of the other family", func(t *testing.T) {
		calm(t, apitest.Options{}, func(t *testing.T, c *cluster) {
			c.Apply(endpoints("web-1", "web", "fd00::9", "10.1.1.1", "10.1.1.2"))
			c.settle(t)
			c.expectAnswer(t, vip+":80", "balance", "10.1.1.1:8080", "10.1.1.2:8080")
			if text := c.problem("EndpointSlice default/web-1"); text == "" {
				t.Error("nobody is told")
			}
			c.Apply(endpoints("web-1", "web", "10.1.1.1", "10.1.1.2"))
			c.settle(t)
			if text := c.problem("EndpointSlice default/web-1"); text != "" {
				t.Errorf("told of what is mended: %s", text)
			}
		})
	})
	// kubernetes#97343: slices of the other family are ignored, without a word.
	t.Run("M-2 a slice of the other family", func(t *testing.T) {
		calm(t, apitest.Options{}, func(t *testing.T, c *cluster) {
			six := endpoints("web-6", "web", "fd00::9")
			six.AddressType = discoveryv1.AddressTypeIPv6
			c.Apply(six)
			c.settle(t)
			c.expectAnswer(t, vip+":80", "balance", "10.1.1.1:8080", "10.1.1.2:8080")
			if _, _, problems := c.now(); len(problems) != 0 {
				t.Errorf("problems %v", problems)
			}
		})
	})
	// kubernetes#121631: slices per family, whichever family comes first.
	t.Run("M-3 a dual-stack Service", func(t *testing.T) {
		calm(t, apitest.Options{}, func(t *testing.T, c *cluster) {
			both := service("web", "fd00::10")
			both.Spec.ClusterIPs = []string{"fd00::10", vip}
			both.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
			six := endpoints("web-6", "web", "fd00::9")
			six.AddressType = discoveryv1.AddressTypeIPv6
			c.Apply(both, six)
			c.settle(t)
			c.expectAnswer(t, vip+":80", "balance", "10.1.1.1:8080", "10.1.1.2:8080")
		})
	})
}

func TestCasesImports(t *testing.T) {
	imports := func(t *testing.T, f func(t *testing.T, c *cluster)) {
		calm(t, apitest.Options{}, func(t *testing.T, c *cluster) {
			c.InstallServiceImports("v1beta1")
			eventually(t, "imports are watched", time.Minute, func() bool { return c.Watching("serviceimports") == 1 })
			f(t, c)
		})
	}
	// lighthouse#1349, #1507
	t.Run("N-1 an import without addresses", func(t *testing.T) {
		imports(t, func(t *testing.T, c *cluster) {
			c.told()
			c.Apply(apitest.ServiceImport("default", "api"))
			if got := c.told(); len(got) != 0 {
				t.Errorf("told %v", got)
			}
			c.Apply(apitest.ServiceImport("default", "api", "243.0.0.5")) // it is given one later
			synctest.Wait()
			c.expectAnswer(t, "243.0.0.5:80", "passthrough")
			c.Apply(apitest.ServiceImport("default", "api"))
			c.settle(t)
		})
	})
	// lighthouse#1639
	t.Run("N-2 a VIP outside every range", func(t *testing.T) {
		imports(t, func(t *testing.T, c *cluster) {
			held := apitest.ServiceImport("default", "api", "243.0.0.5")
			held.SetFinalizers([]string{"example.com/hold"})
			c.Apply(held)
			synctest.Wait()
			c.expectAnswer(t, "243.0.0.5:80", "passthrough")
			if err := c.Delete(held); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			c.expectAnswer(t, "243.0.0.5:80", "passthrough") // until the object is gone
			held.SetFinalizers(nil)
			c.Apply(held)
			c.settle(t)
		})
	})
	// cilium#35339
	t.Run("N-3 the derived Service of an import", func(t *testing.T) {
		imports(t, func(t *testing.T, c *cluster) {
			derived := service("derived-x", "10.96.0.12")
			derived.Annotations = map[string]string{"service.cilium.io/global": "true"}
			c.Apply(derived, endpoints("derived-1", "derived-x", "10.1.3.1"), apitest.ServiceImport("default", "api", "10.96.0.12"))
			synctest.Wait()
			c.expectAnswer(t, "10.96.0.12:80", "passthrough")
			c.settle(t)
		})
	})
	// cilium#42145
	t.Run("N-4 addresses of two families", func(t *testing.T) {
		imports(t, func(t *testing.T, c *cluster) {
			c.Apply(apitest.ServiceImport("default", "api", "fd00::5", "243.0.0.6"), apitest.ServiceImport("default", "six", "fd00::6"))
			c.settle(t)
			c.expectAnswer(t, "243.0.0.6:80", "passthrough")
			state, _, _ := c.now()
			for _, p := range state.Range() {
				if !p.Addr().Is4() {
					t.Errorf("the range holds %s", p)
				}
			}
		})
	})
}
