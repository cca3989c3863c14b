// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"aether.io/aether/internal/check"
	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/kube"
)

// The client library's lines are for debugging, and their keys become one text.
func TestLibraryLog(t *testing.T) {
	for _, level := range []string{"info", "debug"} {
		var out bytes.Buffer
		log, err := daemon.NewLogger(&out, level, "text")
		if err != nil {
			t.Fatal(err)
		}
		klog.SetSlogLogger(libraryLog(log))
		defer klog.ClearLogger()
		l := klog.Background().WithName("reflector").WithValues("who", "pods")
		l.Error(errors.New("no"), "Failed to watch", "type", "v1.Pod")
		l.V(9).Info("a body of a request")
		klog.Flush()
		_, line, _ := bytes.Cut(out.Bytes(), []byte(" level="))
		want := "DEBUG msg=\"client-go: Failed to watch\" reason=\"who=pods logger=reflector err=no type=v1.Pod\"\n"
		if level == "info" {
			want = ""
		}
		if d := cmp.Diff(want, string(line)); d != "" {
			t.Errorf("level %s (-want +got)\n%s", level, d)
		}
	}
}

func TestWhatTheCheckIsTold(t *testing.T) {
	at := time.Unix(1000, 0)
	got := apiServer("https://a", kube.Freshness{
		UnreachableSince: at, Unreachable: errors.New("refused"),
		Kinds: []kube.KindFreshness{{Kind: kube.Services, Stale: true}, {Kind: kube.Pods}},
	})
	want := check.APIServer{Address: "https://a", UnreachableSince: at, Err: "refused", Stale: []string{"services"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	list := connectOnly(func() ([]convert.Connecting, error) {
		return []convert.Connecting{{Pod: "shop/web", Field: "spec", What: "nc -z", Own: true}}, nil
	})
	only, err := list(t.Context())
	if d := cmp.Diff([]check.ConnectOnly{{Pod: "shop/web", Where: "spec", What: "nc -z", Own: true}}, only); d != "" || err != nil {
		t.Error(d, err)
	}
	if _, err := connectOnly(func() ([]convert.Connecting, error) { return nil, errors.New("not yet") })(t.Context()); err == nil {
		t.Error("what could not be listed is listed")
	}
}
