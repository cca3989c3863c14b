// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// loopback is TCP on a port of 127.0.0.1 that stays the same.
type loopback struct {
	addr string
}

func (l *loopback) listen() (net.Listener, error) {
	at := l.addr
	if at == "" {
		at = "127.0.0.1:0"
	}
	li, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	l.addr = li.Addr().String()
	return li, nil
}

func (l *loopback) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func (l *loopback) address() string { return l.addr }

// memory joins clients and server by pipes.
type memory struct {
	mu  sync.Mutex
	now *pipeListener
}

func (m *memory) listen() (net.Listener, error) {
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	m.mu.Lock()
	m.now = l
	m.mu.Unlock()
	return l, nil
}

func (m *memory) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	m.mu.Lock()
	l := m.now
	m.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: network, Addr: pipeAddr{}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	select {
	case <-l.done:
		return nil, refused
	default:
	}
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *memory) address() string { return pipeAddr{}.String() }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "tcp" }
func (pipeAddr) String() string  { return "127.0.0.1:6443" }

// pipeListener accepts the server's ends of pipes.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

// accepting hands the server connections that it can find and freeze.
type accepting struct {
	net.Listener
	server *Server
}

func (a *accepting) Accept() (net.Conn, error) {
	for {
		c, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if ours := (&conn{Conn: c, server: a.server}); a.server.adopt(ours) {
			return ours, nil
		}
		// What the client says first is taken in, so that it sees an end, and no
		// failure to write.
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = c.Read(make([]byte, 1<<16))
		_ = c.Close()
	}
}

// conn is the server's end of a connection.
type conn struct {
	net.Conn
	server *Server
	frozen atomic.Bool
}

// Read never returns what came while the connection was frozen.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.frozen.Load() {
			return n, err
		}
	}
}

// Write loses what is written while the connection is frozen.
func (c *conn) Write(p []byte) (int, error) {
	if c.frozen.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.server.forget(c)
	return c.Conn.Close()
}

type certificate struct {
	pair tls.Certificate
	pem  []byte
	err  error
}

// ownCertificate is its own authority, and valid in the year 2000 too, at which
// the clock of a testing/synctest bubble begins.
var ownCertificate = sync.OnceValue(func() certificate {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certificate{err: err}
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "apitest"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:        true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, secret.Public(), secret)
	if err != nil {
		return certificate{err: err}
	}
	return certificate{
		pair: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: secret},
		pem:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}
})

func serverTLS() (*tls.Config, error) {
	c := ownCertificate()
	if c.err != nil {
		return nil, c.err
	}
	return &tls.Config{Certificates: []tls.Certificate{c.pair}, MinVersion: tls.VersionTLS12}, nil
}

// authority returns what a client trusts, as PEM.
func authority() []byte { return ownCertificate().pem }
