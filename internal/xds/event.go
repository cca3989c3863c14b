// SPDX-License-Identifier: Apache-2.0

package xds

// Stream says who is at the other end of a stream.
type Stream struct {
	// ID numbers streams from 1 in the order in which they opened.
	ID uint64
	// Epoch numbers Envoy processes from 1 in the order in which they first came:
	// of two Envoys that are connected at once (a hot restart) the newer has the
	// higher number. A process keeps its number when it reconnects, provided the
	// kernel tells its pid. Epoch 0 is a process that held resources when it came
	// and that this server has not met: it is older than every numbered one.
	Epoch uint64
	// Node and Version are Envoy's node id and its version, such as "1.40.0".
	Node    string
	Version string
	// PID is the peer's process id, or 0 where the kernel does not tell: not a
	// Unix socket made by Listen, or a process of another pid namespace.
	PID int
}

// Event is one of StreamOpened, FirstRequest, Asked, Acked, Nacked and
// StreamClosed. The events of one stream come one after the other, in order,
// from that stream's goroutine; those of different streams come concurrently.
type Event interface{ event() }

// StreamOpened tells that an Envoy connected and said who it is.
type StreamOpened struct{ Stream Stream }

// FirstRequest is the first request of a type on a stream. It is held
// until Done was called or Config.HoldTimeout has passed: publish what it
// names, then call Done. Done may be called from any goroutine, more than once,
// and late.
type FirstRequest struct {
	Stream Stream
	Type   Type
	// Held are the names of resources that Envoy has, sorted.
	Held []string
	// Subscribed are the names Envoy asks for, sorted, without the wildcard.
	Subscribed []string
	// Fresh means that nothing is held and nothing asked for by name. For type
	// Cluster that is an Envoy process which has only just started.
	Fresh bool
	Done  func()
}

// Asked lists names that a later request subscribes to for the first time on
// this stream, sorted.
type Asked struct {
	Stream Stream
	Type   Type
	Names  []string
}

// Accepted is a resource that Envoy has taken.
type Accepted struct {
	Name    string
	Version string
	// Newest means that this is what is published under the name now.
	Newest bool
}

// Acked lists what one response brought and Envoy accepted, by name. After a
// reconnect it also lists what Envoy said it has and need not be sent again.
type Acked struct {
	Stream    Stream
	Type      Type
	Resources []Accepted
	Removed   []string
}

// Nacked lists the resources, sorted, that Envoy rejected, and its words.
type Nacked struct {
	Stream  Stream
	Type    Type
	Names   []string
	Message string
}

// StreamClosed is the last event of a stream that had a StreamOpened.
type StreamClosed struct{ Stream Stream }

func (StreamOpened) event() {}
func (FirstRequest) event() {}
func (Asked) event()        {}
func (Acked) event()        {}
func (Nacked) event()       {}
func (StreamClosed) event() {}
