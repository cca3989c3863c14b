// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"aether.io/aether/internal/model"
)

// reconcile brings everything in line with the manifests and with what the pods
// do: pods started and ended, addresses allocated, slices and hosts files
// written. It runs in one goroutine at a time.
func (n *Node) reconcile() {
	n.mu.Lock()
	problems, notes := n.sourceProblems()
	pods := byName(n.batch.Objects().Pods)
	maps.Copy(pods, n.given)
	plans, bad := planPods(pods, n.cfg.Node)
	problems = append(problems, bad...)
	started, bad := n.placePods(plans)
	problems = append(problems, bad...)
	objects, ready, more, bad := n.buildObjects()
	problems, notes = append(problems, bad...), append(notes, more...)
	notes = append(notes, podNotes(plans)...)
	of := maps.Clone(n.running) // ready is of these pods, not of a later one of the name
	n.names.pods = map[model.Name]netip.Addr{}
	for name, p := range n.running {
		n.names.pods[name] = p.ip
	}
	n.mu.Unlock()

	for _, p := range started {
		n.pods.wg.Go(p.run)
	}
	if err := n.files.write(objects); err != nil {
		problems = append(problems, Problem{File: n.files.dir, Text: err.Error()})
		n.log.Error("write generated objects", "err", err)
	}
	if err := n.writeAllHosts(); err != nil {
		problems = append(problems, Problem{Text: err.Error()})
		n.log.Error("write hosts files", "err", err)
	}

	n.mu.Lock()
	maps.DeleteFunc(ready, func(name model.Name, _ bool) bool { return n.running[name] != of[name] })
	n.problems, n.notes, n.written = problems, notes, ready
	close(n.watchers)
	n.watchers = make(chan struct{})
	n.mu.Unlock()
}

// sourceProblems are what is wrong in the user's directories. It needs mu.
func (n *Node) sourceProblems() ([]Problem, []string) {
	problems := []Problem{}
	for _, p := range n.batch.Problems {
		problems = append(problems, Problem{File: p.File, Object: p.Object, Field: p.Field, Text: p.Err})
	}
	notes := []string{}
	for _, note := range n.batch.Notes {
		notes = append(notes, note.String())
	}
	return problems, notes
}

// podNotes tells what pods ask for and the sandbox does not do.
func podNotes(plans map[model.Name]podPlan) []string {
	var out []string
	for _, name := range slices.SortedFunc(maps.Keys(plans), model.Name.Compare) {
		for _, c := range plans[name].pod.Spec.Containers {
			if c.LivenessProbe != nil || c.StartupProbe != nil {
				out = append(out, fmt.Sprintf("Pod %s: container %s: liveness and startup probes are not run here", name, c.Name))
			}
			if c.ReadinessProbe != nil && c.ReadinessProbe.GRPC != nil {
				out = append(out, fmt.Sprintf("Pod %s: container %s: gRPC probes are not run here, it counts as ready while it runs", name, c.Name))
			}
		}
	}
	return out
}

// placePods ends pods that are no longer planned (or planned differently), and
// makes those that are missing once their address is free. It needs mu.
func (n *Node) placePods(plans map[model.Name]podPlan) (started []*pod, problems []Problem) {
	if n.pods.ctx.Err() != nil {
		return nil, nil
	}
	for name, p := range n.running {
		plan, planned := plans[name]
		if !planned || plan.identity != p.plan.identity {
			p.stop()
			continue
		}
		p.manifest, p.forced = plan.pod, plan.forced
	}
	claimed := map[netip.Addr]bool{n.nodeIP: true}
	for _, plan := range plans {
		claimed[plan.fixedIP] = true
		for _, a := range plan.outside {
			claimed[a] = true
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(plans), model.Name.Compare) {
		if n.running[name] != nil {
			continue
		}
		plan := plans[name]
		ip, problem := n.podAddress(plan, claimed)
		if problem != "" {
			problems = append(problems, Problem{Object: "Pod " + name.String(), Field: "status.podIP", Text: problem})
		}
		if !ip.IsValid() {
			continue
		}
		p := n.newPod(plan, ip)
		n.running[name] = p
		started = append(started, p)
	}
	return started, problems
}

// podAddress finds the pod's address; none means not now.
func (n *Node) podAddress(plan podPlan, claimed map[netip.Addr]bool) (ip netip.Addr, problem string) {
	switch {
	case plan.outside != nil:
		return plan.outside[0], ""
	case plan.hostNetwork:
		return n.nodeIP, ""
	case plan.fixedIP == n.nodeIP:
		return ip, fmt.Sprintf("%s is the node's own address", plan.fixedIP)
	case plan.fixedIP.IsValid():
		if n.addrs.reserve(plan.fixedIP) {
			return plan.fixedIP, ""
		}
		for name, p := range n.running {
			if p.ip == plan.fixedIP && !p.deleting() {
				return ip, fmt.Sprintf("%s is in use by Pod %s", plan.fixedIP, name)
			}
		}
		return ip, "" // its last holder is about to go
	}
	ip, err := n.addrs.allocate(func(a netip.Addr) bool { return claimed[a] })
	if err != nil {
		return ip, err.Error()
	}
	return ip, ""
}

// podGone forgets a pod of which nothing is left.
func (n *Node) podGone(p *pod) {
	n.mu.Lock()
	if p.iface != "" {
		n.addrs.release(p.ip)
	}
	delete(n.running, p.plan.name)
	delete(n.written, p.plan.name)
	n.mu.Unlock()
	n.kick()
}

// buildObjects computes all generated objects. ready tells which pods the slices
// show, and how. It needs mu.
func (n *Node) buildObjects() (objects []metav1.Object, ready map[model.Name]bool, notes []string, problems []Problem) {
	pods, ready := n.endpointPods()
	if len(n.cfg.Source) > 0 {
		return nil, ready, nil, nil
	}
	o := n.batch.Objects()
	n.services = byName(o.Services)
	cidrs := map[string]*networkingv1.ServiceCIDR{}
	for _, c := range o.ServiceCIDRs {
		cidrs[c.Name] = c
	}
	ranges, generated := serviceCIDRs(cidrs, n.hasDefaultRange)
	if generated != nil {
		objects = append(objects, generated)
		n.hasDefaultRange = true
	}
	used := map[netip.Addr]bool{}
	for _, p := range n.running {
		used[p.ip] = true
		for _, a := range p.plan.outside {
			used[a] = true
		}
	}
	n.vips, problems = allocateVIPs(n.services, ranges, used, n.vips)
	for _, name := range slices.SortedFunc(maps.Keys(n.vips), model.Name.Compare) {
		objects = append(objects, withVIP(n.services[name], n.vips[name]))
	}
	if !slices.ContainsFunc(o.Nodes, func(x *corev1.Node) bool { return x.Name == n.cfg.Node }) {
		objects = append(objects, n.nodeObject())
	}
	theirs := map[model.Name]bool{}
	for _, s := range o.EndpointSlices {
		theirs[objectName(s)] = true
	}
	made, notes := endpointSlices(o.Services, pods, func(name model.Name) bool { return theirs[name] })
	for _, s := range made {
		objects = append(objects, s)
	}
	n.names.services = serviceNames(n.services, n.vips, headlessAddrs(made))
	return objects, ready, notes, problems
}

// nodeObject registers the node, as a kubelet does.
func (n *Node) nodeObject() *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: n.cfg.Node},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: n.nodeIP.String()},
		}},
	}
}

// endpointPods is what the EndpointSlice controller sees of the pods, and which
// of them are ready. It needs mu.
func (n *Node) endpointPods() ([]endpointPod, map[model.Name]bool) {
	zones := map[string]string{}
	for _, o := range n.batch.Objects().Nodes {
		zones[o.Name] = o.Labels[corev1.LabelTopologyZone]
	}
	var pods []endpointPod
	ready := map[model.Name]bool{}
	for name, p := range n.running {
		e := endpointPod{
			pod: p.manifest, uid: p.uid, node: p.plan.node, zone: zones[p.plan.node],
			ready: p.isReady(), terminating: p.isTerminating(), terminal: p.isTerminal(),
		}
		if p.networkUp {
			e.ip = p.ip
		}
		pods = append(pods, e)
		ready[name] = e.ready
	}
	return pods, ready
}

// headlessAddrs are the addresses a headless Service's name has: ready endpoints.
func headlessAddrs(made []*discoveryv1.EndpointSlice) map[model.Name][]netip.Addr {
	out := map[model.Name][]netip.Addr{}
	for _, s := range made {
		if _, headless := s.Labels[corev1.IsHeadlessService]; !headless {
			continue
		}
		name := model.Name{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		for _, e := range s.Endpoints {
			if a, err := netip.ParseAddr(e.Addresses[0]); err == nil && isTrue(e.Conditions.Ready) {
				out[name] = append(out[name], a)
			}
		}
	}
	return out
}

// writeHosts writes one pod's hosts file.
func (n *Node) writeHosts(p *pod) error {
	n.mu.Lock()
	content := hostsFile(p.plan.name, p.plan.hostname(), p.ip, n.names)
	n.mu.Unlock()
	return writeInPlace(n.paths.etc(p.key, "hosts"), content)
}

// writeAllHosts brings the hosts files of pods that have one up to date.
func (n *Node) writeAllHosts() error {
	n.mu.Lock()
	contents := map[string]string{}
	for _, p := range n.running {
		if p.networkUp && !p.deleting() {
			contents[n.paths.etc(p.key, "hosts")] = hostsFile(p.plan.name, p.plan.hostname(), p.ip, n.names)
		}
	}
	n.mu.Unlock()
	for path, content := range contents {
		if _, err := os.Stat(path); err != nil {
			continue // not made yet, or gone since: its pod sees to it
		}
		if err := writeInPlace(path, content); err != nil {
			return err
		}
	}
	return nil
}

// generatedFiles writes objects as YAML, one file each, and removes files of
// objects that are no more. Files are replaced as a whole and only when they
// change.
type generatedFiles struct {
	dir     string
	content map[string]string // as written, by file name
}

func (g *generatedFiles) write(objects []metav1.Object) error {
	want := map[string]string{}
	for _, o := range objects {
		b, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("write %s: %w", objectName(o), err)
		}
		want[fileName(o)] = string(b)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if g.content[name] == want[name] {
			continue
		}
		if err := writeAtomic(filepath.Join(g.dir, name), []byte(want[name])); err != nil {
			return err
		}
		g.content[name] = want[name]
	}
	for name := range g.content {
		if _, keep := want[name]; keep {
			continue
		}
		if err := os.Remove(filepath.Join(g.dir, name)); err != nil {
			return fmt.Errorf("remove generated object: %w", err)
		}
		delete(g.content, name)
	}
	return nil
}

func fileName(o metav1.Object) string {
	name := o.GetName()
	if ns := o.GetNamespace(); ns != "" {
		name = ns + "." + name
	}
	switch o.(type) {
	case *corev1.Service:
		return "service-" + name + ".yaml"
	case *discoveryv1.EndpointSlice:
		return "endpointslice-" + name + ".yaml"
	case *networkingv1.ServiceCIDR:
		return "servicecidr-" + name + ".yaml"
	default:
		return "node-" + name + ".yaml"
	}
}

// writeAtomic replaces a file as a whole. It need not survive the machine: the
// directory does not survive the sandbox.
func writeAtomic(path string, b []byte) error {
	early := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(early, b, 0o644); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	if err := os.Rename(early, path); err != nil {
		return fmt.Errorf("replace file: %w", err)
	}
	return nil
}

// byName indexes objects; a later one of a name wins.
func byName[T metav1.Object](objects []T) map[model.Name]T {
	out := map[model.Name]T{}
	for _, o := range objects {
		out[objectName(o)] = o
	}
	return out
}
