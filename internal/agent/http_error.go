// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// jsonErrors makes what the mux itself says, in plain text, an api.Error as all
// others are: a method or path that is not there. Where it would lead to another
// spelling of a path the answer is that there is none.
func jsonErrors(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := &errorWriter{ResponseWriter: w}
		h.ServeHTTP(e, r)
		if e.code == 0 {
			return
		}
		said := strings.TrimSpace(e.said.String())
		if e.code < http.StatusBadRequest {
			w.Header().Del("Location")
			e.code, said = http.StatusNotFound, ""
		}
		if said == "" {
			said = strings.ToLower(http.StatusText(e.code))
		}
		w.Header().Del("Content-Length")
		w.Header().Del("X-Content-Type-Options")
		fail(w, e.code, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, errors.New(said)))
	})
}

// errorWriter keeps back a response that is neither 2xx nor JSON.
type errorWriter struct {
	http.ResponseWriter
	code int // of the response that is kept back, 0 when there is none
	said bytes.Buffer
}

func (e *errorWriter) WriteHeader(code int) {
	if code >= http.StatusMultipleChoices && e.Header().Get("Content-Type") != jsonType {
		e.code = code
		return
	}
	e.ResponseWriter.WriteHeader(code)
}

func (e *errorWriter) Write(b []byte) (int, error) {
	if e.code != 0 {
		return e.said.Write(b)
	}
	return e.ResponseWriter.Write(b)
}

// Flush and Unwrap let a handler flush, as a http.Flusher and through
// http.ResponseController.
func (e *errorWriter) Flush() { _ = http.NewResponseController(e.ResponseWriter).Flush() }

// Unwrap gives the writer beneath.
func (e *errorWriter) Unwrap() http.ResponseWriter { return e.ResponseWriter }
