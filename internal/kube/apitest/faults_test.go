// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"aether.io/aether/internal/kube/apitest"
)

func endpointSlice(name string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.1.1.1"},
			Hints: &discoveryv1.EndpointHints{
				ForZones: []discoveryv1.ForZone{{Name: "za"}}, ForNodes: []discoveryv1.ForNode{{Name: "n1"}},
			},
		}},
	}
}

func ipAddress(ip string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "a"}},
	}
}

func TestDownAndUp(t *testing.T) {
	for _, inMemory := range []bool{false, true} {
		s := apitest.Start(t, apitest.Options{InMemory: inMemory})
		c := client(t, s, core, protobuf)
		w := watchServices(t, c, metav1.ListOptions{ResourceVersion: version(s.Version())})
		s.Apply(service("a"))
		expect(t, w, "ADDED a")
		s.Down()
		if text := next(t, w); text != "closed" && !strings.HasPrefix(text, "ERROR") {
			t.Errorf("in memory %t: event %q of a server that is down", inMemory, text)
		}
		if _, err := listServices(t.Context(), c, metav1.ListOptions{}); !utilnet.IsConnectionRefused(err) {
			t.Errorf("in memory %t: %v, want a refused connection", inMemory, err)
		}
		if err := s.Up(); err != nil {
			t.Fatal(err)
		}
		if list, err := listServices(t.Context(), c, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("in memory %t: %v, %v", inMemory, names(list), err)
		}
	}
}

func TestFreeze(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		c := client(t, s, core, protobuf)
		w := watchServices(t, c, metav1.ListOptions{ResourceVersion: version(s.Version())})
		synctest.Wait()
		s.Freeze()
		s.Apply(service("a"))
		quiet(t, w)
		// The client asks its connection whether it lives, and hears nothing.
		if text := within(w, time.Minute); text == "silent" {
			t.Error("the watch has not ended in a minute")
		}
		s.Thaw()
		if list, err := listServices(t.Context(), c, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("%v, %v", names(list), err)
		}
	})
}

func TestHangUp(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		c := client(t, s, core, protobuf)
		s.HangUp(true)
		if _, err := listServices(t.Context(), c, metav1.ListOptions{}); err == nil || utilnet.IsConnectionRefused(err) {
			t.Errorf("%v, want a connection that ends", err)
		}
		s.HangUp(false)
		if _, err := listServices(t.Context(), c, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestStreamsEnd(t *testing.T) {
	for _, row := range []struct {
		name string
		end  func(*apitest.Server)
		want []string
	}{
		{"ended", (*apitest.Server).EndWatches, []string{"closed"}},
		{"expired", (*apitest.Server).ExpireWatches, []string{"ERROR 410 Expired", "closed"}},
		{"broken", (*apitest.Server).BreakWatches, nil},
		{"broken within", func(s *apitest.Server) { s.BreakWithin(2); s.Apply(service("b")) }, nil},
	} {
		for _, accept := range []string{protobuf, jsonType} {
			t.Run(row.name+" "+accept, func(t *testing.T) {
				bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
					w := watchServices(t, client(t, s, core, accept), metav1.ListOptions{ResourceVersion: version(s.Version())})
					s.Apply(service("a"))
					expect(t, w, "ADDED a")
					if n := s.Watching("services"); n != 1 {
						t.Errorf("%d watches are open", n)
					}
					row.end(s)
					if row.want != nil {
						expect(t, w, row.want...)
					} else if text := next(t, w); text != "closed" && !strings.HasPrefix(text, "ERROR 500") {
						t.Errorf("a broken stream says %q", text)
					}
					synctest.Wait()
					if n := s.Watching("services"); n != 0 {
						t.Errorf("%d watches are open after that", n)
					}
				})
			})
		}
	}
}

func TestStallAndSlow(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		c := client(t, s, core, protobuf)
		w := watchServices(t, c, metav1.ListOptions{ResourceVersion: version(s.Version()), AllowWatchBookmarks: true})
		synctest.Wait()
		s.StallWatches()
		s.Apply(service("a"))
		time.Sleep(time.Hour)
		quiet(t, w)
		s.Heal()
		expect(t, w, "ADDED a")

		plain := watchServices(t, c, metav1.ListOptions{ResourceVersion: version(s.Version())})
		s.Apply(service("b"))
		expect(t, plain, "ADDED b")
		size := s.Requests("services")[1].Bytes
		s.Slow(int(size) / 4)
		began := time.Now()
		s.Apply(service("c"))
		expect(t, plain, "ADDED c")
		if took := time.Since(began); took < 3*time.Second || took > 5*time.Second {
			t.Errorf("%d bytes at a quarter of that in a second took %s", size, took)
		}
	})
}

func TestFailures(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		c := client(t, s, core, protobuf)
		for _, row := range []struct {
			code int
			is   func(error) bool
		}{
			{http.StatusForbidden, apierrors.IsForbidden},
			{http.StatusUnauthorized, apierrors.IsUnauthorized},
			{http.StatusInternalServerError, apierrors.IsInternalError},
			{http.StatusServiceUnavailable, apierrors.IsServiceUnavailable},
			{http.StatusGone, apierrors.IsResourceExpired},
		} {
			s.Fail("services", apitest.Failure{Code: row.code})
			if _, err := listServices(t.Context(), c, metav1.ListOptions{}); !row.is(err) {
				t.Errorf("%d came as %v", row.code, err)
			}
		}
		if err := c.Get().Resource("nodes").Do(t.Context()).Error(); err != nil {
			t.Errorf("another resource: %v", err)
		}
		s.Fail("services", apitest.Failure{Code: http.StatusTooManyRequests, RetryAfter: 3 * time.Second, Times: 2})
		began := time.Now()
		if _, err := listServices(t.Context(), c, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("client-go waits as long as it is told to, twice; it took %s", took)
		}
		s.Fail("services", apitest.Failure{Code: http.StatusForbidden, Verb: "watch"})
		if _, err := listServices(t.Context(), c, metav1.ListOptions{}); err != nil {
			t.Errorf("a list, when watches are forbidden: %v", err)
		}
		s.Fail("", apitest.Failure{Code: http.StatusServiceUnavailable, Times: 1})
		if err := c.Get().AbsPath("/apis").Do(t.Context()).Error(); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("discovery: %v", err)
		}
	})
}

func TestTruncatedList(t *testing.T) {
	s := apitest.Start(t, apitest.Options{})
	s.Apply(service("a"))
	c := client(t, s, core, protobuf)
	s.TruncateLists(1)
	if _, err := listServices(t.Context(), c, metav1.ListOptions{}); err == nil {
		t.Error("half a list was read")
	}
	if list, err := listServices(t.Context(), c, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("%v, %v", names(list), err)
	}
}

func TestRestartAndRestore(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		c := client(t, s, core, protobuf)
		s.Apply(service("a"))
		old, backup := s.Version(), s.Backup()
		s.Apply(service("b"))
		s.Restart()
		expect(t, watchServices(t, c, metav1.ListOptions{ResourceVersion: version(old)}), "ERROR 410 Expired", "closed")
		s.Restore(backup)
		synctest.Wait() // the client has to see that its connection is gone
		if s.Version() != old {
			t.Errorf("restored to %d, want %d", s.Version(), old)
		}
		if list, err := listServices(t.Context(), c, metav1.ListOptions{}); err != nil || fmt.Sprint(names(list)) != "[a]" {
			t.Errorf("restored %v, %v", names(list), err)
		}
	})
}

// TestCompression: today's server compresses large lists and streaming lists.
func TestCompression(t *testing.T) {
	wordy := service("a")
	wordy.Annotations = map[string]string{"text": strings.Repeat("again and ", 20_000)}
	for _, minor := range []int{36, 37} {
		bubble(t, apitest.Options{Minor: minor}, func(t *testing.T, s *apitest.Server) {
			s.Apply(wordy)
			c := client(t, s, core, protobuf)
			if list, err := listServices(t.Context(), c, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
				t.Fatalf("%v, %v", names(list), err)
			}
			w := watchServices(t, c, streaming(""))
			expect(t, w, "ADDED a", "BOOKMARK end")
			s.Apply(service("b"))
			expect(t, w, "ADDED b")
			synctest.Wait()
			list, stream := s.Requests("services")[0].Bytes, s.Requests("services")[1].Bytes
			if list > 20_000 {
				t.Errorf("the list took %d bytes", list)
			}
			if compressed := stream < 20_000; compressed != (minor == 37) {
				t.Errorf("1.%d: the streaming list took %d bytes", minor, stream)
			}
		})
	}
}

func TestHintsFollowTheVersion(t *testing.T) {
	for minor, want := range map[int]string{37: "za n1", 33: "za", 22: ""} {
		s := apitest.Start(t, apitest.Options{Minor: minor})
		s.Apply(endpointSlice("a"))
		o, _ := s.Stored(endpointSlice("a"))
		var got []string
		if h := o.(*discoveryv1.EndpointSlice).Endpoints[0].Hints; h != nil {
			for _, z := range h.ForZones {
				got = append(got, z.Name)
			}
			for _, n := range h.ForNodes {
				got = append(got, n.Name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("1.%d keeps %v, want %q", minor, got, want)
		}
	}
}

func TestOnlyReading(t *testing.T) {
	s := apitest.Start(t, apitest.Options{})
	c := client(t, s, core, jsonType)
	if err := c.Post().Namespace("default").Resource("services").Body(service("a")).Do(t.Context()).Error(); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a write: %v", err)
	}
	for _, path := range []string{"/", "/api/v1/pods/x", "/api/v2/pods", "/apis/x/v1/pods", "/api/v1/secrets", "/api/v1/namespaces/x/nodes"} {
		if err := c.Get().AbsPath(path).Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, want not found", path, err)
		}
	}
	var status int
	err := c.Get().Resource("pods").SetHeader("Accept", "text/html").Do(t.Context()).StatusCode(&status).Error()
	if status != http.StatusNotAcceptable || err == nil {
		t.Errorf("an answer in HTML: %d, %v", status, err)
	}
}
