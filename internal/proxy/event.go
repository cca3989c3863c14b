// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"log/slog"
	"syscall"
	"time"
)

// phase is where an epoch stands.
type phase uint8

const (
	starting phase = iota
	serving
	draining // a younger epoch serves; established connections are still here
	ending   // told to end
)

func (p phase) String() string {
	return [...]string{"starting", "serving", "draining", "ending"}[p]
}

// epoch is one Envoy process.
type epoch struct {
	id     int // counts all processes from 1
	slot   int // which base id: one per chain of hot restarts
	number int // Envoy's --restart-epoch, counted within the chain
	parent int // id of the epoch it takes over from, 0 for none
	pid    int // 0 until it is started
	phase  phase
	since  time.Time
	until  time.Time // of starting, draining, ending: when it must be over
	failed string    // why a starting one was given up
}

// request asks for another Envoy.
type request struct {
	id        uint64
	reason    string
	full, now bool
	at        time.Time
}

// event is something that happened. The set is closed.
type event interface{ isEvent() }

type (
	// begun is the first event: Envoy is to run.
	begun struct{}
	asked struct{ request }
	// prepared tells that the next epoch could, or could not, be started.
	prepared struct {
		serial int
		err    error
	}
	started struct{ id, pid int }
	// live tells that an epoch takes new connections.
	live struct{ id int }
	// exited tells the end of a process, or that it could not be started. tookOver
	// means that it had begun to serve, although live was not told.
	exited struct {
		id       int
		how      string
		clean    bool // with exit code 0, as after SIGTERM
		tookOver bool
	}
	// ticked tells that the time of wake has come.
	ticked struct{}
	// stopped is the last request: everything is to end.
	stopped struct{}
)

func (begun) isEvent()    {}
func (asked) isEvent()    {}
func (prepared) isEvent() {}
func (started) isEvent()  {}
func (live) isEvent()     {}
func (exited) isEvent()   {}
func (ticked) isEvent()   {}
func (stopped) isEvent()  {}

// effect is something to be done, in order. The set is closed.
type effect interface{ isEffect() }

type (
	// prepare has the binary and the bootstrap checked for a hot restart.
	prepare struct{ serial int }
	// start forks an Envoy.
	start struct{ id, slot, number int }
	kill  struct {
		id     int
		signal syscall.Signal
	}
	// answer tells the askers what became of their requests.
	answer struct {
		to      []request
		outcome outcome
	}
	// clearMark takes the mark of a start that failed from a chain's shared memory.
	clearMark struct{ slot int }
	// tidy removes what a chain leaves behind that has ended.
	tidy struct{ slot int }
	// stand has somebody answer child in the place of its parent, which is epoch
	// number of the chain; leave ends that.
	stand struct{ slot, number, child int }
	leave struct{ child int }
	// say logs a change of state.
	say struct {
		level  slog.Level
		text   string
		epoch  epoch // the zero value for none
		reason string
	}
)

func (prepare) isEffect()   {}
func (start) isEffect()     {}
func (kill) isEffect()      {}
func (answer) isEffect()    {}
func (clearMark) isEffect() {}
func (tidy) isEffect()      {}
func (stand) isEffect()     {}
func (leave) isEffect()     {}
func (say) isEffect()       {}

// outcome is what became of a request. err is nil when it was done or has to wait.
type outcome struct {
	scheduled string // for what it waits
	err       error
	pid       int
}
