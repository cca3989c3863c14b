// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAfterLook(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	suspected := Answer{
		Class: ClassUnknown, Verdict: Refuse, Reason: NoService,
		Why: []string{"no Service has it", "mode enforce: refused as no-service"},
	}
	for _, c := range []struct {
		look    Look
		class   Class
		verdict Verdict
		reason  Reason
		why     string
	}{
		{Look{}, ClassUnknown, Passthrough, NoReason, "looked: not yet"},
		{Look{Sight: Absent, At: at}, ClassUnknown, Refuse, NoService, "looked: absent at 2026-01-02T03:04:05Z"},
		{
			Look{Sight: OfService, Owner: "default/web", At: at},
			ClassUnknown, Passthrough, NoReason,
			"looked: Service default/web has it at 2026-01-02T03:04:05Z, but the watch has not told of it yet",
		},
		{
			Look{Sight: OfOther, Owner: "gateways default/gw", At: at},
			ClassForeign, Passthrough, NoReason,
			"looked: gateways default/gw has it at 2026-01-02T03:04:05Z, which is no Service",
		},
		{
			Look{Sight: Blind, Cause: Forbidden, At: at},
			ClassUnknown, Passthrough, NoReason,
			"looked: nobody can see whose it is (forbidden) at 2026-01-02T03:04:05Z",
		},
	} {
		got := suspected.AfterLook(c.look)
		if got.Class != c.class || got.Verdict != c.verdict || got.Reason != c.reason {
			t.Errorf("%s: %s %s %s, want %s %s %s", c.look, got.Class, got.Verdict, got.Reason, c.class, c.verdict, c.reason)
		}
		if len(got.Why) != 3 || got.Why[0] != "no Service has it" || got.Why[1] != c.why {
			t.Errorf("%s: why %q", c.look, got.Why)
		}
		if refused := strings.Contains(got.Why[2], "refused"); refused != (c.verdict == Refuse) {
			t.Errorf("%s: last step %q", c.look, got.Why[2])
		}
	}
	if got := []string{"no Service has it", "mode enforce: refused as no-service"}; !slices.Equal(suspected.Why, got) {
		t.Errorf("the answer itself changed: %q", suspected.Why)
	}
}

// No answer but a suspected one is changed by any look.
func TestAfterLookLeavesTheRest(t *testing.T) {
	for _, a := range []Answer{
		{Class: ClassUnknown, Verdict: Passthrough},
		{Class: ClassService, Verdict: Refuse, Reason: NoEndpoints},
		{Class: ClassService, Verdict: Refuse, Reason: PortNotDeclared},
		{Class: ClassService, Verdict: Balance},
		{Class: ClassForeign, Verdict: Passthrough},
		{Class: ClassExternal, Verdict: Refuse, Reason: NotProxied},
		{Class: ClassAPIServer, Verdict: Passthrough},
	} {
		for _, s := range []Sight{NotLooked, Absent, OfService, OfOther, Blind} {
			if d := cmp.Diff(a, a.AfterLook(Look{Sight: s}), cmp.Comparer(func(x, y Answer) bool {
				return x.Class == y.Class && x.Verdict == y.Verdict && x.Reason == y.Reason && slices.Equal(x.Why, y.Why)
			})); d != "" {
				t.Errorf("after %q: %s", s, d)
			}
		}
	}
}
