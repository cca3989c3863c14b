// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fieldManager is who applies the lab's objects.
const fieldManager = "aether-lab"

// Name returns the lab's name.
func (c *Cluster) Name() string { return c.cfg.Name }

// Client returns the administrator's typed client. It is not rate limited.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Dynamic returns the administrator's client for any kind.
func (c *Cluster) Dynamic() dynamic.Interface { return c.dynamic }

// RESTConfig returns what the administrator's clients are made of. It dials from
// the control plane's namespace. The result may be changed.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// Kubeconfig is the administrator's kubeconfig for programs of the host, kubectl
// for one; it leads over a port of the host's loopback that this process serves.
func (c *Cluster) Kubeconfig() string { return c.paths.kubeconfig("admin") }

// Program returns the path of one of the cluster's programs, e.g. "kubectl", or of
// aether-agent and aetherctl.
func (c *Cluster) Program(name string) string {
	for _, p := range programs {
		if p.name == name {
			return filepath.Join(c.programs, name)
		}
	}
	return c.paths.at("bin", name)
}

// decode reads the objects of a YAML text.
func decode(text []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := d.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read objects: %w", err)
		}
		if len(o.Object) == 0 {
			continue
		}
		if o.GetKind() == "" || o.GetAPIVersion() == "" {
			return nil, fmt.Errorf("read objects: document %d has no kind or apiVersion", len(out)+1)
		}
		out = append(out, o)
	}
}

// Apply applies objects in their order, as kubectl apply --server-side does; those
// without a namespace go into the one given. It waits for what a kind or a pod
// needs to exist: a CustomResourceDefinition just made, the ServiceAccount of a
// namespace just made; 10 s at most.
func (c *Cluster) Apply(ctx context.Context, namespace, yaml string) error {
	objects, err := decode([]byte(yaml))
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := c.place(o, namespace); err != nil {
			return err
		}
		if err := c.applyObject(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// place gives an object without a namespace one, if its kind has namespaces.
func (c *Cluster) place(o *unstructured.Unstructured, namespace string) error {
	if namespace == "" || o.GetNamespace() != "" {
		return nil
	}
	m, err := c.mapping(o)
	if err != nil {
		return err
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		o.SetNamespace(namespace)
	}
	return nil
}

// mapping finds the resource of an object's kind, also of one that has just come.
func (c *Cluster) mapping(o *unstructured.Unstructured) (*meta.RESTMapping, error) {
	gvk := o.GroupVersionKind()
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset()
		m, err = c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("find resource of %s: %w", gvk, err)
	}
	return m, nil
}

func (c *Cluster) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	m, err := c.mapping(o)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		ns := o.GetNamespace()
		if ns == "" {
			ns = metav1.NamespaceDefault
		}
		return c.dynamic.Resource(m.Resource).Namespace(ns), nil
	}
	return c.dynamic.Resource(m.Resource), nil
}

// applyPatience is how long Apply waits for what an object needs.
const applyPatience = 10 * time.Second

func (c *Cluster) applyObject(ctx context.Context, o *unstructured.Unstructured) error {
	b, err := o.MarshalJSON()
	if err != nil {
		return fmt.Errorf("write %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	force := true
	for deadline := time.Now().Add(applyPatience); ; {
		var r dynamic.ResourceInterface
		if r, err = c.resource(o); err == nil {
			_, err = r.Patch(ctx, o.GetName(), types.ApplyPatchType, b, metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
		}
		if err == nil {
			return nil
		}
		missing := meta.IsNoMatchError(err) || apierrors.IsNotFound(err) ||
			apierrors.IsForbidden(err) && strings.Contains(err.Error(), "serviceaccount")
		if !missing || time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		time.Sleep(pollEvery)
	}
}

// Delete deletes the objects of a YAML text; those that are not there are no error.
// It does not wait for pods to end.
func (c *Cluster) Delete(ctx context.Context, namespace, yaml string) error {
	objects, err := decode([]byte(yaml))
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := c.place(o, namespace); err != nil {
			return err
		}
		r, err := c.resource(o)
		if err != nil {
			return err
		}
		if err := r.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// CreateNamespace makes a namespace in which pods can be made at once; one that
// exists is no error.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	_, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	return nil
}

// AwaitServiceAccount waits for a namespace's default ServiceAccount, without
// which no pod can be made in it.
func (c *Cluster) AwaitServiceAccount(ctx context.Context, namespace string) error {
	return Poll(ctx, "namespace "+namespace+" has its ServiceAccount", func(ctx context.Context) error {
		return c.serviceAccountExists(ctx, namespace)
	})
}

func (c *Cluster) serviceAccountExists(ctx context.Context, namespace string) error {
	_, err := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// splitName reads "namespace/name", or "name" in namespace default.
func splitName(s string) (namespace, name string) {
	if ns, name, ok := strings.Cut(s, "/"); ok {
		return ns, name
	}
	return metav1.NamespaceDefault, s
}

// VIP returns a Service's ClusterIP.
func (c *Cluster) VIP(ctx context.Context, service string) (netip.Addr, error) {
	ns, name := splitName(service)
	s, err := c.client.CoreV1().Services(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up Service %s: %w", service, err)
	}
	a, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil {
		return a, fmt.Errorf("look up Service %s: it has no ClusterIP: %q", service, s.Spec.ClusterIP)
	}
	return a, nil
}

// AwaitReady waits until pods are Ready, by what the API says of them.
func (c *Cluster) AwaitReady(ctx context.Context, pods ...string) error {
	for _, pod := range pods {
		err := Poll(ctx, "pod "+pod+" is ready", func(ctx context.Context) error {
			ns, name := splitName(pod)
			p, err := c.client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !isReady(p) {
				return fmt.Errorf("phase %s, %s", p.Status.Phase, whyNotReady(p))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func isReady(p *corev1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

func whyNotReady(p *corev1.Pod) string {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady && cond.Status != corev1.ConditionTrue {
			return cond.Reason + ": " + cond.Message
		}
	}
	return "no condition Ready"
}

// AwaitGone waits until nothing is left of pods.
func (c *Cluster) AwaitGone(ctx context.Context, pods ...string) error {
	for _, pod := range pods {
		err := Poll(ctx, "pod "+pod+" is gone", func(ctx context.Context) error {
			ns, name := splitName(pod)
			_, err := c.client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err == nil {
				err = errors.New("it is still there")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Endpoints returns a Service's ready endpoints, as its EndpointSlices list them.
func (c *Cluster) Endpoints(ctx context.Context, service string) ([]netip.Addr, error) {
	ns, name := splitName(service)
	slices, err := c.client.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	if err != nil {
		return nil, fmt.Errorf("list EndpointSlices of %s: %w", service, err)
	}
	var out []netip.Addr
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					out = append(out, a)
				}
			}
		}
	}
	return out, nil
}

// AwaitEndpoints waits until a Service has so many ready endpoints in the API.
func (c *Cluster) AwaitEndpoints(ctx context.Context, service string, count int) error {
	return Poll(ctx, fmt.Sprintf("Service %s has %d ready endpoints", service, count), func(ctx context.Context) error {
		got, err := c.Endpoints(ctx, service)
		if err == nil && len(got) != count {
			err = fmt.Errorf("it has %d: %v", len(got), got)
		}
		return err
	})
}
