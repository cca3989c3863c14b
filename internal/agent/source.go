// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/manifest"
	"aether.io/aether/internal/model"
)

// Batch is what a source of truth tells at once.
type Batch struct {
	Changes []model.Change
	// Problems are all that the source complains of now.
	Problems []api.Problem
	// Synced is true when everything has been told at least once.
	Synced bool
}

// Source tells sink what it knows, then every change, until ctx ends. It calls
// sink from one goroutine; sink may block.
type Source func(ctx context.Context, sink func(Batch)) error

// Manifests returns the source that watches directories of Kubernetes YAML.
func Manifests(dirs []string) Source {
	return func(ctx context.Context, sink func(Batch)) error {
		manifest.Watch(ctx, dirs, manifest.Options{}, func(b manifest.Batch) {
			out := Batch{Changes: b.Changes, Synced: b.Synced}
			for _, p := range b.Problems {
				out.Problems = append(out.Problems, api.Problem{Source: p.Source(), Text: p.Err})
			}
			sink(out)
		})
		return nil
	}
}
