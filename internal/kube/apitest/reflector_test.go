// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"aether.io/aether/internal/kube/apitest"
)

// mirror is the store of a Reflector: what it was told there is.
type mirror struct {
	mu       sync.Mutex
	objects  map[string]string // name to resourceVersion
	replaced int
	marks    int
}

func (m *mirror) set(o any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := o.(metav1.Object)
	m.objects[a.GetName()] = a.GetResourceVersion()
	return nil
}

func (m *mirror) Add(o any) error    { return m.set(o) }
func (m *mirror) Update(o any) error { return m.set(o) }

func (m *mirror) Delete(o any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, o.(metav1.Object).GetName())
	return nil
}

func (m *mirror) Replace(list []any, _ string) error {
	m.mu.Lock()
	m.objects = map[string]string{}
	m.replaced++
	m.mu.Unlock()
	for _, o := range list {
		if err := m.set(o); err != nil {
			return err
		}
	}
	return nil
}

func (m *mirror) Resync() error { return nil }

func (m *mirror) Bookmark(string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.marks++
	return nil
}

func (m *mirror) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m.objects)) {
		out = append(out, name+"@"+m.objects[name])
	}
	return strings.Join(out, " ")
}

func (m *mirror) lists() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.replaced
}

// truth is what the mirror has to show.
func truth(s *apitest.Server) string {
	var out []string
	for _, o := range s.Objects("services") {
		out = append(out, o.GetName()+"@"+o.GetResourceVersion())
	}
	return strings.Join(out, " ")
}

// reflect runs client-go's Reflector of Services until the test ends.
func reflect(t *testing.T, c rest.Interface) *mirror {
	t.Helper()
	m := &mirror{objects: map[string]string{}}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return listServices(ctx, c, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return c.Get().Resource("services").VersionedParams(&o, params).Watch(ctx)
		},
	}
	r := cache.NewReflectorWithOptions(lw, &corev1.Service{}, m, cache.ReflectorOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return m
}

// settled waits until the mirror shows what there is. It needs a bubble.
func settled(t *testing.T, s *apitest.Server, m *mirror) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(time.Second) {
		synctest.Wait()
		if m.text() == truth(s) {
			return
		}
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("the reflector shows %q, there is %q", m.text(), truth(s))
		}
	}
}

// TestReflector drives client-go's Reflector against the server, through all that
// can be done to it.
func TestReflector(t *testing.T) {
	for _, accept := range []string{protobuf, jsonType} {
		for _, o := range []apitest.Options{{}, {PlainLists: true}, {Minor: 36}} {
			t.Run(fmt.Sprintf("%s %+v", accept, o), func(t *testing.T) {
				bubble(t, o, func(t *testing.T, s *apitest.Server) {
					s.Apply(service("a"), service("b"))
					m := reflect(t, client(t, s, core, accept))
					settled(t, s, m)
					plain := s.Requests("services")[0].Query.Get("sendInitialEvents") == "" || s.Requests("services")[0].Status != 200
					if plain != o.PlainLists {
						t.Errorf("the first request is %+v", s.Requests("services")[0])
					}
					throughFaults(t, s, m)
					for _, r := range s.Requests("services") {
						if r.Status == 200 && !strings.HasPrefix(r.ContentType, accept) {
							t.Errorf("answered in %s: %+v", r.ContentType, r)
						}
					}
				})
			})
		}
	}
}

func throughFaults(t *testing.T, s *apitest.Server, m *mirror) {
	t.Helper()
	for i, step := range []func(){
		func() { s.Apply(service("c")) },
		func() { s.Apply(service("a", "x", "y")) },
		func() { _ = s.Delete(service("b")) },
		func() { s.BreakWatches(); s.Apply(service("b")) },
		func() { s.EndWatches(); s.Apply(service("b", "x", "y")) },
		func() { s.ExpireWatches(); _ = s.Delete(service("a")) },
		func() { s.Down(); s.Apply(service("a")); time.Sleep(3 * time.Minute); _ = s.Up() },
		func() { s.Down(); s.Apply(service("d")); s.Compact(); _ = s.Up() },
		func() { s.Restart(); _ = s.Delete(service("c")) },
		func() { s.StallWatches(); s.Apply(service("c")); time.Sleep(time.Minute); s.Heal() },
		func() { s.Freeze(); s.Apply(service("c", "x", "y")); time.Sleep(time.Minute); s.Thaw() },
		func() {
			s.Fail("services", apitest.Failure{Code: 500})
			s.EndWatches()
			s.Apply(service("e"))
			time.Sleep(time.Minute)
			s.Heal()
		},
		func() { s.BreakWithin(3); s.ExpireWatches(); time.Sleep(10 * time.Second); s.Heal() },
		func() { s.TruncateLists(2); s.ExpireWatches(); s.Apply(service("f")) },
		func() { s.Slow(500); s.ExpireWatches(); s.Apply(service("g")); time.Sleep(time.Minute); s.Heal() },
	} {
		step()
		settled(t, s, m)
		if t.Failed() {
			t.Fatalf("step %d", i)
		}
	}
}

// TestReflectorOfRestoredServer: a watch from a version that is still to come
// hears nothing, so a Reflector does not notice by itself that etcd was restored.
// It takes a list, which is refused because of the version, to begin anew.
func TestReflectorOfRestoredServer(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		s.Apply(service("a"))
		backup := s.Backup()
		s.Apply(service("b"), service("c"))
		m := reflect(t, client(t, s, core, protobuf))
		settled(t, s, m)
		// A watch that is long enough, and a refused connection: the reflector watches
		// on from where it was.
		time.Sleep(10 * time.Second)
		s.Down()
		time.Sleep(time.Second)
		s.Restore(backup)
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if m.text() == truth(s) {
			t.Error("the reflector noticed")
		}
		s.ExpireWatches()
		settled(t, s, m)
	})
}

// TestReflectorOverTCP does what TestReflector begins with over a real connection.
func TestReflectorOverTCP(t *testing.T) {
	s := apitest.Start(t, apitest.Options{})
	s.Apply(service("a"))
	m := reflect(t, client(t, s, core, protobuf))
	s.Apply(service("b"))
	deadline := time.Now().Add(patience)
	for m.text() != truth(s) || m.lists() != 1 {
		if time.Now().After(deadline) {
			t.Fatalf("the reflector shows %q, there is %q", m.text(), truth(s))
		}
		time.Sleep(time.Millisecond)
	}
}
