// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/accesslog"
)

// logLine is one line of the access log: one captured connection.
type logLine = accesslog.Line

// checkOnce reports connections that were logged more than once.
func checkOnce(t *testing.T, l *accesslog.Log) {
	t.Helper()
	lines, err := l.Read()
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
	lines, err := n.log.Read()
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
		lines, err := n.log.Read()
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
