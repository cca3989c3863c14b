// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"time"

	"aether.io/aether/internal/agent/api"
)

// Looks is whether addresses that no Service is known to have can be looked at
// before they are refused.
type Looks struct {
	// Cause is why they cannot, a word of package plan; empty when they can.
	Cause string
	Since time.Time
}

// assessUnknown judges the looks, where there is somebody who looks.
func assessUnknown(f Facts) []api.Finding {
	const id = "unknown-addresses"
	l := f.Looks
	if l == nil {
		return nil
	}
	if l.Cause == "" {
		return []api.Finding{ok(id, "an address that no Service is known to have is looked at before it is refused")}
	}
	state, fix := api.FindingWarning, statusCommand+"   # what is met"
	switch l.Cause {
	case "forbidden":
		fix = "kubectl apply -f deploy/rbac.yaml   # get on ipaddresses.networking.k8s.io"
	case "not-served":
		state, fix = api.FindingNote, "upgrade the cluster to Kubernetes 1.33 or later, which has IPAddress objects"
	}
	return []api.Finding{finding(id, state, fmt.Sprintf(
		"whose an unknown address is cannot be seen since %s (%s): %s", stamp(l.Since), roughly(f.Now.Sub(l.Since)), l.Cause), fix)}
}
