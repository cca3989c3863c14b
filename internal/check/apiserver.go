// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
)

// APIServer is how the watches of the Kubernetes API fare.
type APIServer struct {
	Address string
	// UnreachableSince is when it stopped answering, zero while it answers; Err is
	// what was met last.
	UnreachableSince time.Time
	Err              string
	// Stale are the kinds of which what is known may be out of date.
	Stale []string
}

// assessAPIServer judges the API server, where it is the source.
func assessAPIServer(f Facts) []api.Finding {
	const id = "api-server"
	a := f.APIServer
	if a == nil {
		return nil
	}
	reach := fmt.Sprintf("curl -k %s/readyz   # from this node; any answer will do", a.Address)
	switch {
	case !a.UnreachableSince.IsZero():
		return []api.Finding{finding(id, api.FindingFailed,
			fmt.Sprintf("the API server %s is unreachable since %s (%s): %s", a.Address,
				stamp(a.UnreachableSince), roughly(f.Now.Sub(a.UnreachableSince)), a.Err), reach)}
	case len(a.Stale) > 0:
		return []api.Finding{finding(id, api.FindingWarning,
			fmt.Sprintf("the API server %s answers, but what is known of %s may be out of date", a.Address, strings.Join(a.Stale, ", ")),
			statusCommand+"   # what it complains of", reach)}
	}
	return []api.Finding{ok(id, "the API server %s is watched", a.Address)}
}
