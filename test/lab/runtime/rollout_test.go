// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"aether.io/aether/test/lab/labtest"
)

// replicas of the Deployment that is rolled.
const replicas = 20

// rolled is a Deployment whose pods serve on for two seconds after their endpoint
// is told to be terminating: a preStop hook of that length. They end on SIGTERM at
// once, without care for what is under way.
const rolled = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: echo
        image: aether/echo
        args: [--http, ":8080"]
        lifecycle: {preStop: {sleep: {seconds: %d}}}
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 1}`

// rollingUpdate: all pods of a Deployment are replaced while it is used, a part of
// the requests under way for half a second; none fails. (docs/kubernetes.md says
// what it takes: without the hook, those fail whose server ends before it answers.)
func rollingUpdate(t *testing.T) {
	const preStop = 2
	s := labtest.New(t)
	s.Apply(fmt.Sprintf(rolled, replicas, preStop), labtest.Service("web", "web"),
		labtest.Client("one", true), labtest.Client("two", true))
	s.Ready("one", "two")
	s.Endpoints("web", replicas)
	vip := s.VIP("web")
	isServed(t, s, "one", vip, "web")

	before := podsOf(t, s)
	short := dialling(t, s, "/", []string{"one", "two", "one", "two"}, vip)
	long := dialling(t, s, "/sleep?d=500ms", []string{"one", "two", "one", "two"}, vip)
	short.more(50)
	began := time.Now()
	_, err := s.Client().AppsV1().Deployments(s.Namespace).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"metadata":{"labels":{"version":"two"}}}}}`), metav1.PatchOptions{})
	s.Must(err)
	s.Eventually("all pods are new ones", func() error {
		left := 0
		now := podsOf(t, s)
		for name := range now {
			if before[name] {
				left++
			}
		}
		if left > 0 || len(now) != replicas {
			return errorf("%d pods, %d of them old", len(now), left)
		}
		return nil
	})
	took := time.Since(began)
	short.more(50)
	all := append(short.end(), long.end()...)
	sum := settle(t, s, all)
	if sum.failed > 0 || len(short.errs)+len(long.errs) > 0 {
		t.Errorf("%v, %v %v, want none failed", sum, short.errs, long.errs)
	}
	t.Logf("%d pods replaced in %.1f s: %v, %d of them half a second long", replicas, took.Seconds(), sum, len(long.made))
	by := map[string]bool{}
	for _, a := range short.made {
		by[a.By.Pod] = true
	}
	if len(by) < replicas {
		t.Errorf("%d pods answered, want more than the %d that are there at a time", len(by), replicas)
	}
}

func podsOf(t *testing.T, s *labtest.Space) map[string]bool {
	t.Helper()
	list, err := s.Client().CoreV1().Pods(s.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	s.Must(err)
	out := map[string]bool{}
	for i := range list.Items {
		out[list.Items[i].Name] = true
	}
	return out
}
