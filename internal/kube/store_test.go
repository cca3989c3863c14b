// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"aether.io/aether/internal/model"
)

var ignoreAddrs = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// storeTest is a store whose outbox the test empties.
type storeTest struct {
	*store
	out *outbox
}

func newStoreTest(k Kind) storeTest {
	out := newOutbox()
	now := func() time.Time { return time.Unix(1000, 0) }
	h := newHealth(now, time.Minute, out.poke)
	return storeTest{newStore(k, out, h, newMetrics(h.freshness), now), out}
}

func (s storeTest) told() []model.Change {
	cs, _ := s.out.take()
	return cs
}

func service(name, uid, vip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid), ResourceVersion: uid},
		Spec:       corev1.ServiceSpec{ClusterIP: vip},
	}
}

func slice(name, service string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func must(t rapid.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// words lists changes for comparison.
func words(cs []model.Change) (out []string) {
	for _, c := range cs {
		switch c := c.(type) {
		case model.SetService:
			out = append(out, "set "+c.Service.Name.Name+" "+c.Service.UID)
		case model.DeleteService:
			out = append(out, "delete "+c.Name.Name+" "+c.UID)
		case model.SetSlice:
			out = append(out, fmt.Sprintf("set %s of %s %d", c.Slice.Name.Name, c.Slice.Service, len(c.Slice.Endpoints)))
		case model.DeleteSlice:
			out = append(out, "delete "+c.Name.Name)
		default:
			out = append(out, fmt.Sprintf("%T", c))
		}
	}
	return out
}

// A list that comes again is told as its difference.
func TestListAgain(t *testing.T) {
	s := newStoreTest(Services)
	must(t, s.Replace([]any{service("a", "1", "10.96.0.1"), service("b", "2", "10.96.0.2"), service("c", "3", "10.96.0.3")}, "9"))
	s.told()
	must(t, s.Replace([]any{service("a", "1", "10.96.0.1"), service("b", "4", "10.96.0.2"), service("d", "5", "10.96.0.3")}, "10"))
	if d := gocmp.Diff([]string{"delete c 3", "set b 4", "set d 5"}, words(s.told())); d != "" {
		t.Error(d)
	}
	must(t, s.Replace([]any{service("a", "1", "10.96.0.1"), service("b", "4", "10.96.0.2"), service("d", "5", "10.96.0.3")}, "11"))
	if got := s.told(); len(got) > 0 {
		t.Errorf("an equal list told %v", got)
	}
	s.clear()
	if d := gocmp.Diff([]string{"delete a 1", "delete b 4", "delete d 5"}, words(s.told())); d != "" {
		t.Error(d)
	}
}

// An object that the model can no longer use is told as gone.
func TestUnusableIsGone(t *testing.T) {
	s := newStoreTest(EndpointSlices)
	must(t, s.Add(slice("web-1", "web", "10.1.1.1")))
	unlabelled := slice("web-1", "web", "10.1.1.1")
	unlabelled.Labels = nil
	must(t, s.Update(unlabelled))
	must(t, s.Update(unlabelled))
	must(t, s.Delete(unlabelled))
	must(t, s.Add(slice("web-1", "shop", "10.1.1.1")))
	if d := gocmp.Diff([]string{"set web-1 of web 1", "delete web-1", "set web-1 of shop 1"}, words(s.told())); d != "" {
		t.Error(d)
	}
}

// What a streaming list brings is converted as it comes, and once.
func TestTransformedOnce(t *testing.T) {
	s := newStoreTest(EndpointSlices)
	o, err := s.Transformer()(slice("web-1", "web", "10.1.1.1", "127.0.0.1"))
	must(t, err)
	if _, ok := o.(*fact); !ok {
		t.Fatalf("%T is kept of an object", o)
	}
	must(t, s.Replace([]any{o}, "1"))
	if d := gocmp.Diff([]string{"set web-1 of web 2"}, words(s.told())); d != "" {
		t.Error(d)
	}
	list, all := s.complaints()
	if all != 1 || list[0].note.Field != "endpoints[1].addresses[0]" {
		t.Errorf("complaints: %+v", list)
	}
	must(t, s.Update(slice("web-1", "web", "10.1.1.1")))
	if _, all := s.complaints(); all != 0 {
		t.Errorf("%d complaints of an object that is mended", all)
	}
	if _, err := s.Transformer()("nonsense"); err == nil {
		t.Error("nonsense is read")
	}
}

// Pods tell the model nothing; what only connects in captured ones is kept.
func TestPods(t *testing.T) {
	s := newStoreTest(Pods)
	pod := func(name, managed string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{labelManaged: managed}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Command: []string{"nc", "-z", "ledger", "1"}}}},
		}
	}
	must(t, s.Replace([]any{pod("b", "true"), pod("a", "true"), pod("c", "false")}, "1"))
	if got := s.connecting(); len(got) != 2 || got[0].Pod != "default/a" || got[1].Pod != "default/b" || len(s.told()) != 0 {
		t.Errorf("%+v", got)
	}
	must(t, s.Delete(pod("a", "true")))
	must(t, s.Replace([]any{pod("c", "false")}, "2"))
	if got := s.connecting(); len(got) != 0 {
		t.Errorf("pods that are gone only connect: %+v", got)
	}
}

// Whatever the history of lists and events, the model ends up as if it had only
// been told what there is in the end.
func TestAnyHistoryEndsInWhatIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStoreTest(EndpointSlices)
		state := model.New(model.Options{})
		there := map[string]*discoveryv1.EndpointSlice{}
		apply := func() {
			state, _ = state.Apply(s.told())
		}
		object := func(name string) *discoveryv1.EndpointSlice {
			o := slice(name, rapid.SampledFrom([]string{"web", "shop", ""}).Draw(t, "service"))
			for i := range rapid.IntRange(0, 3).Draw(t, "endpoints") {
				o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.1.%d", i+1)}})
			}
			return o
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				there[name] = object(name)
				must(t, s.Update(there[name]))
			case 1:
				if o, ok := there[name]; ok {
					delete(there, name)
					must(t, s.Delete(o))
				}
			default: // an outage: things change unseen, then a list
				there[name] = object(name)
				delete(there, rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "gone"))
				var list []any
				for _, o := range there {
					list = append(list, o)
				}
				rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
				must(t, s.Replace(list, "1"))
			}
			apply()
			fresh := newStoreTest(EndpointSlices)
			for _, name := range slices.Sorted(maps.Keys(there)) {
				must(t, fresh.Add(there[name]))
			}
			want, _ := model.New(model.Options{}).Apply(fresh.told())
			for _, svc := range []string{"web", "shop"} {
				n := model.Name{Namespace: "default", Name: svc}
				if d := gocmp.Diff(want.Slices(n), state.Slices(n), ignoreAddrs, cmpopts.EquateEmpty()); d != "" {
					t.Fatalf("slices of %s (-want +got)\n%s", svc, d)
				}
			}
		}
	})
}

// Equal strings of a list share their memory, and lists of one entry do.
func TestInterned(t *testing.T) {
	var in interner
	read := func(node string) model.Slice {
		f := &fact{set: model.SetSlice{Slice: model.Slice{Endpoints: []model.Endpoint{
			{Node: string([]byte(node)), ZoneHints: []string{string([]byte("za"))}},
		}}}}
		in.fact(f)
		return f.set.(model.SetSlice).Slice
	}
	a, b := read("n1"), read("n1")
	if &a.Endpoints[0].ZoneHints[0] != &b.Endpoints[0].ZoneHints[0] {
		t.Error("lists of one entry are kept twice")
	}
	for i := range mostInterned + 1 {
		read(fmt.Sprint("node-", i))
	}
	if len(in.strings) > mostInterned {
		t.Errorf("%d strings are kept", len(in.strings))
	}
}

// A slow sink makes watches wait, a list goes in whole, and the end lets them go.
func TestOutboxWaits(t *testing.T) {
	o := newOutbox()
	many := make([]model.Change, 2*roomInOutbox)
	for i := range many {
		many[i] = model.DeleteNode{Name: "n"}
	}
	o.tell(many...)
	added := make(chan struct{})
	go func() { o.tell(model.DeleteNode{Name: "m"}); close(added) }()
	select {
	case <-added:
		t.Fatal("a change was taken in beyond the room")
	case <-time.After(20 * time.Millisecond):
	}
	if cs, _ := o.take(); len(cs) != len(many) {
		t.Errorf("%d changes, want %d", len(cs), len(many))
	}
	<-added
	o.tell(many...)
	ended := make(chan struct{})
	go func() { o.tell(model.DeleteNode{Name: "m"}); close(ended) }()
	o.close()
	<-ended
}
