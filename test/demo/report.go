// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// claim is one thing the product says of itself and the way to see it.
type claim struct {
	id   string
	text string
	// see looks, and returns what it saw. An error means the claim is false.
	see func(ctx context.Context, d *demo) (seen string, err error)
}

// result is a claim after the look.
type result struct {
	ID      string  `json:"id"`
	Claim   string  `json:"claim"`
	Holds   bool    `json:"holds"`
	Seen    string  `json:"seen"`
	Error   string  `json:"error,omitempty"`
	Seconds float64 `json:"seconds"`
}

// report collects the results and prints them as they come.
type report struct {
	out     io.Writer
	User    string   `json:"user"` // who ran it
	Results []result `json:"results"`
	Holds   bool     `json:"holds"`
	Seconds float64  `json:"seconds"`
}

func newReport(out io.Writer, user string) *report { return &report{out: out, User: user} }

func (r *report) note(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

func (r *report) check(ctx context.Context, d *demo, c claim) {
	began := time.Now()
	seen, err := c.see(ctx, d)
	res := result{ID: c.id, Claim: c.text, Holds: err == nil, Seen: seen, Seconds: time.Since(began).Seconds()}
	mark := "holds"
	if err != nil {
		mark, res.Error = "FALSE", err.Error()
	}
	r.Results = append(r.Results, res)
	fmt.Fprintf(r.out, "%-5s  %s\n       seen: %s\n", mark, c.text, seen)
	if err != nil {
		fmt.Fprintf(r.out, "       but:  %s\n", err)
	}
}

func (r *report) ok() bool {
	for _, res := range r.Results {
		if !res.Holds {
			return false
		}
	}
	return len(r.Results) > 0
}

func (r *report) finish(took time.Duration) {
	r.Holds, r.Seconds = r.ok(), took.Seconds()
	holding := 0
	for _, res := range r.Results {
		if res.Holds {
			holding++
		}
	}
	fmt.Fprintf(r.out, "\n%d of %d claims hold, %.1f s, as %s\n", holding, len(r.Results), r.Seconds, r.User)
}

func (r *report) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
