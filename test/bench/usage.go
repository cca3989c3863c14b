// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"runtime"
	"slices"
	"time"

	"aether.io/aether/test/bench/figure"
)

// calm is the share of the machine, 0 to 1, that others may use in a round for it
// to count. 1 lets every round count.
type calm float64

const (
	// calmLook is how long others are watched before a round begins, calmWait how
	// long at most until they are calm: after that the round is made all the same.
	calmLook = 300 * time.Millisecond
	calmWait = 20 * time.Second
)

// wait waits for others to be calm.
func (c calm) wait(ctx context.Context) error {
	if c >= 1 {
		return nil
	}
	for deadline := time.Now().Add(calmWait); time.Now().Before(deadline); {
		before, err := figure.UsageOf(nil)
		if err != nil {
			return err
		}
		select {
		case <-time.After(calmLook):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := figure.UsageOf(nil)
		if err != nil {
			return err
		}
		if after.OthersSince(before, runtime.NumCPU()) <= float64(c) {
			return nil
		}
	}
	return nil
}

// holds reports whether others were calm in all samples of a round.
func (c calm) holds(samples []LoadSample) bool {
	return c >= 1 || !slices.ContainsFunc(samples, func(s LoadSample) bool { return s.Others > float64(c) })
}
