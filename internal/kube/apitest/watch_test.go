// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/kube/apitest"
)

// streaming are the options of a streaming list (KEP-3157).
func streaming(from string) metav1.ListOptions {
	yes := true
	return metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		ResourceVersion: from, AllowWatchBookmarks: true,
	}
}

func TestWatchFromVersion(t *testing.T) {
	for _, accept := range []string{protobuf, jsonType} {
		bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
			c := client(t, s, core, accept)
			s.Apply(service("a"))
			from := version(s.Version())
			s.Apply(service("b"), service("a", "x", "y"))
			w := watchServices(t, c, metav1.ListOptions{ResourceVersion: from})
			expect(t, w, "ADDED b", "MODIFIED a")
			if err := s.Delete(service("a")); err != nil {
				t.Fatal(err)
			}
			s.Apply(service("b")) // says what is stored already
			expect(t, w, "DELETED a")
			quiet(t, w)
		})
	}
}

// TestWatchSelects: an object that a selector begins to let through is added, one
// that it no longer does is deleted.
func TestWatchSelects(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		w := watchServices(t, client(t, s, core, protobuf), metav1.ListOptions{
			ResourceVersion: version(s.Version()), LabelSelector: "!hidden",
		})
		s.Apply(service("a", "hidden", ""))
		s.Apply(service("a"), service("a", "x", "y"), service("a", "hidden", ""), service("b"))
		if err := s.Delete(service("a")); err != nil {
			t.Fatal(err)
		}
		expect(t, w, "ADDED a", "MODIFIED a", "DELETED a", "ADDED b")
		quiet(t, w)
	})
}

func TestWatchDeletedIsOfTheVersionOfItsDeletion(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Apply(service("a"))
		w := watchServices(t, client(t, s, core, protobuf), metav1.ListOptions{ResourceVersion: version(s.Version())})
		if err := s.Delete(service("a")); err != nil {
			t.Fatal(err)
		}
		e := <-w.ResultChan()
		if got := e.Object.(metav1.Object).GetResourceVersion(); got != version(s.Version()) {
			t.Errorf("deleted at %s, the server is at %d", got, s.Version())
		}
	})
}

func TestWatchStreamsList(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Apply(service("b"), service("a"))
		c := client(t, s, core, protobuf)
		for _, from := range []string{"", "0", version(s.Version() - 1)} {
			w := watchServices(t, c, streaming(from))
			expect(t, w, "ADDED a", "ADDED b", "BOOKMARK end")
			quiet(t, w)
		}
		w := watchServices(t, c, streaming(""))
		expect(t, w, "ADDED a", "ADDED b", "BOOKMARK end")
		s.Apply(service("c"))
		expect(t, w, "ADDED c")
		future := watchServices(t, c, streaming(version(s.Version()+7)))
		expect(t, future, "ERROR 504 Timeout", "closed")
	})
}

// TestWatchWithoutStreamingLists: servers that do not know them say so, and a
// watch from nowhere begins with what there is.
func TestWatchWithoutStreamingLists(t *testing.T) {
	for _, o := range []apitest.Options{{PlainLists: true}, {Minor: 33}, {Minor: 29}} {
		bubble(t, o, func(t *testing.T, s *apitest.Server) {
			s.Apply(service("a"))
			c := client(t, s, core, protobuf)
			o := streaming("")
			o.Watch = true
			if _, err := c.Get().Resource("services").VersionedParams(&o, params).Watch(t.Context()); !apierrors.IsInvalid(err) {
				t.Errorf("%v, want it invalid", err)
			}
			w := watchServices(t, c, metav1.ListOptions{ResourceVersion: "0"})
			expect(t, w, "ADDED a")
			quiet(t, w)
		})
	}
}

func TestWatchBookmarks(t *testing.T) {
	bubble(t, apitest.Options{BookmarkEvery: 10 * time.Second}, func(t *testing.T, s *apitest.Server) {
		c := client(t, s, core, protobuf)
		from := version(s.Version())
		w := watchServices(t, c, metav1.ListOptions{ResourceVersion: from, AllowWatchBookmarks: true})
		without := watchServices(t, c, metav1.ListOptions{ResourceVersion: from})
		s.Advance(5)
		began := time.Now()
		e := <-w.ResultChan()
		if got := e.Object.(metav1.Object).GetResourceVersion(); got != version(s.Version()) || time.Since(began) != 10*time.Second {
			t.Errorf("bookmark of %s after %s, the server is at %d", got, time.Since(began), s.Version())
		}
		expect(t, w, "BOOKMARK")
		quiet(t, without)
	})
}

func TestWatchTimeout(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		seconds := int64(7)
		began := time.Now()
		w := watchServices(t, client(t, s, core, protobuf), metav1.ListOptions{ResourceVersion: version(s.Version()), TimeoutSeconds: &seconds})
		expect(t, w, "closed")
		if took := time.Since(began); took != 7*time.Second {
			t.Errorf("ended after %s", took)
		}
	})
}

// TestWatchForgotten: history that is gone is an event, not a status.
func TestWatchForgotten(t *testing.T) {
	bubble(t, apitest.Options{History: 2}, func(t *testing.T, s *apitest.Server) {
		c := client(t, s, core, protobuf)
		first := version(s.Version())
		s.Apply(service("a"), service("b"))
		expect(t, watchServices(t, c, metav1.ListOptions{ResourceVersion: first}), "ADDED a", "ADDED b")
		s.Apply(service("c"))
		expect(t, watchServices(t, c, metav1.ListOptions{ResourceVersion: first}), "ERROR 410 Expired", "closed")
		last := version(s.Version() - 1)
		expect(t, watchServices(t, c, metav1.ListOptions{ResourceVersion: last}), "ADDED c")
		s.Compact()
		expect(t, watchServices(t, c, metav1.ListOptions{ResourceVersion: last}), "ERROR 410 Expired", "closed")
		quiet(t, watchServices(t, c, metav1.ListOptions{ResourceVersion: version(s.Version())}))
	})
}

// TestWatchOfVersionToCome: as with a real server, such a watch is silent about
// everything until then, and has no bookmarks.
func TestWatchOfVersionToCome(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		w := watchServices(t, client(t, s, core, protobuf), metav1.ListOptions{
			ResourceVersion: version(s.Version() + 2), AllowWatchBookmarks: true,
		})
		s.Apply(service("a"))
		time.Sleep(10 * time.Minute)
		quiet(t, w)
		s.Apply(service("b"), service("c"))
		expect(t, w, "ADDED c", "BOOKMARK")
	})
}

func TestObjectsAreVersioned(t *testing.T) {
	s := apitest.Start(t, apitest.Options{})
	slice := endpointSlice("a")
	if err := s.Create(slice); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(slice); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created twice: %v", err)
	}
	made, _ := s.Stored(slice)
	if made.GetGeneration() != 1 || made.GetUID() == "" || made.GetResourceVersion() != version(s.Version()) {
		t.Errorf("made %+v", made)
	}
	labelled := made.DeepCopyObject().(apitest.Object)
	labelled.SetLabels(map[string]string{"x": "y"})
	if err := s.Update(labelled); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(labelled); !apierrors.IsConflict(err) {
		t.Errorf("updated from an older version: %v", err)
	}
	if got, _ := s.Stored(slice); got.GetGeneration() != 1 {
		t.Errorf("a label is no new generation: %d", got.GetGeneration())
	}
	slice.Endpoints[0].Addresses = []string{"10.1.1.2"}
	slice.Finalizers = []string{"example.com/hold"}
	s.Apply(slice)
	if got, _ := s.Stored(slice); got.GetGeneration() != 2 || got.GetUID() != made.GetUID() {
		t.Errorf("updated to %+v", got)
	}
	if err := s.Delete(slice); err != nil {
		t.Fatal(err)
	}
	if got, ok := s.Stored(slice); !ok || got.GetDeletionTimestamp() == nil {
		t.Errorf("an object with a finalizer is gone at once: %+v", got)
	}
	slice.Finalizers = nil
	s.Apply(slice)
	if got, ok := s.Stored(slice); ok {
		t.Errorf("still there without finalizers: %+v", got)
	}
	if err := s.Delete(slice); !apierrors.IsNotFound(err) {
		t.Errorf("deleted twice: %v", err)
	}
	if err := s.Create(service("")); err == nil {
		t.Error("an object without a name was taken")
	}
}
