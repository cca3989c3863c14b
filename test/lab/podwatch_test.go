// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listersv1 "k8s.io/client-go/listers/core/v1"
)

// The store tells every pod that comes, changes or goes, when all are listed anew, too.
func TestPodStoreTellsWhatChanges(t *testing.T) {
	pod := func(name string) any {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	}
	var told []string
	s := newPodStore(func(key string) { told = append(told, key) })
	expect := func(what string, err error, want ...string) {
		t.Helper()
		slices.Sort(told)
		if got := slices.Compact(told); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: told %v, %v, want %v", what, got, err, want)
		}
		told = nil
	}
	expect("added", s.Add(pod("a")), "ns/a")
	expect("changed", s.Update(pod("a")), "ns/a")
	expect("added", s.Add(pod("b")), "ns/b")
	expect("deleted", s.Delete(pod("b")), "ns/b")
	expect("listed anew, without a", s.Replace([]any{pod("c")}, "7"), "ns/a", "ns/c")
	if err := s.Add("no pod"); err == nil || told != nil {
		t.Errorf("something that is no pod: %v, told %v", err, told)
	}
	if p, err := listersv1.NewPodLister(s).Pods("ns").Get("c"); err != nil || p.Name != "c" {
		t.Errorf("the pod that is there: %v, %v", p, err)
	}
}
