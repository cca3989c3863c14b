// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"aether.io/aether/test/lab/labtest"
)

// importDefinition is the least definition of ServiceImports that an API server
// takes, in the versions given: the first one is how they are stored, and one with a
// minus before it is not served any more.
func importDefinition(versions ...string) string {
	var b strings.Builder
	b.WriteString(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: serviceimports.multicluster.x-k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes/enhancements/tree/master/keps/sig-multicluster/1645-multi-cluster-services-api"}
spec:
  group: multicluster.x-k8s.io
  scope: Namespaced
  names: {kind: ServiceImport, plural: serviceimports, singular: serviceimport}
  versions:`)
	for i, v := range versions {
		name, gone := strings.CutPrefix(v, "-")
		fmt.Fprintf(&b, `
  - name: %s
    served: %t
    storage: %t
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}`, name, !gone, i == 0)
	}
	return b.String()
}

var imports = schema.GroupVersionResource{Group: "multicluster.x-k8s.io", Version: "v1beta1", Resource: "serviceimports"}

// importing makes an import as soon as that version of its kind is served.
func importing(s *labtest.Space, version string) {
	s.Eventually("an import can be made", func() error {
		return s.Cluster.Apply(context.Background(), s.Namespace, `
{apiVersion: multicluster.x-k8s.io/`+version+`, kind: ServiceImport, metadata: {name: remote},
 spec: {type: ClusterSetIP, ips: [243.0.0.7], ports: [{port: 80, protocol: TCP}]}}`)
	})
}

// clusterSetIP is outside every range, as some implementations allocate it.
var clusterSetIP = netip.MustParseAddr("243.0.0.7")

// importsComeAndGo: nobody had heard of ServiceImports when the agent started. An
// import's address is passed through to whoever answers it, in whichever version
// imports are served, and nothing is ever refused there.
func importsComeAndGo(t *testing.T) {
	s := labtest.New(t)
	s.Apply(server("remote", 1), labtest.Client("captured", true))
	s.Ready("captured")
	s.Endpoints("remote", 1)
	stranded(t, s, "remote", clusterSetIP)
	importIs := func(chain string) error { return passedThrough(within(t), s, "captured", clusterSetIP, chain) }
	before, err := s.Refusals(t.Context())
	s.Must(err)
	s.Eventually("the address is passed through, as any outside the range", func() error { return importIs(outside) })
	open := hold(t, s, "captured", clusterSetIP, talkPort)
	l := dialling(t, s, "/", []string{"captured"}, clusterSetIP)

	s.Apply(importDefinition("v1alpha1"))
	t.Cleanup(func() { removeDefinition(t, s) })
	importing(s, "v1alpha1")
	s.Eventually("the import is known", func() error { return importIs(inRange) })
	for range 10 {
		s.Must(importIs(inRange))
	}

	// A newer definition comes, as by an upgrade of who brought it, and then the older
	// version is not served any more.
	s.Apply(importDefinition("v1beta1", "v1alpha1"))
	s.Must(importIs(inRange))
	s.Apply(importDefinition("v1beta1", "-v1alpha1"))
	s.Eventually("the agent watches v1beta1", func() error {
		s.Must(importIs(inRange))
		b, err := os.ReadFile(s.Node.Paths().AgentLog)
		if err == nil && !strings.Contains(string(b), `msg="ServiceImports are watched" version=v1beta1`) {
			err = errors.New("its log does not say so")
		}
		return err
	})
	s.Must(importIs(inRange))

	s.Must(s.Dynamic().Resource(imports).Namespace(s.Namespace).Delete(t.Context(), "remote", metav1.DeleteOptions{}))
	s.Eventually("the import is forgotten", func() error { return importIs(outside) })
	importing(s, "v1beta1")
	s.Eventually("the import is known again", func() error { return importIs(inRange) })
	removeDefinition(t, s)
	s.Eventually("the import went with its definition", func() error { return importIs(outside) })
	s.Eventually("the agent knows that there are no imports any more", func() error { return importsAreGone(s) })
	l.unharmed(t, "the import's address, from before the definition on")
	lived(t, open)
	after, err := s.Refusals(t.Context())
	s.Must(err)
	for key, n := range after {
		if n != before[key] {
			t.Errorf("refused meanwhile: %s %d", key, n-before[key])
		}
	}
}

// importsAreGone is nil when the agent has noticed that imports are not served, which
// takes it two looks 10 s apart, for a second time since it started: until then it is
// behind, and refuses no address for being unknown.
func importsAreGone(s *labtest.Space) error {
	b, err := os.ReadFile(s.Node.Paths().AgentLog)
	if err != nil {
		return err
	}
	if n := strings.Count(string(b), `does not serve a kind; it is looked for again" type=multicluster.x-k8s.io/serviceimports`); n < 2 {
		return errorf("its log says so %d times", n)
	}
	behind, err := s.AgentMetric(context.Background(), "aether_agent_source_behind")
	if err != nil {
		return err
	}
	if len(behind) != 1 || behind[0].Value != 0 {
		return errorf("it is behind: %v", behind)
	}
	return nil
}

// removeDefinition removes the definition, and with it all imports.
func removeDefinition(t *testing.T, s *labtest.Space) {
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	err := s.Dynamic().Resource(crds).Delete(context.Background(), "serviceimports.multicluster.x-k8s.io", metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("remove the definition: %v", err)
	}
}
