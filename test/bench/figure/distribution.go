// SPDX-License-Identifier: Apache-2.0

// Package figure is what measurements are reported in: distributions, with how sure
// their median is, rows with bars, and the CPU time and memory of processes.
//
// It reads /proc and writes nothing.
package figure

import (
	"math"
	"slices"
)

// Distribution describes a set of numbers. Of an empty set all is 0.
type Distribution struct {
	Count  int     `json:"count"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
	// Low and High hold the median of all such numbers, of which these are a
	// sample, with 95 % confidence. Fewer than six numbers cannot tell: then they
	// are Min and Max.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Of describes values, in any order.
func Of(values []float64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	s := slices.Sorted(slices.Values(values))
	out := medianRank(len(s))
	return Distribution{
		Count: len(s), Min: s[0], Q1: quantile(s, 0.25), Median: quantile(s, 0.5), Q3: quantile(s, 0.75),
		P99: quantile(s, 0.99), Max: s[len(s)-1], Low: s[out], High: s[len(s)-1-out],
	}
}

// medianRank returns how many of n sorted values may be left out at each end so
// that those left still span the median with 95 % confidence: each value is below
// it with probability 1/2, so their number is binomial.
func medianRank(n int) int {
	// The probability that at most k values are below, for growing k; its terms by
	// their logarithms, for of many values the first ones are too small.
	term := -float64(n) * math.Ln2
	k, sum := 0, math.Exp(term)
	for sum <= 0.025 {
		term += math.Log(float64(n-k) / float64(k+1))
		k++
		sum += math.Exp(term)
	}
	return max(0, k-1)
}

// quantile returns the q-quantile (0 to 1) of sorted values, which must not be
// empty, interpolating between neighbours.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// Median is the median of values, 0 of none.
func Median(values []float64) float64 { return Of(values).Median }
