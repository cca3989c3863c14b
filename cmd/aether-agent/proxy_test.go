// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

func TestBadProxyFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, `bootstrap "": not an absolute path`},
		{[]string{"--bootstrap", "/b", "more"}, `unexpected argument "more": Envoy's own flags go after --`},
		{[]string{"--bootstrap", "/b", "--base-id", "0"}, "want a number from 1 to 134217720"},
		{[]string{"--bootstrap", "/b", "--base-id", "200000000"}, "base id 200000000: want at most 134217720"},
		{[]string{"--bootstrap", "/b", "--drain-time", "20m"}, "drain time 20m0s: longer than the shutdown time 15m0s"},
		{[]string{"--bootstrap", "/b", "--shutdown-time", "700500ms"}, "shutdown time 11m40.5s: want whole seconds"},
		{[]string{"--bootstrap", "/b", "--run-dir", "x"}, `run dir "x": not an absolute path`},
		{[]string{"--bootstrap", "/b", "--log-level", "loud"}, `log level "loud"`},
		{[]string{"--nonsense"}, "-nonsense"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"proxy"}, c.args...), &stdout, &stderr)
		if code != exitUsage || !strings.Contains(stderr.String(), c.want) || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, %q; want 2 with %q", c.args, code, &stderr, c.want)
		}
	}
}

func TestProxyFlagsReachTheConfig(t *testing.T) {
	o, err := parseProxy([]string{
		"--run-dir=/r", "--envoy=/e", "--bootstrap=/b", "--base-id=4096", "--drain-time=1s", "--shutdown-time=2s", "--start-timeout=3s",
		"--concurrency=4", "--envoy-log-level=info", "--restart-on-change", "--log-format=json", "--", "--cpuset-threads", "--", "-x",
	}, io.Discard)
	c := o.config
	if err != nil || c.RunDir != "/r" || c.Envoy != "/e" || c.Bootstrap != "/b" || c.BaseID != 4096 || c.DrainTime != time.Second ||
		c.ShutdownTime != 2*time.Second || c.StartTimeout != 3*time.Second || c.Concurrency != 4 || c.LogLevel != "info" ||
		!c.RestartOnChange || strings.Join(c.Args, " ") != "--cpuset-threads -- -x" || o.logFormat != "json" {
		t.Errorf("%+v, %v", o, err)
	}
	o, err = parseProxy([]string{"--bootstrap=/b"}, io.Discard)
	if c := o.config; err != nil || c.RunDir != "/run/aether" || c.Envoy != "envoy" || c.DrainTime != 10*time.Minute || c.ShutdownTime != 15*time.Minute || c.RestartOnChange {
		t.Errorf("defaults %+v, %v", o, err)
	}
}

func TestProxyHelp(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"proxy", "--help"}, &stdout, &stderr); code != 0 || !strings.Contains(stderr.String(), "-shutdown-time") {
		t.Errorf("help: exit %d, %q", code, &stderr)
	}
}
