// SPDX-License-Identifier: Apache-2.0

package main

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
}

func distributionOf(values []float64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	s := slices.Sorted(slices.Values(values))
	return Distribution{
		Count: len(s), Min: s[0], Q1: quantile(s, 0.25), Median: quantile(s, 0.5), Q3: quantile(s, 0.75),
		P99: quantile(s, 0.99), Max: s[len(s)-1],
	}
}

// quantile returns the q-quantile (0 to 1) of sorted values, which must not be
// empty, interpolating between neighbours.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// median is the median of values, 0 of none.
func median(values []float64) float64 { return distributionOf(values).Median }
