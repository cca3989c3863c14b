// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
)

const (
	maxBody = 64 << 10
	// settleTime is how long a changed file must stand still before it is used.
	settleTime = 2 * time.Second
	maxReason  = 200
)

func (s *Supervisor) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", s.serveStatus)
	mux.HandleFunc("POST /v1/restart", s.serveRestart)
	return mux
}

func (s *Supervisor) serveStatus(w http.ResponseWriter, r *http.Request) {
	replies := make(chan api.ProxyStatus, 1)
	if s.tell(message{status: replies}) {
		select {
		case st := <-replies:
			reply(w, http.StatusOK, st)
			return
		case <-s.ended:
		case <-r.Context().Done():
		}
	}
	reply(w, http.StatusServiceUnavailable, api.Error{Error: errStopping.Error()})
}

func (s *Supervisor) serveRestart(w http.ResponseWriter, r *http.Request) {
	var q api.ProxyRestartRequest
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&q)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		reply(w, http.StatusBadRequest, api.Error{Error: fmt.Sprintf("read restart request: %v", err)})
		return
	case strings.TrimSpace(q.Reason) == "" || len(q.Reason) > maxReason:
		reply(w, http.StatusBadRequest, api.Error{Error: fmt.Sprintf("reason: want 1 to %d bytes", maxReason)})
		return
	}
	began := time.Now()
	o, err := s.restart(r.Context(), request{reason: q.Reason, full: q.Full, now: q.Now, at: began})
	if err != nil {
		return // nobody waits any more
	}
	out := restartOf(q.Reason, o, began, time.Now())
	switch {
	case o.scheduled != "":
		reply(w, http.StatusAccepted, out)
	case o.err == nil:
		reply(w, http.StatusOK, out)
	default:
		reply(w, codeOf(o.err), api.Error{Error: o.err.Error()})
	}
}

func codeOf(err error) int {
	switch {
	case errors.Is(err, errStopping):
		return http.StatusServiceUnavailable
	case errors.Is(err, errNotServing):
		return http.StatusBadGateway
	}
	return http.StatusConflict
}

// restart asks the loop for one and waits for what becomes of it.
func (s *Supervisor) restart(ctx context.Context, r request) (outcome, error) {
	replies := make(chan outcome, 1)
	if !s.tell(message{event: asked{r}, reply: replies}) {
		return outcome{err: errStopping}, nil
	}
	select {
	case o := <-replies:
		return o, nil
	case <-s.ended:
		select {
		case o := <-replies:
			return o, nil
		default:
			return outcome{err: errStopping}, nil
		}
	case <-ctx.Done():
		return outcome{}, ctx.Err()
	}
}

func restartOf(reason string, o outcome, began, ended time.Time) api.ProxyRestart {
	out := api.ProxyRestart{State: "done", Reason: reason, PID: o.pid, Time: ended.UTC().Format(time.RFC3339)}
	switch {
	case o.scheduled != "":
		out.State, out.Error = "scheduled", o.scheduled
	case o.err != nil:
		out.State, out.Error = "failed", o.err.Error()
	default:
		out.TookMS = ended.Sub(began).Milliseconds()
	}
	return out
}

// status describes the machine. It is called by the loop.
func (s *Supervisor) status(now time.Time) api.ProxyStatus {
	m := &s.machine
	st := api.ProxyStatus{
		State: "serving", PID: m.pid(), Epochs: []api.ProxyEpoch{}, Changed: []string{},
		Restarts: m.restarts, LastExit: m.lastExit, HotRestarts: m.hotRestarts, FailedRestarts: m.failures,
		FailedStarts: m.stillborns,
		Envoy:        s.cfg.Envoy, Version: shortVersion(s.info.Version), Bootstrap: s.cfg.Bootstrap,
		DrainTime: int(s.cfg.DrainTime.Seconds()), ShutdownTime: int(s.cfg.ShutdownTime.Seconds()),
		SupervisorPID: os.Getpid(),
	}
	for _, e := range m.epochs {
		st.Epochs = append(st.Epochs, s.epochStatus(e))
	}
	switch {
	case m.stopping:
		st.State = "stopping"
	case m.in(serving) == nil:
		st.State = "starting"
	case m.preparing || m.in(starting) != nil:
		st.State = "restarting"
	}
	var reasons []string
	for _, r := range m.waiting {
		reasons = append(reasons, r.reason)
	}
	st.Scheduled = strings.Join(reasons, "; ")
	if d := m.lastDone; !d.ended.IsZero() {
		last := restartOf(d.reason, d.outcome, d.at, d.ended)
		st.LastRestart = &last
	}
	if m.in(serving) != nil {
		if in, err := s.cfg.resolve(); err == nil {
			st.Changed = s.from.changed(in)
		} else {
			st.Changed = []string{"binary or bootstrap cannot be read: " + err.Error()}
		}
	}
	return st
}

func (s *Supervisor) epochStatus(e epoch) api.ProxyEpoch {
	out := api.ProxyEpoch{
		PID: e.pid, State: e.phase.String(), BaseID: s.base + uint32(e.slot), Epoch: e.number,
		Since: e.since.UTC().Format(time.RFC3339),
	}
	until := e.until
	if e.phase == draining {
		until = e.since.Add(s.cfg.ShutdownTime)
	}
	if !until.IsZero() {
		out.Until = until.UTC().Format(time.RFC3339)
	}
	return out
}

// shortVersion takes 1.40.0 out of Envoy's commit/1.40.0/Clean/RELEASE/BoringSSL.
func shortVersion(v string) string {
	if parts := strings.Split(v, "/"); len(parts) > 1 {
		return parts[1]
	}
	return v
}

// watch asks for a hot restart when binary or bootstrap have changed and then stood
// still. What has been tried is not tried again.
func (s *Supervisor) watch(ctx context.Context) {
	var seen, tried inputs
	for {
		select {
		case <-time.After(settleTime):
		case <-ctx.Done():
			return
		}
		in, err := s.cfg.resolve()
		if err != nil {
			continue // told by the status, and by the next start
		}
		still := len(seen.changed(in)) == 0
		seen = in
		replies := make(chan api.ProxyStatus, 1)
		if !still || len(tried.changed(in)) == 0 || !s.tell(message{status: replies}) {
			continue
		}
		select {
		case st := <-replies:
			if st.State == "serving" && len(st.Changed) > 0 {
				tried = in
				if _, err := s.restart(ctx, request{reason: "changed: " + strings.Join(st.Changed, ", "), at: time.Now()}); err != nil {
					return
				}
			}
		case <-s.ended:
			return
		}
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the caller sees a cut reply
}
