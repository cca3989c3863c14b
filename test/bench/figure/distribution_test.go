// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDistribution(t *testing.T) {
	hundred := make([]float64, 101)
	for i := range hundred {
		hundred[i] = float64(100 - i) // unsorted on purpose
	}
	cases := []struct {
		name   string
		values []float64
		want   Distribution
	}{
		{"none", nil, Distribution{}},
		{"one", []float64{3}, Distribution{Count: 1, Min: 3, Q1: 3, Median: 3, Q3: 3, P99: 3, Max: 3, Low: 3, High: 3}},
		{"two", []float64{4, 2}, Distribution{Count: 2, Min: 2, Q1: 2.5, Median: 3, Q3: 3.5, P99: 3.98, Max: 4, Low: 2, High: 4}},
		{"odd", []float64{5, 1, 3}, Distribution{Count: 3, Min: 1, Q1: 2, Median: 3, Q3: 4, P99: 4.96, Max: 5, Low: 1, High: 5}},
		{"0 to 100", hundred, Distribution{Count: 101, Min: 0, Q1: 25, Median: 50, Q3: 75, P99: 99, Max: 100, Low: 40, High: 60}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			given := slices.Clone(c.values)
			got := Of(c.values)
			if diff := cmp.Diff(c.want, got, cmp.Comparer(near)); diff != "" {
				t.Errorf("distribution (-want +got):\n%s", diff)
			}
			if !slices.Equal(given, c.values) {
				t.Error("the values were changed")
			}
		})
	}
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

func TestDistributionProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 200).Draw(t, "values")
		d := Of(values)
		order := []float64{d.Min, d.Q1, d.Median, d.Q3, d.P99, d.Max}
		if !slices.IsSorted(order) {
			t.Fatalf("not in order: %v", order)
		}
		if d.Min != slices.Min(values) || d.Max != slices.Max(values) {
			t.Fatalf("ends %v and %v are not the values' own", d.Min, d.Max)
		}
		// As many values lie above the median as below it.
		below, above := 0, 0
		for _, v := range values {
			if v < d.Median {
				below++
			}
			if v > d.Median {
				above++
			}
		}
		if below > len(values)/2 || above > len(values)/2 {
			t.Fatalf("%d values below and %d above the median of %d", below, above, len(values))
		}
		slices.Reverse(values)
		if Of(values) != d {
			t.Fatal("depends on the order of the values")
		}
	})
}

// TestMedianRank compares with the tables of the sign test.
func TestMedianRank(t *testing.T) {
	for n, want := range map[int]int{1: 0, 5: 0, 6: 0, 8: 0, 9: 1, 11: 1, 12: 2, 15: 3, 21: 5, 25: 7, 60: 21, 100: 39, 1250: 589, 50_000: 24_780} {
		if got := medianRank(n); got != want {
			t.Errorf("of %d values %d are left out at each end, want %d", n, got, want)
		}
	}
}

// TestConfidence: nineteen of twenty samples span the median they are drawn
// around, and not all do.
func TestConfidence(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	spans := 0
	const trials, n = 2000, 21
	for range trials {
		values := make([]float64, n)
		for i := range values {
			values[i] = random.ExpFloat64()
		}
		if d := Of(values); d.Low <= math.Ln2 && math.Ln2 <= d.High {
			spans++
		}
	}
	if share := float64(spans) / trials; share < 0.94 || share > 0.99 {
		t.Errorf("%.3f of the samples span the median, want about 0.97", share)
	}
}
