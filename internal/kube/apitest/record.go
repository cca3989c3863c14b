// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Request is one request and what it was answered with.
type Request struct {
	// Verb is "list", "watch", "get" or "discovery".
	Verb string
	// Resource is "services" and so on; for discovery it is empty.
	Resource        string
	Namespace, Name string
	Path            string
	Query           url.Values
	Accept          string
	UserAgent       string

	// ContentType and Status are those of the answer; Status is 0 until it begins.
	ContentType string
	Status      int
	// Bytes counts the body as it went out, compressed if it was.
	Bytes int64
	// Events counts the frames of a watch.
	Events int
	// At is when the request came. Open is true until it was answered in full.
	At   time.Time
	Open bool
}

// records are the requests so far.
type records struct {
	mu  sync.Mutex
	all []*Request
}

func (r *records) begin(at time.Time, q request, h *http.Request) *record {
	made := &Request{
		Verb: q.verb, Resource: q.kind.resource, Namespace: q.namespace, Name: q.name,
		Path: h.URL.Path, Query: h.URL.Query(), Accept: h.Header.Get("Accept"), UserAgent: h.UserAgent(), At: at, Open: true,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, made)
	return &record{of: r, request: made}
}

// record writes what becomes of one request.
type record struct {
	of      *records
	request *Request
}

func (r *record) change(f func(*Request)) {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	f(r.request)
}

// Requests returns the requests for a resource ("services") in the order they
// came, or all with "".
func (s *Server) Requests(resource string) (out []Request) {
	s.records.mu.Lock()
	defer s.records.mu.Unlock()
	for _, r := range s.records.all {
		if resource == "" || r.Resource == resource {
			out = append(out, *r)
		}
	}
	return out
}

// ForgetRequests empties the list of requests.
func (s *Server) ForgetRequests() {
	s.records.mu.Lock()
	defer s.records.mu.Unlock()
	s.records.all = nil
}

// Watching returns how many watches of a resource are open.
func (s *Server) Watching(resource string) int {
	open := 0
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for st := range s.faults.streams {
		if st.kind.resource == resource {
			open++
		}
	}
	return open
}

// Resources returns the resources that have been asked for, sorted.
func (s *Server) Resources() []string {
	var out []string
	for _, r := range s.Requests("") {
		if r.Resource != "" {
			out = append(out, r.Resource)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
