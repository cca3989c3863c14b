// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"aether.io/aether/internal/capture"
	"aether.io/aether/internal/check"
)

// lookAtPod reads a pod's capture rules and what listens there. The agent only
// looks: it writes no rule.
func lookAtPod(netns string, annotations map[string]string) (check.PodSight, error) {
	var s check.PodSight
	want, err := capture.ParseAnnotations(annotations, true)
	if err != nil {
		return s, err
	}
	var drift *capture.Drift
	if err := capture.Check(netns, want); errors.As(err, &drift) {
		s.Differences = drift.Differences
		s.Repair = installCommand(netns, annotations)
	} else if err != nil {
		return s, err
	}
	seen, err := capture.See(netns)
	if err != nil {
		return s, err
	}
	s.Listening, s.Ports, s.Slowed = seen.Listening, seen.Ports, seen.Slowed
	s.Conntrack = check.Conntrack{Off: seen.MaxTracked == 0, Count: seen.Tracked, Max: seen.MaxTracked}
	return s, nil
}

// installCommand is what makes the rules what they should be.
func installCommand(netns string, annotations map[string]string) string {
	var b strings.Builder
	b.WriteString("aetherctl capture install --netns " + netns)
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		fmt.Fprintf(&b, " --annotation '%s=%s'", key, strings.ReplaceAll(annotations[key], "'", `'\''`))
	}
	return b.String()
}
