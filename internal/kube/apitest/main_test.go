// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"aether.io/aether/internal/kube/apitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	scheme  = runtime.NewScheme()
	codecs  = serializer.NewCodecFactory(scheme)
	params  = metav1.ParameterCodec
	core    = schema.GroupVersion{Version: "v1"}
	network = networkingv1.SchemeGroupVersion
)

func init() {
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	utilruntime.Must(networkingv1.AddToScheme(scheme))
}

const (
	protobuf = runtime.ContentTypeProtobuf
	jsonType = runtime.ContentTypeJSON
)

// client returns client-go's own client of a group's version.
func client(t *testing.T, s *apitest.Server, gv schema.GroupVersion, accept string) *rest.RESTClient {
	t.Helper()
	c := s.Config()
	c.GroupVersion, c.APIPath = &gv, "/apis"
	if gv.Group == "" {
		c.APIPath = "/api"
	}
	c.AcceptContentTypes, c.ContentType = accept, accept
	c.NegotiatedSerializer = codecs.WithoutConversion()
	out, err := rest.RESTClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Client.CloseIdleConnections)
	return out
}

// bubble runs a test with a server in memory, where time costs nothing.
func bubble(t *testing.T, o apitest.Options, f func(t *testing.T, s *apitest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o.InMemory = true
		f(t, apitest.Start(t, o))
	})
}

func service(name string, labels ...string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Type: corev1.ServiceTypeClusterIP},
	}
	for i := 0; i+1 < len(labels); i += 2 {
		metav1.SetMetaDataLabel(&s.ObjectMeta, labels[i], labels[i+1])
	}
	return s
}

// listServices lists; the error is for the caller to look at.
func listServices(ctx context.Context, c rest.Interface, o metav1.ListOptions) (*corev1.ServiceList, error) {
	out := &corev1.ServiceList{}
	err := c.Get().Resource("services").VersionedParams(&o, params).Do(ctx).Into(out)
	return out, err
}

// watchServices begins a watch that ends with the test.
func watchServices(t *testing.T, c rest.Interface, o metav1.ListOptions) watch.Interface {
	t.Helper()
	return watchOf(t, c, "services", o)
}

func watchOf(t *testing.T, c rest.Interface, resource string, o metav1.ListOptions) watch.Interface {
	t.Helper()
	o.Watch = true
	w, err := c.Get().Resource(resource).VersionedParams(&o, params).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Stop()
		for range w.ResultChan() { // the receiving goroutine ends with the channel
		}
	})
	return w
}

// patience is how long a test waits for what has to come.
const patience = 2 * time.Minute

// next returns a watch's next event as "ADDED name", or how it ended.
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "closed"
		}
		switch o := e.Object.(type) {
		case *metav1.Status:
			return fmt.Sprintf("%s %d %s", e.Type, o.Code, o.Reason)
		case metav1.Object:
			text := fmt.Sprintf("%s %s", e.Type, o.GetName())
			if e.Type == watch.Bookmark {
				text = string(e.Type)
				if o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
					text += " end"
				}
			}
			return text
		default:
			return fmt.Sprintf("%s %T", e.Type, e.Object)
		}
	case <-time.After(patience):
		t.Fatal("the watch says nothing")
	}
	return ""
}

// expect fails unless the watch's next events are these.
func expect(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	for _, text := range want {
		if got := next(t, w); got != text {
			t.Fatalf("event %q, want %q", got, text)
		}
	}
}

// quiet fails if the watch says something now. It needs a bubble.
func quiet(t *testing.T, w watch.Interface) {
	t.Helper()
	synctest.Wait()
	select {
	case e := <-w.ResultChan():
		t.Fatalf("event %v, want none", e)
	default:
	}
}

// within returns a watch's next event, or "silent" after a while.
func within(w watch.Interface, d time.Duration) string {
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "closed"
		}
		return string(e.Type)
	case <-time.After(d):
		return "silent"
	}
}
