// SPDX-License-Identifier: Apache-2.0

package check

import (
	"time"

	"aether.io/aether/internal/agent/api"
)

// Look is something that was looked at, or, when Err is not empty, why it could
// not be.
type Look[T any] struct {
	Value T
	Err   string
}

// Saw is a Look that succeeded or failed as err says.
func Saw[T any](v T, err error) Look[T] {
	if err != nil {
		return Look[T]{Err: err.Error()}
	}
	return Look[T]{Value: v}
}

// NotLooked is a Look that was not made.
func NotLooked[T any](why string) Look[T] { return Look[T]{Err: why} }

// Facts is everything that is known of a node at one moment.
type Facts struct {
	Now time.Time
	// RunDir is where the sockets are.
	RunDir string
	Agent  Agent
	Envoy  Envoy
	Pods   []Pod
	Names  Names
	Disk   Disk
	Clock  Clock
	Kernel Kernel
	// APIServer is nil where the Kubernetes API is not the source.
	APIServer *APIServer
	// Looks is nil where nobody looks at addresses.
	Looks *Looks
	// Refuser tells how long the refuser took to reset a connection.
	Refuser Look[time.Duration]
	// ConnectOnly are what only connects in the pods of this node's manifests.
	ConnectOnly Look[[]ConnectOnly]
}

// Agent is what the agent knows of itself.
type Agent struct {
	Node, Version, Mode, EgressSource string
	Synced                            bool
	RangeKnown                        bool
	Range                             []string
	// Problems are what the sources complain of.
	Problems []api.Problem
	// Rejected are the resources whose last version Envoy rejected, listeners of
	// pods left out.
	Rejected []Rejected
}

// Rejected is a resource that Envoy rejected, with its words.
type Rejected struct{ Type, Name, Words string }

// Envoy is what is known of the node's Envoy.
type Envoy struct {
	// Connected are the versions of the Envoys that are connected to the agent.
	Connected []string
	Server    Look[Server]
	Stats     Look[Stats]
	// StillWarming is the second reading of what was warming in the first; zero
	// when nothing was.
	StillWarming Warming
	PID          Look[int]
	Files        Look[Files]
	// MaxConnections is the node's limit of connections, as Envoy was told.
	MaxConnections Look[uint64]
	// PodLimit is the limit of one chain of one pod.
	PodLimit   uint32
	Supervisor Look[Supervisor]
}

// Server is what Envoy's admin interface says of the process.
type Server struct {
	Version string // 1.40.0
	State   string // LIVE, DRAINING, PRE_INITIALIZING, INITIALIZING
	Uptime  time.Duration
}

// Warming counts what is not in use yet.
type Warming struct{ Clusters, Listeners uint64 }

// Stats are counts of Envoy's since it started, and gauges of now.
type Stats struct {
	Warming          Warming
	Connections      uint64 // captured, open now
	NodeOverflow     uint64 // turned away by the node's limit
	PodLimited       uint64 // turned away by a pod's limit
	StatsOverflow    uint64 // counters that did not fit their scope
	LogWriteFailed   uint64
	LogReopenFailed  uint64
	LogDropped       uint64 // lines of the log and records for the agent that a rate left out
	RecordsDropped   uint64 // records for the agent that could not be sent
	OnDemandTimeouts uint64 // first dials that got no answer in time
}

// Files are a process's descriptors.
type Files struct{ Limit, Open uint64 }

// Supervisor is what supervises Envoy.
type Supervisor struct {
	// Absent is true when nobody answers where a supervisor would.
	Absent   bool
	Restarts int // of Envoy, without being asked to
	// LastExit says how Envoy ended last, empty when it did not.
	LastExit string
	// Epochs are the Envoy processes that run now.
	Epochs int
	// State is the supervisor's word for what goes on.
	State string
	// PID is the Envoy that takes new connections, 0 when there is none.
	PID int
}

// Pod is one captured pod.
type Pod struct {
	Name     string // namespace/name
	NetNS    string
	Listener string // pending, ready or rejected
	Nack     string // Envoy's words
	// NetNSErr says why NetNS is no network namespace of a pod; empty when it is.
	NetNSErr string
	Sight    Look[PodSight]
}

// PodSight is what is seen inside a pod's network namespace.
type PodSight struct {
	// Differences of the capture rules from what they should be, in sentences.
	Differences []string
	// Listening is true when something listens where captured connections go.
	Listening bool
	// Repair is the command that makes the rules what they should be.
	Repair string
	// Ports is how many ports the pod can dial from; 0 when not read.
	Ports     int
	Conntrack Conntrack
	// Slowed is how many first segments the pod's connection rate has dropped.
	Slowed uint64
}

// Names counts the names that Envoy asked for.
type Names struct {
	Services, Other, Held, All int
	Budget                     int
	OverLimit                  uint64
	// All is how many names the newest Envoy was asked for and asked for, CompactAt
	// how many of them call for a new Envoy process; 0 for none.
	CompactAt int
}

// Disk is what is kept and written.
type Disk struct {
	StateDir string
	Files    []File
	// Writable is an error when a file cannot be made in the state directory.
	Writable Look[struct{}]
	Space    Look[Space]
	// AccessLog is the file Envoy logs to; LogWritable is an error when it cannot
	// be written, LogMissing true when there is none.
	AccessLog   string
	LogMissing  bool
	LogWritable Look[struct{}]
	LogSpace    Look[Space]
}

// File is a file of the state directory.
type File struct {
	Name string
	// Damaged says where a damaged one was set aside, Unsaved why it is not
	// written; empty when all is well.
	Damaged, Unsaved string
}

// Space is what is left of a file system.
type Space struct{ FreeBytes, Bytes, FreeInodes, Inodes uint64 }

// Clock is what is known of the time.
type Clock struct {
	// Boot is when the machine started, by its wall clock of now.
	Boot Look[time.Time]
	// Newest is the newest file of the state directory.
	Newest Look[Newest]
	// Step is how far the wall clock has gone against the time since boot since
	// the agent started.
	Step Look[time.Duration]
	// Synchronised is the kernel's word.
	Synchronised Look[bool]
}

// Newest is a file and when it was written; no name when there is none.
type Newest struct {
	Name string
	At   time.Time
}

// Kernel is the node's kernel and what is set there.
type Kernel struct {
	Release   Look[string]
	Ports     Look[int] // that the node can dial from
	Conntrack Look[Conntrack]
	Backlog   Look[int] // net.core.somaxconn
}

// Conntrack is the connection tracking table. Off is true when there is none.
type Conntrack struct {
	Off        bool
	Count, Max uint64
}

// ConnectOnly is a probe or command of a pod that takes a connection that is
// accepted for success.
type ConnectOnly struct {
	Pod   string // namespace/name
	Where string // field
	What  string
	// Own is true when it dials the pod's own port, which is not captured.
	Own bool
}
