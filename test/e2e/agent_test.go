// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
)

// settled bounds how long a change of a manifest or of a pod may take to show.
const settled = 10 * time.Second

// callAgent makes one request to the agent's socket.
func (n *node) callAgent(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	hc := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.Paths().AgentSocket)
		},
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	return json.Unmarshal(b, out)
}

// explain asks the agent for its decision on an address.
func (n *node) explain(t *testing.T, address string) api.Explanation {
	t.Helper()
	e, err := n.tryExplain(t.Context(), address)
	if err != nil {
		t.Errorf("explain %s: %v", address, err)
	}
	return e
}

func (n *node) tryExplain(ctx context.Context, address string) (e api.Explanation, err error) {
	err = n.callAgent(ctx, http.MethodGet, "/v1/explain?"+url.Values{"address": {address}}.Encode(), nil, &e)
	return e, err
}

// awaitExplain waits until the agent's decision on an address is as wanted, and
// ends the test when it does not become so. It is how a test knows that the agent
// has taken in a change.
func (n *node) awaitExplain(t *testing.T, address, what string, ok func(api.Explanation) bool) api.Explanation {
	t.Helper()
	var e api.Explanation
	eventually(t, settled, address+": "+what, func() (err error) {
		if e, err = n.tryExplain(t.Context(), address); err != nil {
			return err
		}
		if !ok(e) {
			return fmt.Errorf("it is %s", decision(e))
		}
		return nil
	})
	return e
}

// awaitUsed waits until exactly so many endpoints of an address are used, and
// until Envoy, when it was asked for it, has them too.
func (n *node) awaitUsed(t *testing.T, address string, count int) {
	t.Helper()
	n.awaitExplain(t, address, fmt.Sprintf("%d endpoints used", count), func(e api.Explanation) bool {
		return e.Answer == "balance" && len(used(e)) == count
	})
	n.awaitEnvoyEndpoints(t, address)
}

// awaitPods is awaitUsed for the endpoints of exactly these pods.
func (n *node) awaitPods(t *testing.T, address string, pods ...string) {
	t.Helper()
	var want []string
	for _, p := range pods {
		want = append(want, n.PodIP(p).String())
	}
	slices.Sort(want)
	n.awaitExplain(t, address, fmt.Sprintf("the pods %v used", pods), func(e api.Explanation) bool {
		var got []string
		for _, a := range used(e) {
			got = append(got, netip.MustParseAddrPort(a).Addr().String())
		}
		slices.Sort(got)
		return e.Answer == "balance" && slices.Equal(got, want)
	})
	n.awaitEnvoyEndpoints(t, address)
}

// awaitRefused waits until an address is refused for a reason.
func (n *node) awaitRefused(t *testing.T, address, reason string) {
	t.Helper()
	n.awaitExplain(t, address, "refused as "+reason, func(e api.Explanation) bool {
		return e.Answer == "refuse" && e.Reason == reason
	})
	n.awaitEnvoyEndpoints(t, address)
}

// used lists the addresses of the endpoints in use.
func used(e api.Explanation) []string {
	var out []string
	for _, p := range e.Endpoints {
		if p.Used {
			out = append(out, p.Address)
		}
	}
	return out
}

// decision says an explanation in one line.
func decision(e api.Explanation) string {
	s := fmt.Sprintf("%s, %s %s", e.Class, e.Answer, e.Reason)
	for _, p := range e.Endpoints {
		s += fmt.Sprintf("; %s used=%t (%s)", p.Address, p.Used, p.Why)
	}
	return s
}

// services is what `aetherctl svc list` shows, by address.
func (n *node) services(t *testing.T) map[string]api.ServiceRow {
	t.Helper()
	var rows []api.ServiceRow
	if err := n.callAgent(t.Context(), http.MethodGet, "/v1/services", nil, &rows); err != nil {
		t.Errorf("list services: %v", err)
	}
	out := map[string]api.ServiceRow{}
	for _, r := range rows {
		out[r.Address] = r
	}
	return out
}

// agentStatus is what `aetherctl status` shows.
func (n *node) agentStatus(t *testing.T) api.Status {
	t.Helper()
	var s api.Status
	if err := n.callAgent(t.Context(), http.MethodGet, "/v1/status", nil, &s); err != nil {
		t.Errorf("ask the agent for its status: %v", err)
	}
	return s
}
