// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// preferred is the version of the MCS API that is watched when there is a choice:
// the one that is stored.
const preferred = "v1beta1"

// discover asks in which version the API server serves an optional kind; served
// is false when in none that is read.
func (c *Client) discover(ctx context.Context, k Kind) (v schema.GroupVersion, served bool, err error) {
	versions := []string{k.version().Version}
	if k == ServiceImports {
		if versions, err = c.versions(ctx, k.group()); err != nil {
			return v, false, err
		}
	}
	for _, version := range versions {
		v = schema.GroupVersion{Group: k.group(), Version: version}
		var list metav1.APIResourceList
		if found, err := c.document(ctx, "/apis/"+v.String(), &list); err != nil {
			return v, false, err
		} else if !found {
			continue
		}
		if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == string(k) }) {
			return v, true, nil
		}
	}
	return v, false, nil
}

// versions lists a group's versions, the preferred one first.
func (c *Client) versions(ctx context.Context, group string) ([]string, error) {
	var g metav1.APIGroup
	if found, err := c.document(ctx, "/apis/"+group, &g); err != nil || !found {
		return nil, err
	}
	var out []string
	for _, v := range g.Versions {
		if v.Version == preferred {
			out = slices.Insert(out, 0, v.Version)
		} else {
			out = append(out, v.Version)
		}
	}
	return out, nil
}

// document reads a document of the API server's own; found is false when it has
// none there.
func (c *Client) document(ctx context.Context, path string, into any) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := c.builtIn(schema.GroupVersion{Version: "v1"})
	if err != nil {
		return false, err
	}
	b, err := r.Get().AbsPath(path).SetHeader("Accept", jsonType).DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for %s: %w", path, err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return true, nil
}
