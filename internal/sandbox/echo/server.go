// SPDX-License-Identifier: Apache-2.0

package echo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// NodeVariable is the environment variable that holds the node's name.
const NodeVariable = "NODE_NAME"

// Server answers on its listeners. At least one address is needed; addresses
// are as net.Listen takes them, e.g. ":8080".
type Server struct {
	// HTTP listeners answer GET / with Identity as JSON, /bytes?n=N with N bytes,
	// /sleep?d=1s after that time, /status?code=503 with that status, and any
	// body with itself on POST.
	HTTP []string
	// TCP listeners send back what they receive, byte for byte, and close their
	// side once the client has closed its own.
	TCP []string
	// ServerFirst listeners send Identity as one JSON line before anything else
	// and then do as TCP ones.
	ServerFirst []string
	// Sink listeners read everything, then answer the count as one line.
	Sink []string
	// Pod and Node are what Identity says.
	Pod, Node string
	// Delay is waited before listening, Drain between the wish to end and the end.
	Delay, Drain time.Duration
}

// Identity is how a server names itself, and whom it sees.
type Identity struct {
	Pod    string `json:"pod"`
	Node   string `json:"node,omitempty"`
	Remote string `json:"remote"` // as the server sees the client
	Local  string `json:"local"`
	// HTTP only.
	Method  string              `json:"method,omitempty"`
	Path    string              `json:"path,omitempty"`
	Host    string              `json:"host,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
}

// ServerMain is the program of image aether/echo.
func ServerMain(args []string, stdout, stderr io.Writer) int {
	s := Server{Node: os.Getenv(NodeVariable)}
	s.Pod, _ = os.Hostname()
	fs := flag.NewFlagSet("echo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	list := func(p *[]string, name, usage string) {
		fs.Func(name, usage+" (repeatable)", func(v string) error {
			_, _, err := net.SplitHostPort(v)
			*p = append(*p, v)
			return err
		})
	}
	list(&s.HTTP, "http", "HTTP listener `address`: answers who it is")
	list(&s.TCP, "tcp", "TCP echo listener `address`")
	list(&s.ServerFirst, "server-first", "TCP listener `address` that greets, then echoes")
	list(&s.Sink, "sink", "TCP listener `address` that reads all and answers the count")
	fs.StringVar(&s.Pod, "name", s.Pod, "`name` it answers with")
	fs.StringVar(&s.Node, "node", s.Node, "`node` it answers with (default $"+NodeVariable+")")
	fs.DurationVar(&s.Delay, "delay", 0, "wait before listening")
	fs.DurationVar(&s.Drain, "drain", 0, "go on serving for this long after SIGTERM")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if fs.NArg() > 0 {
		fmt.Fprintln(stderr, "echo: unexpected argument", fs.Arg(0))
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := s.Run(ctx, func(addr string) { fmt.Fprintln(stdout, "listening on", addr) }); err != nil {
		fmt.Fprintln(stderr, "echo:", err)
		return 1
	}
	return 0
}

// Run listens and serves until ctx ends and Drain is over. listening, when not
// nil, is told each address that is open.
func (s Server) Run(ctx context.Context, listening func(addr string)) error {
	if len(s.HTTP)+len(s.TCP)+len(s.ServerFirst)+len(s.Sink) == 0 {
		return errors.New("no listener given")
	}
	select {
	case <-time.After(s.Delay):
	case <-ctx.Done():
		return nil
	}
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	open := func(addrs []string, serve func(net.Listener)) error {
		for _, a := range addrs {
			l, err := net.Listen("tcp", a)
			if err != nil {
				return fmt.Errorf("listen: %w", err)
			}
			if listening != nil {
				listening(l.Addr().String())
			}
			context.AfterFunc(serving, func() { l.Close() })
			wg.Go(func() { serve(l) })
		}
		return nil
	}
	tcp := func(h func(net.Conn)) func(net.Listener) {
		return func(l net.Listener) { serveTCP(serving, l, h) }
	}
	err := errors.Join(
		open(s.HTTP, func(l net.Listener) { s.serveHTTP(serving, l) }),
		open(s.TCP, tcp(echoBytes)),
		open(s.ServerFirst, tcp(func(c net.Conn) {
			if json.NewEncoder(c).Encode(s.identity(c)) == nil {
				echoBytes(c)
			}
		})),
		open(s.Sink, tcp(func(c net.Conn) {
			if n, err := io.Copy(io.Discard, c); err == nil {
				fmt.Fprintln(c, n)
			}
		})),
	)
	if err != nil {
		return err
	}
	<-ctx.Done()
	if s.Drain > 0 {
		time.Sleep(s.Drain)
	}
	return nil
}

func (s Server) identity(c net.Conn) Identity {
	return Identity{Pod: s.Pod, Node: s.Node, Remote: c.RemoteAddr().String(), Local: c.LocalAddr().String()}
}

// serveTCP accepts until ctx ends, then closes what is open and waits.
func serveTCP(ctx context.Context, l net.Listener, handle func(net.Conn)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors: others will close
			continue
		}
		wg.Go(func() {
			defer context.AfterFunc(ctx, func() { c.Close() })()
			defer c.Close()
			handle(c)
		})
	}
}

// echoBytes sends everything back and closes for writing when the client has.
func echoBytes(c net.Conn) {
	if _, err := io.Copy(c, c); err != nil {
		return
	}
	if tc, ok := c.(*net.TCPConn); ok {
		_ = tc.CloseWrite() // the client may be gone
	}
}

type connKey struct{}

func (s Server) serveHTTP(ctx context.Context, l net.Listener) {
	srv := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: time.Minute,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	_ = srv.Serve(l) // ends with the listener
}

func (s Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost || r.Method == http.MethodPut {
			_, _ = io.Copy(w, r.Body) // the client sees a cut body
			return
		}
		id := s.identity(r.Context().Value(connKey{}).(net.Conn))
		id.Method, id.Path, id.Host, id.Headers = r.Method, r.URL.RequestURI(), r.Host, r.Header
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(id) // the client sees a cut body
	})
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "want ?n=BYTES", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		out := bufio.NewWriterSize(w, 64<<10)
		_, _ = io.CopyN(out, &pattern{}, n)
		_ = out.Flush()
	})
	mux.HandleFunc("/sleep", func(w http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.URL.Query().Get("d"))
		if err != nil {
			http.Error(w, "want ?d=DURATION", http.StatusBadRequest)
			return
		}
		select {
		case <-time.After(d):
			fmt.Fprintln(w, "slept", d)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/status", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.URL.Query().Get("code"))
		if err != nil || code < 200 || code > 599 {
			http.Error(w, "want ?code=200..599", http.StatusBadRequest)
			return
		}
		w.WriteHeader(code)
	})
	return mux
}
