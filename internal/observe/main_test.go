// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	epoch = time.Date(2026, 8, 30, 12, 0, 0, 0, time.UTC)
	shop  = Source{Pod: model.Name{Namespace: "shop", Name: "client-0"}, ServiceAccount: "client"}
	web   = &api.ServiceRef{Namespace: "shop", Name: "web", Port: "http"}
)

// book knows one pod and one Service.
type book struct{}

func (book) PodAt(a netip.Addr) (Source, bool) {
	return shop, a == netip.MustParseAddr("10.244.0.3")
}

func (book) Pod(n model.Name) (Source, bool) {
	if n != shop.Pod {
		return Source{}, false
	}
	return shop, true
}

func (book) ServiceAt(a netip.AddrPort) *api.ServiceRef {
	if a.Addr() != netip.MustParseAddr("10.96.0.10") {
		return nil
	}
	return web
}

// connection is the i-th of the pod, accepted i seconds after the epoch.
func connection(i int, change ...func(*Connection)) Connection {
	c := Connection{
		Record: envoy.Record{
			Start: epoch.Add(time.Duration(i) * time.Second), Duration: 10 * time.Millisecond, Wait: time.Millisecond,
			Client: netip.AddrPortFrom(netip.MustParseAddr("10.244.0.3"), uint16(40_000+i)), Dialled: netip.MustParseAddrPort("10.96.0.10:80"),
			Endpoint: netip.MustParseAddrPort("10.244.0.7:8080"), Attempts: 1, BytesSent: 100, BytesReceived: 200, Outcome: envoy.OK,
		},
		Source: shop, Service: web,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func refused(c *Connection) {
	c.Outcome, c.Reason, c.Endpoint = envoy.Refused, "no-endpoints", netip.AddrPort{}
}

func open(c *Connection) { c.Open, c.Duration, c.Outcome, c.Wait = true, 0, "", -1 }

func to(s string) func(*Connection) {
	return func(c *Connection) { c.Dialled, c.Service = netip.MustParseAddrPort(s), nil }
}

func moved(sent, received uint64) func(*Connection) {
	return func(c *Connection) { c.BytesSent, c.BytesReceived = sent, received }
}
