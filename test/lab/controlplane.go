// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
)

const (
	etcdAddress = "127.0.0.1:2379" // in the control plane's namespace
	apiPort     = "6443"
)

// apiAddress is where the node and its pods find kube-apiserver.
func apiAddress() string { return controlIP.String() + ":" + apiPort }

// controllers are those the lab runs: what makes objects out of Services,
// workloads and namespaces. Nothing watches the nodes, and the lab binds pods.
var controllers = []string{
	"endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller",
	"deployment-controller", "replicaset-controller", "replicationcontroller-controller", "statefulset-controller",
	"garbage-collector-controller", "namespace-controller", "service-cidr-controller",
	"serviceaccount-controller", "serviceaccount-token-controller", "root-ca-certificate-publisher-controller",
	"clusterrole-aggregation-controller",
}

// makeProcesses names the programs of the cluster; none is started.
func (c *Cluster) makeProcesses() {
	p, bin := c.paths, func(name string) string { return filepath.Join(c.programs, name) }
	control := c.cfg.controlNS()
	process := func(name, netns string, ready func(context.Context) error, argv func() []string) *Process {
		return &Process{
			name: name, forker: c.forker, log: c.log, output: p.log(name), netns: netns,
			command: argv, ready: ready, timeout: c.cfg.StartTimeout,
		}
	}
	c.Etcd = process("etcd", control, c.healthy("http://"+etcdAddress+"/readyz"), func() []string {
		const peers = "http://127.0.0.1:2380"
		return []string{
			bin("etcd"), "--name=lab", "--data-dir=" + p.at("etcd"), "--log-level=warn",
			"--listen-client-urls=http://" + etcdAddress, "--advertise-client-urls=http://" + etcdAddress,
			"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=lab=" + peers,
			// The data need not outlive the lab, but all of it must fit.
			"--unsafe-no-fsync", "--quota-backend-bytes=8589934592",
		}
	})
	c.APIServer = process("kube-apiserver", control, c.apiReady, func() []string {
		return append(c.gates(bin("kube-apiserver"),
			"--etcd-servers=http://"+etcdAddress,
			"--bind-address=0.0.0.0", "--secure-port="+apiPort, "--advertise-address="+controlIP.String(),
			"--service-cluster-ip-range="+c.cfg.ServiceCIDR.String(), "--authorization-mode=RBAC",
			"--client-ca-file="+p.pki("ca.crt"), "--tls-cert-file="+p.pki("apiserver.crt"), "--tls-private-key-file="+p.pki("apiserver.key"),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file="+p.pki("sa.pub"), "--service-account-signing-key-file="+p.pki("sa.key"),
			"--allow-privileged=true", "--enable-aggregator-routing=false",
		), c.cfg.APIServerArgs...)
	})
	c.ControllerManager = process("kube-controller-manager", control, c.controllersReady, func() []string {
		return append(c.gates(bin("kube-controller-manager"),
			"--kubeconfig="+p.kubeconfig("kube-controller-manager"), "--leader-elect=false", "--bind-address=127.0.0.1",
			"--use-service-account-credentials=true", "--service-account-private-key-file="+p.pki("sa.key"),
			"--root-ca-file="+p.pki("ca.crt"), "--controllers="+strings.Join(controllers, ","),
			"--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-service-endpoint-syncs=20",
		), c.cfg.ControllerManagerArgs...)
	})
	c.KubeProxy = process("kube-proxy", c.nodeNS(), c.kubeProxyReady, func() []string {
		return []string{bin("kube-proxy"), "--config=" + p.at("kube-proxy.yaml"), "--v=2"}
	})
}

// gates appends the feature gates to a command line.
func (c *Cluster) gates(argv ...string) []string {
	if c.cfg.FeatureGates == "" {
		return argv
	}
	return append(argv, "--feature-gates="+c.cfg.FeatureGates)
}

// inControl asks servers in the control plane's namespace.
func (c *Cluster) inControl() *http.Client { return clientIn(c.cfg.controlNS()) }

func clientIn(netns string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dialIn(netns), DisableKeepAlives: true}}
}

// healthy asks a server of the control plane how it is.
func (c *Cluster) healthy(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := call(ctx, c.inControl(), http.MethodGet, url, nil)
		return err
	}
}

// call makes one request; a status that is not 2xx is an error with what was said.
func call(ctx context.Context, client *http.Client, method, url string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read reply of %s: %w", url, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s: %s: %s", url, resp.Status, bytes.TrimSpace(b[:min(len(b), 300)]))
	}
	return b, nil
}

// apiReady asks kube-apiserver whether all it does at its start is done.
func (c *Cluster) apiReady(ctx context.Context) error {
	_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

// controllersReady: the controllers work once there is what one of them makes.
func (c *Cluster) controllersReady(ctx context.Context) error {
	return c.serviceAccountExists(ctx, "default")
}

// CompactEtcd discards etcd's history up to now: a watch that starts again from an
// older version is told that it is gone (410), once kube-apiserver's own memory of
// it is gone, too, as after a restart.
func (c *Cluster) CompactEtcd(ctx context.Context) error {
	b, err := call(ctx, c.inControl(), http.MethodPost, "http://"+etcdAddress+"/v3/kv/range", []byte(`{"key":"AA=="}`))
	if err != nil {
		return fmt.Errorf("ask etcd for its revision: %w", err)
	}
	var reply struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := json.Unmarshal(b, &reply); err != nil {
		return fmt.Errorf("read etcd's revision: %w", err)
	}
	body := fmt.Appendf(nil, `{"revision":%q,"physical":true}`, reply.Header.Revision)
	if _, err := call(ctx, c.inControl(), http.MethodPost, "http://"+etcdAddress+"/v3/kv/compaction", body); err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	return nil
}
