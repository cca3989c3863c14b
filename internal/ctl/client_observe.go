// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"

	"aether.io/aether/internal/agent/api"
)

// maxLine bounds one line of a stream.
const maxLine = 1 << 20

// stream asks for lines and hands them over until the agent or ctx ends them, or
// take fails.
func (a *agentClient) stream(ctx context.Context, path string, take func(line []byte) error) error {
	what := "ask the agent at " + a.socket
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return failed("", "%s: %w", what, err)
	}
	client := http.Client{Transport: a.http.Transport} // without a limit of time
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return failed(a.next, "%s: %w", what, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxLine))
		if err != nil {
			return failed("", "%s: read the reply: %w", what, err)
		}
		return a.refused(what, resp, b)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if err := take(lines.Bytes()); err != nil {
			return failed("", "%s: %w", what, err)
		}
	}
	if err := lines.Err(); err != nil {
		return failed(a.next, "%s: read the reply: %w", what, err)
	}
	return nil
}

// missing asks what is not shown.
func (a *agentClient) missing(ctx context.Context) (api.Missing, error) {
	var l api.ObserveLine
	if err := a.call(ctx, http.MethodGet, "/v1/observe?limit=0", nil, &l); err != nil {
		return api.Missing{}, err
	}
	if l.Missing == nil {
		return api.Missing{}, errors.New("the agent does not say what is missing")
	}
	return *l.Missing, nil
}

func (a *agentClient) preview(ctx context.Context, mode string) (p api.Preview, err error) {
	err = a.call(ctx, http.MethodGet, "/v1/preview?"+url.Values{"mode": {mode}}.Encode(), nil, &p)
	return p, err
}

func (a *agentClient) top(ctx context.Context, by, window string) (t api.Top, err error) {
	err = a.call(ctx, http.MethodGet, "/v1/top?"+url.Values{"by": {by}, "window": {window}}.Encode(), nil, &t)
	return t, err
}
