// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/observe"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/plan/demand"
)

// observeHandler answers about connections:
//
//	GET /v1/observe   api.ObserveLine per line
//	GET /v1/preview   api.Preview
//	GET /v1/top       api.Top
type observeHandler struct {
	records     *records
	names       func(http.ResponseWriter, *http.Request) (names, bool)
	now         func() time.Time
	trustDomain string
}

const (
	// followerRoom is how many connections a slow follower is ahead of losing some.
	followerRoom = 4096
	// missingEvery is how often a follower is told what is missing.
	missingEvery = 10 * time.Second
	// topWindow is the default, maxTopWindow the longest time that rates are over.
	topWindow    = 10 * time.Second
	maxTopWindow = 10 * time.Minute
)

func (h observeHandler) add(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/observe", h.observe)
	mux.HandleFunc("GET /v1/preview", h.preview)
	mux.HandleFunc("GET /v1/top", h.top)
}

// observeQuery is what is asked of GET /v1/observe.
type observeQuery struct {
	filter          observe.Filter
	follow, updates bool
	limit           int // of what is remembered; negative for all
}

func (h observeHandler) query(r *http.Request) (q observeQuery, err error) {
	v := r.URL.Query()
	known := []string{
		"pod", "namespace", "serviceAccount", "service", "dialled", "endpoint", "verdict", "reason",
		"refused", "failed", "open", "since", "follow", "updates", "limit",
	}
	for k := range v {
		if !slices.Contains(known, k) {
			return q, fmt.Errorf("query %q: want one of %s", k, strings.Join(known, ", "))
		}
	}
	if q.filter, err = observe.ParseFilter(v, h.now()); err != nil {
		return q, err
	}
	q.limit = -1
	if s := v.Get("limit"); s != "" {
		if q.limit, err = strconv.Atoi(s); err != nil || q.limit < 0 {
			return q, fmt.Errorf("limit %q: want a number from 0", s)
		}
	}
	for key, b := range map[string]*bool{"follow": &q.follow, "updates": &q.updates} {
		if s := v.Get(key); s != "" {
			if *b, err = strconv.ParseBool(s); err != nil {
				return q, fmt.Errorf("%s %q: want true or false", key, s)
			}
		}
	}
	return q, nil
}

func (h observeHandler) observe(w http.ResponseWriter, r *http.Request) {
	q, err := h.query(r)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	var f *observe.Follower
	if q.follow {
		f = observe.NewFollower(q.filter, followerRoom, q.updates)
		defer h.records.hub.Leave(f)
	}
	missing := h.records.missing(r.Context()) // before: what comes meanwhile is remembered
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := lines{json.NewEncoder(w), http.NewResponseController(w)}
	out.SetEscapeHTML(false)
	ended, open := h.records.hub.Connections(f)
	for _, c := range remembered(append(ended, open...), q) {
		if out.connection(&c, h.trustDomain) != nil {
			return
		}
	}
	if f == nil {
		_ = out.missing(missing, 0)
		return
	}
	if out.Flush() == nil {
		h.follow(r, f, out)
	}
}

// remembered returns what the query asks for of what is remembered, by the time
// of the last news of each.
func remembered(cs []observe.Connection, q observeQuery) []observe.Connection {
	cs = slices.DeleteFunc(cs, func(c observe.Connection) bool { return !q.filter.Matches(&c) })
	slices.SortStableFunc(cs, func(a, b observe.Connection) int {
		return a.Start.Add(a.Duration).Compare(b.Start.Add(b.Duration))
	})
	if q.limit >= 0 && len(cs) > q.limit {
		cs = cs[len(cs)-q.limit:]
	}
	return cs
}

// follow writes what comes until the one who asked leaves or the agent stops.
func (h observeHandler) follow(r *http.Request, f *observe.Follower, out lines) {
	tick := time.NewTicker(missingEvery)
	defer tick.Stop()
	for {
		var err error
		select {
		case c := <-f.C:
			err = out.connection(&c, h.trustDomain)
			for n := len(f.C); n > 0 && err == nil; n-- {
				c := <-f.C
				err = out.connection(&c, h.trustDomain)
			}
		case <-tick.C:
			err = out.missing(h.records.missing(r.Context()), f.Lost())
		case <-r.Context().Done():
			return
		}
		if err = errors.Join(err, out.Flush()); err != nil {
			return
		}
	}
}

// lines writes lines of JSON.
type lines struct {
	*json.Encoder
	*http.ResponseController
}

func (l lines) connection(c *observe.Connection, trustDomain string) error {
	a := c.API(trustDomain)
	return l.Encode(api.ObserveLine{Connection: &a})
}

func (l lines) missing(m observe.Missing, skipped uint64) error {
	a := missingAPI(m)
	a.Skipped = skipped
	return l.Encode(api.ObserveLine{Missing: &a})
}

func missingAPI(m observe.Missing) api.Missing {
	return api.Missing{
		Since: m.Since.UTC().Format(time.RFC3339), Counted: m.Counted, Told: m.Told,
		NotTold: m.NotTold, OpenNotTold: m.OpenNotTold, Forgotten: m.Forgotten,
	}
}

// preview answers what another mode would make of what pods dial. The decisions
// are those of the agent, with nothing but the mode changed.
func (h observeHandler) preview(w http.ResponseWriter, r *http.Request) {
	mode := plan.Mode(cmp.Or(r.URL.Query().Get("mode"), string(plan.ModeEnforce)))
	if !ValidMode(mode) {
		fail(w, http.StatusBadRequest, fmt.Errorf("mode %q: want passthrough, balance or enforce", mode))
		return
	}
	missing := h.records.missing(r.Context())
	got, ok := h.names(w, r)
	if !ok {
		return
	}
	p := api.Preview{
		Mode: string(got.settings.Mode), Preview: string(mode), Changes: []api.PreviewRow{},
		Missing: missingAPI(missing), ForgottenDestinations: missing.ForgottenTargets,
	}
	other := got
	other.settings.Mode = mode
	views := make(map[netip.AddrPort]demand.View, len(got.known))
	for _, k := range got.known {
		views[k.target] = k.view
	}
	for _, d := range h.records.hub.Destinations() {
		k := known{target: d.Dialled, view: views[d.Dialled]}
		now, then := got.decide(k), other.decide(k)
		if now.Verdict == then.Verdict && now.Reason == then.Reason {
			p.Unchanged++
			continue
		}
		row := api.PreviewRow{
			Namespace: d.Namespace, ServiceAccount: d.ServiceAccount, Dialled: d.Dialled.String(), Service: d.Service,
			Times: d.Times, Last: d.Last.UTC().Format(time.RFC3339),
			Now: string(now.Verdict), Then: string(then.Verdict), Reason: string(then.Reason),
		}
		if then.Service != nil {
			row.Service = &api.ServiceRef{Namespace: then.Service.Service.Namespace, Name: then.Service.Service.Name, Port: then.Service.Port}
		}
		p.Changes = append(p.Changes, row)
	}
	refused := func(r api.PreviewRow) int {
		if r.Then == string(plan.Refuse) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(p.Changes, func(a, b api.PreviewRow) int {
		return cmp.Or(cmp.Compare(refused(a), refused(b)), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.ServiceAccount, b.ServiceAccount), cmp.Compare(a.Dialled, b.Dialled))
	})
	reply(w, http.StatusOK, p)
}

// top answers who is busiest.
func (h observeHandler) top(w http.ResponseWriter, r *http.Request) {
	by, window := cmp.Or(r.URL.Query().Get("by"), observe.ByPod), topWindow
	if !slices.Contains(observe.Groups(), by) {
		fail(w, http.StatusBadRequest, fmt.Errorf("by %q: want one of %s", by, strings.Join(observe.Groups(), ", ")))
		return
	}
	if s := r.URL.Query().Get("window"); s != "" {
		var err error
		if window, err = time.ParseDuration(s); err != nil || window <= 0 || window > maxTopWindow {
			fail(w, http.StatusBadRequest, fmt.Errorf("window %q: want a duration up to %s", s, maxTopWindow))
			return
		}
	}
	missing := h.records.missing(r.Context())
	ended, open := h.records.hub.Connections(nil)
	rows, over := observe.Top(h.now(), window, by, ended, open, missing.Forgotten > 0)
	reply(w, http.StatusOK, api.Top{By: by, WindowSeconds: over.Seconds(), Rows: rows, Missing: missingAPI(missing)})
}
