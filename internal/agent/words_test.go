// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/prometheus/common/expfmt"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/xds"
)

// configure sets what "agent start" was told.
func configure(c *Config, args []string) error {
	f, err := fields(args, "mode", "hold", "window", "budget", "node", "zone", "range", "metrics", "run", "state", "rates")
	if err != nil {
		return err
	}
	c.Mode = plan.ModeEnforce
	for k, v := range f {
		switch k {
		case "mode":
			c.Mode = plan.Mode(v)
		case "hold":
			c.NoServiceHold, err = time.ParseDuration(v)
		case "window":
			c.DemandWindow, err = time.ParseDuration(v)
		case "rates":
			var n int
			n, err = strconv.Atoi(v)
			c.Envoy.RecordRate, c.Envoy.AccessLogFaultRate = uint32(n), uint32(n)
		case "budget":
			c.NameBudget, err = strconv.Atoi(v)
		case "node":
			c.Node = v
		case "zone":
			c.Zone = v
		case "run":
			c.RunDir = filepath.Join(c.RunDir, v)
		case "state":
			c.StateDir = filepath.Join(c.StateDir, v)
		case "metrics":
			c.MetricsAddress = v
		case "range":
			var p netip.Prefix
			p, err = netip.ParsePrefix(v)
			c.ServiceRange = append(c.ServiceRange, p)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
	}
	return nil
}

func unixClient(path string) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
}

// call makes a request of the agent and decodes the reply into out.
func (a *running) call(socket, method, path string, body, out any) (int, error) {
	var b bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequest(method, "http://agent"+path, &b)
	if err != nil {
		return 0, err
	}
	resp, err := a.client[socket].Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode >= 300 {
		var e api.Error
		if err := json.Unmarshal(text, &e); err != nil {
			return resp.StatusCode, fmt.Errorf("%s: %q", resp.Status, text)
		}
		return resp.StatusCode, fmt.Errorf("%d: %s", resp.StatusCode, e.Error)
	}
	if out == nil {
		return resp.StatusCode, nil
	}
	return resp.StatusCode, json.Unmarshal(text, out)
}

func (a *running) getStatus() (api.Status, error) {
	var s api.Status
	_, err := a.call(agentSocket, http.MethodGet, "/v1/status", nil, &s)
	return s, err
}

// answer waits until the newest Envoy has what is wanted under a name: "none",
// "empty", "passthrough", "refuse REASON", or "balance ip:port…".
func (s *scenario) answer(_ *testscript.TestScript, args []string) error {
	want := strings.Join(args[1:], " ")
	return soon(func() error {
		if got := s.holds(args[0]); got != want {
			return fmt.Errorf("%s is answered %q, want %q", args[0], got, want)
		}
		return nil
	})
}

// holds says what the newest Envoy has under an address.
func (s *scenario) holds(address string) string {
	e := s.envoys[s.current]
	name := "svc:" + address
	raw, ok := e.Resources(string(xds.Cluster))[name]
	if !ok {
		return "none"
	}
	var c clusterv3.Cluster
	if err := proto.Unmarshal(raw, &c); err != nil {
		return err.Error()
	}
	a := c.GetLoadAssignment()
	switch c.GetType() {
	case clusterv3.Cluster_ORIGINAL_DST:
		return "passthrough"
	case clusterv3.Cluster_EDS:
		raw, ok := e.Resources(string(xds.Assignment))[name]
		if !ok {
			return "warming"
		}
		a = &endpointv3.ClusterLoadAssignment{}
		if err := proto.Unmarshal(raw, a); err != nil {
			return err.Error()
		}
	}
	return describeEndpoints(a)
}

func describeEndpoints(a *endpointv3.ClusterLoadAssignment) string {
	var served []string
	for _, group := range a.GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			address := e.GetEndpoint().GetAddress()
			if address.GetPipe() != nil {
				return "refuse " + e.GetMetadata().GetFilterMetadata()["aether"].GetFields()["reason"].GetStringValue()
			}
			sa := address.GetSocketAddress()
			served = append(served, fmt.Sprintf("%s:%d", sa.GetAddress(), sa.GetPortValue()))
		}
	}
	if served == nil {
		return "empty"
	}
	slices.Sort(served)
	return "balance " + strings.Join(served, " ")
}

// listener waits until the newest Envoy has a pod's listener ("present"), does
// not ("absent"), or has one whose matcher holds a word and not another
// ("with cap_svc", "without cap_svc", any text of its JSON).
func (s *scenario) listener(_ *testscript.TestScript, args []string) error {
	return soon(func() error {
		raw, there := s.envoys[s.current].Resources(string(xds.Listener))["capture:"+args[0]]
		switch {
		case args[1] == "absent":
			if there {
				return errors.New("the listener is there")
			}
			return nil
		case !there:
			return errors.New("the listener is not there")
		case args[1] == "present":
			return nil
		}
		var l listenerv3.Listener
		if err := proto.Unmarshal(raw, &l); err != nil {
			return err
		}
		text := protojson.Format(l.GetFilterChainMatcher()) + protojson.Format(l.GetAddress())
		for _, word := range args[2:] {
			if strings.Contains(text, word) != (args[1] == "with") {
				return fmt.Errorf("listener %s %s: %s", args[1], word, text)
			}
		}
		return nil
	})
}

func (s *scenario) explain(w io.Writer, args []string) error {
	var e api.Explanation
	_, err := s.agent.call(agentSocket, http.MethodGet, "/v1/explain?address="+url.QueryEscape(args[0]), nil, &e)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "class: %s\nanswer: %s\nreason: %s\n", e.Class, e.Answer, e.Reason)
	if e.Service != nil {
		fmt.Fprintf(w, "service: %s/%s %s\n", e.Service.Namespace, e.Service.Name, e.Service.Port)
	}
	for _, p := range e.Endpoints {
		fmt.Fprintf(w, "endpoint %s used %t: %s\n", p.Address, p.Used, p.Why)
	}
	for _, p := range e.Path {
		fmt.Fprintf(w, "path: %s\n", p)
	}
	fmt.Fprintf(w, "live: asked %t nack %q last dial %q\n", e.Live.Asked, e.Live.Nack, e.Live.LastDial)
	return nil
}

func (s *scenario) services(w io.Writer, _ []string) error {
	var rows []api.ServiceRow
	if _, err := s.agent.call(agentSocket, http.MethodGet, "/v1/services", nil, &rows); err != nil {
		return err
	}
	for _, r := range rows {
		name := "-"
		if r.Service != nil {
			name = r.Service.Namespace + "/" + r.Service.Name + ":" + r.Service.Port
		}
		fmt.Fprintf(w, "%s %s %s %s %d/%d/%d %s\n", r.Address, name, r.Answer, r.Reason, r.Used, r.Ready, r.Total, r.Demand)
	}
	return nil
}

func (s *scenario) status(w io.Writer, _ []string) error {
	st, err := s.agent.getStatus()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "mode %s synced %t range %v envoy %t %s\n", st.Mode, st.Synced, st.Range, st.Envoy.Connected, st.Envoy.Version)
	fmt.Fprintf(w, "names services %d other %d over-limit %d\n", st.Names.Services, st.Names.Other, st.Names.OverLimit)
	for _, p := range st.Pods {
		fmt.Fprintf(w, "pod %s/%s %s %s\n", p.Namespace, p.Name, p.Listener, p.Nack)
	}
	for _, p := range st.Problems {
		fmt.Fprintf(w, "problem %s: %s\n", p.Source, p.Text)
	}
	return nil
}

// metrics prints all metrics, in Prometheus' text form.
func (s *scenario) metrics(w io.Writer, _ []string) error {
	if err := s.barrier(); err != nil {
		return err
	}
	families, err := s.agent.registry.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}

func (s *scenario) mode(ts *testscript.TestScript, args []string) error {
	var m api.Mode
	if len(args) == 1 {
		_, err := s.agent.call(agentSocket, http.MethodPut, "/v1/mode", api.Mode{Mode: args[0]}, &m)
		return err
	}
	if _, err := s.agent.call(agentSocket, http.MethodGet, "/v1/mode", nil, &m); err != nil {
		return err
	}
	fmt.Fprintln(ts.Stdout(), m.Mode)
	return nil
}

// pod plays the CNI plugin. A namespace is made unless netns=missing.
func (s *scenario) pod(ts *testscript.TestScript, args []string) error {
	ns, name, _ := strings.Cut(args[1], "/")
	f, err := fields(args[2:], "ip", "uid", "sa", "netns", "advance")
	if err != nil {
		return err
	}
	if args[0] == "delete" {
		_, err := s.agent.call(cniSocket, http.MethodDelete, "/v1/pods/"+ns+"/"+name+"?uid="+f["uid"], nil, nil)
		return err
	}
	p := api.Pod{
		Namespace: ns, Name: name, UID: f["uid"], ServiceAccount: "default", IP: "10.244.0.2",
		NetNS: filepath.Join(s.netns, name),
	}
	if v, ok := f["ip"]; ok {
		p.IP = v
	}
	if v, ok := f["sa"]; ok {
		p.ServiceAccount = v
	}
	if v, ok := f["netns"]; ok {
		p.NetNS = filepath.Join(s.netns, v)
	}
	if f["netns"] != "missing" {
		if err := os.WriteFile(p.NetNS, nil, 0o600); err != nil {
			return err
		}
	}
	var st api.PodStatus
	code, result := 0, make(chan error, 1)
	go func() {
		var err error
		code, err = s.agent.call(cniSocket, http.MethodPost, "/v1/pods", p, &st)
		result <- err
	}()
	if f["advance"] != "" {
		if err := errors.Join(s.awaitPod(ns, name), s.advance(ts, []string{f["advance"]})); err != nil {
			return err
		}
	}
	if err := <-result; err != nil {
		return err
	}
	fmt.Fprintf(ts.Stdout(), "%d %s\n", code, st.Listener)
	return nil
}

// awaitPod waits until the agent knows a pod.
func (s *scenario) awaitPod(ns, name string) error {
	return soon(func() error {
		st, err := s.agent.getStatus()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(st.Pods, func(p api.PodStatus) bool { return p.Namespace == ns && p.Name == name }) {
			return fmt.Errorf("pod %s/%s is not known", ns, name)
		}
		return nil
	})
}
