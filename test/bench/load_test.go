// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

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

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }
