// SPDX-License-Identifier: Apache-2.0

package figure

import "testing"

func TestUnits(t *testing.T) {
	for want, got := range map[string]string{
		"0.500": Ratio.Write(0.5), "2.50 ms": Millis.Write(2.5), "12.3 % of a core": CoreShare.Write(0.123),
		"50/s": PerSecond.Write(49.9), "3.1 KiB": Kibibytes.Write(3.12), "999": Thousands(999), "10,000": Thousands(10_000), "1,000,050": Thousands(1_000_050),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
