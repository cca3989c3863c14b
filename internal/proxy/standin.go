// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
)

// standIn answers an epoch whose parent has died. Every five seconds until the
// shutdown time it asks its parent for statistics, and then tells it to end; Envoy
// 1.40 aborts when nobody is there. What it gets is an answer without statistics.
type standIn struct {
	conn *net.UnixConn
	done chan struct{}
}

// emptyStats is Envoy's HotRestartMessage {reply: {stats: {}}} behind its length.
var emptyStats = append(binary.BigEndian.AppendUint64(nil, 4), 0x12, 0x02, 0x1a, 0x00)

// newStandIn takes the dead parent's socket and answers its child.
func newStandIn(parent, child string) (*standIn, error) {
	if err := os.Remove(parent); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("stand in for a dead Envoy: %w", err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: parent, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("stand in for a dead Envoy: %w", err)
	}
	if err := os.Chmod(parent, ownMode); err != nil {
		conn.Close()
		return nil, fmt.Errorf("stand in for a dead Envoy: %w", err)
	}
	s := &standIn{conn: conn, done: make(chan struct{})}
	to := &net.UnixAddr{Name: child, Net: "unixgram"}
	// It may wait for an answer that died with its parent. If it does not, this one
	// is taken for the answer to its next question, which is the same.
	_, _ = conn.WriteToUnix(emptyStats, to)
	go func() {
		defer close(s.done)
		b := make([]byte, maxHotMessage)
		for {
			n, from, err := conn.ReadFromUnix(b)
			if err != nil {
				return // closed
			}
			if asksStats(b[:n]) && from != nil {
				_, _ = conn.WriteToUnix(emptyStats, to) // fails when the child has ended
			}
		}
	}()
	return s, nil
}

// maxHotMessage is the longest piece of a message.
const maxHotMessage = 4096

// asksStats recognises HotRestartMessage {request: {stats: {}}}.
func asksStats(b []byte) bool {
	return len(b) >= 12 && b[8] == 0x0a && b[10] == 0x1a
}

// close leaves the socket's file: another epoch may have made its own there.
func (s *standIn) close() {
	s.conn.Close()
	<-s.done
}
