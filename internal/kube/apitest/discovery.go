// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// verbs are what can be done to every resource.
var verbs = metav1.Verbs{"get", "list", "watch"}

// groups returns the groups that are served, core first, then by name.
func (s *Server) groups() []string {
	var out []string
	for _, k := range kinds {
		if len(k.versions(s)) > 0 {
			out = append(out, k.group)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// versionsOf returns the versions of a group, the preferred first.
func (s *Server) versionsOf(group string) (out []string) {
	for _, k := range kinds {
		if k.group != group {
			continue
		}
		for _, v := range k.versions(s) {
			if !slices.Contains(out, v) {
				out = append(out, v)
			}
		}
	}
	return out
}

// served returns the kinds of a group's version.
func (s *Server) served(group, version string) (out []kind) {
	for _, k := range kinds {
		if k.group == group && slices.Contains(k.versions(s), version) {
			out = append(out, k)
		}
	}
	return out
}

// discover answers the discovery documents.
func (s *Server) discover(a *answer, r *http.Request) error {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case parts[0] == "version":
		return writeJSON(a, "application/json", version.Info{
			Major: "1", Minor: strconv.Itoa(s.options.Minor), GitVersion: fmt.Sprintf("v1.%d.0", s.options.Minor),
		})
	case parts[0] != "api" && parts[0] != "apis":
		a.begin(http.StatusOK, "text/plain")
		_, err := a.Write([]byte("ok"))
		return err
	case len(parts) == 1 && s.wantsAggregated(r):
		a.Header().Set("Vary", "Accept")
		return writeJSON(a, aggregated, s.aggregate(parts[0] == "api"))
	case len(parts) == 1 && parts[0] == "api":
		return writeAs(a, r, &metav1.APIVersions{Versions: s.versionsOf("")})
	case len(parts) == 1:
		return writeAs(a, r, s.groupList())
	case parts[0] == "api":
		return s.resources(a, r, "", parts[1])
	case len(parts) == 3:
		return s.resources(a, r, parts[1], parts[2])
	}
	for _, g := range s.groupList().Groups {
		if g.Name == parts[1] {
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return writeAs(a, r, &g)
		}
	}
	return s.missing(a, parts[1])
}

// missing answers for a path that leads nowhere: within a group that is served
// with a Status, else with a page, as API servers do.
func (s *Server) missing(a *answer, group string) error {
	if len(s.versionsOf(group)) == 0 {
		a.begin(http.StatusNotFound, "text/plain; charset=utf-8")
		_, err := a.Write([]byte("404 page not found\n"))
		return err
	}
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "", "", 0, false)
}

// wantsAggregated reports whether aggregated discovery is what the client prefers
// of all that there is here.
func (s *Server) wantsAggregated(r *http.Request) bool {
	if s.options.LegacyDiscovery {
		return false
	}
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		if params["as"] == "" {
			return false
		}
		if media == runtime.ContentTypeJSON && params["g"] == "apidiscovery.k8s.io" && params["v"] == "v2" && params["as"] == "APIGroupDiscoveryList" {
			return true
		}
	}
	return false
}

// aggregate makes the document with everything, of the core group or of the
// others.
func (s *Server) aggregate(core bool) *apidiscoveryv2.APIGroupDiscoveryList {
	out := &apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
		Items:    []apidiscoveryv2.APIGroupDiscovery{},
	}
	for _, group := range s.groups() {
		if (group == "") != core {
			continue
		}
		one := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: group}}
		for _, v := range s.versionsOf(group) {
			in := apidiscoveryv2.APIVersionDiscovery{Version: v, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
			for _, k := range s.served(group, v) {
				is := metav1.GroupVersionKind{Kind: k.kind} // built-in kinds leave the rest out
				if k.custom {
					is.Group, is.Version = group, v
				}
				scope := apidiscoveryv2.ScopeCluster
				if k.namespaced {
					scope = apidiscoveryv2.ScopeNamespace
				}
				in.Resources = append(in.Resources, apidiscoveryv2.APIResourceDiscovery{
					Resource: k.resource, SingularResource: strings.ToLower(k.kind), Scope: scope, Verbs: verbs,
					ResponseKind: &is,
				})
			}
			one.Versions = append(one.Versions, in)
		}
		out.Items = append(out.Items, one)
	}
	return out
}

func (s *Server) groupList() *metav1.APIGroupList {
	out := &metav1.APIGroupList{Groups: []metav1.APIGroup{}}
	for _, group := range s.groups() {
		if group == "" {
			continue
		}
		one := metav1.APIGroup{Name: group}
		for _, v := range s.versionsOf(group) {
			one.Versions = append(one.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + v, Version: v})
		}
		one.PreferredVersion = one.Versions[0]
		out.Groups = append(out.Groups, one)
	}
	return out
}

// resources answers with the resources of a group's version.
func (s *Server) resources(a *answer, r *http.Request, group, v string) error {
	served := s.served(group, v)
	if len(served) == 0 {
		return s.missing(a, group)
	}
	out := &metav1.APIResourceList{GroupVersion: schema.GroupVersion{Group: group, Version: v}.String()}
	for _, k := range served {
		out.APIResources = append(out.APIResources, metav1.APIResource{
			Name: k.resource, SingularName: strings.ToLower(k.kind), Namespaced: k.namespaced, Kind: k.kind, Verbs: verbs,
		})
	}
	return writeAs(a, r, out)
}

// writeAs answers with one of the older documents, in what the client prefers.
func writeAs(a *answer, r *http.Request, o runtime.Object) error {
	info, ok := negotiate(r, true)
	if !ok {
		return notAcceptable(request{})
	}
	body, err := encode(info.Serializer, schema.GroupVersion{Version: "v1"}, o)
	if err != nil {
		return err
	}
	a.begin(http.StatusOK, info.MediaType)
	_, err = a.Write(body)
	return err
}

func writeJSON(a *answer, contentType string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %T: %w", v, err)
	}
	a.begin(http.StatusOK, contentType)
	_, err = a.Write(body)
	return err
}
