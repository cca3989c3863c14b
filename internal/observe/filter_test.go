// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/envoy"
)

func TestFilter(t *testing.T) {
	c := connection(0)
	no := connection(0, refused)
	alive := connection(0, open)
	dead := connection(0, func(c *Connection) { c.Outcome = envoy.Timeout })
	past := connection(0, func(c *Connection) { c.Endpoint = c.Dialled })
	for _, tc := range []struct {
		query string
		c     Connection
		want  bool
	}{
		{"", c, true},
		{"pod=shop/client-0", c, true},
		{"pod=shop/client-1", c, false},
		{"namespace=shop", c, true},
		{"namespace=web", c, false},
		{"serviceAccount=client", c, true},
		{"serviceAccount=shop/client", c, true},
		{"serviceAccount=web/client", c, false},
		{"service=shop/web", c, true},
		{"service=shop/web:http", c, true},
		{"service=shop/web:80", c, true},
		{"service=shop/web:81", c, false},
		{"service=shop/web", connection(0, to("10.96.0.10:80")), false},
		{"dialled=10.96.0.10", c, true},
		{"dialled=10.96.0.10:80", c, true},
		{"dialled=10.96.0.10:81", c, false},
		{"endpoint=10.244.0.7", c, true},
		{"endpoint=10.244.0.8", c, false},
		{"endpoint=10.244.0.7", no, false},
		{"verdict=balance", c, true},
		{"verdict=passthrough", c, false},
		{"verdict=passthrough", past, true},
		{"verdict=refuse", no, true},
		{"verdict=refused", no, true},
		{"verdict=timeout", dead, true},
		{"verdict=ok", dead, false},
		{"reason=no-endpoints", no, true},
		{"reason=no-service", no, false},
		{"refused=true", no, true},
		{"refused=true", dead, false},
		{"failed=true", dead, true},
		{"failed=true", no, false},
		{"failed=true&refused=true", no, true},
		{"failed=true&refused=true", dead, true},
		{"failed=true&refused=true", c, false},
		{"failed=true", alive, false},
		{"open=true", alive, true},
		{"open=true", c, false},
		{"since=1m", c, true},
		{"since=2026-08-30T12:00:01Z", c, false},
		{"since=2026-08-30T12:00:01Z", alive, true},
	} {
		q, err := url.ParseQuery(tc.query)
		if err != nil {
			t.Fatal(err)
		}
		f, err := ParseFilter(q, epoch.Add(30*time.Second))
		if err != nil {
			t.Errorf("%s: %v", tc.query, err)
		}
		if got := f.Matches(&tc.c); got != tc.want {
			t.Errorf("%s: %v of %+v", tc.query, got, tc.c)
		}
	}
	for query, want := range map[string]string{
		"pod=client": `pod "client": want namespace/name`, "pod=a/b/c": "want namespace/name", "service=web": `service "web"`,
		"dialled=web:80": `dialled "web:80"`, "endpoint=x": `endpoint "x"`, "verdict=good": "want one of balance",
		"refused=perhaps": "want true or false", "since=yesterday": "want a duration", "since=-1m": "want a duration",
	} {
		q, _ := url.ParseQuery(query)
		if _, err := ParseFilter(q, epoch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
	}
}
