// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aether.io/aether/internal/kube"
	"aether.io/aether/internal/kube/apitest"
	"aether.io/aether/internal/model"
)

// servers are the ways in which an API server can tell what there is.
var servers = map[string]apitest.Options{
	"streaming lists, compressed": {},
	"streaming lists":             {Minor: 36},
	"plain lists":                 {PlainLists: true},
}

// everyServer runs a test against each of them.
func everyServer(t *testing.T, f func(t *testing.T, o apitest.Options)) {
	for name, o := range servers {
		t.Run(name, func(t *testing.T) { f(t, o) })
	}
}

// TestWhatIsAskedFor holds the requests against what the node needs, and no more:
// in Protobuf where there is one, filtered by the API server.
func TestWhatIsAskedFor(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		inCluster(t, o, kube.Options{}, func(s *apitest.Server) {
			usual(s)
			s.InstallServiceImports("v1beta1")
			s.Apply(apitest.ServiceImport("default", "api", "243.0.0.5"), pod("a", node, "true"))
		}, func(t *testing.T, c *cluster) {
			c.settle(t)
			for _, r := range c.Requests("") {
				if r.Resource == "" {
					continue
				}
				name := fmt.Sprintf("%s %s", r.Verb, r.Resource)
				want := map[string][2]string{
					"endpointslices": {"!service.kubernetes.io/headless", ""},
					"nodes":          {"", "metadata.name=n1"},
					"pods":           {"", "spec.nodeName=n1"},
				}[r.Resource]
				if got := [2]string{r.Query.Get("labelSelector"), r.Query.Get("fieldSelector")}; got != want {
					t.Errorf("%s selects %q, want %q", name, got, want)
				}
				if r.Status == 200 && (r.Resource != "serviceimports") != strings.HasPrefix(r.ContentType, protobuf) {
					t.Errorf("%s is answered in %s", name, r.ContentType)
				}
				if r.Verb == "watch" && (r.Query.Get("allowWatchBookmarks") != "true" || r.Query.Get("timeoutSeconds") == "") {
					t.Errorf("%s: %v, want bookmarks and an end", name, r.Query)
				}
				if !o.PlainLists && r.Query.Get("sendInitialEvents") != "true" {
					t.Errorf("%s: %v, want a streaming list", name, r.Query)
				}
			}
			want := []string{"endpointslices", "nodes", "pods", "servicecidrs", "serviceimports", "services"}
			if got := c.Resources(); !slices.Equal(got, want) {
				t.Errorf("asked for %v, want %v", got, want)
			}
			for _, resource := range want {
				if n := c.Watching(resource); n != 1 {
					t.Errorf("%d watches of %s are open", n, resource)
				}
			}
		})
	})
}

// TestSyncedOnlyWhenAllIsKnown: nothing may be refused before Services, slices and
// the range were listed.
func TestSyncedOnlyWhenAllIsKnown(t *testing.T) {
	for _, resource := range []string{"services", "endpointslices", "servicecidrs", "nodes"} {
		everyServer(t, func(t *testing.T, o apitest.Options) {
			inCluster(t, o, kube.Options{}, func(s *apitest.Server) {
				usual(s)
				s.Fail(resource, apitest.Failure{Code: 500})
			}, func(t *testing.T, c *cluster) {
				time.Sleep(10 * time.Minute)
				if _, synced, _ := c.now(); synced {
					t.Fatalf("synced without %s", resource)
				}
				c.Heal()
				c.settle(t)
			})
		})
	}
}

// TestStartWhileTheServerIsAway: an agent that starts during an outage waits.
func TestStartWhileTheServerIsAway(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		inCluster(t, o, kube.Options{}, func(s *apitest.Server) { usual(s); s.Down() }, func(t *testing.T, c *cluster) {
			time.Sleep(20 * time.Minute)
			if _, synced, _ := c.now(); synced || !c.source.Freshness().Stale() || !strings.Contains(c.problem("API server"), "unreachable") {
				t.Fatalf("synced %t, freshness %+v, problem %q", synced, c.source.Freshness(), c.problem("API server"))
			}
			up(t, c)
			c.settleWithin(t, time.Minute)
		})
	})
}

func up(t *testing.T, c *cluster) {
	t.Helper()
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
}

// TestHeadlessSlicesAreFiltered: by the existence of the label, at the server, and
// when it comes and goes.
func TestHeadlessSlicesAreFiltered(t *testing.T) {
	inCluster(t, apitest.Options{}, kube.Options{}, func(s *apitest.Server) {
		usual(s)
		hidden := endpoints("hidden", "web", "10.1.1.9")
		hidden.Labels[corev1.IsHeadlessService] = ""
		s.Apply(hidden)
	}, func(t *testing.T, c *cluster) {
		c.settle(t)
		if n := count(c, web); n != 2 {
			t.Errorf("web has %d endpoints", n)
		}
		visible := endpoints("hidden", "web", "10.1.1.9")
		c.Apply(visible)
		c.settle(t)
		if n := count(c, web); n != 3 {
			t.Errorf("web has %d endpoints after the label is gone", n)
		}
		visible.Labels[corev1.IsHeadlessService] = "anything"
		c.Apply(visible)
		c.settle(t)
		if n := count(c, web); n != 2 {
			t.Errorf("web has %d endpoints after the label is back", n)
		}
	})
}

// count counts a Service's endpoints in the State.
func count(c *cluster, n model.Name) (out int) {
	state, _, _ := c.now()
	for _, s := range state.Slices(n) {
		out += len(s.Endpoints)
	}
	return out
}

// TestForeignServicesAreKnown (J-1, J-3): a Service of another proxy is watched
// all the same, so that it is left alone.
func TestForeignServicesAreKnown(t *testing.T) {
	inCluster(t, apitest.Options{}, kube.Options{}, usual, func(t *testing.T, c *cluster) {
		c.settle(t)
		foreign := func() model.Foreign {
			state, _, _ := c.now()
			s, ok := state.ServiceByVIP(netip.MustParseAddr(vip))
			if !ok {
				t.Fatal("web is gone")
			}
			return s.Foreign
		}
		for _, value := range []string{"other", "", "none"} {
			labelled := service("web", vip)
			labelled.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": value}
			c.Apply(labelled)
			c.settle(t)
			if f := foreign(); f != model.ServiceProxyName {
				t.Errorf("label %q: foreign is %q", value, f)
			}
			c.Apply(service("web", vip))
			c.settle(t)
			if f := foreign(); f != model.NotForeign {
				t.Errorf("without the label: foreign is %q", f)
			}
		}
	})
}

// TestOwnNodeAndPods: the own Node, whose zone changes at run time, and nobody
// else's pods.
func TestOwnNodeAndPods(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		inCluster(t, o, kube.Options{}, usual, func(t *testing.T, c *cluster) {
			c.settle(t)
			zone := func() string {
				state, _, _ := c.now()
				n, ok := state.Node(node)
				if !ok {
					return "no Node"
				}
				return n.Zone
			}
			for _, z := range []string{"zb", "", "za"} {
				c.Apply(theNode(node, z), theNode("n2", z+"x"))
				c.settle(t)
				if zone() != z {
					t.Errorf("zone %q, want %q", zone(), z)
				}
			}
			if state, _, _ := c.now(); !isAbsent(state.Node("n2")) {
				t.Error("another Node is known")
			}
			if err := c.Delete(theNode(node, "za")); err != nil {
				t.Fatal(err)
			}
			c.settle(t)
			if zone() != "no Node" {
				t.Error("the Node's deletion was missed")
			}
			c.Apply(theNode(node, "zc"), pod("a", node, "true"), pod("b", "n2", "true"), pod("c", node, "false"), pod("d", "", "true"))
			c.settle(t)
			c.expectPods(t, "default/a")
			scheduled := pod("d", node, "true") // a pod comes to be the node's when it is scheduled
			c.Apply(scheduled)
			c.expectPods(t, "default/a", "default/d")
			if err := c.Delete(pod("a", node, "true")); err != nil {
				t.Fatal(err)
			}
			c.expectPods(t, "default/d")
		})
	})
}

func isAbsent(_ model.Node, ok bool) bool { return !ok }

func (c *cluster) expectPods(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	list, err := c.source.ConnectOnly()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range list {
		got = append(got, p.Pod)
	}
	if !slices.Equal(got, want) {
		t.Errorf("pods that only connect: %v, want %v", got, want)
	}
}

// TestBookmarksAreRespected: after a bookmark the watch goes on from there, so that
// it survives that the history before it is forgotten, without a new list.
func TestBookmarksAreRespected(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		inCluster(t, o, kube.Options{}, usual, func(t *testing.T, c *cluster) {
			c.settle(t)
			c.Advance(1000)
			time.Sleep(90 * time.Second)
			marks, _ := c.metric(t, "aether_kube_events_total", "kind", "services", "event", "bookmark")
			if marks == 0 {
				t.Error("no bookmark was counted")
			}
			c.Compact()
			lists, _ := c.metric(t, "aether_kube_events_total", "kind", "services", "event", "list")
			c.ForgetRequests()
			c.told()
			c.EndWatches()
			c.Apply(service("api", "10.96.0.11"))
			c.settle(t)
			for _, r := range c.Requests("services") {
				if r.Verb != "watch" || r.Query.Get("resourceVersion") != fmt.Sprint(c.Version()-1) || r.Query.Get("sendInitialEvents") != "" {
					t.Errorf("after the end: %s %v, want a watch from the bookmark", r.Verb, r.Query)
				}
			}
			if again, _ := c.metric(t, "aether_kube_events_total", "kind", "services", "event", "list"); again != lists {
				t.Errorf("listed %v times, %v before", again, lists)
			}
			if got := c.told(); len(got) != 1 {
				t.Errorf("told %v, want the new Service alone", got)
			}
		})
	})
}

// TestWatchLag: how long ago the event's cause was, by what the object says.
func TestWatchLag(t *testing.T) {
	inCluster(t, apitest.Options{}, kube.Options{}, usual, func(t *testing.T, c *cluster) {
		c.settle(t)
		s := endpoints("web-1", "web", "10.1.1.1")
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Add(-3 * time.Second).UTC().Format(time.RFC3339Nano)}
		c.Apply(s)
		c.settle(t)
		if sum, n := c.metric(t, "aether_kube_watch_lag_seconds", "kind", "endpointslices"); n != 1 || sum < 2.9 || sum > 3.1 {
			t.Errorf("%v events took %v s, want one that took 3 s", n, sum)
		}
		c.StallWatches()
		time.Sleep(time.Second - time.Duration(time.Now().Nanosecond())) // creation times are whole seconds
		c.Apply(service("api", "10.96.0.11"))
		time.Sleep(10 * time.Second)
		c.Heal()
		c.settle(t)
		if sum, n := c.metric(t, "aether_kube_watch_lag_seconds", "kind", "services"); n != 1 || sum < 9.9 || sum > 10.5 {
			t.Errorf("%v events took %v s, want one that took 10 s", n, sum)
		}
	})
}
