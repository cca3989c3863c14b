// SPDX-License-Identifier: Apache-2.0

package echo

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Client makes one kind of connection. The zero values of all but Mode and
// Target have defaults.
type Client struct {
	// Mode is one of Modes.
	Mode   string
	Target string // host:port
	// Timeout bounds connecting, and each answer, on their own; default 5 s. In
	// mode silent it is how long silence is listened to.
	Timeout time.Duration
	// Path is what mode http asks for, default "/". Host is its Host header,
	// default Target.
	Path, Host string
	// Bytes is how much half-close (default 4,096) and transfer (default 1 MiB)
	// send and want back.
	Bytes int64
	// Exchanges is how many rounds talk, http and server-first make on one
	// connection, default 1, with Interval between them.
	Exchanges int
	Interval  time.Duration
	// Hold keeps the connection open after the last round.
	Hold time.Duration
	// WaitClose waits, up to Timeout, for the peer to end the connection.
	WaitClose bool
	// Mark is set on the socket before it connects (SO_MARK), Bind is its source
	// address. Zero: neither.
	Mark int
	Bind string
}

// Modes are the kinds of conversation.
//
//	silent        says nothing and waits for what happens
//	talk          sends a line and wants it back
//	http          sends GET requests
//	server-first  waits for the server's line, then does as talk
//	half-close    sends Bytes, closes its side, wants everything back and a close
//	transfer      sends and receives Bytes at the same time
var Modes = []string{"silent", "talk", "http", "server-first", "half-close", "transfer"}

// Do makes the connection and tells how it went.
func (c Client) Do(ctx context.Context) (v Verdict) {
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.Exchanges = max(c.Exchanges, 1)
	v = Verdict{Time: time.Now(), Target: c.Target, Mode: c.Mode, Outcome: OK}
	if !slices.Contains(Modes, c.Mode) {
		v.Outcome, v.Error = Failed, fmt.Sprintf("mode %q: want one of %s", c.Mode, strings.Join(Modes, ", "))
		return v
	}
	defer func() { v.TotalMS = milliseconds(time.Since(v.Time)) }()
	conn, err := c.dial(ctx)
	connected := time.Now()
	v.ConnectMS = milliseconds(connected.Sub(v.Time))
	if err != nil {
		phase := PhaseConnect
		if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
			phase = PhaseResolve
		}
		v.failed(phase, err)
		return v
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	v.Local, v.Remote = conn.LocalAddr().String(), conn.RemoteAddr().String()
	s := &session{Client: c, v: &v, conn: conn, connected: connected, counted: &countingConn{Conn: conn, v: &v}}
	s.in = bufio.NewReader(s.counted)
	s.converse(ctx)
	return v
}

func (c Client) dial(ctx context.Context) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: c.Timeout, KeepAlive: -1}
	if c.Bind != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(c.Bind)}
	}
	if c.Mark != 0 {
		d.Control = func(_, _ string, rc syscall.RawConn) error {
			var err error
			if e := rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, c.Mark) }); e != nil {
				return e
			}
			return err
		}
	}
	conn, err := d.DialContext(ctx, "tcp4", c.Target)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// session is one open connection.
type session struct {
	Client
	v         *Verdict
	conn      *net.TCPConn
	counted   *countingConn
	in        *bufio.Reader
	connected time.Time
}

func (s *session) converse(ctx context.Context) {
	switch s.Mode {
	case "silent":
		s.silent()
	case "half-close":
		s.halfClose()
	case "transfer":
		s.transfer()
	default:
		s.rounds(ctx)
	}
	if s.v.LatencyMS == 0 {
		s.answered()
	}
	if s.v.Outcome != OK {
		return
	}
	if s.Hold > 0 {
		select {
		case <-time.After(s.Hold):
		case <-ctx.Done():
		}
	}
	if s.WaitClose {
		s.waitClose()
	}
}

func (s *session) answered() { s.v.LatencyMS = milliseconds(time.Since(s.connected)) }

func (s *session) deadline() { _ = s.conn.SetDeadline(time.Now().Add(s.Timeout)) }

// wrote handles a failed write: the peer's end of the connection says why, and
// reading tells a reset from a close.
func (s *session) wrote(err error) {
	if errors.Is(err, syscall.EPIPE) {
		_ = s.conn.SetReadDeadline(time.Now().Add(time.Second))
		if _, rerr := io.Copy(io.Discard, s.counted); errors.Is(rerr, syscall.ECONNRESET) {
			err = rerr
		}
	}
	s.v.failed(PhaseWrite, err)
}

func (s *session) silent() {
	s.deadline()
	line, err := s.in.ReadString('\n')
	s.v.Answer = strings.TrimSpace(line)
	switch {
	case err == nil:
	case classify(PhaseRead, err) == Timeout:
		s.v.Outcome = Open
	default:
		s.v.failed(PhaseRead, err)
	}
}

// rounds are the modes talk, http and server-first.
func (s *session) rounds(ctx context.Context) {
	if s.Mode == "server-first" {
		s.deadline()
		line, err := s.in.ReadString('\n')
		if err != nil {
			s.v.failed(PhaseRead, err)
			return
		}
		s.v.Answer = strings.TrimSpace(line)
		s.answered()
	}
	for i := range s.Exchanges {
		if i > 0 && s.Interval > 0 {
			select {
			case <-time.After(s.Interval):
			case <-ctx.Done():
				return
			}
		}
		s.deadline()
		if s.Mode == "http" {
			s.request()
		} else {
			s.line(i)
		}
		if s.v.Outcome != OK {
			return
		}
		s.v.Exchanges++
		if i == 0 && s.v.LatencyMS == 0 {
			s.answered()
		}
	}
}

func (s *session) line(i int) {
	text := fmt.Sprintf("round %d from %s\n", i+1, s.v.Local)
	if _, err := io.WriteString(s.counted, text); err != nil {
		s.wrote(err)
		return
	}
	got, err := s.in.ReadString('\n')
	if err == nil && got != text {
		err = errMismatch
	}
	if s.v.Answer == "" {
		s.v.Answer = strings.TrimSpace(got)
	}
	if err != nil {
		s.v.failed(PhaseRead, err)
	}
}

func (s *session) request() {
	req := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: aether-client\r\n\r\n",
		cmp.Or(s.Path, "/"), cmp.Or(s.Host, s.Target))
	if _, err := io.WriteString(s.counted, req); err != nil {
		s.wrote(err)
		return
	}
	resp, err := http.ReadResponse(s.in, nil)
	if err != nil {
		s.v.failed(PhaseRead, err)
		return
	}
	defer resp.Body.Close()
	s.v.Code = resp.StatusCode
	var head bytes.Buffer
	_, err = io.CopyN(&head, resp.Body, 4096)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	} else if errors.Is(err, io.EOF) {
		err = nil
	}
	if s.v.Answer == "" {
		s.v.Answer = strings.TrimSpace(head.String())
	}
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%w: %s", errStatus, resp.Status)
	}
	if err != nil {
		s.v.failed(PhaseRead, err)
	}
}

// halfClose sends, closes its side, and only then reads.
func (s *session) halfClose() {
	s.deadline()
	n := cmp.Or(s.Bytes, 4096)
	if _, err := io.CopyN(s.counted, &pattern{}, n); err != nil {
		s.wrote(err)
		return
	}
	if err := s.conn.CloseWrite(); err != nil {
		s.v.failed(PhaseWrite, err)
		return
	}
	s.receive(n)
}

// transfer sends and receives at the same time, each side bounded by progress:
// the deadline moves on with every piece received.
func (s *session) transfer() {
	n := cmp.Or(s.Bytes, 1<<20)
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyN(s.counted, &pattern{}, n)
		if err == nil {
			err = s.conn.CloseWrite()
		}
		sent <- err
	}()
	s.receive(n)
	if s.v.Outcome != OK {
		s.conn.Close()
	}
	switch err := <-sent; {
	case err == nil:
	case s.v.Outcome == OK:
		s.v.failed(PhaseWrite, err)
	case s.v.Outcome == Closed && errors.Is(err, syscall.ECONNRESET):
		// The kernel tells of a reset once: here the writer was told, and the
		// reader found an end.
		s.v.failed(PhaseWrite, err)
	}
}

// receive wants exactly n bytes of the pattern and then the peer's close.
func (s *session) receive(n int64) {
	var want pattern
	buf := make([]byte, 64<<10)
	for {
		s.deadline()
		k, err := s.in.Read(buf)
		if !want.matches(buf[:k]) || want.offset > n {
			s.v.failed(PhaseRead, errMismatch)
			return
		}
		switch {
		case errors.Is(err, io.EOF) && want.offset == n:
			return
		case err != nil:
			s.v.failed(PhaseRead, err)
			return
		}
	}
}

func (s *session) waitClose() {
	begin := time.Now()
	s.deadline()
	_, err := io.Copy(io.Discard, s.in)
	s.v.CloseMS = milliseconds(time.Since(begin))
	switch {
	case err == nil:
		s.v.Close = "fin"
	case errors.Is(err, syscall.ECONNRESET):
		s.v.Close = "rst"
	default:
		s.v.Close = "none"
	}
}

// countingConn counts bytes. Reads and writes may happen at the same time, each
// from one goroutine.
type countingConn struct {
	net.Conn
	v *Verdict
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.v.Received += int64(n)
	return n, err
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.v.Sent += int64(n)
	return n, err
}
