// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"aether.io/aether/internal/model"
)

// TestRealStartBesideRejected: of the listeners that an Envoy gets as it starts it
// rejects many, and serves the others.
func TestRealStartBesideRejected(t *testing.T) {
	const starts, rejected = 20, 12
	for i := range starts {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			l := newLab(t, PodSource, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")
			for i := range rejected {
				w := model.Workload{
					Name:           model.Name{Namespace: "default", Name: fmt.Sprint("lost-", i)},
					ServiceAccount: "lost", IP: netip.AddrFrom4([4]byte{10, 244, 99, byte(i)}), NetNS: "/run/netns/envoytest-nowhere",
				}
				l.must(l.listeners.UpdateResource(ListenerName(w.Name), Listener(w, testCapture(), l.settings)))
			}
			l.start(testCapture())
			l.mu.Lock()
			defer l.mu.Unlock()
			if len(l.nacks) == 0 {
				t.Error("Envoy rejected nothing")
			}
			for _, n := range l.nacks {
				if !strings.Contains(n, "envoytest-nowhere") {
					t.Errorf("Envoy rejected: %s", n)
				}
			}
			l.nacks = nil
		})
	}
}
