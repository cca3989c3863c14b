// SPDX-License-Identifier: Apache-2.0

package manifest

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

// ConnectOnly reads directories and lists what only connects in the pods that run
// on a node, or have none. Of commands it knows the usual ones by their words;
// what a program does inside nobody can tell from its spec.
func ConnectOnly(dirs []string, node string) ([]Connecting, error) {
	r, err := Load(dirs, Options{})
	if err != nil {
		return nil, err
	}
	var out []Connecting
	for _, p := range r.Objects.Pods {
		if p.Spec.NodeName == node || p.Spec.NodeName == "" {
			out = append(out, connecting(p)...)
		}
	}
	return out, nil
}

// connecting lists a pod's.
func connecting(p *corev1.Pod) (out []Connecting) {
	add := func(field, what string, own bool) {
		out = append(out, Connecting{Pod: p.Namespace + "/" + p.Name, Field: field, What: what, Own: own})
	}
	commands := func(field string, words ...[]string) {
		for _, w := range words {
			if text := strings.Join(w, " "); onlyConnects.MatchString(text) {
				add(field, text, false)
			}
		}
	}
	for kind, containers := range map[string][]corev1.Container{"initContainers": p.Spec.InitContainers, "containers": p.Spec.Containers} {
		for i, c := range containers {
			at := fmt.Sprintf("spec.%s[%d]", kind, i)
			commands(at+".command", c.Command, c.Args)
			for name, probe := range map[string]*corev1.Probe{"readinessProbe": c.ReadinessProbe, "livenessProbe": c.LivenessProbe, "startupProbe": c.StartupProbe} {
				if probe == nil {
					continue
				}
				if s := probe.TCPSocket; s != nil {
					add(at+"."+name, strings.TrimSuffix("tcpSocket "+s.Port.String()+" "+s.Host, " "), s.Host == "" || s.Host == p.Status.PodIP)
				}
				if probe.Exec != nil {
					commands(at+"."+name, probe.Exec.Command)
				}
			}
		}
	}
	return out
}

// onlyConnects is how shells and their tools try whether a port is open.
var onlyConnects = regexp.MustCompile(`\bnc(at)?\s+([^\s|;&]+\s+)*?-\w*z|/dev/tcp/|\bwait-for(-it)?(\.sh)?\b|\bdockerize\b.*-wait\s+tcp|\btelnet\b|\bnmap\b|\btcping\b|\baether-client\b.*--mode[= ]silent`)
