// SPDX-License-Identifier: Apache-2.0

// Package accesslog reads Envoy's access log as the tests see it: a file that
// grows, of lines that must have the documented keys and no others. It decides
// nothing and waits for nothing.
package accesslog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Line is one line of the access log: one captured connection. What has no value
// there is empty here. docs/reference/access-log.md says what the keys mean.
type Line struct {
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

// Log is an access log. Path must be set before the first Read.
type Log struct {
	Path string

	mu     sync.Mutex
	offset int64
	lines  []Line
}

// Read takes in what is new and returns all lines so far. There are none while the
// file is not there: no connection has ended yet. It may be called from any
// goroutine.
func (l *Log) Read() ([]Line, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.Open(l.Path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read access log: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(l.offset, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read access log: %w", err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read access log: %w", err)
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1] // the last line may be half written
	for text := range bytes.Lines(b) {
		var line Line
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&line); err != nil {
			return nil, fmt.Errorf("read access log line %s: %w", bytes.TrimSpace(text), err)
		}
		l.lines = append(l.lines, line)
		l.offset += int64(len(text))
	}
	return l.lines, nil
}
