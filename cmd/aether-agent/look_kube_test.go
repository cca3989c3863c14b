// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/kube/apitest"
	"aether.io/aether/internal/xds"
	"aether.io/aether/internal/xds/xdstest"
)

// inCluster is an agent in enforce with an API server and an Envoy, which notes
// every name that it was ever told to refuse.
type inCluster struct {
	server *apitest.Server
	envoy  *xdstest.Envoy

	mu      sync.Mutex
	refused map[string]bool
}

func startInCluster(t *testing.T, o apitest.Options) *inCluster {
	t.Helper()
	c := &inCluster{server: apitest.Start(t, o), refused: map[string]bool{}}
	c.server.Apply(
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
	)
	c.create("default", "kubernetes", "10.96.0.1")
	dir, err := os.MkdirTemp("", "aether")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := filepath.Join(t.TempDir(), "kubeconfig")
	rest := c.server.Config()
	err = os.WriteFile(config, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, rest.Host, base64.StdEncoding.EncodeToString(rest.CAData)), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	var stdout, stderr bytes.Buffer
	go func() {
		code <- run(ctx, []string{
			"--node-name", "n1", "--kubeconfig", config, "--service-egress", "enforce", "--service-range", "10.96.0.0/16",
			"--run-dir", dir, "--state-dir", t.TempDir(), "--metrics-address", "",
		}, &stdout, &stderr)
	}()
	t.Cleanup(func() {
		cancel()
		if got := <-code; got != 0 || t.Failed() {
			t.Errorf("exit %d: %s", got, &stderr)
		}
	})
	socket := filepath.Join(dir, "xds.sock")
	c.soon(t, func() error { _, err := os.Stat(socket); return err })
	c.envoy, err = xdstest.New(xdstest.DialUnix(socket), xdstest.Options{Node: "n1", Judge: c.judge})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.envoy.Close)
	if err := c.envoy.Connect(); err != nil {
		t.Fatal(err)
	}
	return c
}

// create makes a Service as an API server does, and its endpoint.
func (c *inCluster) create(namespace, name, vip string) {
	tcp, port := corev1.ProtocolTCP, int32(8080)
	c.server.Apply(&networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: vip},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: name}},
	})
	c.server.Apply(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: vip, ClusterIPs: []string{vip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: tcp}},
		},
	})
	c.server.Apply(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(string), Port: &port, Protocol: &tcp}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}}},
	})
}

// answer says what a cluster is: refuse, balance, passthrough.
func answer(raw []byte) string {
	var c clusterv3.Cluster
	if err := proto.Unmarshal(raw, &c); err != nil {
		return err.Error()
	}
	switch {
	case c.GetType() == clusterv3.Cluster_ORIGINAL_DST:
		return "passthrough"
	case c.GetType() == clusterv3.Cluster_EDS:
		return "balance"
	}
	return "refuse"
}

func (c *inCluster) judge(typeURL, name string, raw []byte) error {
	if typeURL == string(xds.Cluster) && answer(raw) == "refuse" {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refused[name] = true
	}
	return nil
}

// wasRefused reports whether Envoy was ever told to refuse a name.
func (c *inCluster) wasRefused(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused[name]
}

func (c *inCluster) soon(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func (c *inCluster) answered(t *testing.T, name, want string) {
	t.Helper()
	c.soon(t, func() error {
		raw, ok := c.envoy.Resources(string(xds.Cluster))[name]
		if !ok {
			return errors.New(name + " is not answered")
		}
		if got := answer(raw); got != want {
			return fmt.Errorf("%s is answered %s, want %s", name, got, want)
		}
		return nil
	})
}

// Services that are created and dialled in the same instant, a hundred of them, are
// served, and what nobody has is refused beside them.
func TestCreatedAndDialledInACluster(t *testing.T) {
	c := startInCluster(t, apitest.Options{})
	const services = 100
	name := func(i int) string { return fmt.Sprintf("svc:10.96.1.%d:80", i) }
	for i := range services {
		// An address that was allocated is one of a Service to be: what is dialled from
		// here on must not be refused.
		created := make(chan struct{})
		go func() {
			defer close(created)
			c.create("default", fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i))
		}()
		if i%2 == 0 {
			<-created
		} else { // between the allocation and the end
			c.soon(t, func() error {
				if _, ok := c.server.Stored(&networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("10.96.1.%d", i)}}); !ok {
					return errors.New("not allocated")
				}
				return nil
			})
		}
		c.envoy.Ask(name(i), fmt.Sprintf("svc:10.96.2.%d:80", i))
		<-created
	}
	for i := range services {
		c.answered(t, name(i), "balance")
		c.answered(t, fmt.Sprintf("svc:10.96.2.%d:80", i), "refuse")
		if c.wasRefused(name(i)) {
			t.Errorf("%s was refused", name(i))
		}
	}
}

// The watch is half a second late, and not known to be.
func TestLateWatch(t *testing.T) {
	c := startInCluster(t, apitest.Options{})
	c.server.StallWatches()
	c.create("default", "late", "10.96.1.1")
	c.envoy.Ask("svc:10.96.1.1:80", "svc:10.96.1.2:80")
	c.answered(t, "svc:10.96.1.2:80", "refuse")
	<-time.After(500 * time.Millisecond)
	if raw, ok := c.envoy.Resources(string(xds.Cluster))["svc:10.96.1.1:80"]; ok {
		t.Errorf("answered %s before the watch told of it", answer(raw))
	}
	c.server.Heal()
	c.answered(t, "svc:10.96.1.1:80", "balance")
	if c.wasRefused("svc:10.96.1.1:80") {
		t.Error("it was refused")
	}
}

// Without the API server nothing unknown is refused; afterwards everything is right.
func TestUnknownWhileTheAPIServerIsAway(t *testing.T) {
	c := startInCluster(t, apitest.Options{})
	c.envoy.Ask("svc:10.96.2.1:80")
	c.answered(t, "svc:10.96.2.1:80", "refuse")
	c.server.Down()
	c.answered(t, "svc:10.96.2.1:80", "passthrough")
	c.envoy.Ask("svc:10.96.1.1:80", "svc:10.96.2.2:80")
	c.answered(t, "svc:10.96.1.1:80", "passthrough")
	c.answered(t, "svc:10.96.2.2:80", "passthrough")
	c.create("default", "meanwhile", "10.96.1.1") // through another API server
	if err := c.server.Up(); err != nil {
		t.Fatal(err)
	}
	c.answered(t, "svc:10.96.1.1:80", "balance")
	c.answered(t, "svc:10.96.2.1:80", "refuse")
	c.answered(t, "svc:10.96.2.2:80", "refuse")
	if c.wasRefused("svc:10.96.1.1:80") {
		t.Error("it was refused")
	}
}

// A cluster without IPAddress objects, or that forbids them: nothing unknown is
// refused.
func TestUnknownWhereNobodyCanLook(t *testing.T) {
	t.Run("before 1.33", func(t *testing.T) {
		c := startInCluster(t, apitest.Options{Minor: 30})
		c.envoy.Ask("svc:10.96.2.1:80", "svc:10.96.0.1:81")
		c.answered(t, "svc:10.96.2.1:80", "passthrough")
	})
	t.Run("forbidden", func(t *testing.T) {
		c := startInCluster(t, apitest.Options{})
		c.server.Fail("ipaddresses", apitest.Failure{Code: 403})
		c.envoy.Ask("svc:10.96.2.1:80")
		c.answered(t, "svc:10.96.2.1:80", "passthrough")
	})
}
