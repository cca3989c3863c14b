// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"strings"
	"testing"

	"aether.io/aether/internal/model"
)

// A source that tells its kinds one after the other completes the picture with a
// batch that comes soon after another: it counts before anything is answered.
func TestWhatCompletesThePictureIsInIt(t *testing.T) {
	n := newLoopTest(t)
	n.clock.Advance(second)
	n.turn([]message{n.batch(false, webService(), webSlice("10.244.1.5"))})
	n.turn([]message{n.batch(true, model.SetServiceCIDR{Name: "kubernetes", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})})
	if !n.synced || !n.state.RangeKnown() || len(n.pending) != 0 {
		t.Errorf("synced %t, range known %t, %d changes wait", n.synced, n.state.RangeKnown(), len(n.pending))
	}
	if strings.Contains(n.log.String(), "range") {
		t.Errorf("the range is complained of:\n%s", &n.log)
	}
}
