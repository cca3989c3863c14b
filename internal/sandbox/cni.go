// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/capture"
	"aether.io/aether/internal/model"
)

// errListenerPending means that the agent knows the pod and Envoy has not
// accepted its listener yet.
var errListenerPending = errors.New("waiting for Envoy to accept the pod's listener")

// setUpCapture plays the CNI plugin's part: the agent is told and has the pod's
// listener ready, then the pod's connections are diverted to it. A pod whose
// listener is not there is not started: it would have no network.
func (p *pod) setUpCapture(ctx context.Context) error {
	n := p.node
	select {
	case <-n.proxyReady:
	case <-ctx.Done():
		return ctx.Err()
	}
	cfg, err := capture.ParseAnnotations(p.plan.pod.Annotations, true)
	if err != nil {
		return err
	}
	if err := n.agentAddPod(ctx, api.Pod{
		Namespace: p.plan.name.Namespace, Name: p.plan.name.Name, UID: p.uid,
		ServiceAccount: p.plan.serviceAccount(), IP: p.ip.String(), NetNS: p.netns,
		Annotations: p.plan.pod.Annotations,
	}); err != nil {
		return err
	}
	if err := capture.Install(p.netns, cfg); err != nil {
		return fmt.Errorf("install capture: %w", err)
	}
	return nil
}

func (n *Node) agentAddPod(ctx context.Context, pod api.Pod) error {
	body, err := json.Marshal(pod)
	if err != nil {
		return fmt.Errorf("write pod for the agent: %w", err)
	}
	code, err := n.cni.call(ctx, http.MethodPost, "/v1/pods", body, nil)
	if err != nil {
		return fmt.Errorf("tell the agent of the pod: %w", err)
	}
	if code == http.StatusAccepted {
		return errListenerPending
	}
	return nil
}

func (n *Node) agentRemovePod(ctx context.Context, name model.Name) error {
	path := "/v1/pods/" + url.PathEscape(name.Namespace) + "/" + url.PathEscape(name.Name)
	code, err := n.cni.call(ctx, http.MethodDelete, path, nil, nil)
	if err != nil && code != http.StatusNotFound {
		return fmt.Errorf("tell the agent that the pod is gone: %w", err)
	}
	return nil
}

// unixClient speaks JSON over HTTP on a Unix socket.
type unixClient struct {
	socket string
	http   *http.Client
}

func newUnixClient(socket string) *unixClient {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &unixClient{socket: socket, http: &http.Client{
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}}
}

// call makes one request. A status that is not 2xx is an error with the server's
// words; the code is returned all the same. out, when not nil, gets the body: as
// bytes for a *[]byte, else decoded.
func (u *unixClient) call(ctx context.Context, method, path string, body []byte, out any) (code int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://unix"+path, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("make request: %w", err)
	}
	resp, err := u.http.Do(req)
	if err != nil {
		if ue := (*url.Error)(nil); errors.As(err, &ue) { // its address means nothing to a person
			err = ue.Err
		}
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, fmt.Errorf("read reply: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		e := api.Error{}
		if json.Unmarshal(b, &e) != nil || e.Error == "" {
			e.Error = resp.Status
		}
		return resp.StatusCode, errors.New(e.Error)
	}
	switch out := out.(type) {
	case nil:
	case *[]byte:
		*out = b
	default:
		if err := json.Unmarshal(b, out); err != nil {
			return resp.StatusCode, fmt.Errorf("decode reply: %w", err)
		}
	}
	return resp.StatusCode, nil
}
