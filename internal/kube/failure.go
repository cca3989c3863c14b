// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// failure is what kind of failure a request met. The set is closed: it is a label
// of a metric.
type failure string

const (
	failUnreachable failure = "unreachable" // no answer that an API server would give
	failForbidden   failure = "forbidden"   // 401, 403
	failAbsent      failure = "not-served"  // 404
	failExpired     failure = "expired"     // 410: history that is gone; a new list follows
	failThrottled   failure = "throttled"   // 429
	failServer      failure = "server"      // any other answer
)

func failures() []failure {
	return []failure{failUnreachable, failForbidden, failAbsent, failExpired, failThrottled, failServer}
}

// failureOf tells a request's error.
func failureOf(err error) failure {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return failUnreachable
	}
	switch code := status.Status().Code; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return failForbidden
	case code == http.StatusNotFound:
		return failAbsent
	case code == http.StatusGone || apierrors.IsResourceExpired(err):
		return failExpired
	case code == http.StatusTooManyRequests:
		return failThrottled
	}
	return failServer
}

// cause returns the error without the request that met it.
func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
