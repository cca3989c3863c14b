// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Connecting is a probe or a command of a pod that takes an accepted connection
// for success.
type Connecting struct {
	Pod   string // namespace/name
	Field string // spec.containers[0].readinessProbe
	What  string
	// Own is true for a probe of the pod's own port.
	Own bool
}

// Connects lists what only connects in a pod, in the order of its spec. Of
// commands it knows the usual ones by their words; what a program does inside
// nobody can tell from its spec.
func Connects(p *corev1.Pod) []Connecting {
	pod := p.Namespace + "/" + p.Name
	var out []Connecting
	for i := range p.Spec.InitContainers {
		out = append(out, connects(pod, p.Status.PodIP, fmt.Sprintf("spec.initContainers[%d]", i), &p.Spec.InitContainers[i])...)
	}
	for i := range p.Spec.Containers {
		out = append(out, connects(pod, p.Status.PodIP, fmt.Sprintf("spec.containers[%d]", i), &p.Spec.Containers[i])...)
	}
	return out
}

// connects lists a container's.
func connects(pod, ip, at string, c *corev1.Container) (out []Connecting) {
	commands := func(field string, words ...[]string) {
		for _, w := range words {
			if text := strings.Join(w, " "); onlyConnects.MatchString(text) {
				out = append(out, Connecting{Pod: pod, Field: field, What: text})
			}
		}
	}
	commands(at+".command", c.Command, c.Args)
	for _, x := range []struct {
		name  string
		probe *corev1.Probe
	}{{"readinessProbe", c.ReadinessProbe}, {"livenessProbe", c.LivenessProbe}, {"startupProbe", c.StartupProbe}} {
		if x.probe == nil {
			continue
		}
		field := at + "." + x.name
		if s := x.probe.TCPSocket; s != nil {
			out = append(out, Connecting{
				Pod: pod, Field: field, What: strings.TrimSuffix("tcpSocket "+s.Port.String()+" "+s.Host, " "),
				Own: s.Host == "" || s.Host == ip,
			})
		}
		if x.probe.Exec != nil {
			commands(field, x.probe.Exec.Command)
		}
	}
	return out
}

// onlyConnects is how shells and their tools try whether a port is open.
var onlyConnects = regexp.MustCompile(`\bnc(at)?\s+([^\s|;&]+\s+)*?-\w*z|/dev/tcp/|\bwait-for(-it)?(\.sh)?\b|\bdockerize\b.*-wait\s+tcp|\btelnet\b|\bnmap\b|\btcping\b|\baether-client\b.*--mode[= ]silent`)
