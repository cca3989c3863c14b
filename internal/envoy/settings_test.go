// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
)

func TestSettingsValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Settings)
		want   string // part of the error; empty for none
	}{
		{"defaults", func(*Settings) {}, ""},
		{"node source", func(s *Settings) { s.EgressSource = NodeSource }, ""},
		{"no source", func(s *Settings) { s.EgressSource = "" }, "egress source"},
		{"other source", func(s *Settings) { s.EgressSource = "host" }, `egress source "host"`},
		{"no trust domain", func(s *Settings) { s.TrustDomain = "" }, "trust domain"},
		{"trust domain with path", func(s *Settings) { s.TrustDomain = "a/b" }, "trust domain"},
		{"relative refuse socket", func(s *Settings) { s.RefuseSocket = "refuse.sock" }, "refuse socket"},
		{"long refuse socket", func(s *Settings) { s.RefuseSocket = "/" + strings.Repeat("a", 107) }, "longer than 107"},
		{"relative log path", func(s *Settings) { s.AccessLogPath = "" }, "access log path"},
		{"no connections", func(s *Settings) { s.PodConnectionLimit = 0 }, "pod connection limit"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := DefaultSettings()
			tc.change(&s)
			checkError(t, s.Validate(), tc.want)
		})
	}
}

func TestBootstrapSettingsValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*BootstrapSettings)
		want   string
	}{
		{"good", func(*BootstrapSettings) {}, ""},
		{"no node", func(b *BootstrapSettings) { b.NodeID = "" }, "node id"},
		{"no xds socket", func(b *BootstrapSettings) { b.XDSSocket = "" }, "xds socket"},
		{"relative admin socket", func(b *BootstrapSettings) { b.AdminSocket = "admin" }, "admin socket"},
		{"few descriptors", func(b *BootstrapSettings) { b.DescriptorLimit = 255 }, "descriptor limit 255"},
		{"more than all", func(b *BootstrapSettings) { b.AccessLogSuccessPercent = 101 }, "percent 101"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			b := testBootstrap()
			tc.change(&b)
			checkError(t, b.Validate(), tc.want)
			_, err := Bootstrap(b)
			checkError(t, err, tc.want)
		})
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

// TestBootstrapBytes holds that the bytes are the message and are always the same.
func TestBootstrapBytes(t *testing.T) {
	first, err := Bootstrap(testBootstrap())
	if err != nil {
		t.Fatal(err)
	}
	var got bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(first, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(bootstrap(testBootstrap()), &got, protocmp.Transform()); diff != "" {
		t.Errorf("bootstrap (-want +got):\n%s", diff)
	}
	for range 20 {
		again, err := Bootstrap(testBootstrap())
		if err != nil || !bytes.Equal(first, again) {
			t.Fatalf("other bytes for the same settings, %v", err)
		}
	}
}

func TestMaxConnectionsStaysBelowAThird(t *testing.T) {
	for _, limit := range []uint64{minDescriptors, 1024, 65_536, 1_048_576, 1 << 40, 1<<64 - 1} {
		if got := MaxConnections(limit); got < 1 || uint64(got) >= limit/3 {
			t.Errorf("MaxConnections(%d) = %d, want between 1 and a third", limit, got)
		}
	}
}
