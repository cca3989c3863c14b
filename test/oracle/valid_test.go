// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"regexp"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1internal "k8s.io/kubernetes/pkg/apis/core/v1"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/discovery"
	discoveryv1internal "k8s.io/kubernetes/pkg/apis/discovery/v1"
	discoveryvalidation "k8s.io/kubernetes/pkg/apis/discovery/validation"
	"pgregory.net/rapid"
)

// What is drawn although an API server would refuse it today: old objects may have
// addresses of before validation was strict or ran at all, and no families.
var (
	oldService = regexp.MustCompile(`^spec\.(clusterIPs?(\[\d\])?|ipFamilies|ipFamilyPolicy)$`)
	oldSlice   = regexp.MustCompile(`^endpoints\[\d+\]\.addresses(\[\d+\])?$`)
)

// TestInputsAreValid: every object that is drawn passes the API server's own
// validation after its own defaulting, but for what is listed above.
func TestInputsAreValid(t *testing.T) {
	refused, whole := 0, 0
	look := func(t *rapid.T, what event, errs field.ErrorList, old *regexp.Regexp) {
		for _, err := range errs {
			if !old.MatchString(err.Field) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if whole++; len(errs) > 0 {
			refused++
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld("n1")
		validate := func(e event) {
			w.apply(e)
			switch {
			case e.service != nil:
				s, out := e.service.DeepCopy(), core.Service{}
				corev1internal.SetObjectDefaults_Service(s)
				if err := corev1internal.Convert_v1_Service_To_core_Service(s, &out, nil); err != nil {
					t.Fatal(err)
				}
				look(t, e, corevalidation.ValidateServiceCreate(&out), oldService)
			case e.slice != nil:
				s, out := e.slice.DeepCopy(), discovery.EndpointSlice{}
				discoveryv1internal.SetObjectDefaults_EndpointSlice(s)
				if err := discoveryv1internal.Convert_v1_EndpointSlice_To_discovery_EndpointSlice(s, &out, nil); err != nil {
					t.Fatal(err)
				}
				look(t, e, discoveryvalidation.ValidateEndpointSliceCreate(&out), oldSlice)
			}
		}
		drawStart(t, w, validate)
		for range 20 {
			for _, e := range drawEvents(t, w) {
				validate(e)
			}
		}
	})
	t.Logf("%d objects, %d with addresses or families that would be refused today", whole, refused)
	if refused == 0 || refused > whole*2/3 {
		t.Errorf("%d of %d objects would be refused: old objects are to be drawn, but not mostly", refused, whole)
	}
}
