// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// EgressSource says whose address a captured connection has when it leaves Envoy.
type EgressSource string

// The egress sources.
const (
	// PodSource dials from the pod's network namespace: the server sees the pod.
	PodSource EgressSource = "pod"
	// NodeSource dials from Envoy's own network namespace: the server sees the node.
	NodeSource EgressSource = "node"
)

// The defaults of Settings.
const (
	DefaultTrustDomain        = "aether.internal"
	DefaultPodConnectionLimit = 10_000
	DefaultRecordRate         = 1_000
	DefaultRecordInterval     = 10 * time.Second
	DefaultAccessLogFaultRate = 1_000
	DefaultRefuseSocket       = "/run/aether/refuse.sock"
	DefaultAccessLogPath      = "/dev/stdout"
)

// Settings are the constants of a node's translation. A change of one of them
// may change every listener and cluster.
type Settings struct {
	// EgressSource is PodSource or NodeSource.
	EgressSource EgressSource
	// TrustDomain is the SPIFFE trust domain of the pods' identities.
	TrustDomain string
	// RefuseSocket is the absolute path of the refuser's Unix socket; at most
	// 107 bytes (sun_path).
	RefuseSocket string
	// AccessLogPath is the absolute path of the file Envoy appends the L4
	// access log to.
	AccessLogPath string
	// PodConnectionLimit is how many connections one filter chain of one pod's
	// listener holds at a time, at least 1.
	PodConnectionLimit uint32
	// RecordRate is how many connections a second the agent is told of at their
	// end, at least 1; as many again that failed or were refused.
	RecordRate uint32
	// RecordInterval is how often the agent is told of each open connection, at
	// least 100 ms.
	RecordInterval time.Duration
	// AccessLogFaultRate is how many refusals and failures a second the access
	// log holds, at least 1.
	AccessLogFaultRate uint32
}

// DefaultSettings returns the settings of a node that sets nothing.
func DefaultSettings() Settings {
	return Settings{
		EgressSource:       PodSource,
		TrustDomain:        DefaultTrustDomain,
		RefuseSocket:       DefaultRefuseSocket,
		AccessLogPath:      DefaultAccessLogPath,
		PodConnectionLimit: DefaultPodConnectionLimit,
		RecordRate:         DefaultRecordRate,
		RecordInterval:     DefaultRecordInterval,
		AccessLogFaultRate: DefaultAccessLogFaultRate,
	}
}

// minRecordInterval keeps records of open connections from crowding out all else.
const minRecordInterval = 100 * time.Millisecond

// maxSocketPath is the longest path of a Unix socket on Linux, in bytes.
const maxSocketPath = 107

// Validate reports every setting that cannot be translated.
func (s Settings) Validate() error {
	var errs []error
	if s.EgressSource != PodSource && s.EgressSource != NodeSource {
		errs = append(errs, fmt.Errorf("egress source %q: want %q or %q", s.EgressSource, PodSource, NodeSource))
	}
	if s.TrustDomain == "" || strings.ContainsAny(s.TrustDomain, "/%: ") {
		errs = append(errs, fmt.Errorf("trust domain %q: not a SPIFFE trust domain", s.TrustDomain))
	}
	errs = append(errs, checkSocket("refuse socket", s.RefuseSocket), checkPath("access log path", s.AccessLogPath))
	if s.PodConnectionLimit == 0 {
		errs = append(errs, errors.New("pod connection limit 0: want at least 1"))
	}
	if s.RecordRate == 0 {
		errs = append(errs, errors.New("record rate 0: want at least 1"))
	}
	if s.AccessLogFaultRate == 0 {
		errs = append(errs, errors.New("access log fault rate 0: want at least 1"))
	}
	if s.RecordInterval < minRecordInterval {
		errs = append(errs, fmt.Errorf("record interval %s: want at least %s", s.RecordInterval, minRecordInterval))
	}
	return errors.Join(errs...)
}

func checkPath(what, path string) error {
	if !strings.HasPrefix(path, "/") {
		return fmt.Errorf("%s %q: not an absolute path", what, path)
	}
	return nil
}

func checkSocket(what, path string) error {
	if err := checkPath(what, path); err != nil {
		return err
	}
	if len(path) > maxSocketPath {
		return fmt.Errorf("%s %q: longer than %d bytes", what, path, maxSocketPath)
	}
	return nil
}
