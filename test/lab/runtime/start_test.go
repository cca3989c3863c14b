// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// nodeStartsAlone: agent and Envoy start while the API server is away, and pods run
// on (docs/limits.md): no listener, so nothing that is captured gets anywhere. All
// comes back by itself with the API server.
func nodeStartsAlone(t *testing.T) {
	s := labtest.New(t)
	s.Apply(server("web", 2), labtest.Client("captured", true))
	s.Ready("captured")
	s.Endpoints("web", 2)
	vip := s.VIP("web")
	endpoints, err := s.Cluster.Endpoints(t.Context(), s.Namespace+"/web")
	s.Must(err)
	isServed(t, s, "captured", vip, "web")

	s.APIServer.Stop()
	t.Cleanup(s.StartAPIServer)
	s.Must(s.Node.StopAgent(t.Context()))
	s.Must(s.Node.KillEnvoy())
	back := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 3*labtest.Patience)
	go func() {
		defer cancel()
		back <- s.Node.StartAgent(ctx)
	}()
	s.Eventually("the agent waits for the API server, and says so", func() error {
		st, err := s.AgentStatus(t.Context())
		if err == nil && (st.Synced || st.Envoy.Connected || len(st.Problems) == 0) {
			err = errorf("its status is %+v", st)
		}
		return err
	})
	s.Eventually("a new Envoy starts, and waits for the agent", func() error {
		st, err := s.Node.ProxyStatus(t.Context())
		if err == nil && (st.State != "starting" || len(st.Epochs) == 0) {
			err = errorf("its supervisor says %+v", st)
		}
		return err
	})
	targets := []string{lab.Target(vip, 80), lab.Target(endpoints[0], labtest.EchoPort)}
	for _, target := range targets {
		a := s.Dial("captured", echo.Client{Mode: "http", Target: target, Timeout: time.Second})
		if a.Outcome == echo.OK {
			t.Errorf("without a listener: %s", a)
		}
		t.Logf("without a listener: %s after %.0f ms", a, a.TotalMS)
	}

	s.Must(s.APIServer.Start(t.Context()))
	s.Must(<-back)
	s.Eventually("Services are served again", func() error { return served(within(t), s, "captured", vip, "web") })
	for _, target := range targets {
		if a := s.Dial("captured", echo.Client{Mode: "http", Target: target}); a.Outcome != echo.OK {
			t.Errorf("afterwards: %s", a)
		}
	}
}
