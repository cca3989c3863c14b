// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"aether.io/aether/internal/kube/apitest"
)

// served asks client-go what the server has.
func served(t *testing.T, s *apitest.Server) []string {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := d.ServerGroupsAndResourcesWithContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range lists {
		for _, r := range l.APIResources {
			out = append(out, fmt.Sprintf("%s/%s", l.GroupVersion, r.Name))
		}
	}
	slices.Sort(out)
	return out
}

func TestDiscovery(t *testing.T) {
	base := "discovery.k8s.io/v1/endpointslices networking.k8s.io/v1/ingresses networking.k8s.io/v1/networkpolicies v1/nodes v1/pods v1/services"
	v1 := " networking.k8s.io/v1/ipaddresses networking.k8s.io/v1/servicecidrs"
	beta := " networking.k8s.io/v1beta1/ipaddresses networking.k8s.io/v1beta1/servicecidrs"
	for _, row := range []struct {
		options apitest.Options
		imports []string
		want    string
	}{
		{apitest.Options{}, nil, base + v1},
		{apitest.Options{BetaNetworking: true}, nil, base + v1},
		{apitest.Options{Minor: 36, BetaNetworking: true}, nil, base + v1 + beta},
		{apitest.Options{Minor: 33}, nil, base + v1},
		{apitest.Options{Minor: 32}, nil, base},
		{apitest.Options{Minor: 31, BetaNetworking: true}, nil, base + beta},
		{apitest.Options{Minor: 30, BetaNetworking: true}, nil, base},
		{apitest.Options{}, []string{"v1alpha1"}, base + v1 + " multicluster.x-k8s.io/v1alpha1/serviceimports"},
		{
			apitest.Options{},
			[]string{"v1beta1", "v1alpha1"},
			base + v1 + " multicluster.x-k8s.io/v1alpha1/serviceimports multicluster.x-k8s.io/v1beta1/serviceimports",
		},
	} {
		for _, row.options.LegacyDiscovery = range []bool{false, true} {
			s := apitest.Start(t, row.options)
			s.InstallServiceImports(row.imports...)
			want := strings.Fields(row.want)
			slices.Sort(want)
			if got := served(t, s); !slices.Equal(got, want) {
				t.Errorf("%+v: got %v\nwant %v", row.options, got, want)
			}
			documents := len(s.Requests(""))
			if aggregated := documents == 2; aggregated == row.options.LegacyDiscovery {
				t.Errorf("%+v: asked %d documents", row.options, documents)
			}
			s.Close()
		}
	}
}

func TestDiscoveryOfOneVersion(t *testing.T) {
	s := apitest.Start(t, apitest.Options{Minor: 32})
	d, err := discovery.NewDiscoveryClientForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, gv := range []string{"networking.k8s.io/v1beta1", "multicluster.x-k8s.io/v1beta1"} {
		if _, err := d.ServerResourcesForGroupVersionWithContext(t.Context(), gv); !apierrors.IsNotFound(err) {
			t.Errorf("a version that is not served: %v", err)
		}
	}
	if list, err := d.ServerResourcesForGroupVersionWithContext(t.Context(), "networking.k8s.io/v1"); err != nil || len(list.APIResources) != 2 {
		t.Errorf("networking of 1.32: %v, %v", list, err)
	}
	list, err := d.ServerResourcesForGroupVersionWithContext(t.Context(), "v1")
	if err != nil || len(list.APIResources) != 3 {
		t.Errorf("core: %v, %v", list, err)
	}
	if v, err := d.ServerVersionWithContext(t.Context()); err != nil || v.Minor != "32" {
		t.Errorf("version %v, %v", v, err)
	}
	// The document of one group, as a client asks that looks for a CRD.
	var group metav1.APIGroup
	get := func() error {
		return client(t, s, core, jsonType).Get().AbsPath("/apis/" + apitest.ImportGroup).Do(t.Context()).Into(&group)
	}
	if err := get(); !apierrors.IsNotFound(err) {
		t.Errorf("a group that is not there: %v", err)
	}
	s.InstallServiceImports("v1beta1", "v1alpha1")
	if err := get(); err != nil || group.PreferredVersion.Version != "v1beta1" || len(group.Versions) != 2 {
		t.Errorf("the group: %+v, %v", group, err)
	}
}

// TestImportsComeAndGo: the CRD is installed, changes its version and is removed.
func TestImportsComeAndGo(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		imports := func(version string) error {
			gv := schema.GroupVersion{Group: apitest.ImportGroup, Version: version}
			raw, err := client(t, s, gv, jsonType).Get().Resource("serviceimports").Do(t.Context()).Raw()
			if err == nil && !strings.Contains(string(raw), `"apiVersion":"multicluster.x-k8s.io/`+version+`","kind":"ServiceImport"`) {
				t.Errorf("%s has no import of that version", raw)
			}
			return err
		}
		if err := imports("v1beta1"); !apierrors.IsNotFound(err) {
			t.Errorf("before the CRD: %v", err)
		}
		s.InstallServiceImports("v1alpha1")
		s.Apply(apitest.ServiceImport("shop", "api", "243.0.0.5"))
		if err := imports("v1alpha1"); err != nil {
			t.Error(err)
		}
		s.InstallServiceImports("v1beta1")
		if err := imports("v1alpha1"); !apierrors.IsNotFound(err) {
			t.Errorf("a version that is served no more: %v", err)
		}
		if err := imports("v1beta1"); err != nil {
			t.Error(err)
		}
		s.RemoveServiceImports()
		if err := imports("v1beta1"); !apierrors.IsNotFound(err) {
			t.Errorf("after the CRD: %v", err)
		}
		if left := s.Objects("serviceimports"); len(left) != 0 {
			t.Errorf("imports outlive their CRD: %v", left)
		}
	})
}
