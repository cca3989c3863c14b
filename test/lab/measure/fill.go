// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fillers is how many requests are under way while the cluster is filled.
const fillers = 16

// fastClient is the administrator's client in Protobuf, of which the client's part
// costs least.
func fastClient(c *rest.Config) (kubernetes.Interface, error) {
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// write makes a Service and then its slices.
func write(ctx context.Context, client kubernetes.Interface, s *service) error {
	made, err := client.CoreV1().Services(s.namespace).Create(ctx, s.object(), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Service: %w", err)
	}
	s.uid = made.UID
	for i := range s.slices() {
		if _, err := client.DiscoveryV1().EndpointSlices(s.namespace).Create(ctx, s.slice(i), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create EndpointSlice: %w", err)
		}
	}
	return nil
}

// put writes part i of a Service's endpoints anew.
func put(ctx context.Context, client kubernetes.Interface, s *service, i int) error {
	if _, err := client.DiscoveryV1().EndpointSlices(s.namespace).Update(ctx, s.slice(i), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update EndpointSlice: %w", err)
	}
	return nil
}

// remove deletes a Service and its slices.
func remove(ctx context.Context, client kubernetes.Interface, s *service) error {
	for i := range s.slices() {
		err := client.DiscoveryV1().EndpointSlices(s.namespace).Delete(ctx, fmt.Sprintf("%s-%d", s.name, i), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete EndpointSlice: %w", err)
		}
	}
	if err := client.CoreV1().Services(s.namespace).Delete(ctx, s.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Service: %w", err)
	}
	return nil
}

// fill writes Services, many at once.
func fill(ctx context.Context, client kubernetes.Interface, list []*service) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fillers)
	for _, s := range list {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return write(ctx, client, s) })
	}
	return g.Wait()
}

func makeSpaces(ctx context.Context, client kubernetes.Interface) error {
	for i := range spaces {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("space-%d", i)}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create namespace: %w", err)
		}
	}
	return nil
}

// churner makes changes at a rate until it is ended.
type churner struct {
	stop context.CancelFunc
	done chan error
	n    atomic.Int64
	took atomic.Int64 // ns, of all
}

// writers is how many changes are under way at most.
const writers = 4

// churn calls step with the running number of each change, perSecond times a
// second, each from one of a few goroutines.
func churn(ctx context.Context, perSecond int, step func(ctx context.Context, i int) error) *churner {
	ctx, cancel := context.WithCancel(ctx)
	c := &churner{stop: cancel, done: make(chan error, 1)}
	go func() {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(writers)
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				g.Go(func() error {
					began := time.Now()
					err := step(ctx, i)
					if ctx.Err() != nil {
						return nil
					}
					c.took.Add(int64(time.Since(began)))
					c.n.Add(1)
					return err
				})
				continue
			case <-ctx.Done():
			}
			c.done <- g.Wait()
			return
		}
	}()
	return c
}

// end stops it and returns how many changes were made; it is called once.
func (c *churner) end() (int, error) {
	c.stop()
	err := <-c.done
	return int(c.n.Load()), err
}

// moveEndpoint is a step of churn: of the Services whose endpoints nobody dials, one
// after the other, an endpoint moves elsewhere. It never moves to where it was.
func (c *cluster) moveEndpoint(ctx context.Context, _ int) error {
	i := int(c.moved.Add(1))
	// Neighbours are written by different goroutines: a copy, and far apart.
	s := *c.people.others[i*stride%len(c.people.others)]
	s.endpoints = slices.Clone(s.endpoints)
	s.endpoints[0] = elsewhereFar(i)
	return put(ctx, c.client, &s, 0)
}

// elsewhereFar is an endpoint that no Service was laid out with, another one for each i.
func elsewhereFar(i int) endpoint { return far(1<<21+i, 1)[0] }

// stride spreads changes over the Services; it is prime.
const stride = 7919
