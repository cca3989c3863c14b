// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/xds"
)

// fuzzAgent is an agent's loop that takes its turns beside the test, with a disk
// that takes everything at once and an Envoy that acknowledges nothing: a pod's
// listener stays pending and its time passes at once.
func fuzzAgent(f *testing.F) mailbox {
	n := newLoopTest(f)
	n.turn([]message{n.batch(true,
		model.SetServiceCIDR{Name: "kubernetes", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}},
		webService(), webSlice("10.244.1.5"))})
	writes := make(chan write, len(stateFiles))
	n.writes = writes
	in, ended := make(chan message), make(chan struct{})
	go func() {
		defer close(ended)
		for m := range in {
			n.turn([]message{m})
			for len(writes) > 0 {
				w := <-writes
				n.turn([]message{saved{w.file, w.seq, nil}})
			}
			n.clock.Advance(podReplyTime)
			n.turn(nil)
		}
	}()
	f.Cleanup(func() {
		close(in)
		<-ended
	})
	return mailbox{to: in, done: make(chan struct{})}
}

// FuzzAPI: whatever is sent to the agent's sockets, it never panics, never calls
// bad input its own fault, and says what is wrong as JSON.
func FuzzAPI(f *testing.F) {
	const pod = `{"namespace":"default","name":"web","serviceAccount":"web","ip":"10.244.0.9","netns":"/run/netns/web"}`
	for _, s := range []struct {
		cni                  bool
		method, target, body string
	}{
		{true, "POST", "/v1/pods", pod},
		{true, "POST", "/v1/pods", pod + pod},
		{true, "POST", "/v1/pods", strings.Replace(pod, "10.244.0.9", "::ffff:10.244.0.9", 1)},
		{true, "POST", "/v1/pods", `{"namespace":{"a":[1e999]}}`},
		{true, "POST", "/v1/pods", strings.Repeat("[", 20_000)},
		{true, "POST", "/v1/pods", ""},
		{true, "DELETE", "/v1/pods/default/web", ""},
		{true, "DELETE", "/v1/pods/default/web?uid=%zz&uid=1", ""},
		{true, "DELETE", "/v1/pods/default/%2e%2e", ""},
		{true, "PUT", "/v1/pods", pod},
		{true, "GET", "//v1/../v1/pods/", ""},
		{false, "GET", "/v1/explain?address=10.96.0.12:80", ""},
		{false, "GET", "/v1/explain?address=%5B::1%25eth0%5D:80&address=x", ""},
		{false, "GET", "/v1/explain?address=10.96.0.12:0;a=b", ""},
		{false, "GET", "/v1/services?%", ""},
		{false, "GET", "/v1/status", ""},
		{false, "HEAD", "/v1/status", ""},
		{false, "GET", "/v1/mode", ""},
		{false, "PUT", "/v1/mode", `{"mode":"balance"}`},
		{false, "PUT", "/v1/mode", `{"mode":null}`},
		{false, "PUT", "/v1/mode", "\xff"},
		{false, "PATCH", "/v1/mode", ""},
		{false, "GET", "/nothing", ""},
		{false, "CONNECT", "", ""},
		{false, "OPTIONS", "*", ""},
	} {
		f.Add(s.cni, s.method, s.target, []byte(s.body))
	}
	loop := fuzzAgent(f)
	notThere := func(context.Context) (map[string]count, error) { return nil, errors.New("no Envoy") }
	cli := jsonErrors(cliHandler{loop, notThere}.routes())
	cni := cniHandler{loop: loop, checkNetNS: func(string) error { return nil }}.routes()
	f.Fuzz(func(t *testing.T, toCNI bool, method, target string, body []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, "http://agent"+target, bytes.NewReader(body))
		if err != nil {
			t.Skip("no request")
		}
		if strings.Contains(r.URL.Path, "/debug/") {
			t.Skip("Go's own profiles, which take their time")
		}
		h := cli
		if toCNI {
			h = cni
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		checkReply(t, w)
		if toCNI { // what was added goes again, so that it does not add up
			for _, p := range statusOf(t, cli).Pods {
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodDelete, "/v1/pods/"+p.Namespace+"/"+p.Name, nil))
			}
			if left := statusOf(t, cli).Pods; len(left) > 0 {
				t.Errorf("pods that were deleted are there: %+v", left)
			}
		}
	})
}

// checkReply holds what every response promises.
func checkReply(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	code, body := w.Code, w.Body.Bytes()
	switch {
	case code >= 500:
		t.Errorf("%d for bad input: %s", code, body)
	case code == http.StatusNoContent:
		if len(body) > 0 {
			t.Errorf("%d with a body: %s", code, body)
		}
	case code/100 == 2:
		if !json.Valid(body) {
			t.Errorf("%d without JSON: %q", code, body)
		}
	default:
		var e api.Error
		if err := json.Unmarshal(body, &e); err != nil || e.Error == "" {
			t.Errorf("%d does not say why as JSON: %q (%v)", code, body, err)
		}
	}
}

func statusOf(t *testing.T, cli http.Handler) api.Status {
	t.Helper()
	w := httptest.NewRecorder()
	cli.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/status", nil))
	var s api.Status
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatalf("status: %v: %s", err, w.Body)
	}
	return s
}

// FuzzAsks: whatever names Envoy lists, the loop publishes none but those of
// addresses in the range, each under the name it was asked by.
func FuzzAsks(f *testing.F) {
	for _, s := range []string{
		"svc:10.96.0.12:80", "svc:10.96.0.12:80 svc:10.96.9.9:80 svc:10.96.0.12:81", "svc:10.1.1.1:80", "svc: svc:10.96.0.1:080",
		"passthrough_original_dst refuse_not_proxied *", "svc:[::ffff:10.96.0.12]:80", "\xff\x00 svc:\xff", "svc:127.0.0.1:1 svc:255.255.255.255:65535",
	} {
		f.Add(s, s, s)
	}
	service := netip.MustParsePrefix("10.96.0.0/16")
	f.Fuzz(func(t *testing.T, held, subscribed, asked string) {
		n := newLoopTest(t)
		n.sync(t)
		s := xds.Stream{ID: 2, Epoch: 2}
		n.heardEvent(xds.StreamOpened{Stream: s})
		n.heardEvent(xds.FirstRequest{Stream: s, Type: xds.Cluster, Held: strings.Fields(held), Subscribed: strings.Fields(subscribed), Done: func() {}})
		n.heardEvent(xds.Asked{Stream: s, Type: xds.Cluster, Names: strings.Fields(asked)})
		n.heardEvent(xds.Asked{Stream: s, Type: xds.Assignment, Names: strings.Fields(asked)})
		n.clock.Advance(4 * second)
		n.turn(nil)
		n.heardEvent(xds.StreamClosed{Stream: s})
		known := map[string]bool{}
		for _, name := range strings.Fields(held + " " + subscribed + " " + asked) {
			known[name] = true
		}
		for k := range n.published {
			if k.Type != xds.Cluster || n.loop.published.base[k.Name] {
				continue
			}
			target, err := envoy.ParseClusterName(k.Name)
			if err != nil || !known[k.Name] || !service.Contains(target.Addr()) {
				t.Errorf("published: %q, %v", k.Name, err)
			}
		}
	})
}

// FuzzDecodePods: pod records are read whole or not at all, and what was read is
// written and read the same.
func FuzzDecodePods(f *testing.F) {
	for _, s := range []string{
		`{"version":1,"pods":[]}`,
		`{"version":1,"pods":[{"namespace":"default","name":"web","uid":"1","serviceAccount":"web","ip":"10.244.0.9","netns":"/run/netns/web"}]}`,
		`{"version":1,"pods":[{"namespace":"a","name":"b.c","serviceAccount":"c","ip":"10.0.0.1","netns":"/n","annotations":{"a":"b"}}]}`,
		`{"version":2,"pods":null}`, `{"version":1}`, "null", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		ws, err := decodePods(file)
		if err != nil {
			if ws != nil {
				t.Fatalf("pods %v with error %v", ws, err)
			}
			return
		}
		again := encodePods(ws, noAnnotations)
		back, err := decodePods(again)
		if err != nil || string(encodePods(back, noAnnotations)) != string(again) {
			t.Fatalf("%v became %v, %v", ws, back, err)
		}
	})
}
