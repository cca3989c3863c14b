// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// grants is deploy/rbac.yaml.
type grants struct {
	namespace corev1.Namespace
	account   corev1.ServiceAccount
	role      rbacv1.ClusterRole
	binding   rbacv1.ClusterRoleBinding
}

func readGrants(t *testing.T) (g grants) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "deploy", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := yaml.NewYAMLOrJSONDecoder(f, 1<<16)
	for _, into := range []any{&g.namespace, &g.account, &g.role, &g.binding} {
		if err := d.Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// The manifest grants what the code asks for, and no more.
func TestRightsAreGranted(t *testing.T) {
	g := readGrants(t)
	var granted []Right
	for _, r := range g.role.Rules {
		if len(r.ResourceNames) > 0 {
			t.Errorf("a rule is bound to names: %+v", r)
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				granted = append(granted, Right{Verbs: r.Verbs, Group: group, Resource: resource})
			}
		}
		for _, path := range r.NonResourceURLs {
			granted = append(granted, Right{Verbs: r.Verbs, Path: path})
		}
	}
	order := func(a, b Right) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Path, b.Path))
	}
	asked := Rights()
	slices.SortFunc(asked, order)
	slices.SortFunc(granted, order)
	if d := gocmp.Diff(asked, granted); d != "" {
		t.Errorf("rights (-asked for +granted)\n%s", d)
	}
}

func TestRoleIsBound(t *testing.T) {
	g := readGrants(t)
	want := rbacv1.Subject{Kind: "ServiceAccount", Name: g.account.Name, Namespace: g.account.Namespace}
	if !slices.Equal(g.binding.Subjects, []rbacv1.Subject{want}) || g.namespace.Name != g.account.Namespace {
		t.Errorf("bound to %+v, want %+v", g.binding.Subjects, want)
	}
	if r := g.binding.RoleRef; r.Kind != "ClusterRole" || r.Name != g.role.Name || r.APIGroup != rbacv1.GroupName {
		t.Errorf("binds %+v, want ClusterRole %s", r, g.role.Name)
	}
}
