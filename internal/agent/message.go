// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/xds"
)

// message is a value sent to the loop. The set is closed.
type message interface{ isMessage() }

type (
	// sourceBatch is what a source tells, with the time it was told.
	sourceBatch struct {
		Batch
		at time.Time
	}
	// xdsEvent is what the xDS server tells.
	xdsEvent struct {
		xds.Event
		at time.Time
	}
	// podAdd is a pod to be captured. The reply comes once.
	podAdd struct {
		workload    model.Workload
		annotations map[string]string // that say what is captured
		reply       chan<- podReply
	}
	// podDelete is a pod that is gone. A UID that is set and another one's keeps
	// the pod.
	podDelete struct {
		name  model.Name
		uid   string
		reply chan<- struct{}
	}
	// modeChange sets the mode until the agent ends.
	modeChange struct {
		mode  plan.Mode
		reply chan<- struct{}
	}
	// statusQuery asks for the agent's own state.
	statusQuery struct{ reply chan<- api.Status }
	// namesQuery asks for what is known of names: of the one target, or of all.
	namesQuery struct {
		target *nameTarget
		reply  chan<- names
	}
	// scraped is what Envoy counted.
	scraped struct {
		counts map[string]count
		err    error
	}
	// saved tells that a write is over.
	saved struct {
		file string
		seq  uint64
		err  error
	}
)

func (sourceBatch) isMessage() {}
func (xdsEvent) isMessage()    {}
func (podAdd) isMessage()      {}
func (podDelete) isMessage()   {}
func (modeChange) isMessage()  {}
func (statusQuery) isMessage() {}
func (namesQuery) isMessage()  {}
func (scraped) isMessage()     {}
func (saved) isMessage()       {}
