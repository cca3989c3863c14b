// SPDX-License-Identifier: Apache-2.0

package main

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
			got := distributionOf(c.values)
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
		d := distributionOf(values)
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
		if distributionOf(values) != d {
			t.Fatal("depends on the order of the values")
		}
	})
}

func TestRatiosAreOfNeighbours(t *testing.T) {
	// The machine slows down tenfold in between; the ratio does not notice.
	l := Load{Samples: []LoadSample{
		{Round: 1, Lane: "bare", PerSecond: 1000, P99: 1, P50: 1, CPU: 10, All: 40},
		{Round: 1, Lane: "capture", PerSecond: 900, P99: 2, P50: 1, CPU: 11, All: 50, Others: 0.1},
		{Round: 2, Lane: "capture", PerSecond: 90, P99: 20, P50: 10, CPU: 12, All: 50, Others: 0.5},
		{Round: 2, Lane: "bare", PerSecond: 100, P99: 10, P50: 10, CPU: 10, All: 40},
		{Round: 3, Lane: "bare", PerSecond: 1, P99: 1, P50: 1, CPU: 1, Others: 0.9, SetAside: true},
		{Round: 3, Lane: "capture", PerSecond: 99, P99: 99, P50: 99, CPU: 99, Others: 0.9, SetAside: true},
	}}
	l.summarise([]string{"bare", "capture"})
	got := l.Ratios["capture"]
	if got.PerSecond.Min != 0.9 || got.PerSecond.Max != 0.9 || got.P99.Min != 2 || got.P99.Max != 2 {
		t.Errorf("requests %+v, p99 %+v; want 0.9 and 2 in both rounds", got.PerSecond, got.P99)
	}
	if !near(got.CPU.Median, 1.15) {
		t.Errorf("CPU ratio %v, want 1.15", got.CPU.Median)
	}
	if got.All.Min != 1.25 || got.All.Max != 1.25 {
		t.Errorf("CPU of all %+v, want 1.25", got.All)
	}
	if _, own := l.Ratios["bare"]; own {
		t.Error("the first lane is compared with itself")
	}
	if l.Others.Max != 0.5 || l.Others.Count != 4 {
		t.Errorf("others %+v, want four shares up to 0.5", l.Others)
	}
	if l.Lanes["bare"].PerSecond.Median != 550 {
		t.Errorf("bare lane %+v, want a median of 550/s", l.Lanes["bare"].PerSecond)
	}
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
		if d := distributionOf(values); d.Low <= math.Ln2 && math.Ln2 <= d.High {
			spans++
		}
	}
	if share := float64(spans) / trials; share < 0.94 || share > 0.99 {
		t.Errorf("%.3f of the samples span the median, want about 0.97", share)
	}
}
