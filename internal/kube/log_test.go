// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"aether.io/aether/internal/daemon"
)

// The log hears of a failure once, after a grace, and of its end once.
func TestFailuresAreLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	log, err := daemon.NewLogger(&out, "info", "text")
	must(t, err)
	at := time.Unix(1000, 0)
	c, err := NewClient(&rest.Config{Host: "https://127.0.0.1:1"})
	must(t, err)
	s, err := New(c, Options{Node: "n1", Log: log, Now: func() time.Time { return at }})
	must(t, err)
	l := newSpoken(s)
	step := func(do func()) {
		do()
		for range 3 {
			l.failures()
			at = at.Add(grace)
		}
	}
	well := func() {
		for _, k := range Kinds() {
			s.health.opened(k, func() {})
			s.health.listed(k)
		}
	}
	step(well)
	s.health.failed(Pods, errForbidden)
	l.failures()
	well()
	step(func() {
		s.health.failed(Services, &url.Error{Op: "Get", URL: "https://127.0.0.1:1/long", Err: errors.New("refused")})
		s.health.failed(Nodes, errRefused)
		s.health.failed(EndpointSlices, errForbidden)
	})
	step(well)
	l.silent([]Kind{Pods})
	got := regexp.MustCompile(`(?m)^time=\S+ level=`).ReplaceAllString(out.String(), "")
	want := strings.Join([]string{
		`WARN msg="the API server cannot be reached; what is known stays" addr=https://127.0.0.1:1 err=refused`,
		`WARN msg="a kind cannot be watched; what is known of it stays" type=endpointslices reason=forbidden err=` + fmt.Sprintf("%q", errForbidden),
		`INFO msg="the API server is reached again" addr=https://127.0.0.1:1`,
		`INFO msg="a kind is watched again" type=endpointslices`,
		`WARN msg="nothing was heard of a watch; it is begun anew" type=pods reason="no event and no bookmark for 2m30s"`,
		``,
	}, "\n")
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("log (-want +got)\n%s", d)
	}
}
