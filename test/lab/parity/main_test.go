// SPDX-License-Identifier: Apache-2.0

// Package parity holds what captured pods get against what the real kube-proxy
// gives the pod beside them, while random objects change.
//
// Each of a dozen families has one Service and its EndpointSlices and lives a history
// of its own. A round changes every family, waits until kube-proxy and the agent have
// applied it, and then dials all addresses of every family from both pods. What one
// family is in one round is a state.
//
// Of both sides the set of endpoints is read (kube-proxy's from its nftables rules,
// ours from Envoy) and confirmed by dialling until each of them has answered and
// nobody else. Whatever differs must be one of the differences this package lists;
// where a difference lets kube-proxy's set be another, a twin Service with the input
// put right must give kube-proxy our set.
//
// A run is reproducible by its seed, but for what the API server allocates.
package parity

import (
	"flag"
	"testing"

	"k8s.io/client-go/rest"

	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

var (
	seed   = flag.Uint64("seed", 1, "what the histories are drawn from")
	rounds = flag.Int("rounds", 40, "how often every family is changed")
)

func TestMain(m *testing.M) {
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // what is deprecated is drawn as well
	labtest.Main(m, lab.Config{})
}
