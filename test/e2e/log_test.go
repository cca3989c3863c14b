// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// logLine is one line of the access log: one captured connection. What has no
// value there is empty here.
type logLine struct {
	Time             time.Time `json:"time"`
	Source           string    `json:"source"`
	PodNamespace     string    `json:"pod_namespace"`
	PodName          string    `json:"pod_name"`
	Client           string    `json:"client"`
	Dialled          string    `json:"dialled"`
	Chain            string    `json:"chain"`
	ServiceNamespace string    `json:"service_namespace"`
	ServiceName      string    `json:"service_name"`
	ServicePort      string    `json:"service_port"`
	Cluster          string    `json:"cluster"`
	Endpoint         string    `json:"endpoint"`
	UpstreamSource   string    `json:"upstream_source"`
	Attempts         int       `json:"attempts"`
	Attempted        string    `json:"attempted"`
	BytesSent        int64     `json:"bytes_sent"`
	BytesReceived    int64     `json:"bytes_received"`
	DurationMS       float64   `json:"duration_ms"`
	WaitUS           float64   `json:"wait_us"`
	ConnectUS        float64   `json:"connect_us"`
	Outcome          string    `json:"outcome"`
	Reason           string    `json:"reason"`
	Flags            string    `json:"flags"`
	ClientClose      string    `json:"client_close"`
	ServerClose      string    `json:"server_close"`
	CloseReason      string    `json:"close_reason"`
	Failure          string    `json:"failure"`
}

// accessLog reads a node's access log as it grows.
type accessLog struct {
	path string

	mu     sync.Mutex
	offset int64
	lines  []logLine
}

// read takes in what is new and returns all lines so far.
func (l *accessLog) read() ([]logLine, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.Open(l.path)
	if os.IsNotExist(err) {
		return nil, nil // no connection has ended yet
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(l.offset, io.SeekStart); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1] // the last line may be half written
	for text := range bytes.Lines(b) {
		var line logLine
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&line); err != nil {
			return nil, fmt.Errorf("access log line %s: %w", bytes.TrimSpace(text), err)
		}
		l.lines = append(l.lines, line)
	}
	l.offset += int64(len(b))
	return l.lines, nil
}

// checkOnce reports connections that were logged more than once.
func (l *accessLog) checkOnce(t *testing.T) {
	t.Helper()
	lines, err := l.read()
	if err != nil {
		t.Errorf("read access log: %v", err)
	}
	type connection struct {
		client, dialled string
		accepted        time.Time
	}
	seen := map[connection]bool{}
	for _, line := range lines {
		c := connection{line.Client, line.Dialled, line.Time}
		if seen[c] {
			t.Errorf("logged twice: %+v", line)
		}
		seen[c] = true
	}
}

// awaitLogged returns the line of a connection that a client made, once it is
// there, and ends the test when it does not come.
func (n *node) awaitLogged(t *testing.T, v echo.Verdict) logLine {
	t.Helper()
	var found logLine
	eventually(t, settled, "logged: "+told(v), func() (err error) {
		found, err = n.logged(v)
		return err
	})
	return found
}

// logged finds the line of a connection: the earliest one since it was made, for
// a client's port may be used again. The log's times are cut to milliseconds. A
// client that is told of a reset before it is told that it had been connected, as
// happens on a busy machine, does not know its own port: then the target decides.
func (n *node) logged(v echo.Verdict) (logLine, error) {
	lines, err := n.log.read()
	if err != nil {
		return logLine{}, err
	}
	var found *logLine
	for i := range lines {
		l := &lines[i]
		its := l.Client == v.Local && l.Dialled == v.Remote || v.Local == "" && l.Dialled == v.Target
		if its && !l.Time.Before(v.Time.Truncate(time.Millisecond)) &&
			(found == nil || l.Time.Before(found.Time)) {
			found = l
		}
	}
	if found == nil {
		return logLine{}, fmt.Errorf("no line of a connection from %q to %s since %v", v.Local, v.Target, v.Time)
	}
	return *found, nil
}

// awaitLines waits until so many lines that match are in the log and returns
// them; more than that end the test, too.
func (n *node) awaitLines(t *testing.T, count int, what string, match func(logLine) bool) []logLine {
	t.Helper()
	var found []logLine
	eventually(t, settled, fmt.Sprintf("%d log lines: %s", count, what), func() error {
		lines, err := n.log.read()
		if err != nil {
			return err
		}
		found = nil
		for _, l := range lines {
			if match(l) {
				found = append(found, l)
			}
		}
		if len(found) != count {
			return fmt.Errorf("there are %d", len(found))
		}
		return nil
	})
	return found
}
