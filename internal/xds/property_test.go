// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"aether.io/aether/internal/xds"
	"aether.io/aether/internal/xds/xdstest"
)

// Whatever is published, removed, asked for, refused, broken off and restarted in
// whatever order: in the end Envoy holds what it wants and the server offers, and
// of a name whose newest bytes it refuses nothing but an earlier version.
func TestEnvoyEndsWithWhatIsOffered(t *testing.T) {
	dir := socketDir(t)
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		w := &world{t: t, path: filepath.Join(dir, fmt.Sprint(runs)), published: map[xds.Key]variant{}, good: map[xds.Key]map[string]bool{}, misled: map[xds.Key]bool{}}
		defer w.end()
		w.restart(t)
		var err error
		w.envoy, err = xdstest.New(xdstest.DialUnix(w.path), xdstest.Options{Judge: judgeVariant})
		if err != nil {
			t.Fatal(err)
		}
		w.connect(t)
		t.Repeat(map[string]func(*rapid.T){
			"publish":     w.publish,
			"remove":      w.remove,
			"ask":         w.ask,
			"resubscribe": w.resubscribe,
			"reconnect":   w.reconnect,
			"restart":     w.restart,
			"stall":       w.stall,
			"settle":      w.settle,
		})
		w.settle(t)
	})
}

// variant is a version of a resource: good ones are taken, bad ones are refused
// by name, and ugly ones do not decode.
type variant struct {
	kind   string
	number int
}

func (v variant) String() string { return fmt.Sprintf("%s-%d", v.kind, v.number) }

type world struct {
	t         *rapid.T
	path      string
	server    *xds.Server
	stop      func()
	envoy     *xdstest.Envoy
	published map[xds.Key]variant
	good      map[xds.Key]map[string]bool // bytes of good versions ever published
	// misled are resources of which Envoy held something else at a reconnect than
	// it said.
	misled map[xds.Key]bool
}

func drawKey(t *rapid.T) xds.Key {
	return xds.Key{
		Type: rapid.SampledFrom([]xds.Type{xds.Cluster, xds.Assignment, xds.Listener}).Draw(t, "type"),
		Name: rapid.SampledFrom([]string{"svc:10.0.0.1:8", "svc:10.0.0.1:80", "svc:10.0.0.1:800", "b", "c"}).Draw(t, "name"),
	}
}

func makeResource(k xds.Key, v variant) xds.Resource {
	r := xds.Resource{Type: k.Type, Name: k.Name}
	switch k.Type {
	case xds.Cluster:
		r = cluster(k.Name, 0)
		r.Message.(*clusterv3.Cluster).AltStatName = v.String()
	case xds.Assignment:
		r = assignment(k.Name, 80)
		r.Message.(*endpointv3.ClusterLoadAssignment).Endpoints[0].LbEndpoints[0].GetEndpoint().Hostname = v.String()
	default:
		r.Message = &listenerv3.Listener{Name: k.Name, StatPrefix: v.String()}
	}
	return r
}

func judgeVariant(typeURL, _ string, value []byte) error {
	var said string
	switch xds.Type(typeURL) {
	case xds.Cluster:
		var m clusterv3.Cluster
		if err := proto.Unmarshal(value, &m); err != nil {
			return err
		}
		said = m.GetAltStatName()
	case xds.Assignment:
		var m endpointv3.ClusterLoadAssignment
		if err := proto.Unmarshal(value, &m); err != nil {
			return err
		}
		said = m.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetHostname()
	default:
		var m listenerv3.Listener
		if err := proto.Unmarshal(value, &m); err != nil {
			return err
		}
		said = m.GetStatPrefix()
	}
	switch {
	case strings.HasPrefix(said, "good"):
		return nil
	case strings.HasPrefix(said, "ugly"):
		return xdstest.Undecodable(errBad)
	default:
		return errBad
	}
}

func (w *world) publish(t *rapid.T) {
	var u xds.Update
	for range rapid.IntRange(1, 6).Draw(t, "count") {
		k := drawKey(t)
		v := variant{
			rapid.SampledFrom([]string{"good", "good", "good", "bad", "ugly"}).Draw(t, "kind"),
			rapid.IntRange(0, 3).Draw(t, "number"),
		}
		w.published[k] = v
		r := makeResource(k, v)
		if v.kind == "good" {
			if w.good[k] == nil {
				w.good[k] = map[string]bool{}
			}
			w.good[k][string(raw(t, r.Message))] = true
		}
		u.Set = append(u.Set, r)
	}
	if err := w.server.Publish(u); err != nil {
		t.Fatal(err)
	}
}

func (w *world) remove(t *rapid.T) {
	k := drawKey(t)
	delete(w.published, k)
	if err := w.server.Publish(xds.Update{Remove: []xds.Key{k}}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) ask(t *rapid.T) { w.envoy.Ask(drawKey(t).Name) }

func (w *world) resubscribe(t *rapid.T) {
	name := drawKey(t).Name
	if _, has := w.envoy.Resources(string(xds.Assignment))[name]; has && w.envoy.Connected() {
		w.envoy.Resubscribe(string(xds.Assignment), name)
	}
}

func (w *world) reconnect(t *rapid.T) {
	w.envoy.Disconnect()
	for _, typ := range []xds.Type{xds.Cluster, xds.Assignment, xds.Listener} {
		for _, name := range w.envoy.Misled(string(typ)) {
			w.misled[xds.Key{Type: typ, Name: name}] = true
		}
	}
	w.connect(t)
}

func (w *world) connect(t *rapid.T) {
	for !w.envoy.Connected() {
		if err := w.envoy.Connect(); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *world) stall(t *rapid.T) {
	typ := rapid.SampledFrom([]xds.Type{xds.Cluster, xds.Assignment, xds.Listener}).Draw(t, "type")
	w.envoy.Stall(string(typ), rapid.Bool().Draw(t, "on"))
}

// restart replaces the server by one that publishes the same, before it listens.
func (w *world) restart(t *rapid.T) {
	if w.stop != nil {
		w.stop()
	}
	w.server = xds.New(xds.Config{Log: quiet(), HoldTimeout: time.Minute, Sink: func(e xds.Event) {
		if f, ok := e.(xds.FirstRequest); ok {
			go f.Done()
		}
	}})
	var u xds.Update
	for k, v := range w.published {
		u.Set = append(u.Set, makeResource(k, v))
	}
	if err := w.server.Publish(u); err != nil {
		t.Fatal(err)
	}
	l, err := xds.Listen(w.path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	server := w.server
	go func() { served <- server.Serve(ctx, l) }()
	w.stop = func() {
		cancel()
		<-served
	}
	if w.envoy != nil {
		w.reconnect(t)
	}
}

func (w *world) end() {
	if w.envoy != nil {
		w.envoy.Close()
	}
	w.stop()
}

// settle waits until Envoy and server agree.
func (w *world) settle(t *rapid.T) {
	for _, typ := range []xds.Type{xds.Cluster, xds.Assignment, xds.Listener} {
		w.envoy.Stall(string(typ), false)
	}
	w.connect(t)
	deadline := time.Now().Add(patience)
	for {
		wrong := w.differs(t)
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s\n%s", wrong, w.history())
		}
		time.Sleep(time.Millisecond)
	}
}

// history lists the last responses for people.
func (w *world) history() string {
	var b strings.Builder
	all := w.envoy.Responses()
	for _, r := range all[max(0, len(all)-40):] {
		fmt.Fprintf(&b, "%s %v removed %v refused %q\n", xds.Type(r.Type), r.Names, r.Removed, r.Nack)
	}
	return b.String()
}

// differs says what Envoy should not or should hold, or "".
func (w *world) differs(t *rapid.T) string {
	offered := map[xds.Key]xds.ResourceStatus{}
	for _, r := range w.server.Status().Resources {
		offered[r.Key] = r
	}
	for k := range w.misled {
		if !slices.Contains(w.envoy.Misled(string(k.Type)), k.Name) {
			delete(w.misled, k)
		}
	}
	for _, typ := range []xds.Type{xds.Cluster, xds.Assignment, xds.Listener} {
		has := w.envoy.Resources(string(typ))
		for name, value := range has {
			k := xds.Key{Type: typ, Name: name}
			if _, ok := w.published[k]; !ok && !w.misled[k] {
				return fmt.Sprintf("%v is held although it was removed", k)
			}
			if !w.good[k][string(value)] {
				return fmt.Sprintf("%v is held in a version nobody published", k)
			}
		}
		for k, v := range w.published {
			if k.Type != typ || w.misled[k] || !w.wanted(k) {
				continue
			}
			value, held := has[k.Name]
			st := offered[k]
			_, rejected := w.server.Nack(k.Type, k.Name)
			switch {
			case v.kind == "good":
				if !held || string(value) != string(raw(t, makeResource(k, v).Message)) || rejected {
					return fmt.Sprintf("%v %v is not held (rejected: %v)", k, v, rejected)
				}
			case !rejected:
				return fmt.Sprintf("%v %v is not remembered as rejected", k, v)
			case st.Offered != st.Accepted:
				return fmt.Sprintf("%v %v is still offered as %s, accepted was %q", k, v, st.Offered, st.Accepted)
			case st.Offered != "" && !held:
				return fmt.Sprintf("%v: the last accepted version is not held", k)
			}
		}
	}
	return ""
}

// wanted reports whether Envoy wants a resource: all clusters and listeners, and
// the assignments of the clusters it has.
func (w *world) wanted(k xds.Key) bool {
	if k.Type != xds.Assignment {
		return true
	}
	_, ok := w.envoy.Resources(string(xds.Cluster))[k.Name]
	return ok
}
