// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// agentRole is the ClusterRole of deploy/rbac.yaml.
const agentRole = "aether-agent"

// serviceImports makes the kind of the MCS API known, as little of it as there can be.
const serviceImports = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: serviceimports.multicluster.x-k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes/enhancements/tree/master/keps/sig-multicluster/1645-multi-cluster-services-api"}
spec:
  group: multicluster.x-k8s.io
  scope: Namespaced
  names: {plural: serviceimports, singular: serviceimport, kind: ServiceImport}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}`

// right is one thing the agent may do.
type right struct {
	rule           int
	resource, verb string
	nonResource    string
	group          string
}

func (r right) String() string {
	if r.nonResource != "" {
		return r.verb + " " + r.nonResource
	}
	return r.verb + " " + r.resource
}

// rightsOf takes a role apart.
func rightsOf(rules []rbacv1.PolicyRule) []right {
	var out []right
	for i, r := range rules {
		for _, v := range r.Verbs {
			for _, res := range r.Resources {
				out = append(out, right{rule: i, resource: res, verb: v, group: r.APIGroups[0]})
			}
			for _, u := range r.NonResourceURLs {
				out = append(out, right{rule: i, nonResource: u, verb: v})
			}
		}
	}
	return out
}

// withoutRight returns the rules but for one right.
func withoutRight(rules []rbacv1.PolicyRule, x right) []rbacv1.PolicyRule {
	not := func(list []string, s string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(e string) bool { return e == s })
	}
	var out []rbacv1.PolicyRule
	for i, r := range rules {
		if i != x.rule {
			out = append(out, r)
			continue
		}
		others, rest := r.DeepCopy(), r.DeepCopy() // of that rule; of that resource
		if x.nonResource != "" {
			others.NonResourceURLs, rest.NonResourceURLs = not(r.NonResourceURLs, x.nonResource), []string{x.nonResource}
		} else {
			others.Resources, rest.Resources = not(r.Resources, x.resource), []string{x.resource}
		}
		rest.Verbs = not(r.Verbs, x.verb)
		if len(others.Resources)+len(others.NonResourceURLs) > 0 {
			out = append(out, *others)
		}
		if len(rest.Verbs) > 0 {
			out = append(out, *rest)
		}
	}
	return out
}

// The agent works with the rights of deploy/rbac.yaml, and every one of them is
// needed: without it the agent says which is missing. Against an API server that
// streams lists (1.34 and later by default) the verb list goes unused, and is
// needed against others.
func TestAgentNeedsEveryRightItHas(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		unused func(right) bool
	}{
		"streaming lists": {nil, func(r right) bool { return r.verb == "list" }},
		"plain lists":     {[]string{"--feature-gates=WatchList=false"}, func(right) bool { return false }},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := labtest.Own(t, "rights"+name[:2], lab.Config{Nodes: []lab.NodeConfig{{Name: "n1"}}, APIServerArgs: c.args})
			a := &agentRights{Space: labtest.In(t, cluster), t: t}
			a.prepare()
			rest := a.full
			for _, r := range slices.Backward(rightsOf(a.full)) { // a rule that is split moves those behind it
				if c.unused(r) {
					rest = withoutRight(rest, r)
				} else {
					a.needed(r)
				}
			}
			a.grant(rest)
			a.restart()
			a.Eventually("the agent works without those it does not use", func() error { return a.complains("") })
		})
	}
}

type agentRights struct {
	*labtest.Space
	t    *testing.T
	full []rbacv1.PolicyRule
}

// prepare makes every right matter: the CRD is there, and nobody may look around
// just because it is known who it is.
func (a *agentRights) prepare() {
	a.t.Helper()
	ctx := a.t.Context()
	a.Must(a.Cluster.Apply(ctx, "", serviceImports))
	a.Must(a.Client().RbacV1().ClusterRoleBindings().Delete(ctx, "system:discovery", metav1.DeleteOptions{}))
	a.Apply(labtest.Client("captured", true))
	a.Ready("captured")
	role, err := a.Client().RbacV1().ClusterRoles().Get(ctx, agentRole, metav1.GetOptions{})
	a.Must(err)
	a.full = role.Rules
	if len(a.full) == 0 {
		a.t.Fatal("the agent's role has no rules")
	}
	a.restart()
	a.Eventually("the agent works with all its rights", func() error { return a.complains("") })
}

// grant sets the rules of the agent's role.
func (a *agentRights) grant(rules []rbacv1.PolicyRule) {
	a.t.Helper()
	ctx := a.t.Context()
	role, err := a.Client().RbacV1().ClusterRoles().Get(ctx, agentRole, metav1.GetOptions{})
	a.Must(err)
	role.Rules = rules
	_, err = a.Client().RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	a.Must(err)
}

// restart starts the agent anew: what it watches already is not taken from it. It
// does not wait until it works.
func (a *agentRights) restart() {
	a.t.Helper()
	a.Must(a.Node.StopAgent(a.t.Context()))
	ctx, cancel := context.WithTimeout(a.t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = a.Node.StartAgent(ctx) // it is started; whether it works is what is asked
}

// complains is nil when the agent has a problem with that word in it; for an empty
// word, when it has none and is synced.
func (a *agentRights) complains(word string) error {
	st, err := a.AgentStatus(a.t.Context())
	if err != nil {
		return err
	}
	var all []string
	for _, p := range st.Problems {
		text := p.Source + ": " + p.Text
		if word != "" && strings.Contains(text, word) && strings.Contains(text, "forbidden") {
			return nil
		}
		all = append(all, p.Source+": "+p.Text)
	}
	if word == "" && st.Synced && len(all) == 0 {
		return nil
	}
	return fmt.Errorf("synced %v, problems %q", st.Synced, all)
}

// needed takes one right away and gives it back.
func (a *agentRights) needed(r right) {
	a.t.Helper()
	a.grant(withoutRight(a.full, r))
	a.restart()
	word := r.resource
	if word == "" {
		word = strings.TrimSuffix(r.nonResource, "/*")
	}
	if r.resource == "ipaddresses" {
		word = "look: "
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), 15*time.Second)
	err := lab.Poll(ctx, "the agent names it", func(context.Context) error {
		if r.resource == "ipaddresses" { // used when an address is nobody's
			a.Dial("captured", echo.Client{Mode: "talk", Target: "10.96.200.200:80", Timeout: 300 * time.Millisecond})
		}
		return a.complains(word)
	})
	cancel()
	if err != nil {
		a.t.Errorf("without %q: %v", r, err)
	}
	a.grant(a.full)
	a.restart()
	a.Eventually("the agent works again with "+r.String(), func() error { return a.complains("") })
}

// The agent is the account of the manifest, and may not look at anything else.
func TestAgentHasNoOtherRights(t *testing.T) {
	c := labtest.Cluster(t)
	for what, verdict := range map[string]bool{
		"list /services": true, "watch discovery.k8s.io/endpointslices": true,
		"list /secrets": false, "list /configmaps": false, "update /services": false, "create /pods": false, "list apps/deployments": false,
	} {
		verb, resource, _ := strings.Cut(what, " ")
		group, resource, _ := strings.Cut(resource, "/")
		may, err := c.AgentMay(t.Context(), verb, group, resource)
		if err != nil || may != verdict {
			t.Errorf("the agent may %s: %v, %v, want %v", what, may, err, verdict)
		}
	}
}
