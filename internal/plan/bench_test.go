// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"testing"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// BenchmarkDecide answers for Services of several sizes, in slices of 100.
func BenchmarkDecide(b *testing.B) {
	for _, size := range []int{3, 100, 5_000} {
		b.Run(fmt.Sprint(size, " endpoints"), func(b *testing.B) {
			changes := []model.Change{web()}
			for first := 0; first < size; first += 100 {
				var eps []string
				for i := first; i < min(size, first+100); i++ {
					eps = append(eps, fmt.Sprintf("10.1.%d.%d @n%d z:z%c", i/250, i%250+1, i%500, 'a'+i%3))
				}
				changes = append(changes, slice(fmt.Sprintf("default/web-%d", first*7919%5003), "web", "http:8080", eps...))
			}
			st, s, to := state(changes...), enforce(), target(vip+":80")
			b.ReportAllocs()
			for b.Loop() {
				plan.Decide(st, s, to)
			}
		})
	}
}
