// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aether.io/aether/internal/kube"
	"aether.io/aether/internal/kube/apitest"
	"aether.io/aether/internal/model"
)

// importedAt reports whether an import holds the address.
func (c *cluster) importedAt(a string) bool {
	state, _, _ := c.now()
	_, ok := state.ImportByVIP(netip.MustParseAddr(a))
	return ok
}

// TestImportsCRDInstalledLater: ServiceImports are watched within the discovery
// interval after their CRD came, in whichever version it serves.
func TestImportsCRDInstalledLater(t *testing.T) {
	for _, versions := range [][]string{{"v1beta1"}, {"v1alpha1"}, {"v1alpha1", "v1beta1"}, {"v1beta1", "v1alpha1"}} {
		t.Run(strings.Join(versions, " "), func(t *testing.T) {
			everyServer(t, func(t *testing.T, o apitest.Options) {
				calm(t, o, func(t *testing.T, c *cluster) {
					time.Sleep(time.Hour)
					c.InstallServiceImports(versions...)
					c.Apply(apitest.ServiceImport("default", "api", "243.0.0.5"))
					eventually(t, "the import is known", 40*time.Second, func() bool { return c.importedAt("243.0.0.5") })
					c.settle(t)
					want := versions[0]
					if len(versions) > 1 {
						want = "v1beta1"
					}
					for _, r := range c.Requests("serviceimports") {
						if !strings.Contains(r.Path, "/"+want+"/") {
							t.Errorf("asked for %s, want %s", r.Path, want)
						}
					}
					c.Apply(apitest.ServiceImport("default", "api", "243.0.0.6"))
					c.settle(t)
				})
			})
		})
	}
}

// TestImportsOfAnotherVersion: the version that is watched is served no more; what
// was told stays until the list of the other is there, and follows it.
func TestImportsOfAnotherVersion(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		calm(t, o, func(t *testing.T, c *cluster) {
			c.InstallServiceImports("v1alpha1")
			c.Apply(apitest.ServiceImport("default", "api", "243.0.0.5"))
			eventually(t, "the import is known", 40*time.Second, func() bool { return c.importedAt("243.0.0.5") })
			c.keep(func(s *model.State) string {
				if _, ok := s.ImportByVIP(netip.MustParseAddr("243.0.0.5")); !ok {
					return "the import is gone for a moment"
				}
				return served(2)(s)
			})
			c.InstallServiceImports("v1beta1")
			c.Apply(apitest.ServiceImport("default", "shop", "243.0.0.6"))
			eventually(t, "the other version is watched", 2*time.Minute, func() bool { return c.importedAt("243.0.0.6") })
			c.settle(t)
		})
	})
}

// TestImportsCRDRemoved: when the CRD goes, its imports go, and when it comes back,
// they are watched again.
func TestImportsCRDRemoved(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		calm(t, o, func(t *testing.T, c *cluster) {
			for range 2 {
				c.InstallServiceImports("v1beta1")
				c.Apply(apitest.ServiceImport("default", "api", "243.0.0.5"))
				eventually(t, "the import is known", 40*time.Second, func() bool { return c.importedAt("243.0.0.5") })
				c.RemoveServiceImports()
				eventually(t, "the import is gone", 2*time.Minute, func() bool { return !c.importedAt("243.0.0.5") })
				eventually(t, "the kind counts as absent", 5*time.Minute, func() bool { return c.source.Freshness().Of(kube.ServiceImports).Absent })
				c.settle(t)
			}
		})
	})
}

// TestImportsLookIsNotAnAnswer: while discovery fails, the CRD is not taken for
// removed.
func TestImportsLookIsNotAnAnswer(t *testing.T) {
	calm(t, apitest.Options{}, func(t *testing.T, c *cluster) {
		c.InstallServiceImports("v1beta1")
		c.Apply(apitest.ServiceImport("default", "api", "243.0.0.5"))
		eventually(t, "the import is known", 40*time.Second, func() bool { return c.importedAt("243.0.0.5") })
		c.told()
		for _, f := range []apitest.Failure{{Code: 503}, {Code: 404, Times: 1}} { // a single 404 may be of a server that only begins
			c.Fail("", f)
			c.Fail("serviceimports", apitest.Failure{Code: 404, Times: 2})
			c.EndWatches()
			time.Sleep(10 * time.Minute)
			if got := c.told(); len(got) != 0 {
				t.Errorf("told %v after %+v", got, f)
			}
			c.Heal()
			c.settle(t)
		}
		c.settle(t)
	})
}

// TestClusterBefore133: without ServiceCIDRs the range is not known, which is one
// problem, unless the range was given, and everything else works. It is looked for
// again, for clusters are upgraded.
func TestClusterBefore133(t *testing.T) {
	for _, o := range []apitest.Options{
		{Minor: 32}, {Minor: 32, BetaNetworking: true}, {Minor: 31, BetaNetworking: true}, {Minor: 29, LegacyDiscovery: true},
	} {
		for _, given := range []bool{false, true} {
			inCluster(t, o, kube.Options{RangeGiven: given}, usual, func(t *testing.T, c *cluster) {
				c.settle(t)
				time.Sleep(time.Hour)
				state, synced, problems := c.now()
				if !synced || state.RangeKnown() {
					t.Errorf("%+v: synced %t, range known %t", o, synced, state.RangeKnown())
				}
				switch text := c.problem("servicecidrs.networking.k8s.io"); {
				case given && len(problems) != 0:
					t.Errorf("%+v: problems %v, and the range was given", o, problems)
				case !given && !strings.Contains(text, "--service-range"):
					t.Errorf("%+v: problem %q", o, text)
				}
				if absent, _ := c.metric(t, "aether_kube_absent", "kind", "servicecidrs"); absent != 1 {
					t.Errorf("%+v: the gauge says %v", o, absent)
				}
				if f := c.source.Freshness(); f.Stale() {
					t.Errorf("%+v: stale: %+v", o, f)
				}
				if w := c.log.warnings(); len(w) > 1 {
					t.Errorf("%+v: %d warnings in an hour:\n%s", o, len(w), strings.Join(w, ""))
				}
				c.Apply(endpoints("web-1", "web", "10.1.1.7"))
				c.settle(t)
				synctest.Wait()
				if n := len(c.Requests("servicecidrs")); n != 0 {
					t.Errorf("%+v: ServiceCIDRs were asked for %d times", o, n)
				}
			})
		}
	}
}

// TestRangeAtRunTime: a ServiceCIDR is added and used at once; one that is being
// deleted stays until it is gone; of two with one prefix, one may go.
func TestRangeAtRunTime(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		calm(t, o, func(t *testing.T, c *cluster) {
			inRange := func(a string) bool {
				state, _, _ := c.now()
				return state.InRange(netip.MustParseAddr(a))
			}
			more := cidr("more", "203.0.113.0/24")
			more.Finalizers = []string{"networking.k8s.io/service-cidr-finalizer"}
			c.Apply(more)
			synctest.Wait()
			if !inRange("203.0.113.7") {
				t.Error("the new range is not used at once")
			}
			if err := c.Delete(more); err != nil {
				t.Fatal(err)
			}
			c.settle(t)
			if !inRange("203.0.113.7") {
				t.Error("a range that is being deleted is gone before its object")
			}
			more.Finalizers = nil
			c.Apply(more)
			c.settle(t)
			if inRange("203.0.113.7") {
				t.Error("the range outlives its object")
			}
			c.Apply(cidr("again", "10.96.0.0/16"))
			c.settle(t)
			if err := c.Delete(cidr("again")); err != nil {
				t.Fatal(err)
			}
			c.settle(t)
			if !inRange(vip) {
				t.Error("one of two objects with the prefix took it along")
			}
		})
	})
}
