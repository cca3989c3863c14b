// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"aether.io/aether/internal/agent/api"
)

const (
	// grace is how long requests may fail before anybody is told: an API server
	// that restarts ends every watch, and forbids at first what it will allow.
	grace = 3 * time.Second
	// mostComplaints bounds what is listed of each kind's objects.
	mostComplaints = 20
)

// problems lists what a person should look at: the API server, then rights and
// what is not served, then objects.
func (s *Source) problems() []api.Problem {
	var out []api.Problem
	f := s.Freshness()
	now := s.o.Now()
	if since := f.UnreachableSince; !since.IsZero() && now.Sub(since) >= grace {
		out = append(out, api.Problem{
			Source: "API server " + s.client.Server(),
			Text:   "unreachable since " + since.UTC().Format(time.RFC3339) + ": " + f.Unreachable.Error(),
		})
	}
	for _, k := range f.Kinds {
		if text := s.problemOf(k, now); text != "" {
			out = append(out, api.Problem{Source: s.resource(k.Kind), Text: text})
		}
	}
	for _, k := range Kinds() {
		list, all := s.stores[k].complaints()
		for _, c := range list {
			name := c.name.String()
			if c.name.Namespace == "" {
				name = c.name.Name
			}
			out = append(out, api.Problem{Source: k.object() + " " + name + " " + c.note.Field, Text: c.note.Text})
		}
		if more := all - len(list); more > 0 {
			out = append(out, api.Problem{Source: string(k), Text: fmt.Sprintf("%d more complaints of this kind are not listed", more)})
		}
	}
	return out
}

// resource names a kind as rules of RBAC do.
func (s *Source) resource(k Kind) string {
	if k.group() == "" {
		return string(k)
	}
	return string(k) + "." + k.group()
}

// problemOf says what is wrong with a kind beside an API server that does not
// answer; empty for nothing.
func (s *Source) problemOf(k KindFreshness, now time.Time) string {
	switch {
	case k.Absent && k.Kind == ServiceCIDRs && !s.o.RangeGiven:
		return "the API server does not serve networking.k8s.io/v1 ServiceCIDRs, as Kubernetes 1.33 and later do: no Service range is known; give --service-range"
	case k.Err == nil || now.Sub(k.FailingSince) < grace:
		return ""
	}
	switch failureOf(k.Err) {
	case failUnreachable: // said of the API server
		return ""
	case failForbidden:
		if apierrors.IsUnauthorized(k.Err) {
			return fmt.Sprintf("the API server does not accept the agent's credentials: %v", k.Err)
		}
		r := k.Kind.right()
		return fmt.Sprintf("forbidden: the agent's ClusterRole needs apiGroups: [%q], resources: [%s], verbs: [%s]: %v",
			r.Group, r.Resource, strings.Join(r.Verbs, ", "), k.Err)
	}
	return fmt.Sprintf("cannot be watched since %s: %v", k.FailingSince.UTC().Format(time.RFC3339), k.Err)
}
