// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"aether.io/aether/internal/model"
)

// clusterDomain is the suffix Service names have in a cluster.
const clusterDomain = "cluster.local"

// resolvConf is what a pod finds as its resolver: none. A name that is not in
// the hosts file fails at once instead of timing out.
const resolvConf = "# There is no DNS in the sandbox; names are in /etc/hosts.\n"

// names is everything pods can look up.
type names struct {
	// services hold ClusterIPs, and for headless Services the addresses of the
	// ready pods.
	services map[model.Name][]netip.Addr
	pods     map[model.Name]netip.Addr
}

// serviceNames collects the addresses of Services: VIPs, allocated ones too, and
// ready pods behind headless ones.
func serviceNames(services map[model.Name]*corev1.Service, vips map[model.Name]netip.Addr, headless map[model.Name][]netip.Addr) map[model.Name][]netip.Addr {
	out := map[model.Name][]netip.Addr{}
	for n, s := range services {
		if s.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		if vip, ok := vips[n]; ok {
			out[n] = []netip.Addr{vip}
		} else if a, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil && a.Is4() {
			out[n] = []netip.Addr{a}
		} else if s.Spec.ClusterIP == corev1.ClusterIPNone {
			out[n] = headless[n]
		}
	}
	return out
}

// hostsFile writes a pod's hosts file. A Service has the names it has in a
// cluster, its short one only in its own namespace; a pod has its name (in its
// own namespace, unless a Service has it) and name.namespace.pod.
func hostsFile(self model.Name, hostname string, ip netip.Addr, n names) string {
	var b strings.Builder
	b.WriteString("# Written by the sandbox; it follows the Services.\n127.0.0.1\tlocalhost\n::1\tlocalhost\n")
	if ip.IsValid() {
		fmt.Fprintf(&b, "%s\t%s\n", ip, hostname)
	}
	for _, s := range slices.SortedFunc(maps.Keys(n.services), model.Name.Compare) {
		full := s.Name + "." + s.Namespace + ".svc"
		aliases := []string{full + "." + clusterDomain, full, s.Name + "." + s.Namespace}
		if s.Namespace == self.Namespace {
			aliases = append(aliases, s.Name)
		}
		for _, a := range n.services[s] {
			fmt.Fprintf(&b, "%s\t%s\n", a, strings.Join(aliases, " "))
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(n.pods), model.Name.Compare) {
		aliases := []string{p.Name + "." + p.Namespace + ".pod"}
		if _, service := n.services[p]; p.Namespace == self.Namespace && p != self && !service {
			aliases = append(aliases, p.Name)
		}
		fmt.Fprintf(&b, "%s\t%s\n", n.pods[p], strings.Join(aliases, " "))
	}
	return b.String()
}

// writeInPlace replaces the content of a file that is bind-mounted elsewhere:
// the inode must stay, so an atomic rename is no choice. It writes only when the
// content differs.
func writeInPlace(path, content string) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == content {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make directory of hosts file: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open hosts file: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(content), 0); err != nil {
		return fmt.Errorf("write hosts file: %w", err)
	}
	if err := f.Truncate(int64(len(content))); err != nil {
		return fmt.Errorf("cut hosts file: %w", err)
	}
	return nil
}
