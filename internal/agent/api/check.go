// SPDX-License-Identifier: Apache-2.0

package api

// Check is the body of GET /v1/check: whether a node is healthy, in words.
type Check struct {
	Node string `json:"node"`
	// Version is the agent's; empty when it did not answer.
	Version string `json:"version"`
	// Time of the check, RFC 3339.
	Time string `json:"time"`
	// State is the worst that was found: ok, warning or failed. What was not
	// checked does not make it worse; it is counted in NotChecked.
	State      string         `json:"state"`
	Failed     int            `json:"failed"`
	Warnings   int            `json:"warnings"`
	NotChecked int            `json:"notChecked"`
	Sections   []CheckSection `json:"sections"` // never null
}

// CheckSection groups the findings on one subject.
type CheckSection struct {
	Name     string    `json:"name"`
	Findings []Finding `json:"findings"` // never null
}

// The states of a finding.
const (
	FindingOK         = "ok"
	FindingNote       = "note"        // holds always, or is good to know
	FindingNotChecked = "not-checked" // could not be looked at: Seen says why
	FindingWarning    = "warning"     // works, but should be looked at
	FindingFailed     = "failed"      // something does not work
)

// Finding is one thing that was looked at.
type Finding struct {
	// ID names the check; docs/check.md has a heading for each.
	ID    string `json:"id"`
	State string `json:"state"` // ok|note|not-checked|warning|failed
	// Seen is what was found.
	Seen string `json:"seen"`
	// Why says why it matters; empty when it is ok.
	Why string `json:"why,omitempty"`
	// Fix lists commands to paste, or settings to change.
	Fix []string `json:"fix,omitempty"`
	// Docs is a path in the repository, with the heading.
	Docs string `json:"docs,omitempty"`
}
