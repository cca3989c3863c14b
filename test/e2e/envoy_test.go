// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"aether.io/aether/internal/envoy"
)

// awaitEnvoyEndpoints waits until Envoy has exactly the endpoints that the agent
// says are in use for an address, none meaning the refuser. An address Envoy was
// never asked for has nothing to wait for.
func (n *node) awaitEnvoyEndpoints(t *testing.T, address string) {
	t.Helper()
	name := envoy.ClusterName(netip.MustParseAddrPort(address))
	eventually(t, settled, "Envoy has the endpoints of "+address, func() error {
		want := used(n.explain(t, address))
		got, known, err := n.envoyEndpoints(t, name)
		slices.Sort(want)
		if err == nil && known && !slices.Equal(got, want) {
			err = fmt.Errorf("it has %v, not %v", got, want)
		}
		return err
	})
}

// envoyEndpoints lists the addresses Envoy has in a cluster, sorted, without the
// refuser.
func (n *node) envoyEndpoints(t *testing.T, cluster string) (addresses []string, known bool, err error) {
	b, err := n.AdminGet(t.Context(), "/clusters?format=json")
	if err != nil {
		return nil, false, err
	}
	var body struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket *struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		return nil, false, err
	}
	for _, c := range body.Clusters {
		if c.Name != cluster {
			continue
		}
		known = true
		for _, h := range c.Hosts {
			if s := h.Address.Socket; s != nil {
				addresses = append(addresses, fmt.Sprintf("%s:%d", s.Address, s.Port))
			}
		}
	}
	slices.Sort(addresses)
	return addresses, known, nil
}

// gauge reads one statistic of Envoy's by its full name, 0 when there is none.
func (n *node) gauge(t *testing.T, name string) int {
	t.Helper()
	v, err := n.tryGauge(t.Context(), name)
	if err != nil {
		t.Errorf("read statistic %s: %v", name, err)
	}
	return v
}

func (n *node) tryGauge(ctx context.Context, name string) (int, error) {
	b, err := n.AdminGet(ctx, "/stats?format=json&filter=^"+name+"$")
	if err != nil {
		return 0, err
	}
	var body struct {
		Stats []struct {
			Value int `json:"value"`
		} `json:"stats"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		return 0, err
	}
	total := 0
	for _, s := range body.Stats {
		total += s.Value
	}
	return total, nil
}

// counters are the node's counters of captured connections at one time.
type counters []series

type series struct {
	name   string // as the product calls it, without Envoy's prefix
	labels map[string]string
	value  float64
}

// labels are wanted labels of a counter; others do not matter.
type labels map[string]string

// counters reads the counters that Envoy's stats access loggers keep.
func (n *node) counters(t *testing.T) counters {
	t.Helper()
	b, err := n.AdminGet(t.Context(), "/stats/prometheus?usedonly&filter=aether_")
	if err != nil {
		t.Fatalf("read counters: %v", err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("read counters: %v", err)
	}
	var out counters
	for _, name := range slices.Sorted(maps.Keys(families)) {
		short, ok := bytes.CutPrefix([]byte(name), []byte("envoy_"))
		if !ok || families[name].GetType() != dto.MetricType_COUNTER {
			continue
		}
		for _, m := range families[name].GetMetric() {
			s := series{name: string(short), labels: map[string]string{}, value: m.GetCounter().GetValue()}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			out = append(out, s)
		}
	}
	return out
}

// sum adds up the series of a counter that have these labels.
func (c counters) sum(name string, want labels) int {
	total := 0.0
	for _, s := range c {
		if s.name == name && s.has(want) {
			total += s.value
		}
	}
	return int(total)
}

func (s series) has(want labels) bool {
	for k, v := range want {
		if s.labels[k] != v {
			return false
		}
	}
	return true
}

// since returns what was counted after an earlier reading, series that stood
// still left out.
func (c counters) since(before counters) counters {
	old := map[string]float64{}
	for _, s := range before {
		old[s.key()] = s.value
	}
	var out counters
	for _, s := range c {
		if s.value -= old[s.key()]; s.value != 0 {
			out = append(out, s)
		}
	}
	return out
}

func (s series) key() string { return fmt.Sprint(s.name, s.labels) } // fmt sorts maps

// want says what is wrong when a sum is not as wanted.
func (c counters) want(name string, l labels, value int) error {
	if got := c.sum(name, l); got != value {
		return fmt.Errorf("%s%v is %d, want %d: %v", name, l, got, value, c)
	}
	return nil
}
