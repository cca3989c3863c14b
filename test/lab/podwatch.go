// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// podsRetry is the longest time, but for as much again at random, between two tries
// of the kubelet to watch its pods. An informer's is half a minute, which tests that
// stop the API server a few times would have to wait for.
const podsRetry = 500 * time.Millisecond

// podStore holds the pods and tells the key of each one that changes.
type podStore struct {
	cache.Indexer
	changed func(key string)
}

func newPodStore(changed func(key string)) *podStore {
	return &podStore{
		Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		changed: changed,
	}
}

func (s *podStore) Add(pod any) error { return s.then(pod, s.Indexer.Add(pod)) }

func (s *podStore) Update(pod any) error { return s.then(pod, s.Indexer.Update(pod)) }

func (s *podStore) Delete(pod any) error { return s.then(pod, s.Indexer.Delete(pod)) }

func (s *podStore) then(pod any, err error) error {
	if err != nil {
		return err
	}
	key, err := cache.MetaNamespaceKeyFunc(pod)
	if err == nil {
		s.changed(key)
	}
	return err
}

// Replace tells all that were there and all that are.
func (s *podStore) Replace(pods []any, version string) error {
	were := s.ListKeys()
	if err := s.Indexer.Replace(pods, version); err != nil {
		return err
	}
	for _, key := range append(were, s.ListKeys()...) {
		s.changed(key)
	}
	return nil
}

// run keeps the store as the API server has the pods, until ctx ends.
func (s *podStore) run(ctx context.Context, client kubernetes.Interface) {
	pods := client.CoreV1().Pods("")
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, o)
		},
	}
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Cap: podsRetry, Factor: 2, Jitter: 1, Steps: math.MaxInt32}
	cache.NewReflectorWithOptions(lw, &corev1.Pod{}, s, cache.ReflectorOptions{Name: "pods of the lab", Backoff: &backoff}).
		RunWithContext(ctx)
}
