// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox"
)

// askTimeout bounds one question to the agent, which answers from memory.
const askTimeout = 10 * time.Second

// maxReply bounds what an agent's reply may hold: a node's list of asked names
// is some 300 bytes a line.
const maxReply = 256 << 20

// findAgent is the command to try when no agent answers on a node.
const findAgent = "pgrep -a aether-agent"

// agentClient asks one agent over its Unix socket.
type agentClient struct {
	socket  string
	sandbox string // the sandbox's name, or empty
	flags   string // that lead to the same agent
	next    string // what to try when nobody answers
	who     string // is asked, in words
	look    string // the command that says what is wrong with it
	http    *http.Client
}

func newAgentClient(socket, sandboxName, flags, next string) *agentClient {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &agentClient{
		socket: socket, sandbox: sandboxName, flags: flags, next: next, who: "the agent", look: program + " status" + flags,
		http: &http.Client{Timeout: askTimeout, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
	}
}

// agent chooses whom to ask: --agent-socket when given, the named sandbox, the
// node's agent, or, where there is none, the only sandbox that runs.
func (c *cli) agent(ctx context.Context, socketGiven bool) (*agentClient, error) {
	if socketGiven {
		return newAgentClient(c.agentSocket, "", " --agent-socket "+shellWord(c.agentSocket), findAgent), nil
	}
	if c.sandboxName != "" {
		return c.sandboxAgent(ctx, c.sandboxName)
	}
	_, err := os.Stat(c.agentSocket)
	if err == nil {
		return newAgentClient(c.agentSocket, "", "", findAgent), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, failed("sudo "+program+" status", "find the agent: %w", err)
	}
	switch names := c.runningSandboxes(ctx); len(names) {
	case 0:
		return nil, failed(program+" sandbox up -f DIR", "no agent at %s, and no sandbox is running", c.agentSocket)
	case 1:
		c.note("no agent at %s: asking the sandbox %q", c.agentSocket, names[0])
		return c.sandboxAgent(ctx, names[0])
	default:
		return nil, failed(program+" status"+c.sandboxFlags(names[0]), "no agent at %s, and %d sandboxes are running (%s)",
			c.agentSocket, len(names), strings.Join(names, ", "))
	}
}

func (c *cli) sandboxAgent(ctx context.Context, name string) (*agentClient, error) {
	_, st, err := c.sandboxStatus(ctx, name)
	if err != nil {
		return nil, err
	}
	return newAgentClient(st.Paths.AgentSocket, name, c.sandboxFlags(name), c.sandboxHint("status", name)), nil
}

// runningSandboxes lists the names of the sandboxes that answer, sorted.
func (c *cli) runningSandboxes(ctx context.Context) []string {
	entries, err := os.ReadDir(c.sandboxDirectory())
	if err != nil {
		return nil // no directory: none was ever started
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if _, err := sandbox.Dial(ctx, c.sandboxDir, e.Name()); err == nil {
			names = append(names, e.Name())
		}
	}
	return names
}

func (a *agentClient) explain(ctx context.Context, address string) (e api.Explanation, err error) {
	err = a.call(ctx, http.MethodGet, "/v1/explain?"+url.Values{"address": {address}}.Encode(), nil, &e)
	return e, err
}

func (a *agentClient) services(ctx context.Context) (rows []api.ServiceRow, err error) {
	err = a.call(ctx, http.MethodGet, "/v1/services", nil, &rows)
	return rows, err
}

func (a *agentClient) status(ctx context.Context) (s api.Status, err error) {
	err = a.call(ctx, http.MethodGet, "/v1/status", nil, &s)
	return s, err
}

func (a *agentClient) mode(ctx context.Context) (m api.Mode, err error) {
	err = a.call(ctx, http.MethodGet, "/v1/mode", nil, &m)
	return m, err
}

func (a *agentClient) setMode(ctx context.Context, mode string) (m api.Mode, err error) {
	err = a.call(ctx, http.MethodPut, "/v1/mode", api.Mode{Mode: mode}, &m)
	return m, err
}

// call sends a question and decodes the reply. A reply that blames the question
// is an error of input.
func (a *agentClient) call(ctx context.Context, method, path string, body, reply any) error {
	what := "ask " + a.who + " at " + a.socket
	var send io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		send = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, send)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // "Get "http://agent/…"" means nothing to a person
			err = u.Err
		}
		return failed(a.next, "%s: %w", what, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return failed("", "%s: read the reply: %w", what, err)
	}
	if resp.StatusCode/100 != 2 {
		return a.refused(what, resp, b)
	}
	if text, ok := reply.(*plainText); ok {
		*text = plainText(b)
		return nil
	}
	if err := json.Unmarshal(b, reply); err != nil {
		return failed(program+" version", "%s: decode the reply (is it of another version?): %w", what, err)
	}
	return nil
}

func (a *agentClient) refused(what string, resp *http.Response, body []byte) error {
	var e api.Error
	if json.Unmarshal(body, &e) != nil || e.Error == "" {
		e.Error = resp.Status
	}
	if resp.StatusCode == http.StatusBadRequest {
		return badInput(program+" explain 10.96.0.10:80", "%s: %s", what, e.Error)
	}
	return failed(a.look, "%s: %s", what, e.Error)
}
