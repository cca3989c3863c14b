// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/model"
)

// Filter says which connections are asked for. The zero value is all of them.
type Filter struct {
	Pod            model.Name // empty name: any
	Namespace      string     // of the pod
	ServiceAccount string     // namespace/name, or a name in any namespace
	Service        model.Name
	Port           string // of the Service: name or number
	Dialled        Address
	Endpoint       Address
	Verdict        string // a verdict or an outcome
	Reason         string
	// Refused and Failed ask for either; both together for both.
	Refused, Failed bool
	OpenOnly        bool
	Since           time.Time
}

// Address is an address with or without a port. The zero value is any.
type Address struct {
	IP   netip.Addr
	Port uint16 // 0 is any
}

func (a Address) matches(p netip.AddrPort) bool {
	return !a.IP.IsValid() || a.IP == p.Addr() && (a.Port == 0 || a.Port == p.Port())
}

// ParseAddress reads IP or IP:port.
func ParseAddress(s string) (Address, error) {
	if ip, err := netip.ParseAddr(s); err == nil {
		return Address{IP: ip.Unmap()}, nil
	}
	p, err := netip.ParseAddrPort(s)
	if err != nil {
		return Address{}, fmt.Errorf("%q: want an address such as 10.96.0.10 or 10.96.0.10:80", s)
	}
	return Address{IP: p.Addr().Unmap(), Port: p.Port()}, nil
}

// Matches reports whether the connection is asked for.
func (f *Filter) Matches(c *Connection) bool {
	switch {
	case f.Pod.Name != "" && c.Source.Pod != f.Pod,
		f.Namespace != "" && c.Source.Pod.Namespace != f.Namespace,
		f.ServiceAccount != "" && !f.account(c.Source),
		f.Service.Name != "" && !f.service(c),
		!f.Dialled.matches(c.Dialled),
		f.Endpoint.IP.IsValid() && !f.Endpoint.matches(c.Endpoint),
		f.Reason != "" && c.Reason != f.Reason,
		f.Verdict != "" && f.Verdict != c.Verdict() && f.Verdict != string(c.Outcome),
		f.OpenOnly && !c.Open,
		!f.Since.IsZero() && !c.Open && c.Ended().Before(f.Since):
		return false
	}
	if !f.Refused && !f.Failed {
		return true
	}
	return f.Refused && c.Outcome == envoy.Refused || f.Failed && c.Failed()
}

func (f *Filter) account(s Source) bool {
	if ns, name, ok := strings.Cut(f.ServiceAccount, "/"); ok {
		return s.Pod.Namespace == ns && s.ServiceAccount == name
	}
	return s.ServiceAccount == f.ServiceAccount
}

func (f *Filter) service(c *Connection) bool {
	s := c.Service
	if s == nil || s.Namespace != f.Service.Namespace || s.Name != f.Service.Name {
		return false
	}
	return f.Port == "" || f.Port == s.Port || f.Port == strconv.Itoa(int(c.Dialled.Port()))
}

// ParseFilter reads a filter from a query. Unknown keys are not its business.
func ParseFilter(q url.Values, now time.Time) (f Filter, err error) {
	f = Filter{
		Namespace: q.Get("namespace"), ServiceAccount: q.Get("serviceAccount"),
		Verdict: q.Get("verdict"), Reason: q.Get("reason"),
	}
	named := func(key, s string, n *model.Name) {
		if s != "" && err == nil {
			var ok bool
			if n.Namespace, n.Name, ok = strings.Cut(s, "/"); !ok || n.Namespace == "" || n.Name == "" || strings.Contains(n.Name, "/") {
				err = fmt.Errorf("%s %q: want namespace/name", key, s)
			}
		}
	}
	address := func(key string, a *Address) {
		if s := q.Get(key); s != "" && err == nil {
			if *a, err = ParseAddress(s); err != nil {
				err = fmt.Errorf("%s %w", key, err)
			}
		}
	}
	flag := func(key string, b *bool) {
		if s := q.Get(key); s != "" && err == nil {
			if *b, err = strconv.ParseBool(s); err != nil {
				err = fmt.Errorf("%s %q: want true or false", key, s)
			}
		}
	}
	named("pod", q.Get("pod"), &f.Pod)
	service, port, _ := strings.Cut(q.Get("service"), ":")
	named("service", service, &f.Service)
	f.Port = port
	address("dialled", &f.Dialled)
	address("endpoint", &f.Endpoint)
	flag("refused", &f.Refused)
	flag("failed", &f.Failed)
	flag("open", &f.OpenOnly)
	if err == nil && f.Verdict != "" && !slices.Contains(words(), f.Verdict) {
		err = fmt.Errorf("verdict %q: want one of %s", f.Verdict, strings.Join(words(), ", "))
	}
	if s := q.Get("since"); s != "" && err == nil {
		f.Since, err = parseSince(s, now)
	}
	return f, err
}

// words are what a verdict may be asked for by: what was done, or how it ended.
func words() []string {
	out := Verdicts()
	for _, o := range envoy.Outcomes() {
		out = append(out, string(o))
	}
	return out
}

// parseSince reads a time, or a duration before now.
func parseSince(s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("since %q: want a duration such as 5m or a time in RFC 3339", s)
	}
	return t, nil
}
