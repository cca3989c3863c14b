// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// createdAndDialled: a Service is dialled as soon as the API server has said that
// it exists. Its slices are the controller's, and come later.
func createdAndDialled(t *testing.T) {
	const rounds = 200
	s := labtest.New(t)
	s.Apply(server("web", 3), labtest.Client("captured", true))
	s.Ready("captured")
	s.Endpoints("web", 3)
	isServed(t, s, "captured", s.VIP("web"), "web")

	var made []lab.Answer
	for i := range rounds {
		made = append(made, dialNew(t, s, fmt.Sprintf("new-%d", i)))
	}
	if sum := settle(t, s, made); sum.failed > 0 {
		t.Errorf("%v, want none failed", sum)
	}
	var ms []float64
	for _, a := range made {
		ms = append(ms, a.TotalMS)
	}
	slices.Sort(ms)
	t.Logf("%d Services created and dialled: first dial p50 %.1f ms, p99 %.1f ms, most %.1f ms",
		rounds, ms[rounds/2], ms[rounds*99/100], ms[rounds-1])
}

// dialNew creates a Service and dials it.
func dialNew(t *testing.T, s *labtest.Space, name string) lab.Answer {
	t.Helper()
	svc, err := s.Client().CoreV1().Services(s.Namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(labtest.EchoPort)}},
		},
	}, metav1.CreateOptions{})
	s.Must(err)
	vip, err := netip.ParseAddr(svc.Spec.ClusterIP)
	s.Must(err)
	return s.Dial("captured", echo.Client{Mode: "http", Target: lab.Target(vip, 80)})
}
