// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/kube/apitest"
)

func names(list *corev1.ServiceList) (out []string) {
	for _, s := range list.Items {
		out = append(out, s.Name)
	}
	return out
}

func version(v uint64) string { return strconv.FormatUint(v, 10) }

func TestListSelects(t *testing.T) {
	s := apitest.Start(t, apitest.Options{})
	headless := service("d", "service.kubernetes.io/headless", "")
	headless.Spec.ClusterIP = "None"
	other := service("c")
	other.Namespace = "shop"
	s.Apply(service("b", "app", "x"), service("a"), other, headless)
	for _, accept := range []string{protobuf, jsonType} {
		c := client(t, s, core, accept)
		for _, row := range []struct {
			namespace, labels, fields string
			want                      []string
		}{
			{"", "", "", []string{"a", "b", "d", "c"}},
			{"shop", "", "", []string{"c"}},
			{"", "app=x", "", []string{"b"}},
			{"", "!service.kubernetes.io/headless", "", []string{"a", "b", "c"}},
			{"", "app notin (x),!service.kubernetes.io/headless", "", []string{"a", "c"}},
			{"", "", "spec.clusterIP!=None", []string{"a", "b", "c"}},
			{"", "", "metadata.name=a", []string{"a"}},
			{"", "", "metadata.namespace=shop", []string{"c"}},
		} {
			list := &corev1.ServiceList{}
			o := metav1.ListOptions{LabelSelector: row.labels, FieldSelector: row.fields}
			if err := c.Get().Namespace(row.namespace).Resource("services").VersionedParams(&o, params).Do(t.Context()).Into(list); err != nil {
				t.Fatal(err)
			}
			if got := names(list); !slices.Equal(got, row.want) {
				t.Errorf("%s %+v: got %v", accept, row, got)
			}
			if list.ResourceVersion != version(s.Version()) {
				t.Errorf("list is of version %s, the server at %d", list.ResourceVersion, s.Version())
			}
		}
		_, err := listServices(t.Context(), c, metav1.ListOptions{FieldSelector: "spec.ports=80"})
		if !apierrors.IsBadRequest(err) {
			t.Errorf("unknown field label: %v", err)
		}
	}
	for i, r := range s.Requests("services") {
		want := protobuf
		if i >= 9 {
			want = jsonType
		}
		if r.ContentType != want || r.Open || r.Bytes == 0 {
			t.Fatalf("request %d: %+v, want an answer of type %s", i, r, want)
		}
	}
}

func TestListFieldsOfOtherKinds(t *testing.T) {
	s := apitest.Start(t, apitest.Options{})
	for i := range 4 {
		s.Apply(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i)},
			Spec:       corev1.PodSpec{NodeName: fmt.Sprint("n", i%2)},
		}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
	}
	c := client(t, s, core, protobuf)
	pods := &corev1.PodList{}
	o := metav1.ListOptions{FieldSelector: "spec.nodeName=n1"}
	if err := c.Get().Resource("pods").VersionedParams(&o, params).Do(t.Context()).Into(pods); err != nil || len(pods.Items) != 2 {
		t.Errorf("pods of n1: %v, %v", pods.Items, err)
	}
	nodes := &corev1.NodeList{}
	o = metav1.ListOptions{FieldSelector: "metadata.name=n3"}
	if err := c.Get().Resource("nodes").VersionedParams(&o, params).Do(t.Context()).Into(nodes); err != nil || len(nodes.Items) != 1 {
		t.Errorf("node n3: %v, %v", nodes.Items, err)
	}
}

func TestListPages(t *testing.T) {
	s := apitest.Start(t, apitest.Options{})
	for i := range 5 {
		s.Apply(service(fmt.Sprint("s", i)))
	}
	began := s.Version()
	c := client(t, s, core, protobuf)
	first, err := listServices(t.Context(), c, metav1.ListOptions{Limit: 2})
	if err != nil || len(first.Items) != 2 || first.Continue == "" || first.RemainingItemCount == nil || *first.RemainingItemCount != 3 {
		t.Fatalf("first page %v %+v: %v", names(first), first.ListMeta, err)
	}
	// What is written meanwhile is not in the later pages: a list is of one moment.
	s.Apply(service("s9"), service("s2", "new", "label"))
	if err := s.Delete(service("s3")); err != nil {
		t.Fatal(err)
	}
	second, err := listServices(t.Context(), c, metav1.ListOptions{Limit: 2, Continue: first.Continue})
	if err != nil || !slices.Equal(names(second), []string{"s2", "s3"}) || len(second.Items[0].Labels) != 0 || second.ResourceVersion != version(began) {
		t.Fatalf("second page %v of %s: %v", names(second), second.ResourceVersion, err)
	}
	third, err := listServices(t.Context(), c, metav1.ListOptions{Limit: 2, Continue: second.Continue})
	if err != nil || !slices.Equal(names(third), []string{"s4"}) || third.Continue != "" {
		t.Fatalf("third page %v: %v", names(third), err)
	}
	exact, err := listServices(t.Context(), c, metav1.ListOptions{ResourceVersion: version(began), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil || len(exact.Items) != 5 || exact.ResourceVersion != version(began) {
		t.Errorf("at %d there were %v: %v", began, names(exact), err)
	}
	everything, err := listServices(t.Context(), c, metav1.ListOptions{Limit: 1, ResourceVersion: "0"})
	if err != nil || len(everything.Items) != 5 {
		t.Errorf("a list from the watch cache knows no limit: %v, %v", names(everything), err)
	}

	s.Compact()
	_, err = listServices(t.Context(), c, metav1.ListOptions{Limit: 2, Continue: first.Continue})
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("a page of a forgotten version: %v", err)
	}
	status = err.(apierrors.APIStatus)
	if status.Status().Code != http.StatusGone {
		t.Errorf("status %d", status.Status().Code)
	}
	rest, err := listServices(t.Context(), c, metav1.ListOptions{Continue: status.Status().Continue})
	if err != nil || !slices.Equal(names(rest), []string{"s2", "s4", "s9"}) {
		t.Errorf("the inconsistent rest is %v: %v", names(rest), err)
	}
	_, err = listServices(t.Context(), c, metav1.ListOptions{ResourceVersion: version(began), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a list of a forgotten version: %v", err)
	}
	if _, err = listServices(t.Context(), c, metav1.ListOptions{Continue: "nonsense"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a broken token: %v", err)
	}
}

func TestListOfVersionToCome(t *testing.T) {
	bubble(t, apitest.Options{}, func(t *testing.T, s *apitest.Server) {
		c := client(t, s, core, protobuf)
		soon := version(s.Version() + 1)
		go func() {
			time.Sleep(time.Second)
			s.Apply(service("a"))
		}()
		list, err := listServices(t.Context(), c, metav1.ListOptions{ResourceVersion: soon})
		if err != nil || len(list.Items) != 1 {
			t.Errorf("a list is held until its version is there: %v, %v", names(list), err)
		}
		_, err = listServices(t.Context(), c, metav1.ListOptions{ResourceVersion: version(s.Version() + 1)})
		if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) || !apierrors.IsTimeout(err) {
			t.Errorf("a version that does not come: %v", err)
		}
	})
}

func TestListOptionsAreValidated(t *testing.T) {
	s := apitest.Start(t, apitest.Options{})
	c := client(t, s, core, protobuf)
	yes := true
	for _, o := range []metav1.ListOptions{
		{SendInitialEvents: &yes},
		{ResourceVersionMatch: metav1.ResourceVersionMatchExact},
		{Watch: true, SendInitialEvents: &yes},
		{Watch: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
	} {
		if _, err := listServices(t.Context(), c, o); !apierrors.IsInvalid(err) {
			t.Errorf("%+v: %v, want it invalid", o, err)
		}
	}
	if _, err := listServices(t.Context(), c, metav1.ListOptions{ResourceVersion: "x"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a resourceVersion that is no number: %v", err)
	}
	_, err := listServices(t.Context(), c, metav1.ListOptions{ResourceVersion: "x", Watch: true})
	if status, ok := err.(apierrors.APIStatus); !ok || status.Status().Code != http.StatusInternalServerError {
		t.Errorf("a watch from a resourceVersion that is no number: %v", err)
	}
}

func TestGet(t *testing.T) {
	s := apitest.Start(t, apitest.Options{})
	s.Apply(service("a"), ipAddress("10.96.0.10"))
	for _, accept := range []string{protobuf, jsonType} {
		got := &corev1.Service{}
		if err := client(t, s, core, accept).Get().Namespace("default").Resource("services").Name("a").Do(t.Context()).Into(got); err != nil || got.UID == "" {
			t.Errorf("%s: %+v, %v", accept, got, err)
		}
		c := client(t, s, network, accept)
		if err := c.Get().Resource("ipaddresses").Name("10.96.0.10").Do(t.Context()).Error(); err != nil {
			t.Errorf("%s: %v", accept, err)
		}
		if err := c.Get().Resource("ipaddresses").Name("10.96.0.11").Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, want not found", accept, err)
		}
	}
}
