// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"aether.io/aether/internal/kube"
	"aether.io/aether/internal/model"
)

// argReader is the hidden command of a process that learns of endpoints in one way.
const argReader = "reader"

// reader keeps a State as the agent does, by one way.
type reader struct {
	received atomic.Int64 // bytes from the API server
	synced   chan struct{}

	mu    sync.Mutex
	state *model.State
}

// request is one line to a reader, reply one line of it.
type request struct {
	// Ask are Services nobody asked for, one after the other; empty: only Heap and
	// Received are wanted.
	Ask []model.Name `json:"ask,omitempty"`
	// Collect has garbage collected first.
	Collect bool `json:"collect,omitempty"`
}

type reply struct {
	Synced   float64   `json:"syncedSeconds,omitempty"`
	Times    []float64 `json:"times,omitempty"` // milliseconds, of each that was asked for
	Received int64     `json:"received"`
	HeapMiB  float64   `json:"heapMiB"`
	Watches  int       `json:"watches"` // for EndpointSlices
	Error    string    `json:"error,omitempty"`
}

// readerMain is the process: args are the way, a kubeconfig and the node's name.
func readerMain(ctx context.Context, args []string, in io.Reader, out io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replies := json.NewEncoder(out)
	if err := read(ctx, args, in, replies); err != nil {
		_ = replies.Encode(reply{Error: err.Error()}) // nobody listens any more when it fails
		return 1
	}
	return 0
}

func read(ctx context.Context, args []string, in io.Reader, replies *json.Encoder) error {
	if len(args) != 3 {
		return errors.New("want a way, a kubeconfig and a node")
	}
	began := time.Now()
	r := &reader{synced: make(chan struct{}), state: model.New(model.Options{})}
	config, err := clientcmd.BuildConfigFromFlags("", args[1])
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.Dial = r.dial
	way, err := newScopeWay(scopeName(args[0]), r, config)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	source, err := r.source(config, way.narrows(), args[2])
	if err != nil {
		return err
	}
	running.Go(func() { _ = source.Run(ctx, r.take) }) // it fails before it runs only
	running.Go(func() { way.run(ctx) })
	select {
	case <-r.synced:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := way.ready(ctx); err != nil {
		return err
	}
	if err := replies.Encode(r.report(way, reply{Synced: time.Since(began).Seconds()})); err != nil {
		return err
	}
	return r.serve(ctx, way, json.NewDecoder(in), replies)
}

func (r *reader) serve(ctx context.Context, way scopeWay, in *json.Decoder, replies *json.Encoder) error {
	for {
		var q request
		if err := in.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		var a reply
		for _, name := range q.Ask {
			began := time.Now()
			if err := way.demand(ctx, name); err != nil {
				return fmt.Errorf("learn of %s: %w", name, err)
			}
			a.Times = append(a.Times, ms(time.Since(began)))
			if len(r.slices(name)) == 0 {
				return fmt.Errorf("%s was learned of and has no endpoints", name)
			}
		}
		if q.Collect {
			runtime.GC()
		}
		if err := replies.Encode(r.report(way, a)); err != nil {
			return fmt.Errorf("reply: %w", err)
		}
	}
}

func (r *reader) report(way scopeWay, a reply) reply {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	a.Received, a.HeapMiB, a.Watches = r.received.Load(), float64(m.HeapAlloc)/(1<<20), way.watches()
	return a
}

// source is the product's; narrow leaves EndpointSlices out of it.
func (r *reader) source(config *rest.Config, narrow bool, node string) (*kube.Source, error) {
	config = rest.CopyConfig(config)
	if narrow {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return narrowed{next} })
	}
	client, err := kube.NewClient(config)
	if err != nil {
		return nil, err
	}
	return kube.New(client, kube.Options{Node: node, Log: slog.New(slog.DiscardHandler)})
}

// take is the source's sink.
func (r *reader) take(b kube.Batch) {
	r.apply(b.Changes...)
	if b.Synced {
		select {
		case <-r.synced:
		default:
			close(r.synced)
		}
	}
}

func (r *reader) apply(cs ...model.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, _ = r.state.Apply(cs)
}

func (r *reader) slices(n model.Name) []*model.Slice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.Slices(n)
}

// dial counts what comes in.
func (r *reader) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return countedConn{conn, &r.received}, nil
}

type countedConn struct {
	net.Conn
	received *atomic.Int64
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}

// narrowed asks for EndpointSlices of a Service that there is not where those of
// all are asked for.
type narrowed struct{ next http.RoundTripper }

func (n narrowed) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasSuffix(req.URL.Path, "/discovery.k8s.io/v1/endpointslices") {
		req = req.Clone(req.Context())
		q := req.URL.Query()
		q.Set("labelSelector", "measure.aether.io/none")
		req.URL.RawQuery = q.Encode()
	}
	return n.next.RoundTrip(req)
}
