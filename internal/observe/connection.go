// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/netip"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/model"
)

// Source is the pod that dialled.
type Source struct {
	Pod            model.Name
	ServiceAccount string
}

// Names says whose the addresses of a record are. Its methods are called from
// several goroutines and must be quick.
type Names interface {
	// PodAt returns the captured pod with that address, or one that had it.
	PodAt(netip.Addr) (Source, bool)
	// Pod returns the captured pod of that name, or one that had it.
	Pod(model.Name) (Source, bool)
	// ServiceAt returns the Service port that the address is of, or nil.
	ServiceAt(netip.AddrPort) *api.ServiceRef
}

// Connection is what is known of one captured connection.
type Connection struct {
	envoy.Record
	Source  Source
	Service *api.ServiceRef // nil when the dialled address is no Service's
	// Moved is how many bytes went both ways since it was heard of before, Rate
	// how many a second. They are set by Store.Add.
	Moved, Rate float64
}

// name gives a record the names of its ends.
func name(r envoy.Record, n Names) Connection {
	c := Connection{Record: r, Service: n.ServiceAt(r.Dialled)}
	if r.Pod != (model.Name{}) {
		c.Source, _ = n.Pod(r.Pod)
		c.Source.Pod = r.Pod
		return c
	}
	c.Source, _ = n.PodAt(r.Client.Addr())
	return c
}

// key identifies a connection.
type key struct {
	client, dialled netip.AddrPort
	start           int64
}

func (c *Connection) key() key { return key{c.Client, c.Dialled, c.Start.UnixNano()} }

// Ended is when the connection ended, or the zero time.
func (c *Connection) Ended() time.Time {
	if c.Open {
		return time.Time{}
	}
	return c.Start.Add(c.Duration)
}

// The verdicts: what the node proxy did with a connection.
const (
	VerdictBalance     = "balance"     // dialled an endpoint of the Service
	VerdictPassthrough = "passthrough" // dialled the dialled address
	VerdictRefuse      = "refuse"
	VerdictNone        = "none" // there was nobody to dial
)

// Verdicts returns the closed set.
func Verdicts() []string {
	return []string{VerdictBalance, VerdictPassthrough, VerdictRefuse, VerdictNone}
}

// Verdict is what the node proxy did with the connection.
func (c *Connection) Verdict() string {
	switch {
	case c.Outcome == envoy.Refused:
		return VerdictRefuse
	case !c.Endpoint.IsValid():
		return VerdictNone
	case c.Endpoint == c.Dialled:
		return VerdictPassthrough
	default:
		return VerdictBalance
	}
}

// Failed reports whether the connection ended badly without being refused. A
// reset by the client is its own doing.
func (c *Connection) Failed() bool {
	switch c.Outcome {
	case envoy.ConnectFailed, envoy.Timeout, envoy.Unanswered, envoy.ServerReset:
		return true
	default:
		return false
	}
}

// timeLayout is RFC 3339 in UTC with milliseconds, as in the access log.
const timeLayout = "2006-01-02T15:04:05.000Z"

// API returns the connection as it is told to people.
func (c *Connection) API(trustDomain string) api.Connection {
	out := api.Connection{
		Time:  c.Start.UTC().Format(timeLayout),
		State: "ended",
		Source: api.ConnectionSource{
			Namespace: c.Source.Pod.Namespace, Pod: c.Source.Pod.Name, ServiceAccount: c.Source.ServiceAccount,
		},
		Client:  c.Client.String(),
		Dialled: c.Dialled.String(),
		Service: c.Service,
		Verdict: c.Verdict(), Outcome: string(c.Outcome), Reason: c.Reason, Failure: c.Failure,
		Attempts:  c.Attempts,
		BytesSent: c.BytesSent, BytesReceived: c.BytesReceived,
		DurationMs: float64(c.Duration.Microseconds()) / 1000,
	}
	if c.Source.ServiceAccount != "" {
		out.Source.SPIFFE = envoy.SPIFFEID(trustDomain, c.Source.Pod.Namespace, c.Source.ServiceAccount)
	}
	if c.Open {
		out.State = "open"
	}
	if c.Endpoint.IsValid() {
		out.Endpoint = c.Endpoint.String()
	}
	if c.Wait >= 0 {
		us := c.Wait.Microseconds()
		out.WaitUs = &us
	}
	return out
}
