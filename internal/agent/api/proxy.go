// SPDX-License-Identifier: Apache-2.0

package api

// The API of the supervisor of a node's Envoy, over proxy.sock:
//
//	GET  /v1/status   ProxyStatus
//	POST /v1/restart  ProxyRestartRequest → ProxyRestart
//
// A restart that is done is answered with 200 when the new Envoy serves. One that
// has to wait is answered with 202 at once. 409 says that it cannot be done as
// asked (another hot restart version, no agent to configure a new Envoy), 502 that
// the new Envoy did not work and the old one goes on, 503 that the supervisor ends.

// ProxyStatus is the supervisor's state.
type ProxyStatus struct {
	// State is starting (nothing serves yet), serving, restarting or stopping.
	State string `json:"state"`
	// PID is the process that takes new connections, 0 when there is none.
	PID int `json:"pid"`
	// Epochs are the living Envoys, oldest first; never null.
	Epochs []ProxyEpoch `json:"epochs"`
	// Restarts counts serving Envoys that ended unasked; LastExit says how.
	Restarts int    `json:"restarts"`
	LastExit string `json:"lastExit,omitempty"`
	// FailedStarts counts Envoys that ended before they served, while none served.
	FailedStarts int `json:"failedStarts"`
	// HotRestarts counts those that were done, FailedRestarts those that were not.
	HotRestarts    int `json:"hotRestarts"`
	FailedRestarts int `json:"failedRestarts"`
	// LastRestart is the last one that was asked for and came to an end.
	LastRestart *ProxyRestart `json:"lastRestart,omitempty"`
	// Scheduled is the reason of a restart that waits for an older epoch's end.
	Scheduled string `json:"scheduled,omitempty"`
	// Changed lists what differs from what the serving Envoy was started with:
	// binary, bootstrap. Never null.
	Changed   []string `json:"changed"`
	Envoy     string   `json:"envoy"` // path of the binary
	Version   string   `json:"version,omitempty"`
	Bootstrap string   `json:"bootstrap"`
	// DrainTime and ShutdownTime are in seconds.
	DrainTime     int `json:"drainTime"`
	ShutdownTime  int `json:"shutdownTime"`
	SupervisorPID int `json:"supervisorPid"`
}

// ProxyEpoch is one living Envoy.
type ProxyEpoch struct {
	PID int `json:"pid"`
	// State is starting, serving, draining or ending.
	State string `json:"state"`
	// BaseID and Epoch are Envoy's --base-id and --restart-epoch.
	BaseID uint32 `json:"baseId"`
	Epoch  int    `json:"epoch"`
	// Since is when it came to be in that state, Until when it will have left it
	// at the latest: RFC 3339, empty when there is no such time.
	Since string `json:"since"`
	Until string `json:"until,omitempty"`
}

// ProxyRestartRequest asks for another Envoy.
type ProxyRestartRequest struct {
	Reason string `json:"reason"`
	// Full ends every Envoy, and every connection, before the next one starts.
	Full bool `json:"full,omitempty"`
	// Now does not wait for an older epoch's end: the connections it still has
	// end before their time.
	Now bool `json:"now,omitempty"`
}

// ProxyRestart says what became of a request.
type ProxyRestart struct {
	// State is done, scheduled or failed.
	State  string `json:"state"`
	Reason string `json:"reason"`
	// PID is the Envoy that serves now.
	PID int `json:"pid,omitempty"`
	// Error says why it failed, or for what it waits.
	Error string `json:"error,omitempty"`
	Time  string `json:"time"` // RFC 3339
	// TookMS is the time from the request to the new Envoy's taking over.
	TookMS int64 `json:"tookMs,omitempty"`
}
