// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// TestEndpointsMapFromESC has the cases of kube-proxy 1.37's test of that name:
// how the slices of a Service become the endpoints of its ports.
func TestEndpointsMapFromESC(t *testing.T) {
	const three = "10.1.1.1:8080 10.1.1.2:8080 10.1.1.3:8080"
	for _, c := range []struct {
		name    string
		changes []model.Change
		want    string // what VIP:80 uses
	}{
		{"1 slice, 2 hosts, ports 80,443", []model.Change{
			service("default/web", vip, "http:80 https:443"),
			slice("default/web-a", "web", "http:8080 https:8443", "10.1.1.1", "10.1.1.2"),
		}, "10.1.1.1:8080 10.1.1.2:8080"},
		{"2 slices, same port", []model.Change{
			web(), webSlice("10.1.1.1", "10.1.1.2"),
			slice("default/web-b", "web", "http:8080", "10.1.1.3"),
		}, three},
		{"2 overlapping slices, same port", []model.Change{
			web(), webSlice("10.1.1.1", "10.1.1.2"),
			slice("default/web-b", "web", "http:8080", "10.1.1.2", "10.1.1.3"),
		}, three},
		{"2 overlapping slices, some unready", []model.Change{
			web(), webSlice("10.1.1.1", "10.1.1.2 r-"),
			slice("default/web-b", "web", "http:8080", "10.1.1.2 r-", "10.1.1.3"),
		}, "10.1.1.1:8080 10.1.1.3:8080"},
		{"2 overlapping slices, some unready and terminating", []model.Change{
			web(), webSlice("10.1.1.1", "10.1.1.2 r-s+t+"),
			slice("default/web-b", "web", "http:8080", "10.1.1.2 r-s+t+", "10.1.1.3 r-s-t+"),
		}, "10.1.1.1:8080"},
		{"2 overlapping slices, all unready", []model.Change{
			web(), webSlice("10.1.1.1 r-", "10.1.1.2 r-"),
			slice("default/web-b", "web", "http:8080", "10.1.1.2 r-", "10.1.1.3 r-"),
		}, "no-endpoints"},
		{"3 slices with different services and namespaces", []model.Change{
			web(), webSlice("10.1.1.1"),
			slice("default/other-a", "other", "http:8080", "10.1.1.2"),
			slice("shop/web-a", "web", "http:8080", "10.1.1.3"),
		}, "10.1.1.1:8080"},
		{"nil port should not break anything", []model.Change{
			web(), slice("default/web-a", "web", "", "10.1.1.1", "10.1.1.2"),
		}, "no-endpoints"},
		{"different endpoints with duplicate IPs", []model.Change{
			web(), webSlice("10.1.1.1", "10.1.1.2"),
			slice("default/web-b", "web", "http:9090", "10.1.1.1", "10.1.1.2"),
		}, "10.1.1.1:8080 10.1.1.1:9090 10.1.1.2:8080 10.1.1.2:9090"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, dial(state(c.changes...)), c.want)
		})
	}
}

// TestEndpointInfoByServicePort has the cases of kube-proxy 1.37's test of that
// name.
func TestEndpointInfoByServicePort(t *testing.T) {
	for _, c := range []struct {
		name    string
		changes []model.Change
		want    string
	}{
		{"simple use case with 3 endpoints", []model.Change{
			webSlice("10.1.1.1", "10.1.1.2", "10.1.1.3"),
		}, "10.1.1.1:8080 10.1.1.2:8080 10.1.1.3:8080"},
		{"4 slices with duplicate IPs", []model.Change{
			webSlice("10.1.1.1"),
			slice("default/web-b", "web", "http:8080", "10.1.1.1"),
			slice("default/web-c", "web", "http:8080", "10.1.1.1"),
			slice("default/web-d", "web", "http:8080", "10.1.1.1", "10.1.1.2"),
		}, "10.1.1.1:8080 10.1.1.2:8080"},
		{"duplicate endpoints prefer non-terminating", []model.Change{
			webSlice("10.1.1.1 r-s+t+"),
			slice("default/web-b", "web", "http:8080", "10.1.1.1"),
			slice("default/web-c", "web", "http:8080", "10.1.1.1 r-s+t+"),
		}, "10.1.1.1:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, dial(state(append(c.changes, web())...)), c.want)
		})
	}
}

// TestDuplicates holds the rule for several entries of one ip:port: the one that
// is not terminating, then the ready one, then the serving one, then the slice
// whose name sorts first, then the earlier entry. Each is tried in both orders.
func TestDuplicates(t *testing.T) {
	const address = "10.1.1.1:8080"
	for _, c := range []struct {
		name, a, b string
		// by conditions: a wins in either order, with those words on the loser.
		because string
		want    string
	}{
		{"not terminating before ready", "10.1.1.1 r-s-t-", "10.1.1.1 r+s+t+", "is not terminating", "no-endpoints"},
		{"not terminating before serving", "10.1.1.1 r+s+t-", "10.1.1.1 r-s+t+", "is not terminating", address},
		{"ready before not ready", "10.1.1.1 r+", "10.1.1.1 r-s+", "is ready", address},
		{"ready before not ready, both terminating", "10.1.1.1 r+s-t+", "10.1.1.1 r-s+t+", "is ready", address},
		{"serving before not serving", "10.1.1.1 r-s+t+", "10.1.1.1 r-s-t+", "is serving", address},
	} {
		for _, order := range []struct{ first, second string }{{c.a, c.b}, {c.b, c.a}} {
			t.Run(c.name, func(t *testing.T) {
				across := dial(state(web(), webSlice(order.first),
					slice("default/web-b", "web", "http:8080", order.second)))
				within := dial(state(web(), webSlice(order.first, order.second)))
				for _, a := range []plan.Answer{across, within} {
					expect(t, a, c.want)
					if len(a.Candidates) != 2 {
						t.Fatalf("%d candidates, want both\n%s", len(a.Candidates), story(a))
					}
					lost := 0
					for _, candidate := range a.Candidates {
						if !candidate.Chosen && strings.Contains(candidate.Why, "duplicate of the entry in slice default/web-") &&
							strings.Contains(candidate.Why, c.because) {
							lost++
						}
					}
					if lost != 1 {
						t.Errorf("%d losers that say %q, want 1\n%s", lost, c.because, story(a))
					}
				}
			})
		}
	}
}

func TestDuplicatesTie(t *testing.T) {
	t.Run("slice name", func(t *testing.T) {
		// web-a wins and its node counts, in whatever order the slices arrive.
		a := slice("default/web-a", "web", "http:8080", "10.1.1.1 @n2")
		b := slice("default/web-b", "web", "http:8080", "10.1.1.1 @n1")
		for _, changes := range [][]model.Change{{a, b}, {b, a}} {
			got := dial(state(append(changes, web(local))...))
			expect(t, got, "no-local-endpoints")
			if !strings.Contains(whyOf(got, "10.1.1.1:8080"), "default/web-a, which sorts first by name") {
				t.Error(story(got))
			}
		}
	})
	t.Run("earlier entry", func(t *testing.T) {
		got := dial(state(web(local), webSlice("10.1.1.1 @n2", "10.1.1.1 @n1")))
		expect(t, got, "no-local-endpoints")
		if !strings.Contains(whyOf(got, "10.1.1.1:8080"), "which comes earlier in it") {
			t.Error(story(got))
		}
	})
	t.Run("a losing duplicate without hints does not turn hints off", func(t *testing.T) {
		expect(t, dial(state(web(), webSlice("10.1.1.1 z:za", "10.1.1.2 z:zb", "10.1.1.1 r-s+t+", "10.1.1.2 t+"))), "10.1.1.1:8080")
	})
	t.Run("a losing duplicate with a hint does not turn hints on", func(t *testing.T) {
		expect(t, dial(state(web(), webSlice("10.1.1.1 z:zb", "10.1.1.2 z:zc", "10.1.1.1 t+ z:za"))), "10.1.1.1:8080 10.1.1.2:8080")
	})
	t.Run("one port named twice in a slice", func(t *testing.T) {
		got := dial(state(web(), slice("default/web-a", "web", "http:8080 http:8080", "10.1.1.1")))
		expect(t, got, "10.1.1.1:8080")
	})
}

// TestFaultyAddress: an address that must not be dialled counts as absent for
// everything and is listed with its fault.
func TestFaultyAddress(t *testing.T) {
	const link = "169.254.1.1 fault=link-local"
	for _, c := range []struct {
		name, want string
		changes    []model.Change
	}{
		{"it does not serve", "10.1.1.1:8080", []model.Change{web(), webSlice(link, "10.1.1.1")}},
		{"alone it is no endpoint", "no-endpoints", []model.Change{web(), webSlice(link)}},
		{"it does not turn hints off", "10.1.1.1:8080", []model.Change{web(), webSlice(link, "10.1.1.1 z:za", "10.1.1.2 z:zb")}},
		{"it does not turn hints on", "10.1.1.2:8080", []model.Change{web(), webSlice(link+" z:za", "10.1.1.2 z:zb")}},
		{"it is not usable elsewhere", "no-endpoints", []model.Change{web(local), webSlice(link + " @n2")}},
		{"it is not ready in place of a terminating one", "10.1.1.2:8080", []model.Change{web(), webSlice(link, "10.1.1.2 r-s+t+")}},
		{"it does not win as a duplicate", "10.1.1.1:8080", []model.Change{web(), webSlice("10.1.1.1 fault=odd", "10.1.1.1")}},
		{"not an address at all", "10.1.1.1:8080", []model.Change{web(), webSlice("example.com fault=nonsense", "10.1.1.1")}},
		{"no address and no fault", "10.1.1.1:8080", []model.Change{web(), webSlice("nonsense", "10.1.1.1")}},
		{"of another family", "10.1.1.1:8080", []model.Change{web(), webSlice("fd00::9 fault=family", "10.1.1.1")}},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, dial(state(c.changes...)), c.want) })
	}
	a := dial(state(web(), webSlice(link, "example.com fault=nonsense", "fd00::9 fault=family")))
	for address, want := range map[string]string{
		"169.254.1.1:8080": `bad address "169.254.1.1": link-local`,
		"example.com:8080": `bad address "example.com": nonsense`,
		"[fd00::9]:8080":   `bad address "fd00::9": family`,
	} {
		if got := whyOf(a, address); got != want {
			t.Errorf("why %s: %q, want %q", address, got, want)
		}
	}
}
