// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"aether.io/aether/internal/agent/api"
)

// Verdict is what kube-proxy's rules do with a new TCP connection.
type Verdict string

// The verdicts.
const (
	Serve  Verdict = "serve"  // one of its endpoints gets it
	Reject Verdict = "reject" // a reset
	Drop   Verdict = "drop"   // silence
	None   Verdict = "none"   // no rule has it
)

// Decision is what kube-proxy's rules do with a destination a pod of the node
// dials. Endpoints are sorted, and empty unless it is served.
type Decision struct {
	Verdict   Verdict
	Endpoints []netip.AddrPort
}

// Rules is kube-proxy's table for IPv4 at one moment, as far as it decides about
// what pods dial (pkg/proxy/nftables of Kubernetes 1.37).
type Rules struct {
	maps   map[string]map[string]string // map, key → target of its goto, or "drop"
	sets   map[string][]string
	chains map[string][]step
}

// step is one rule: the chains it may go to and the destinations it may write into
// packets, in its order.
type step struct {
	chains       []string
	destinations []netip.AddrPort
}

// KubeProxyRules reads kube-proxy's table.
func (c *Cluster) KubeProxyRules(ctx context.Context) (*Rules, error) {
	b, err := c.nft(ctx, "-j", "list", "table", "ip", kubeProxyTable)
	if err != nil {
		return nil, err
	}
	r, err := parseRules(b)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", kubeProxyTable, err)
	}
	return r, nil
}

func parseRules(b []byte) (*Rules, error) {
	var listing struct {
		Nftables []struct {
			Map *struct {
				Name string              `json:"name"`
				Elem [][]json.RawMessage `json:"elem"`
			} `json:"map"`
			Set *struct {
				Name string            `json:"name"`
				Elem []json.RawMessage `json:"elem"`
			} `json:"set"`
			Rule *struct {
				Chain string `json:"chain"`
				Expr  []any  `json:"expr"`
			} `json:"rule"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(b, &listing); err != nil {
		return nil, err
	}
	r := &Rules{maps: map[string]map[string]string{}, sets: map[string][]string{}, chains: map[string][]step{}}
	for _, o := range listing.Nftables {
		switch {
		case o.Map != nil:
			entries := map[string]string{}
			for _, pair := range o.Map.Elem {
				var verdict any
				if err := json.Unmarshal(pair[1], &verdict); err != nil {
					return nil, err
				}
				to := string(Drop)
				if t := targetsOf(verdict); len(t) > 0 {
					to = t[0]
				}
				entries[plainKey(pair[0])] = to
			}
			r.maps[o.Map.Name] = entries
		case o.Set != nil:
			for _, e := range o.Set.Elem {
				r.sets[o.Set.Name] = append(r.sets[o.Set.Name], plainKey(e))
			}
		case o.Rule != nil:
			r.chains[o.Rule.Chain] = append(r.chains[o.Rule.Chain], step{targetsOf(o.Rule.Expr), destinationsOf(o.Rule.Expr)})
		}
	}
	return r, nil
}

// plainKey writes an element's key as its parts with blanks between them: "10.96.0.1
// tcp 80". A range or a prefix is written as it is in JSON.
func plainKey(b json.RawMessage) string {
	var key struct {
		Elem *struct {
			Val json.RawMessage `json:"val"`
		} `json:"elem"`
		Concat []any `json:"concat"`
	}
	if json.Unmarshal(b, &key) == nil && key.Elem != nil {
		return plainKey(key.Elem.Val)
	}
	if len(key.Concat) > 0 {
		return strings.TrimSuffix(fmt.Sprintln(key.Concat...), "\n")
	}
	return strings.Trim(string(b), `"`)
}

// targetsOf lists the chains an expression may go to, in their order.
func targetsOf(expr any) (out []string) {
	switch e := expr.(type) {
	case []any:
		for _, part := range e {
			out = append(out, targetsOf(part)...)
		}
	case map[string]any:
		if t, ok := e["target"].(string); ok {
			return []string{t}
		}
		for _, k := range slices.Sorted(maps.Keys(e)) {
			out = append(out, targetsOf(e[k])...)
		}
	}
	return out
}

// destinationsOf lists the destinations an expression may write: one ("dnat" with
// address and port), or a map's.
func destinationsOf(expr any) (out []netip.AddrPort) {
	switch e := expr.(type) {
	case []any:
		if len(e) == 2 {
			if a, ok := destination(e[0], e[1]); ok {
				return []netip.AddrPort{a}
			}
		}
		for _, part := range e {
			out = append(out, destinationsOf(part)...)
		}
	case map[string]any:
		if a, ok := destination(e["addr"], e["port"]); ok {
			return []netip.AddrPort{a}
		}
		for _, k := range slices.Sorted(maps.Keys(e)) {
			out = append(out, destinationsOf(e[k])...)
		}
	}
	return out
}

func destination(address, port any) (netip.AddrPort, bool) {
	text, _ := address.(string)
	number, ok := port.(float64)
	a, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(a, uint16(number)), ok && err == nil
}

// Decide says what becomes of a TCP connection that a pod opens to an address which
// is not the node's.
func (r *Rules) Decide(to netip.AddrPort) Decision {
	key := fmt.Sprintf("%s tcp %d", to.Addr(), to.Port())
	switch goesTo, none := r.maps["no-endpoint-services"][key]; {
	case r.maps["service-ips"][key] != "": // for pods first: the other is for those from outside
		return Decision{Serve, r.endpoints(r.maps["service-ips"][key])}
	case none && goesTo == string(Drop):
		return Decision{Verdict: Drop}
	case none, slices.Contains(r.sets["cluster-ips"], to.Addr().String()):
		return Decision{Verdict: Reject}
	}
	return Decision{Verdict: None}
}

// DecideNodePort is Decide for a port of the node's own address.
func (r *Rules) DecideNodePort(port int) Decision {
	key := fmt.Sprintf("tcp %d", port)
	switch goesTo, none := r.maps["no-endpoint-nodeports"][key]; {
	case r.maps["service-nodeports"][key] != "":
		return Decision{Serve, r.endpoints(r.maps["service-nodeports"][key])}
	case none && goesTo == string(Drop):
		return Decision{Verdict: Drop}
	case none:
		return Decision{Verdict: Reject}
	}
	return Decision{Verdict: None}
}

// endpoints follows a chain for a pod's connection. The chain of one endpoint may be
// one of several; of the rules that lead elsewhere the first has it.
func (r *Rules) endpoints(chain string) (out []netip.AddrPort) {
	add := func(more []netip.AddrPort) {
		for _, e := range more {
			if !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	for _, s := range r.chains[chain] {
		add(s.destinations)
		for _, next := range s.chains {
			if !strings.HasPrefix(next, "endpoint-") {
				return r.endpoints(next)
			}
			add(r.endpoints(next))
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// AgentServices asks our node's agent for every name it was asked for and its
// answer, by dialled address.
func (c *Cluster) AgentServices(ctx context.Context) (map[netip.AddrPort]api.ServiceRow, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", c.Node.Paths().AgentSocket)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	b, err := call(ctx, client, http.MethodGet, "http://unix/v1/services", nil)
	var rows []api.ServiceRow
	if err == nil {
		err = json.Unmarshal(b, &rows)
	}
	out := map[netip.AddrPort]api.ServiceRow{}
	for _, row := range rows {
		a, parseErr := netip.ParseAddrPort(row.Address)
		if parseErr != nil {
			err = parseErr
		}
		out[a] = row
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent for its answers: %w", err)
	}
	return out, nil
}

// EnvoyHosts asks Envoy for the endpoints of every cluster of a Service port, by
// dialled address. They are sorted; the refuser, who has no address, is left out.
func (c *Cluster) EnvoyHosts(ctx context.Context) (map[netip.AddrPort][]netip.AddrPort, error) {
	b, err := c.Node.AdminGet(ctx, "/clusters?format=json")
	if err != nil {
		return nil, err
	}
	var all struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket *struct {
						Address string `json:"address"`
						Port    uint16 `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("read clusters of Envoy: %w", err)
	}
	out := map[netip.AddrPort][]netip.AddrPort{}
	for _, cluster := range all.Clusters {
		a, err := netip.ParseAddrPort(strings.TrimPrefix(cluster.Name, "svc:"))
		if err != nil {
			continue // not of a Service port
		}
		hosts := []netip.AddrPort{}
		for _, h := range cluster.Hosts {
			if s := h.Address.Socket; s != nil {
				ip, err := netip.ParseAddr(s.Address)
				if err != nil {
					return nil, fmt.Errorf("read hosts of %s: %w", cluster.Name, err)
				}
				hosts = append(hosts, netip.AddrPortFrom(ip, s.Port))
			}
		}
		slices.SortFunc(hosts, netip.AddrPort.Compare)
		out[a] = hosts
	}
	return out, nil
}
