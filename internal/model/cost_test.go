// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"testing"
	"time"
)

// cluster is a State of n Services with ten endpoints each.
func cluster(n int) *State {
	changes := []Change{SetServiceCIDR{"kubernetes", prefixes("10.96.0.0/12")}}
	for i := range n {
		svc := Service{
			Name: named(fmt.Sprint("svc-", i)), UID: fmt.Sprint(i), VIP: clusterIP(i),
			Ports: []ServicePort{{Name: "http", Port: 80, Protocol: TCP}},
		}
		changes = append(changes, SetService{svc}, SetSlice{clusterSlice(i, true)})
	}
	st, _ := New(Options{}).Apply(changes)
	return st
}

func clusterIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})
}

func clusterSlice(i int, ready bool) Slice {
	sl := Slice{Name: named(fmt.Sprint("svc-", i, "-a")), Service: fmt.Sprint("svc-", i), Ports: []SlicePort{{Name: "http", Port: 8080, Protocol: TCP}}}
	for j := range 10 {
		a := netip.AddrFrom4([4]byte{10, 128 + byte(i>>12), byte(i >> 4), byte(i<<4 + j)})
		sl.Endpoints = append(sl.Endpoints, Endpoint{Addr: a, Text: a.String(), Node: "n1", Ready: ready, Serving: true})
	}
	return sl
}

// oneChange applies a change of one slice k times and returns what each cost.
func oneChange(st *State, services, k int) (each time.Duration, bytes uint64) {
	changes := make([][]Change, k)
	for i := range changes {
		changes[i] = []Change{SetSlice{clusterSlice(i*7919%services, i/services%2 == 1)}}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for _, c := range changes {
		st, _ = st.Apply(c)
	}
	each = time.Since(start) / time.Duration(k)
	runtime.ReadMemStats(&after)
	return each, (after.TotalAlloc - before.TotalAlloc) / uint64(k)
}

// TestCostOfOneChange: one endpoint change costs about the same among 10,000
// Services with 100,000 endpoints as among 100, in time and in memory written.
func TestCostOfOneChange(t *testing.T) {
	const limit = 10
	cost := func(services int) (least time.Duration, bytes uint64) {
		st := cluster(services)
		least = math.MaxInt64
		for range 10 { // the least of several: the machine may be busy
			each, b := oneChange(st, services, 100)
			least, bytes = min(least, each), b
		}
		return least, bytes
	}
	smallTime, smallBytes := cost(100)
	largeTime, largeBytes := cost(10_000)
	t.Logf("100 Services: %v, %d bytes; 10,000 Services: %v, %d bytes", smallTime, smallBytes, largeTime, largeBytes)
	if largeBytes > limit*smallBytes {
		t.Errorf("one change writes %d bytes among 10,000 Services and %d among 100", largeBytes, smallBytes)
	}
	if largeTime > limit*smallTime {
		t.Errorf("one change takes %v among 10,000 Services and %v among 100", largeTime, smallTime)
	}
}

func BenchmarkApplyOneSlice(b *testing.B) {
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprint(services, " services"), func(b *testing.B) {
			st := cluster(services)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				st, _ = st.Apply([]Change{SetSlice{clusterSlice(i*7919%services, i/services%2 == 1)}})
				i++
			}
		})
	}
}

func BenchmarkApplyEverything(b *testing.B) {
	for b.Loop() {
		cluster(10_000)
	}
}
