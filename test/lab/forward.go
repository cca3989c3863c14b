// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// forwarder lets programs of the host in: it listens on the host's loopback and
// carries connections to kube-apiserver in the control plane's namespace. Nothing
// goes the other way.
type forwarder struct {
	listener net.Listener
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	target   string
	ctx      context.Context
	end      context.CancelFunc
	wg       sync.WaitGroup
}

// newForwarder opens a port and tells its address before it serves.
func newForwarder(netns, target string, opened func(address string) error) (*forwarder, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for programs of the host: %w", err)
	}
	f := &forwarder{listener: l, dial: dialIn(netns), target: target}
	f.ctx, f.end = context.WithCancel(context.Background())
	if err := opened(l.Addr().String()); err != nil {
		l.Close()
		return nil, err
	}
	f.wg.Go(f.serve)
	return f, nil
}

func (f *forwarder) serve() {
	for {
		in, err := f.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-time.After(100 * time.Millisecond): // out of descriptors, perhaps
				continue
			case <-f.ctx.Done():
				return
			}
		}
		f.wg.Go(func() { f.carry(in) })
	}
}

// carry copies both ways until both sides have ended.
func (f *forwarder) carry(in net.Conn) {
	defer in.Close()
	out, err := f.dial(f.ctx, "tcp4", f.target)
	if err != nil {
		return // the caller sees its connection end
	}
	defer out.Close()
	defer context.AfterFunc(f.ctx, func() { in.Close(); out.Close() })()
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // its end is all there is to know
		_ = to.(*net.TCPConn).CloseWrite()
	}
	both.Go(func() { pass(out, in) })
	pass(in, out)
	both.Wait()
}

func (f *forwarder) close() {
	f.end()
	f.listener.Close()
	f.wg.Wait()
}
