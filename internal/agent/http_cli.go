// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/plan"
)

// cliHandler serves the CLI:
//
//	GET     /v1/explain?address=10.96.0.10:80  api.Explanation
//	GET     /v1/services                       []api.ServiceRow
//	GET     /v1/status                         api.Status
//	GET|PUT /v1/mode                           api.Mode
//	GET     /debug/pprof/…
//
// Decisions are computed here, by the state the loop gave, so that a person who
// asks keeps no connection waiting.
//
// Counts that are shown are read from Envoy for the question, so that a person
// who has just dialled sees it; when Envoy does not answer within freshTimeout,
// those of the last interval are shown.
type cliHandler struct {
	loop mailbox
	read Scraper
}

// freshTimeout bounds how long a question waits for Envoy's counts.
const freshTimeout = 500 * time.Millisecond

var errNotSynced = errors.New("the sources have not synced yet: `status` says what is wrong with them")

func (h cliHandler) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/explain", h.explain)
	mux.HandleFunc("GET /v1/services", h.services)
	mux.HandleFunc("GET /v1/status", h.status)
	mux.HandleFunc("GET /v1/mode", h.mode)
	mux.HandleFunc("PUT /v1/mode", h.setMode)
	daemon.AddProfiles(mux)
	return mux
}

func (h cliHandler) explain(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("address")
	target, err := netip.ParseAddrPort(text)
	if err != nil || target.Port() == 0 {
		fail(w, http.StatusBadRequest, fmt.Errorf("address %q: want IP:port, such as 10.96.0.10:80", text))
		return
	}
	h.refresh(r.Context())
	got, ok := h.names(w, r, &nameTarget{target})
	if !ok {
		return
	}
	reply(w, http.StatusOK, got.explain())
}

func (h cliHandler) services(w http.ResponseWriter, r *http.Request) {
	h.refresh(r.Context())
	if got, ok := h.names(w, r, nil); ok {
		reply(w, http.StatusOK, got.rows())
	}
}

// refresh gives the loop Envoy's counts of now, if they can be had.
func (h cliHandler) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	if c, err := h.read(ctx); err == nil {
		h.loop.tell(scraped{c, nil})
	}
}

// names asks the loop for names; when it cannot have them it has replied why.
func (h cliHandler) names(w http.ResponseWriter, r *http.Request, target *nameTarget) (names, bool) {
	replies := make(chan names, 1)
	got, err := ask(r.Context(), h.loop, namesQuery{target: target, reply: replies}, replies)
	if err == nil && !got.synced {
		err = errNotSynced
	}
	if err != nil {
		unavailable(w, err)
		return names{}, false
	}
	return got, true
}

func (h cliHandler) current(r *http.Request) (api.Status, error) {
	replies := make(chan api.Status, 1)
	return ask(r.Context(), h.loop, statusQuery{reply: replies}, replies)
}

func (h cliHandler) status(w http.ResponseWriter, r *http.Request) {
	s, err := h.current(r)
	if err != nil {
		unavailable(w, err)
		return
	}
	reply(w, http.StatusOK, s)
}

func (h cliHandler) mode(w http.ResponseWriter, r *http.Request) {
	s, err := h.current(r)
	if err != nil {
		unavailable(w, err)
		return
	}
	reply(w, http.StatusOK, api.Mode{Mode: s.Mode})
}

func (h cliHandler) setMode(w http.ResponseWriter, r *http.Request) {
	var m api.Mode
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&m); err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf("read mode: %w", err))
		return
	}
	if !ValidMode(plan.Mode(m.Mode)) {
		fail(w, http.StatusBadRequest, fmt.Errorf("mode %q: want passthrough, balance or enforce", m.Mode))
		return
	}
	done := make(chan struct{}, 1)
	if _, err := ask(r.Context(), h.loop, modeChange{mode: plan.Mode(m.Mode), reply: done}, done); err != nil {
		unavailable(w, err)
		return
	}
	reply(w, http.StatusOK, m)
}
