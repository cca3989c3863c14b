// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// finding is the comparison of one dial.
type finding struct {
	world                        *world
	target                       netip.AddrPort
	kubeProxy, corrected, aether outcome
	problem                      string
}

// applying returns the differences that apply to the dial.
func (f *finding) applying(passes bool) (out []difference) {
	for _, d := range differences {
		if d.passes == passes && d.holds(f.world, f.target) {
			out = append(out, d)
		}
	}
	return out
}

func names(ds []difference) string {
	var out []string
	for _, d := range ds {
		out = append(out, d.name)
	}
	return strings.Join(out, ", ")
}

// String prints the finding as manifests, with all else in comments.
func (f *finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", f.problem)
	fmt.Fprintf(&b, "# aetherctl explain %s -f FILE --node %q\n", f.target, f.world.node)
	fmt.Fprintf(&b, "# kube-proxy:           %s\n", f.kubeProxy)
	fmt.Fprintf(&b, "# kube-proxy corrected: %s\n", f.corrected)
	fmt.Fprintf(&b, "# Aether:               %s\n", f.aether)
	fmt.Fprintf(&b, "# on the list: %s\n", names(append(f.applying(true), f.applying(false)...)))
	for _, h := range f.world.history {
		fmt.Fprintf(&b, "# history: %s\n", h)
	}
	b.Write(f.world.manifests())
	return b.String()
}

// save writes the finding to a file and returns a text that names it.
func (f *finding) save(name string) string {
	path := filepath.Join(os.TempDir(), "aether-oracle-"+name+".yaml")
	if err := os.WriteFile(path, []byte(f.String()), 0o600); err != nil {
		return fmt.Sprintf("%v\nwrite the finding: %v", f, err)
	}
	return fmt.Sprintf("%v\nalso in %s", f, path)
}

// manifests returns the objects as they were written.
func (w *world) manifests() []byte {
	cidr := rangeObject()
	cidr.APIVersion, cidr.Kind = "networking.k8s.io/v1", "ServiceCIDR"
	objects := []any{cidr}
	for _, n := range nodeNames {
		if node := w.nodes[n]; node != nil {
			objects = append(objects, node)
		}
	}
	for _, s := range w.sortedServices() {
		objects = append(objects, s)
	}
	for _, s := range w.sortedSlices() {
		objects = append(objects, s)
	}
	var b bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			panic(fmt.Sprintf("oracle: print %T: %v", o, err))
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.Bytes()
}
