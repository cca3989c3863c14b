// SPDX-License-Identifier: Apache-2.0

package echo

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Outcome is how a connection went. The set is closed.
type Outcome string

// The outcomes.
const (
	OK          Outcome = "ok"          // answered as expected
	Open        Outcome = "open"        // mode silent: still open and silent after the wait
	Reset       Outcome = "reset"       // the peer reset it (RST)
	Refused     Outcome = "refused"     // connect was refused (RST to the SYN)
	Closed      Outcome = "closed"      // the peer closed it (FIN) before the answer was whole
	Timeout     Outcome = "timeout"     // no answer in time; Phase says to what
	Unreachable Outcome = "unreachable" // no route, or an error message of the network
	Mismatch    Outcome = "mismatch"    // answered something else than expected
	Status      Outcome = "status"      // mode http: a status that is not 2xx
	Failed      Outcome = "failed"      // anything else; Error says what
)

// The phases an outcome other than ok belongs to.
const (
	PhaseResolve = "resolve"
	PhaseConnect = "connect"
	PhaseWrite   = "write"
	PhaseRead    = "read"
)

// Verdict is one connection in detail. Times are milliseconds.
type Verdict struct {
	Time    time.Time `json:"time"` // when connect was called
	Target  string    `json:"target"`
	Mode    string    `json:"mode"`
	Outcome Outcome   `json:"outcome"`
	Phase   string    `json:"phase,omitempty"`
	// Errno is the kernel's name of the error, e.g. ECONNRESET.
	Errno string `json:"errno,omitempty"`
	Error string `json:"error,omitempty"`
	// Local and Remote are the connection's addresses, empty when there was none.
	Local  string `json:"local,omitempty"`
	Remote string `json:"remote,omitempty"`
	// ConnectMS is until connect returned, LatencyMS from there to the end of the
	// first answer (or to the failure), TotalMS all in all.
	ConnectMS float64 `json:"connect_ms"`
	LatencyMS float64 `json:"latency_ms"`
	TotalMS   float64 `json:"total_ms"`
	Sent      int64   `json:"sent"`
	Received  int64   `json:"received"`
	// Exchanges counts whole question-and-answer rounds.
	Exchanges int `json:"exchanges,omitempty"`
	// Answer is the first answer: an Identity as JSON text, or the echoed line.
	Answer string `json:"answer,omitempty"`
	Code   int    `json:"status,omitempty"` // HTTP
	// Close says how the peer ended the connection after an ok: fin, rst, or
	// none within the timeout. Only with WaitClose.
	Close   string  `json:"close,omitempty"`
	CloseMS float64 `json:"close_ms,omitempty"`
}

// errMismatch marks an answer that is not what was sent.
var errMismatch = errors.New("the answer differs from what was sent")

// errStatus marks an HTTP status that is not 2xx.
var errStatus = errors.New("the status is not 2xx")

// failed fills in what an error in a phase means.
func (v *Verdict) failed(phase string, err error) {
	v.Phase, v.Error = phase, err.Error()
	v.Outcome = classify(phase, err)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		v.Errno = unix.ErrnoName(errno)
	}
}

func classify(phase string, err error) Outcome {
	var dns *net.DNSError
	var netErr net.Error
	switch {
	case errors.Is(err, errMismatch):
		return Mismatch
	case errors.Is(err, errStatus):
		return Status
	case errors.As(err, &dns):
		return Failed
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, syscall.ECONNRESET):
		return Reset
	case errors.Is(err, syscall.EPIPE), phase != PhaseConnect && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return Closed
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH),
		phase == PhaseConnect && errors.Is(err, syscall.EINVAL): // a blackhole route
		return Unreachable
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, syscall.ETIMEDOUT), errors.As(err, &netErr) && netErr.Timeout():
		return Timeout
	}
	return Failed
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
