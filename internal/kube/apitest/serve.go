// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// request is what a path and a query ask for.
type request struct {
	verb            string // list, watch, get, discovery; empty if there is no such thing
	kind            kind
	version         string
	namespace, name string
}

// route reads a path: /api/v1 or /apis/GROUP/VERSION, then
// [/namespaces/NAMESPACE]/RESOURCE[/NAME].
func (s *Server) route(r *http.Request) request {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var group, version string
	switch {
	case isDiscovery(parts):
		return request{verb: "discovery"}
	case parts[0] == "api":
		version, parts = parts[1], parts[2:]
	case parts[0] == "apis":
		group, version, parts = parts[1], parts[2], parts[3:]
	default:
		return request{}
	}
	q := request{version: version}
	if len(parts) > 2 && parts[0] == "namespaces" {
		q.namespace, parts = parts[1], parts[2:]
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.group == group && k.resource == parts[0] })
	if i < 0 || len(parts) > 2 || !slices.Contains(kinds[i].versions(s), version) {
		return request{}
	}
	q.kind, q.verb = kinds[i], "list"
	if q.namespace != "" && !q.kind.namespaced {
		return request{}
	}
	if len(parts) == 2 {
		q.name, q.verb = parts[1], "get"
		if q.kind.namespaced && q.namespace == "" {
			return request{}
		}
	}
	if watch := r.URL.Query().Get("watch"); q.verb == "list" && (watch == "true" || watch == "1") {
		q.verb = "watch"
	}
	return q
}

// isDiscovery reports whether the path leads to a discovery document or to one of
// the few pages beside the API.
func isDiscovery(parts []string) bool {
	switch parts[0] {
	case "api":
		return len(parts) <= 2
	case "apis":
		return len(parts) <= 3
	case "version", "livez", "readyz", "healthz":
		return len(parts) == 1
	}
	return false
}

// begin reports whether a request may begin: none does while the server is down.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return false
	}
	s.working.Add(1)
	return true
}

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.working.Done()
	q := s.route(r)
	rec := s.records.begin(time.Now(), q, r)
	defer rec.change(func(r *Request) { r.Open = false })
	a := &answer{ResponseWriter: w, record: rec, pace: s.faults.pace, ctx: r.Context(), status: http.StatusOK}
	err := s.dispatch(a, r, q)
	var refusal apierrors.APIStatus
	switch {
	case err == nil:
	case errors.As(err, &refusal):
		s.refuse(a, r, refusal)
	default: // the client is gone, or is to see a broken answer
		panic(http.ErrAbortHandler)
	}
}

func (s *Server) dispatch(a *answer, r *http.Request, q request) error {
	if f, ok := s.faults.failure(q.kind.resource, q.verb); ok {
		return failing(f, q)
	}
	if r.Method != http.MethodGet {
		return apierrors.NewMethodNotSupported(q.kind.groupResource(), strings.ToLower(r.Method))
	}
	switch q.verb {
	case "discovery":
		return s.discover(a, r)
	case "get":
		return s.get(a, r, q)
	case "list":
		return s.list(a, r, q)
	case "watch":
		return s.watch(a, r, q)
	}
	return s.missing(a, groupOf(r.URL.Path))
}

// groupOf returns the group that a path is in; one that does not exist for a path
// that is in none.
func groupOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 1:
		return ""
	case parts[0] == "apis" && len(parts) > 1:
		return parts[1]
	}
	return "none"
}

// failing makes the error of a fault, worded as API servers do.
func failing(f Failure, q request) error {
	gr, wait := q.kind.groupResource(), int(f.RetryAfter/time.Second)
	switch f.Code {
	case http.StatusForbidden:
		return apierrors.NewForbidden(gr, q.name, fmt.Errorf("the test cannot %s resource %q in API group %q", q.verb, gr.Resource, gr.Group))
	case http.StatusTooManyRequests:
		return apierrors.NewTooManyRequests("too many requests, please try again later", wait)
	case http.StatusUnauthorized:
		return apierrors.NewUnauthorized("Unauthorized")
	case http.StatusInternalServerError:
		e := apierrors.NewInternalError(errors.New("asked for by the test"))
		e.ErrStatus.Details.RetryAfterSeconds = int32(wait)
		return e
	case http.StatusGone:
		return apierrors.NewResourceExpired("the resourceVersion is too old")
	default:
		return apierrors.NewGenericServerResponse(f.Code, q.verb, gr, q.name, "asked for by the test", wait, true)
	}
}

// refuse answers with a Status.
func (s *Server) refuse(a *answer, r *http.Request, refusal apierrors.APIStatus) {
	status := refusal.Status()
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		a.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	info, ok := negotiate(r, true)
	if !ok {
		info, _ = runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	}
	body, err := encode(info.Serializer, schema.GroupVersion{Version: "v1"}, &status)
	if err != nil {
		panic("apitest: " + err.Error()) // a Status can always be encoded
	}
	a.begin(int(status.Code), info.MediaType)
	_, _ = a.Write(body) // a client that is gone needs no answer
}

// get answers with one object.
func (s *Server) get(a *answer, r *http.Request, q request) error {
	info, ok := negotiate(r, !q.kind.custom)
	if !ok {
		return notAcceptable(q)
	}
	o, ok := s.store.get(key{q.kind.resource, q.namespace, q.name})
	if !ok {
		return apierrors.NewNotFound(q.kind.groupResource(), q.name)
	}
	o, err := q.kind.as(q.version, o)
	if err != nil {
		return err
	}
	body, err := encode(info.Serializer, schema.GroupVersion{Group: q.kind.group, Version: q.version}, o)
	if err != nil {
		return err
	}
	a.begin(http.StatusOK, info.MediaType)
	_, err = a.Write(body)
	return err
}

func notAcceptable(q request) error {
	return apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "get", q.kind.groupResource(), q.name,
		"only the following media types are accepted: application/json, application/vnd.kubernetes.protobuf", 0, true)
}

// answer writes a response at the pace of the server, and records it.
type answer struct {
	http.ResponseWriter
	record *record
	pace   func() int
	ctx    context.Context
	status int
}

// begin sends the header.
func (a *answer) begin(status int, contentType string) {
	a.Header().Set("Content-Type", contentType)
	a.record.change(func(r *Request) { r.Status, r.ContentType = status, contentType })
	a.WriteHeader(status)
}

// beats is into how many parts a second of a paced answer is cut.
const beats = 20

func (a *answer) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		part, rate := p, a.pace()
		if rate > 0 {
			part = p[:min(len(p), max(1, rate/beats))]
		}
		n, err := a.ResponseWriter.Write(part)
		written += n
		a.record.change(func(r *Request) { r.Bytes += int64(n) })
		if err != nil {
			return written, err
		}
		p = p[n:]
		if rate > 0 {
			if err := a.rest(time.Duration(n) * time.Second / time.Duration(rate)); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// rest flushes, and waits as long as what was written takes.
func (a *answer) rest(d time.Duration) error {
	if err := a.Flush(); err != nil {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
}

// Flush sends what was written.
func (a *answer) Flush() error { return http.NewResponseController(a.ResponseWriter).Flush() }

// compressible reports whether the client takes gzip.
func compressible(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// compressed writes p as one member of a gzip stream. It is flushed before it is
// closed: a reader that met the end together with the data would wait for the next
// member before it hands the data out.
func compressed(w io.Writer, p []byte) error {
	z := gzip.NewWriter(w)
	if _, err := z.Write(p); err != nil {
		return err
	}
	if err := z.Flush(); err != nil {
		return err
	}
	return z.Close()
}
