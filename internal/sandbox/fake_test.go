// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/proxy"
)

// The test binary, called by these names, stands for agent and Envoy: it keeps
// their contracts (flags, sockets) and does nothing else. What the sandbox does
// with the real ones is tested where they are built.
const (
	fakeAgentName = "fake-agent"
	fakeEnvoyName = "fake-envoy"
)

const fakeHotRestart = "11.104"

// fakes links the test binary under both names.
func fakes(t *testing.T) func(*Config) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{fakeAgentName, fakeEnvoyName} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return func(c *Config) {
		c.NoProxy = false
		c.AgentPath, c.EnvoyPath = filepath.Join(dir, fakeAgentName), filepath.Join(dir, fakeEnvoyName)
	}
}

// fakeMain runs a fake when the binary is called by its name.
func fakeMain(args []string) (handled bool, code int) {
	var err error
	switch filepath.Base(args[0]) {
	case fakeAgentName:
		err = fakeAgent(args[1:])
	case fakeEnvoyName:
		err = fakeEnvoy(args[1:])
	default:
		return false, 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return true, 1
	}
	return true, 0
}

type fakeConfig struct {
	Run, State, Mode, Source, Limit string
	Dirs                            []string
}

func fakeFlags(args []string) (c fakeConfig, err error) {
	fs := flag.NewFlagSet("agent", flag.ContinueOnError)
	fs.StringVar(&c.Run, "run-dir", "", "")
	fs.StringVar(&c.State, "state-dir", "", "")
	fs.StringVar(&c.Mode, "service-egress", "", "")
	fs.StringVar(&c.Source, "egress-source", "", "")
	fs.StringVar(&c.Limit, "descriptor-limit", "", "")
	fs.String("kubeconfig", "", "")
	fs.Func("manifest-dir", "", func(s string) error { c.Dirs = append(c.Dirs, s); return nil })
	for _, ignored := range []string{"node-name", "access-log", "access-log-success-percent"} {
		fs.String(ignored, "", "")
	}
	broken := fs.Bool("broken", false, "end at once")
	if err = fs.Parse(args); err == nil && *broken {
		err = fmt.Errorf("told to end at once")
	}
	return c, err
}

// fakeProxy is the real supervisor, of the fake Envoy.
func fakeProxy(args []string) error {
	c := proxy.Config{
		DrainTime: proxy.DefaultDrainTime, ShutdownTime: proxy.DefaultShutdownTime, StartTimeout: proxy.DefaultStartTimeout,
	}
	if i := slices.Index(args, "--"); i >= 0 {
		args, c.Args = args[:i], args[i+1:]
	}
	fs := flag.NewFlagSet("proxy", flag.ContinueOnError)
	fs.StringVar(&c.RunDir, "run-dir", "", "")
	fs.StringVar(&c.Envoy, "envoy", "", "")
	fs.StringVar(&c.Bootstrap, "bootstrap", "", "")
	fs.StringVar(&c.LogLevel, "envoy-log-level", "", "")
	fs.IntVar(&c.Concurrency, "concurrency", 0, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := proxy.New(c, log, os.Stderr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx)
}

func fakeAgent(args []string) error {
	if len(args) > 0 && args[0] == "proxy" {
		return fakeProxy(args[1:])
	}
	if len(args) > 0 && args[0] == "bootstrap" {
		c, err := fakeFlags(slices.DeleteFunc(args[1:], func(s string) bool { return s == "--broken" }))
		c.Mode = "" // what Envoy starts with does not depend on it
		_ = json.NewEncoder(os.Stdout).Encode(c)
		return err
	}
	c, err := fakeFlags(args)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	pods := map[string]int{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/pods", func(w http.ResponseWriter, r *http.Request) {
		var p api.Pod
		_ = json.NewDecoder(r.Body).Decode(&p)
		mu.Lock()
		defer mu.Unlock()
		if pods[p.Namespace+"."+p.Name]++; pods[p.Namespace+"."+p.Name] == 1 {
			w.WriteHeader(http.StatusAccepted) // the first time Envoy is slow
			return
		}
		b, _ := json.Marshal(p)
		_ = os.WriteFile(filepath.Join(c.State, p.Namespace+"."+p.Name), b, 0o644)
	})
	mux.HandleFunc("DELETE /v1/pods/{ns}/{name}", func(_ http.ResponseWriter, r *http.Request) {
		_ = os.Remove(filepath.Join(c.State, r.PathValue("ns")+"."+r.PathValue("name")))
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		conn, err := net.Dial("unix", filepath.Join(c.Run, "envoy-admin.sock"))
		if err == nil {
			conn.Close()
		}
		_ = json.NewEncoder(w).Encode(api.Status{Mode: c.Mode, EgressSource: c.Source, Synced: true, Envoy: api.EnvoyStatus{Connected: err == nil}})
	})
	return fakeServe(mux, filepath.Join(c.Run, "cni.sock"), filepath.Join(c.Run, "agent.sock"))
}

func fakeEnvoy(args []string) error {
	if args[0] == "--version" {
		fmt.Println("fake-envoy  version: 0/1.40.0/Clean/RELEASE/BoringSSL")
		return nil
	}
	if args[0] == "--hot-restart-version" {
		fmt.Println(fakeHotRestart)
		return nil
	}
	if slices.Contains(args, "validate") {
		return nil
	}
	i := slices.Index(args, "-c")
	b, err := os.ReadFile(args[i+1])
	if err != nil {
		return err
	}
	var c fakeConfig
	if err := json.Unmarshal(b, &c); err != nil {
		return err
	}
	mux := http.NewServeMux()
	flagOf := func(name string) string { return args[slices.Index(args, name)+1] }
	mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"version":"0/1.40.0/x","state":"LIVE","hot_restart_version":%q,"command_line_options":{"base_id":%q,"restart_epoch":%s}}`,
			fakeHotRestart, flagOf("--base-id"), flagOf("--restart-epoch"))
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"stats":[{"value":1}]}`) })
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		var l syscall.Rlimit
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
		fmt.Fprintf(w, "limit %d of %s, source %s, args %q", l.Cur, c.Limit, c.Source, args)
	})
	return fakeServe(mux, filepath.Join(c.Run, "envoy-admin.sock"))
}

func fakeServe(h http.Handler, sockets ...string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for _, s := range sockets {
		_ = os.Remove(s)
		l, err := net.Listen("unix", s)
		if err != nil {
			return err
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false) // it may be another one's by then
		go func() { _ = http.Serve(l, h) }()
		defer l.Close()
	}
	<-ctx.Done()
	return nil
}
