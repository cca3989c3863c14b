// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aether.io/aether/internal/kube"
	"aether.io/aether/internal/kube/apitest"
	"aether.io/aether/internal/model"
)

// calm is a cluster that has settled, and in which web must stay as it is.
func calm(t *testing.T, o apitest.Options, f func(t *testing.T, c *cluster)) {
	t.Helper()
	inCluster(t, o, kube.Options{}, usual, func(t *testing.T, c *cluster) {
		c.settle(t)
		c.keep(served(2))
		c.told()
		f(t, c)
	})
}

// TestNothingIsToldOfInterruptions: whatever becomes of streams and connections,
// what did not change is not told, and what did is told once.
func TestNothingIsToldOfInterruptions(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(t *testing.T, c *cluster)
	}{
		{"watches end", func(_ *testing.T, c *cluster) { c.EndWatches() }},
		{"watches break in a frame", func(_ *testing.T, c *cluster) { c.BreakWatches() }},
		{"410 while watching", func(_ *testing.T, c *cluster) { c.ExpireWatches() }},
		{"410 when watching again", func(_ *testing.T, c *cluster) { c.Advance(10); c.Compact(); c.EndWatches() }},
		{"the API server restarts", func(_ *testing.T, c *cluster) { c.Advance(10); c.Restart() }},
		{"an outage", func(t *testing.T, c *cluster) {
			c.Down()
			time.Sleep(10 * time.Minute)
			up(t, c)
		}},
		{"an outage after which the history is gone", func(t *testing.T, c *cluster) {
			c.Down()
			time.Sleep(time.Hour)
			c.Advance(10)
			c.Compact()
			up(t, c)
		}},
		{"the network swallows everything", func(_ *testing.T, c *cluster) {
			c.Freeze()
			time.Sleep(5 * time.Minute)
			c.Thaw()
		}},
		{"nothing but errors", func(_ *testing.T, c *cluster) {
			for _, r := range []string{"services", "endpointslices", "servicecidrs", "nodes", ""} {
				c.Fail(r, apitest.Failure{Code: http.StatusInternalServerError})
			}
			c.EndWatches()
			time.Sleep(5 * time.Minute)
			c.Heal()
		}},
		{"lists are cut", func(_ *testing.T, c *cluster) {
			c.TruncateLists(6)
			c.BreakWithin(2)
			c.ExpireWatches()
			time.Sleep(time.Minute)
			c.Heal()
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			everyServer(t, func(t *testing.T, o apitest.Options) {
				calm(t, o, func(t *testing.T, c *cluster) {
					row.do(t, c)
					time.Sleep(2 * time.Minute)
					if got := c.told(); len(got) != 0 {
						t.Errorf("told %v, and nothing had changed", got)
					}
					c.Apply(service("api", "10.96.0.11"))
					c.settle(t)
					if got := c.told(); len(got) != 1 {
						t.Errorf("told %v, want the new Service alone", got)
					}
					if f := c.source.Freshness(); f.Stale() || !f.UnreachableSince.IsZero() {
						t.Errorf("freshness afterwards: %+v", f)
					}
				})
			})
		})
	}
}

// TestOutageTellsTheDifference: what changed during an outage of minutes is told as
// its difference, and there is no moment without what stayed.
func TestOutageTellsTheDifference(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		everyServer(t, func(t *testing.T, o apitest.Options) {
			calm(t, o, func(t *testing.T, c *cluster) {
				c.Apply(service("api", "10.96.0.11"), endpoints("api-1", "api", "10.1.2.1"), service("shop", "10.96.0.12"))
				c.settle(t)
				c.told()
				c.Down()
				time.Sleep(time.Second)
				c.Apply(endpoints("web-2", "web", "10.1.1.3"), endpoints("api-1", "api", "10.1.2.2"), cidr("more", "203.0.113.0/24"))
				if err := c.Delete(service("shop", "")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(7 * time.Minute)
				if got := c.told(); len(got) != 0 {
					t.Errorf("told %v while the API server was away", got)
				}
				if forgotten {
					c.Compact()
				}
				up(t, c)
				c.settle(t)
				got := map[string]int{}
				for _, ch := range c.told() {
					got[strings.TrimPrefix(fmt.Sprintf("%T", ch), "model.")]++
				}
				want := map[string]int{"SetSlice": 2, "DeleteService": 1, "SetServiceCIDR": 1}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("told %v, want %v", got, want)
				}
			})
		})
	}
}

// TestFreshnessDuringOutage: what was told counts as stale soon after the API
// server is gone, is named as a problem, and counts again when it is back.
func TestFreshnessDuringOutage(t *testing.T) {
	calm(t, apitest.Options{}, func(t *testing.T, c *cluster) {
		if f := c.source.Freshness(); f.Stale() {
			t.Fatalf("stale in the beginning: %+v", f)
		}
		c.Down()
		began := time.Now()
		eventually(t, "stale", 5*time.Second, func() bool { return c.source.Freshness().Stale() })
		eventually(t, "the problem is told", 10*time.Second, func() bool { return strings.Contains(c.problem("API server"), "unreachable since") })
		time.Sleep(3 * time.Minute)
		f := c.source.Freshness()
		if since := f.UnreachableSince.Sub(began); since < 0 || since > 5*time.Second {
			t.Errorf("unreachable since %s after the end", since)
		}
		if stale, _ := c.metric(t, "aether_kube_stale", "kind", "services"); stale != 1 {
			t.Error("the gauge does not say that Services are stale")
		}
		up(t, c)
		eventually(t, "fresh", 30*time.Second, func() bool {
			return !c.source.Freshness().Stale() && c.source.Freshness().UnreachableSince.IsZero()
		})
		eventually(t, "no problem", 5*time.Second, func() bool { return c.problem("API server") == "" })
		if n := len(c.log.warnings()); n > 12 {
			t.Errorf("%d warnings of one outage:\n%s", n, strings.Join(c.log.warnings(), ""))
		}
	})
}

// TestIdleIsNotStale: a cluster in which nothing happens is as fresh after hours
// as before.
func TestIdleIsNotStale(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		calm(t, o, func(t *testing.T, c *cluster) {
			for range 12 {
				time.Sleep(10 * time.Minute)
				if f := c.source.Freshness(); f.Stale() {
					t.Fatalf("stale: %+v", f)
				}
			}
			if got := c.told(); len(got) != 0 {
				t.Errorf("told %v", got)
			}
			if w := c.log.warnings(); len(w) != 0 {
				t.Errorf("warnings of quiet hours:\n%s", strings.Join(w, ""))
			}
		})
	})
}

// TestStalledWatch: streams that stay open and say nothing make what was told
// stale, and are begun anew.
func TestStalledWatch(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		calm(t, o, func(t *testing.T, c *cluster) {
			time.Sleep(90 * time.Second) // a bookmark has come by now, so silence means something
			c.ForgetRequests()
			c.StallWatches()
			c.Apply(service("api", "10.96.0.11"))
			eventually(t, "the silent watch is begun anew", 5*time.Minute, func() bool { return len(c.Requests("services")) > 0 })
			if o.PlainLists { // a list comes through
				c.settle(t)
			} else if got := c.told(); len(got) != 0 {
				t.Errorf("told %v by silent streams", got)
			}
			c.Heal()
			c.settle(t)
		})
	})
}

// TestFrozenNetwork: when packets vanish without a word, the connection's own
// pings notice, and the API server counts as unreachable.
func TestFrozenNetwork(t *testing.T) {
	calm(t, apitest.Options{}, func(t *testing.T, c *cluster) {
		c.Freeze()
		c.Apply(service("api", "10.96.0.11"))
		eventually(t, "unreachable", 2*time.Minute, func() bool { return !c.source.Freshness().UnreachableSince.IsZero() })
		eventually(t, "stale", kube.DefaultStaleAfter, func() bool { return c.source.Freshness().Stale() })
		for i := range 60 {
			time.Sleep(7 * time.Second)
			f := c.source.Freshness()
			if !f.Stale() || f.UnreachableSince.IsZero() {
				t.Fatalf("fresh, and nothing can be reached: %+v", f)
			}
			// A watch that was never answered is no end of the failure.
			if s := f.Of(kube.Services); i > 30 && (s.Err == nil || !s.Stale) {
				t.Fatalf("Services can be read, and nothing can be reached: %+v", s)
			}
		}
		c.Thaw()
		c.settleWithin(t, time.Minute)
	})
}

// TestConnectionsWithoutAnswers: client-go calls a watch whose connection ended
// before any answer an empty one, without an error. It is a failure all the same.
func TestConnectionsWithoutAnswers(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		calm(t, o, func(t *testing.T, c *cluster) {
			c.HangUp(true)
			c.Apply(service("api", "10.96.0.11"))
			time.Sleep(time.Minute)
			since := c.source.Freshness().Of(kube.Services).FailingSince
			for range 200 {
				time.Sleep(500 * time.Millisecond)
				if s := c.source.Freshness().Of(kube.Services); s.Err == nil || !s.Stale || !s.FailingSince.Equal(since) {
					t.Fatalf("Services could be read for a moment, and nothing is answered: %+v", s)
				}
			}
			c.HangUp(false)
			c.settleWithin(t, time.Minute)
		})
	})
}

// TestSlowStreams: a list that takes minutes is waited for, and is told as a whole.
func TestSlowStreams(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		inCluster(t, o, kube.Options{}, func(s *apitest.Server) {
			usual(s)
			for i := range 200 {
				s.Apply(endpoints(fmt.Sprint("web-x", i), "web", fmt.Sprintf("10.2.0.%d", i+1)))
			}
			s.Slow(1000)
		}, func(t *testing.T, c *cluster) {
			// Streams go at a thousand bytes in a second, and so does a handshake of
			// each of them: nothing may be told of slices before all are there.
			partly := 0
			for range 600 {
				time.Sleep(time.Second)
				if n := count(c, web); n != 0 && n != 202 {
					partly = n
				}
			}
			if partly != 0 {
				t.Errorf("%d of 202 endpoints were told for a while", partly)
			}
			c.settle(t)
			c.Apply(service("api", "10.96.0.11"))
			c.settle(t)
		})
	})
}

// TestThrottled: an API server that is busy is asked again when it says.
func TestThrottled(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		calm(t, o, func(t *testing.T, c *cluster) {
			c.Fail("services", apitest.Failure{Code: http.StatusTooManyRequests, RetryAfter: 4 * time.Second})
			c.EndWatches()
			c.ForgetRequests()
			began := time.Now()
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			// Every tenth request is given up without a wait, after which another kind
			// of request is tried.
			if n, most := len(c.Requests("services")), int(time.Since(began)/(4*time.Second))*12/10+5; n == 0 || n > most {
				t.Errorf("asked %d times in %s, want at most %d", n, time.Since(began), most)
			}
			c.Apply(service("api", "10.96.0.11"))
			c.Heal()
			c.settleWithin(t, 2*time.Minute)
		})
	})
}

// TestForbidden: a right that is missing is a problem that names it, and nothing
// that was known is lost; when it is granted, all is well by itself.
func TestForbidden(t *testing.T) {
	for resource, name := range map[string]string{
		"services": "services", "endpointslices": "endpointslices.discovery.k8s.io",
		"servicecidrs": "servicecidrs.networking.k8s.io", "nodes": "nodes", "pods": "pods",
	} {
		t.Run(resource, func(t *testing.T) {
			everyServer(t, func(t *testing.T, o apitest.Options) {
				calm(t, o, func(t *testing.T, c *cluster) {
					c.Fail(resource, apitest.Failure{Code: http.StatusForbidden})
					c.ExpireWatches()
					eventually(t, "the problem names "+name, time.Minute, func() bool {
						text := c.problem(name)
						return strings.Contains(text, "["+resource+"]") && strings.Contains(text, "verbs: [list, watch]")
					})
					time.Sleep(10 * time.Minute)
					if got := c.told(); len(got) != 0 {
						t.Errorf("told %v", got)
					}
					if stale := c.source.Freshness().Of(kube.Kind(resource)).Stale; !stale {
						t.Error("what may not be read counts as fresh")
					}
					c.Heal()
					eventually(t, "the problem is gone", 2*time.Minute, func() bool { return c.problem(name) == "" })
					c.settle(t)
				})
			})
		})
	}
}

// TestForbiddenFromTheStart: without the right to read Services nothing is synced,
// and the problem says why.
func TestForbiddenFromTheStart(t *testing.T) {
	inCluster(t, apitest.Options{}, kube.Options{}, func(s *apitest.Server) {
		usual(s)
		s.Fail("services", apitest.Failure{Code: http.StatusForbidden})
		s.Fail("endpointslices", apitest.Failure{Code: http.StatusForbidden, Verb: "watch"})
	}, func(t *testing.T, c *cluster) {
		eventually(t, "a problem", time.Minute, func() bool {
			return strings.Contains(c.problem("services"), "services") && c.problem("endpointslices.discovery.k8s.io") != ""
		})
		time.Sleep(5 * time.Minute)
		if _, synced, _ := c.now(); synced {
			t.Error("synced")
		}
	})
}

// TestEtcdRestored: the cluster goes back to an older state with older versions.
// Watches from the versions of before are silent, so the silence has to be
// noticed.
func TestEtcdRestored(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		inCluster(t, o, kube.Options{}, usual, func(t *testing.T, c *cluster) {
			c.settle(t)
			backup := c.Backup()
			c.Advance(1000)
			c.Apply(service("api", "10.96.0.11"), endpoints("web-1", "web", "10.1.1.7"))
			if err := c.Delete(cidr("kubernetes")); err != nil {
				t.Fatal(err)
			}
			c.settle(t)
			time.Sleep(10 * time.Minute) // bookmarks of the later versions have come
			c.Down()
			time.Sleep(10 * time.Second)
			c.Restore(backup)
			c.settleWithin(t, 10*time.Minute)
			c.Apply(service("shop", "10.96.0.12"))
			c.settle(t)
		})
	})
}

// TestManyRestarts: an API server that restarts again and again is followed, and
// nothing that stays is ever told as gone.
func TestManyRestarts(t *testing.T) {
	everyServer(t, func(t *testing.T, o apitest.Options) {
		calm(t, o, func(t *testing.T, c *cluster) {
			for i := range 20 {
				c.Apply(service("api", fmt.Sprintf("10.96.1.%d", i+1)))
				c.Restart()
				time.Sleep(time.Duration(i) * 3 * time.Second)
			}
			c.settle(t)
			for _, ch := range c.told() {
				if d, ok := ch.(model.DeleteService); ok {
					t.Errorf("told %+v", d)
				}
			}
		})
	})
}
