// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

const (
	addressResource = "ipaddresses"
	// proofAge is how long it counts as proven that the cluster allocates with
	// IPAddress objects.
	proofAge = 10 * time.Minute
)

// Looker looks at single addresses, beside the watches: it gets the IPAddress
// object that is named by the address (KEP-1880), which the API server makes before
// it stores the Service that the address is for.
//
// The object's absence says something only where Services have such objects. A
// cluster can serve the API and allocate without it (1.33 with the allocator off).
// So nothing is called absent before the object of a Service that is known was
// found.
type Looker struct {
	source *Source
	rest   *rest.RESTClient
	now    func() time.Time

	mu     sync.Mutex
	proven time.Time
}

// NewLooker makes a looker. It sets no rate: its caller does. It dials nothing.
func NewLooker(c *Client, s *Source) (*Looker, error) {
	unbounded := *c
	unbounded.config = rest.CopyConfig(c.config)
	unbounded.config.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	r, err := unbounded.builtIn(networkingv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Looker{source: s, rest: r, now: s.o.Now}, nil
}

// Look says whose an address is. It asks once, whatever the answer, and asks for
// what etcd has now: a request without a resource version is never answered from an
// API server's cache.
func (l *Looker) Look(ctx context.Context, a netip.Addr) plan.Look {
	found := l.look(ctx, a)
	if found.Sight != plan.Absent || l.isProven() {
		return found
	}
	witness, ok := l.source.anyVIP()
	if !ok {
		return blind(plan.NotServed)
	}
	switch seen := l.look(ctx, witness); seen.Sight {
	case plan.OfService:
		l.prove()
		return found
	case plan.Blind:
		return seen
	default:
		return blind(plan.NotServed)
	}
}

func (l *Looker) isProven() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.proven.IsZero() && l.now().Sub(l.proven) < proofAge
}

func (l *Looker) prove() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proven = l.now()
}

func (l *Looker) look(ctx context.Context, a netip.Addr) plan.Look {
	answer := l.rest.Get().Resource(addressResource).Name(a.String()).MaxRetries(0).
		VersionedParams(&metav1.GetOptions{}, metav1.ParameterCodec).Do(ctx)
	if err := answer.Error(); err != nil {
		return lookFailed(err, a)
	}
	var o networkingv1.IPAddress
	switch err := answer.Into(&o); {
	case err != nil, o.Name != a.String():
		return blind(plan.Malformed)
	case o.Spec.ParentRef == nil:
		return plan.Look{Sight: plan.OfOther, Owner: "an IPAddress object without an owner"}
	}
	p := o.Spec.ParentRef
	owner := model.Name{Namespace: p.Namespace, Name: p.Name}.String()
	if p.Namespace == "" {
		owner = p.Name
	}
	if p.Group == "" && p.Resource == "services" {
		return plan.Look{Sight: plan.OfService, Owner: owner}
	}
	what := p.Resource
	if p.Group != "" {
		what += "." + p.Group
	}
	return plan.Look{Sight: plan.OfOther, Owner: what + " " + owner}
}

func blind(c plan.Cause) plan.Look { return plan.Look{Sight: plan.Blind, Cause: c} }

// lookFailed tells that there is no such object from every other failure.
func lookFailed(err error, a netip.Addr) plan.Look {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return blind(plan.TimedOut)
	case !errors.As(err, &status):
		return blind(plan.Unreachable)
	}
	switch failureOf(err) {
	case failForbidden:
		return blind(plan.Forbidden)
	case failAbsent:
		if saysAbsent(status.Status().Details, a) {
			return plan.Look{Sight: plan.Absent}
		}
		return blind(plan.NotServed)
	default:
		return blind(plan.Refused)
	}
}

// saysAbsent reports whether a 404 is about the object. That of an API server that
// has no such resource, or of something in between, names no object.
func saysAbsent(d *metav1.StatusDetails, a netip.Addr) bool {
	if d == nil || d.Kind != addressResource || d.Name != a.String() {
		return false
	}
	for _, c := range d.Causes {
		if c.Type == metav1.CauseTypeUnexpectedServerResponse {
			return false
		}
	}
	return true
}

// Behind returns since when the watches of what can have an address of the Service
// range are known to be out of date, zero when they are not.
func (l *Looker) Behind() time.Time {
	f := l.source.Freshness()
	var since time.Time
	for _, k := range []Kind{Services, ServiceImports} {
		x := f.Of(k)
		if !x.Stale {
			continue
		}
		at := x.FailingSince
		if at.IsZero() {
			at = x.LastContact
		}
		if at.IsZero() {
			at = l.now()
		}
		if since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return since
}

// anyVIP returns a ClusterIP that a Service was told to have: that of the API
// server's own Service, else any.
func (s *Source) anyVIP() (netip.Addr, bool) {
	st := s.stores[Services]
	st.mu.Lock()
	defer st.mu.Unlock()
	if a, ok := vipOf(st.told[model.Name{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}]); ok {
		return a, true
	}
	for _, t := range st.told {
		if a, ok := vipOf(t); ok {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func vipOf(t told) (netip.Addr, bool) {
	set, ok := t.set.(model.SetService)
	return set.Service.VIP, ok && set.Service.VIP.IsValid()
}
