// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"sync"
	"time"
)

// Failure is an error that a resource is answered with.
type Failure struct {
	// Code is the HTTP status: 403, 429, 500 and so on.
	Code int
	// RetryAfter is sent when it is not 0, in whole seconds.
	RetryAfter time.Duration
	// Times is how often; 0 means until Heal.
	Times int
	// Verb limits it to "list", "watch" or "get".
	Verb string
}

// ending is how a stream is made to end.
type ending int

const (
	endNot     ending = iota
	endClosed         // as after its timeout
	endBroken         // in the middle of a frame, the connection's error
	endExpired        // with an ERROR event, 410
)

// stream is an open watch.
type stream struct {
	kind    kind
	version string
	order   chan ending // buffered, the first order counts
}

// faults are what is wrong with the server now.
type faults struct {
	mu       sync.Mutex
	streams  map[*stream]struct{}
	failures map[string]Failure
	// stall is closed when streams may go on; nil when nothing stalls them.
	stall      chan struct{}
	rate       int // bytes per second, 0 is unlimited
	truncate   int // how many lists are still to be cut
	breakAfter int // streams end within this frame, 0 is never
}

func (f *faults) init() {
	f.streams = map[*stream]struct{}{}
	f.failures = map[string]Failure{}
}

// heal ends every fault.
func (f *faults) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.failures)
	f.rate, f.truncate, f.breakAfter = 0, 0, 0
	if f.stall != nil {
		close(f.stall)
		f.stall = nil
	}
}

// end orders the streams that match to end.
func (f *faults) end(match func(*stream) bool, how ending) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for st := range f.streams {
		if !match(st) {
			continue
		}
		select {
		case st.order <- how:
		default: // it is ending already
		}
	}
}

func (f *faults) open(st *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams[st] = struct{}{}
}

func (f *faults) close(st *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.streams, st)
}

// failure takes the failure that a request meets.
func (f *faults) failure(resource, verb string) (Failure, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hit, ok := f.failures[resource]
	if !ok || hit.Verb != "" && hit.Verb != verb {
		return Failure{}, false
	}
	if hit.Times > 0 {
		left := hit
		if left.Times--; left.Times == 0 {
			delete(f.failures, resource)
		} else {
			f.failures[resource] = left
		}
	}
	return hit, true
}

// takeTruncation reports whether a list is to be cut.
func (f *faults) takeTruncation() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.truncate == 0 {
		return false
	}
	f.truncate--
	return true
}

func (f *faults) stalled() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stall
}

func (f *faults) pace() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rate
}

// breaking returns in which frame streams break.
func (f *faults) breaking() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.breakAfter
}

// every matches all streams.
func every(*stream) bool { return true }

// BreakWatches breaks every open watch in the middle of a frame.
func (s *Server) BreakWatches() { s.faults.end(every, endBroken) }

// EndWatches ends every open watch as their timeout does.
func (s *Server) EndWatches() { s.faults.end(every, endClosed) }

// ExpireWatches ends every open watch with an ERROR event of code 410, as when
// etcd compacted what they had yet to read.
func (s *Server) ExpireWatches() { s.faults.end(every, endExpired) }

// BreakWithin breaks every watch in the middle of its n-th frame, counted from
// where it began; 0 ends that.
func (s *Server) BreakWithin(n int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.breakAfter = n
}

// StallWatches makes watches send nothing more, though they stay open.
func (s *Server) StallWatches() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if s.faults.stall == nil {
		s.faults.stall = make(chan struct{})
	}
}

// Slow limits every answer to so many bytes in a second; 0 ends that.
func (s *Server) Slow(bytesPerSecond int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.rate = bytesPerSecond
}

// TruncateLists cuts the next n lists in the middle.
func (s *Server) TruncateLists(n int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.truncate = n
}

// Fail answers requests for a resource ("services"), or for discovery (""), with
// an error. Watches that are open stay.
func (s *Server) Fail(resource string, f Failure) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.failures[resource] = f
}

// Heal ends every fault of streams and answers. Connections are Up's and Thaw's.
func (s *Server) Heal() { s.faults.heal() }
