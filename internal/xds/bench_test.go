// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc/test/bufconn"

	"aether.io/aether/internal/xds"
	"aether.io/aether/internal/xds/xdstest"
)

// BenchmarkAsk is a first connection as the server sees it: a name is asked for,
// published, and taken with its assignment. It costs the same however many names
// are there.
func BenchmarkAsk(b *testing.B) {
	for _, names := range []int{10, 2000} {
		b.Run(fmt.Sprintf("names=%d", names), func(b *testing.B) { benchmarkAsk(b, names) })
	}
}

func benchmarkAsk(b *testing.B, names int) {
	var server *xds.Server
	service := func(name string) []xds.Resource {
		return []xds.Resource{cluster(name, 0), assignment(name, 80)}
	}
	publish := func(rs ...xds.Resource) {
		if err := server.Publish(xds.Update{Set: rs}); err != nil {
			b.Error(err)
		}
	}
	server = xds.New(xds.Config{Log: quiet(), Sink: func(e xds.Event) {
		switch e := e.(type) {
		case xds.FirstRequest:
			e.Done()
		case xds.Asked:
			if e.Type == xds.Cluster {
				publish(service(e.Names[0])...)
			}
		}
	}})
	for i := range names {
		publish(service(fmt.Sprint("svc:there:", i))...)
	}
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			b.Error(err)
		}
	}()
	e, err := xdstest.New(func(ctx context.Context) (net.Conn, error) { return l.DialContext(ctx) }, xdstest.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	if err := e.Connect(); err != nil {
		b.Fatal(err)
	}
	wait := func(cond func() bool) {
		if err := e.Wait(ctx, cond); err != nil {
			b.Fatal(err)
		}
	}
	wait(func() bool { return len(e.Resources(string(xds.Assignment))) == names })
	i := 0
	for b.Loop() {
		i++
		name := fmt.Sprint("svc:", i)
		value := raw(b, assignment(name, 80).Message)
		e.Ask(name)
		wait(func() bool { return e.Holds(string(xds.Assignment), name, value) })
	}
}
