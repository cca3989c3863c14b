// SPDX-License-Identifier: Apache-2.0

package api

// Connection is one captured connection, open or ended.
type Connection struct {
	Time    string           `json:"time"`  // accepted; RFC 3339 in UTC with milliseconds
	State   string           `json:"state"` // open|ended
	Source  ConnectionSource `json:"source"`
	Client  string           `json:"client"`  // ip:port the pod dialled from
	Dialled string           `json:"dialled"` // ip:port the pod dialled
	Service *ServiceRef      `json:"service"` // null when the dialled address is no Service's
	// Endpoint is the last one that was tried, empty for none.
	Endpoint string `json:"endpoint"`
	Verdict  string `json:"verdict"` // balance|passthrough|refuse|none
	// Outcome is empty while the connection is open, else one of the access log's.
	Outcome  string `json:"outcome"`
	Reason   string `json:"reason"`  // of a refusal
	Failure  string `json:"failure"` // why the last connect failed, in Envoy's words
	Attempts uint32 `json:"attempts"`
	// BytesSent and BytesReceived are the pod's, so far.
	BytesSent     uint64  `json:"bytesSent"`
	BytesReceived uint64  `json:"bytesReceived"`
	DurationMs    float64 `json:"durationMs"` // so far
	// WaitUs is the time from accept until the endpoint was dialled, in
	// microseconds; null when it is not known.
	WaitUs *int64 `json:"waitUs"`
}

// ConnectionSource is the pod that dialled. What is not known is empty.
type ConnectionSource struct {
	SPIFFE         string `json:"spiffe"`
	Namespace      string `json:"namespace"`
	Pod            string `json:"pod"`
	ServiceAccount string `json:"serviceAccount"`
}

// ObserveLine is one line of GET /v1/observe: a connection, or what was not shown.
type ObserveLine struct {
	Connection *Connection `json:"connection,omitempty"`
	Missing    *Missing    `json:"missing,omitempty"`
}

// Missing says what an answer about connections does not hold, since Since.
type Missing struct {
	// Since is when the agent began to watch, RFC 3339.
	Since string `json:"since"`
	// Counted is false when Envoy's counters could not be read: then NotTold and
	// OpenNotTold are not known.
	Counted bool `json:"counted"`
	// Told is how many ended connections the agent was told of.
	Told uint64 `json:"told"`
	// NotTold is how many ended that it was not told of: more than the rate, or
	// lost between Envoy and the agent.
	NotTold uint64 `json:"notTold"`
	// OpenNotTold is how many are open that it was not told of: most are younger
	// than the interval at which open ones are told.
	OpenNotTold uint64 `json:"openNotTold"`
	// Forgotten is how many it was told of and no longer remembers.
	Forgotten uint64 `json:"forgotten"`
	// Skipped is how many connections this follower was too slow for.
	Skipped uint64 `json:"skipped"`
}

// Preview says what another mode would alter for the destinations that pods dial.
type Preview struct {
	Mode    string       `json:"mode"`    // now
	Preview string       `json:"preview"` // the mode that is asked about
	Changes []PreviewRow `json:"changes"` // never null; refusals first
	// Unchanged is how many destinations would be answered as now.
	Unchanged int     `json:"unchanged"`
	Missing   Missing `json:"missing"`
	// ForgottenDestinations is how many destinations were dialled and are not
	// looked at, because there were too many.
	ForgottenDestinations uint64 `json:"forgottenDestinations"`
}

// PreviewRow is a destination whose answer would change.
type PreviewRow struct {
	Namespace      string      `json:"namespace"` // of the pods that dial it
	ServiceAccount string      `json:"serviceAccount"`
	Dialled        string      `json:"dialled"`
	Service        *ServiceRef `json:"service"`
	Times          uint64      `json:"times"`
	Last           string      `json:"last"`   // RFC 3339
	Now            string      `json:"now"`    // balance|passthrough|refuse
	Then           string      `json:"then"`   // the same
	Reason         string      `json:"reason"` // of the refusal then
}

// Top is who is busiest.
type Top struct {
	By string `json:"by"` // pod|service|serviceaccount
	// WindowSeconds is the time that the rates are over.
	WindowSeconds float64  `json:"windowSeconds"`
	Rows          []TopRow `json:"rows"` // never null, busiest first
	Missing       Missing  `json:"missing"`
}

// TopRow is one pod, ServiceAccount or Service.
type TopRow struct {
	Name        string  `json:"name"`
	Connections float64 `json:"connections"` // ended per second
	Failed      float64 `json:"failed"`      // of them
	Refused     float64 `json:"refused"`     // of them
	BytesPerSec float64 `json:"bytesPerSec"` // both ways
	Open        int     `json:"open"`        // now
	// Percentiles, of those that ended; null when none did.
	DurationP50Ms *float64 `json:"durationP50Ms"`
	DurationP99Ms *float64 `json:"durationP99Ms"`
	WaitP50Ms     *float64 `json:"waitP50Ms"`
	WaitP99Ms     *float64 `json:"waitP99Ms"`
}

// Observation is what `aetherctl observe -o json` prints when it does not follow.
type Observation struct {
	Connections []Connection `json:"connections"` // never null
	Missing     Missing      `json:"missing"`
}
