// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"
)

// kubeProxyTable is the nftables table of kube-proxy for IPv4.
const kubeProxyTable = "kube-proxy"

// Maps of that table that hold what is to happen with a Service port.
var kubeProxyMaps = []string{"service-ips", "no-endpoint-services"}

const (
	kubeProxyHealth  = "127.0.0.1:10256"
	kubeProxyMetrics = "127.0.0.1:10249"
)

// writeKubeProxyConfig writes kube-proxy's configuration: its defaults, but for
// the mode, the pod range, and the kernel's conntrack limits, which are left alone.
func (c *Cluster) writeKubeProxyConfig() error {
	conf := map[string]any{
		"apiVersion":         "kubeproxy.config.k8s.io/v1alpha1",
		"kind":               "KubeProxyConfiguration",
		"mode":               "nftables",
		"hostnameOverride":   c.cfg.our().Name,
		"clusterCIDR":        c.cfg.PodCIDR.String(),
		"healthzBindAddress": kubeProxyHealth,
		"metricsBindAddress": kubeProxyMetrics,
		"clientConnection":   map[string]any{"kubeconfig": c.paths.kubeconfig("kube-proxy")},
		"conntrack": map[string]any{
			"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
		},
	}
	if gates := c.cfg.FeatureGates; gates != "" {
		set := map[string]bool{}
		for g := range strings.SplitSeq(gates, ",") {
			name, value, _ := strings.Cut(g, "=")
			set[name] = value == "true"
		}
		conf["featureGates"] = set
	}
	b, err := yaml.Marshal(conf)
	if err != nil {
		return fmt.Errorf("write configuration of kube-proxy: %w", err)
	}
	if err := os.WriteFile(c.paths.at("kube-proxy.yaml"), b, 0o644); err != nil {
		return fmt.Errorf("write configuration of kube-proxy: %w", err)
	}
	return nil
}

// kubeProxyReady: it has written its rules once since its start.
func (c *Cluster) kubeProxyReady(ctx context.Context) error {
	if _, err := call(ctx, clientIn(c.nodeNS()), http.MethodGet, "http://"+kubeProxyHealth+"/healthz", nil); err != nil {
		return err
	}
	synced, err := c.KubeProxyMetric(ctx, "kubeproxy_sync_proxy_rules_last_timestamp_seconds")
	if err != nil {
		return err
	}
	for _, s := range synced {
		if s.Labels["ip_family"] == "IPv4" && s.Value > 0 {
			return nil
		}
	}
	return errors.New("it has not written its rules yet")
}

// KubeProxyMode asks kube-proxy for its mode.
func (c *Cluster) KubeProxyMode(ctx context.Context) (string, error) {
	b, err := call(ctx, clientIn(c.nodeNS()), http.MethodGet, "http://"+kubeProxyMetrics+"/proxyMode", nil)
	return string(b), err
}

// nft runs nft in our node's namespace.
func (c *Cluster) nft(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + c.nodeNS(), "--", "nft"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}

// ServiceRules lists the entries that kube-proxy has on our node for a ClusterIP,
// as "map: address . protocol . port". None: packets to it are not its Service's.
func (c *Cluster) ServiceRules(ctx context.Context, vip netip.Addr) ([]string, error) {
	entries, err := c.serviceEntries(ctx, vip)
	var out []string
	for _, e := range entries {
		out = append(out, e.in+": "+e.key)
	}
	return out, err
}

// entry is one element of a map of kube-proxy's.
type entry struct{ in, key string }

func (c *Cluster) serviceEntries(ctx context.Context, vip netip.Addr) ([]entry, error) {
	var out []entry
	for _, name := range kubeProxyMaps {
		b, err := c.nft(ctx, "-j", "list", "map", "ip", kubeProxyTable, name)
		if err != nil {
			if strings.Contains(err.Error(), "No such file") { // no such table: nothing in it
				continue
			}
			return nil, err
		}
		keys, err := mapKeys(b)
		if err != nil {
			return nil, fmt.Errorf("read map %s of kube-proxy: %w", name, err)
		}
		for _, k := range keys {
			if k[0] == vip.String() {
				out = append(out, entry{name, strings.Join(k, " . ")})
			}
		}
	}
	return out, nil
}

// mapKeys reads the keys of a map from nft's JSON: an element is a pair of a
// concatenation and a verdict.
func mapKeys(b []byte) ([][]string, error) {
	var listing struct {
		Nftables []struct {
			Map *struct {
				Elem [][]json.RawMessage `json:"elem"`
			} `json:"map"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(b, &listing); err != nil {
		return nil, err
	}
	var out [][]string
	for _, o := range listing.Nftables {
		if o.Map == nil {
			continue
		}
		for _, pair := range o.Map.Elem {
			key, err := elementKey(pair[0])
			if err != nil {
				return nil, err
			}
			out = append(out, key)
		}
	}
	return out, nil
}

// elementKey reads {"concat": [address, protocol, port]}, in an "elem" object
// when the element has a comment.
func elementKey(b json.RawMessage) ([]string, error) {
	var key struct {
		Elem *struct {
			Val json.RawMessage `json:"val"`
		} `json:"elem"`
		Concat []any `json:"concat"`
	}
	if err := json.Unmarshal(b, &key); err != nil {
		return nil, err
	}
	if key.Elem != nil {
		return elementKey(key.Elem.Val)
	}
	if len(key.Concat) != 3 {
		return nil, fmt.Errorf("element %s: want address, protocol and port", b)
	}
	var out []string
	for _, part := range key.Concat {
		out = append(out, fmt.Sprint(part))
	}
	return out, nil
}

// DeleteServiceRules takes what kube-proxy has for a ClusterIP out of its table
// and reports how many entries there were.
func (c *Cluster) DeleteServiceRules(ctx context.Context, vip netip.Addr) (int, error) {
	entries, err := c.serviceEntries(ctx, vip)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		_, err := c.nft(ctx, "delete", "element", "ip", kubeProxyTable, e.in, "{ "+e.key+" }")
		if err != nil && !strings.Contains(err.Error(), "No such file") { // kube-proxy was sooner
			return 0, err
		}
	}
	return len(entries), nil
}

// KeepServiceRulesDeleted does DeleteServiceRules again and again, for kube-proxy
// writes them anew. Between two looks a rule lives for some 10 ms: who needs it
// never to be there pauses kube-proxy as well.
func (c *Cluster) KeepServiceRulesDeleted(vip netip.Addr) *Keeper {
	return keep(func(ctx context.Context) (bool, error) {
		n, err := c.DeleteServiceRules(ctx, vip)
		return n > 0, err
	})
}

// DeleteKubeProxyTable removes kube-proxy's whole table and reports whether there
// was one.
func (c *Cluster) DeleteKubeProxyTable(ctx context.Context) (had bool, err error) {
	_, err = c.nft(ctx, "delete", "table", "ip", kubeProxyTable)
	if err != nil && strings.Contains(err.Error(), "No such file") {
		return false, nil
	}
	return err == nil, err
}

// KeepKubeProxyTableDeleted is DeleteKubeProxyTable again and again, as
// KeepServiceRulesDeleted is.
func (c *Cluster) KeepKubeProxyTableDeleted() *Keeper { return keep(c.DeleteKubeProxyTable) }

// Keeper keeps something deleted.
type Keeper struct {
	end   context.CancelFunc
	ended chan struct{}

	mu    sync.Mutex
	times int
	err   error
}

// keep calls f every 10 ms.
func keep(f func(context.Context) (bool, error)) *Keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &Keeper{end: cancel, ended: make(chan struct{})}
	go func() {
		defer close(k.ended)
		for ctx.Err() == nil {
			did, err := f(ctx)
			k.mu.Lock()
			if did {
				k.times++
			}
			if err != nil && ctx.Err() == nil && k.err == nil {
				k.err = err
			}
			k.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return k
}

// Times is how often there was something to delete.
func (k *Keeper) Times() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.times
}

// Stop ends it and returns the first error there was. It may be called twice.
func (k *Keeper) Stop() error {
	k.end()
	<-k.ended
	return k.err
}
