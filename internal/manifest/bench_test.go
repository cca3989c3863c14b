// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const benchFiles = 2000 // each a Service and a slice of ten endpoints

func benchDirectory(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	for i := range benchFiles {
		write(b, dir, fmt.Sprintf("s%d.yaml", i), benchFile(i, 0))
	}
	old := time.Now().Add(-time.Hour)
	for i := range benchFiles {
		if err := os.Chtimes(filepath.Join(dir, fmt.Sprintf("s%d.yaml", i)), old, old); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

func benchFile(i, version int) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s%d-1, labels: {kubernetes.io/service-name: s%d}}\naddressType: IPv4\nports: [{port: 8080}]\nendpoints:\n",
		service(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)), i, i)
	for e := range 10 {
		fmt.Fprintf(&out, "- {addresses: [10.%d.%d.%d], nodeName: n1, zone: za, conditions: {ready: true}}\n", e, version%250, 1+i%250)
	}
	return out.String()
}

// BenchmarkScanUnchanged is what the periodic look costs.
func BenchmarkScanUnchanged(b *testing.B) {
	a := newArguments([]string{benchDirectory(b)})[0]
	a.scan(time.Now())
	for b.Loop() {
		if changed, _ := a.scan(time.Now()); changed {
			b.Fatal("changed")
		}
	}
}

// BenchmarkOneFileChanged is what one changed file among many costs, from the
// look at the directory to the batch.
func BenchmarkOneFileChanged(b *testing.B) {
	dir := benchDirectory(b)
	a := newArguments([]string{dir})
	a[0].scan(time.Now())
	last := look(a, Options{})
	path := filepath.Join(dir, "s7.yaml")
	for version := 1; b.Loop(); version++ {
		write(b, dir, "s7.yaml", benchFile(7, version))
		a[0].distrust(path)
		a[0].scan(time.Now())
		v := look(a, Options{})
		if got, _ := batch(last, v); len(got.Changes) != 1 {
			b.Fatalf("%d changes, want 1", len(got.Changes))
		}
		last = v
	}
}

// BenchmarkLoad is what a start costs.
func BenchmarkLoad(b *testing.B) {
	dir := benchDirectory(b)
	for b.Loop() {
		if r, err := Load([]string{dir}, Options{}); err != nil || len(r.Changes) != 2*benchFiles {
			b.Fatalf("%d changes, error %v", len(r.Changes), err)
		}
	}
}
