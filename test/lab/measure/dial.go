// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// connectTimeout is short, for what kube-proxy has no rule for is dropped, and
	// only a new connection finds a new rule before the kernel's second SYN. A captured
	// pod's connections are made within the pod.
	connectTimeout = 15 * time.Millisecond
	// answerTimeout is how long a connection is waited for that was made.
	answerTimeout = 3 * time.Second
	// firstTimeout is that of connections whose duration is the figure: a slow one is
	// to be seen in it.
	firstTimeout = 20 * time.Second
)

// dialled is one connection, and who greeted on it.
type dialled struct {
	began, ended time.Time
	by           string
	err          error
}

// dial makes one connection, in the calling thread's network, and reads the
// greeting of whom it reaches. Connecting and answer have their timeouts.
func dial(target string, connect, answer time.Duration) dialled {
	d := dialled{began: time.Now()}
	defer func() { d.ended = time.Now() }()
	conn, err := net.DialTimeout("tcp4", target, connect)
	if err != nil {
		d.err, d.ended = err, time.Now()
		return d
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answer)) // fails on a closed connection only
	line, err := bufio.NewReaderSize(conn, 512).ReadBytes('\n')
	d.ended = time.Now()
	if err != nil {
		d.err = err
		return d
	}
	var who struct{ Pod string }
	if err := json.Unmarshal(bytes.TrimSpace(line), &who); err != nil {
		d.err = fmt.Errorf("read the greeting: %w", err)
	}
	d.by = who.Pod
	return d
}

// dialLoop dials from a pod again and again, with a pause in between, until visit
// returns false or ctx ends.
func (c *cluster) dialLoop(ctx context.Context, pod, target string, pause time.Duration, visit func(dialled) bool) error {
	return c.Node.InPod(pod, func() error {
		for ctx.Err() == nil {
			if !visit(dial(target, connectTimeout, answerTimeout)) {
				return nil
			}
			time.Sleep(pause)
		}
		return ctx.Err()
	})
}

// kindOf says in a word how a connection failed. The set is closed.
func kindOf(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET):
		return "reset"
	case errors.Is(err, io.EOF):
		return "closed"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return "other"
}
