// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"net/http"
	"time"

	"aether.io/aether/internal/agent/api"
)

// checkTimeout is more than the agent takes for a check.
const checkTimeout = 30 * time.Second

// check has the agent look at everything, which takes longer than other questions.
func (a *agentClient) check(ctx context.Context) (got api.Check, err error) {
	patient := *a
	client := *a.http
	client.Timeout = checkTimeout
	patient.http = &client
	err = patient.call(ctx, http.MethodGet, "/v1/check", nil, &got)
	return got, err
}

// text returns a reply that is no JSON.
func (a *agentClient) text(ctx context.Context, path string) (string, error) {
	var body plainText
	err := a.call(ctx, http.MethodGet, path, nil, &body)
	return string(body), err
}

// plainText takes a reply's body as it is.
type plainText string
