// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"aether.io/aether/internal/agent/api"
)

const (
	// maxBody bounds the body of a request.
	maxBody = 1 << 20
	// jsonType is the Content-Type of every response.
	jsonType = "application/json"
)

// mailbox sends values to the loop as long as there is one.
type mailbox struct {
	to   chan<- message
	done <-chan struct{} // closed when the loop has ended
}

var errStopped = errors.New("the agent is stopping")

// send hands m over, unless ctx (a request that its caller gave up, or that the
// agent's end cut short) or the loop ends first.
func (b mailbox) send(ctx context.Context, m message) error {
	select {
	case b.to <- m:
		return nil
	case <-b.done:
		return errStopped
	case <-ctx.Done():
		return errStopped
	}
}

// tell hands m over, unless the loop ends first.
func (b mailbox) tell(m message) {
	select {
	case b.to <- m:
	case <-b.done:
	}
}

// ask sends m and waits for what comes through reply, which must have room for it.
func ask[T any](ctx context.Context, b mailbox, m message, reply <-chan T) (T, error) {
	var none T
	if err := b.send(ctx, m); err != nil {
		return none, err
	}
	select {
	case v := <-reply:
		return v, nil
	case <-b.done:
		return none, errStopped
	case <-ctx.Done():
		return none, errStopped
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // the peer is gone
}

func fail(w http.ResponseWriter, code int, err error) {
	reply(w, code, api.Error{Error: err.Error()})
}

// unavailable replies that the loop could not be asked.
func unavailable(w http.ResponseWriter, err error) { fail(w, http.StatusServiceUnavailable, err) }
