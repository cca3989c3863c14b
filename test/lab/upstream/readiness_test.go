// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// status changes a pod's status by a strategic merge patch.
func (s *scene) status(pod, change string) {
	s.t.Helper()
	_, err := s.Client().CoreV1().Pods(s.Namespace).Patch(s.t.Context(), pod, types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{}, "status")
	s.Must(err)
}

// unreadyPods: a pod that is not ready is served where the Service says so, also
// while it is terminating.
func unreadyPods(s *scene) {
	s.Apply(service("web", "web", "publishNotReadyAddresses: true", web))
	s.run(pod{name: "a", app: "web", node: "n2", unready: true, slow: true})
	vip := s.at("web", 80)
	s.up(vip, "a")
	s.patch("web", `{"spec":{"publishNotReadyAddresses":false}}`)
	s.down(vip)
	s.patch("web", `{"spec":{"publishNotReadyAddresses":true}}`)
	s.up(vip, "a")
	s.removePod("a")
	s.awaitEndpoint("web", "a", "ready terminating")
	s.up(vip, "a")
}

// publishedAll: terminating and not ready, and served.
func publishedAll(s *scene) {
	s.Apply(service("web", "web", "type: NodePort, publishNotReadyAddresses: true", web))
	s.run(pod{name: "a", app: "web", node: "n2", unready: true, slow: true})
	s.removePod("a")
	s.awaitEndpoint("web", "a", "ready terminating")
	s.up(s.at("web", 80), "a")
	s.onNode("web", "a")
}

// publishedReady: terminating and not ready, and not served.
func publishedReady(s *scene) {
	s.Apply(service("web", "web", "publishNotReadyAddresses: false", web))
	p := pod{name: "a", app: "web", node: "n2", slow: true}
	s.run(p)
	vip := s.at("web", 80)
	s.up(vip, "a")
	p.unready = true
	s.Apply(p.String())
	s.awaitEndpoint("web", "a", "")
	s.down(vip)
	s.removePod("a")
	s.awaitEndpoint("web", "a", "terminating")
	s.down(vip)
}

const clientIP = "sessionAffinity: ClientIP"

// affinity: every connection of a client meets the same pod.
func affinity(s *scene) {
	pods, _ := some("web", 3)
	s.Apply(service("web", "web", clientIP, web))
	s.run(pods...)
	s.Endpoints("web", 3)
	s.sticky(s.at("web", 80))
}

// switchAffinity: on and off again.
func switchAffinity(s *scene) {
	pods, names := some("web", 3)
	s.Apply(service("web", "web", "", web))
	s.run(pods...)
	vip := s.at("web", 80)
	s.up(vip, names...)
	s.patch("web", `{"spec":{"sessionAffinity":"ClientIP"}}`)
	s.sticky(vip)
	s.patch("web", `{"spec":{"sessionAffinity":"None"}}`)
	s.spread(vip)
}

// affinityTimeout: a client that stayed away for longer meets, sooner or later,
// another pod. The absence is what is tested; one in three is the same again.
func affinityTimeout(s *scene) {
	const timeout = 2
	pods, _ := some("web", 3)
	s.Apply(service("web", "web", fmt.Sprintf("%s, sessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}", clientIP, timeout), web))
	s.run(pods...)
	s.Endpoints("web", 3)
	vip := s.at("web", 80)
	s.sticky(vip)
	s.each("another pod answers after the timeout", func(client string) error {
		first, err := s.ask(client, vip)
		if err != nil {
			return err
		}
		absences := 15
		if s.isCaptured(client) {
			absences = 5 // no number of them is enough
		}
		for range absences {
			select {
			case <-time.After((timeout + 1) * time.Second):
			case <-s.t.Context().Done():
				return s.t.Context().Err()
			}
			a, err := s.ask(client, vip)
			if err != nil {
				return err
			}
			if a.By.Pod != first.By.Pod {
				return nil
			}
		}
		return errNoExpiry
	})
}

const local = "internalTrafficPolicy: Local"

// localPodToPod: the node's own pods alone, and nobody where it has none.
func localPodToPod(s *scene) {
	s.Apply(service("near", "near", local, web), service("far", "far", local, web))
	s.run(pod{name: "here", app: "near", node: "n1"}, pod{name: "there", app: "near", node: "n2"},
		pod{name: "away", app: "far", node: "n2"})
	s.up(s.at("near", 80), "here")
	s.down(s.at("far", 80))
}

// localToHostNetwork: the same for a pod in the node's network.
func localToHostNetwork(s *scene) {
	named := "{name: http, port: 80, targetPort: http}"
	s.Apply(service("near", "near", local, named), service("far", "far", local, named))
	s.run(onHost("here", "near", 10180), pod{name: "away", app: "far", node: "n2"})
	s.up(s.at("near", 80), "here")
	s.down(s.at("far", 80))
}

// onHost is a pod in our node's network.
func onHost(name, app string, port int) pod {
	return pod{
		name: name, app: app, node: "n1", args: fmt.Sprintf(`--http, ":%d"`, port),
		ports: fmt.Sprintf("{name: http, containerPort: %d}", port), spec: "\n  hostNetwork: true",
	}
}

// terminatingCluster: the last one is served while it terminates, and until there is
// a ready one.
func terminatingCluster(s *scene) {
	s.Apply(service("web", "web", "internalTrafficPolicy: Cluster", web))
	s.run(pod{name: "a", app: "web", node: "n2", slow: true})
	vip := s.at("web", 80)
	s.up(vip, "a")
	s.removePod("a")
	s.awaitEndpoint("web", "a", "serving terminating")
	s.up(vip, "a")
	s.run(pod{name: "b", app: "web", node: "n3"})
	s.up(vip, "b")
}

// terminatingLocal: the node's own one, although another node has a ready one.
func terminatingLocal(s *scene) {
	s.Apply(service("web", "web", local, web))
	s.run(pod{name: "a", app: "web", node: "n1", slow: true}, pod{name: "b", app: "web", node: "n2"})
	vip := s.at("web", 80)
	s.up(vip, "a")
	s.removePod("a")
	s.awaitEndpoint("web", "a", "serving terminating")
	s.awaitEndpoint("web", "b", "ready serving")
	s.up(vip, "a")
}

const gate = "example.com/blue-green"

// blueGreen: from one pod to another by readiness gates, without a connection that
// fails.
func blueGreen(s *scene) {
	s.Apply(service("web", "web", "", web))
	for i, color := range []string{"blue", "green"} {
		s.Apply(pod{
			name: color, app: "web", node: nodes[i+1].Name, slow: true,
			spec: "\n  readinessGates: [{conditionType: " + gate + "}]",
		}.String())
	}
	turn := func(color, to, state string) {
		s.status(color, fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, gate, to))
		s.awaitEndpoint("web", color, state)
	}
	s.awaitEndpoint("web", "blue", "")
	s.awaitEndpoint("web", "green", "")
	turn("blue", "True", "ready serving")
	vip := s.at("web", 80)
	s.up(vip, "blue")
	load := s.load(vip)
	load.more(20)
	turn("green", "True", "ready serving")
	load.more(20)
	turn("blue", "False", "")
	s.up(vip, "green")
	s.removePod("blue")
	s.awaitEndpoint("web", "blue", "terminating")
	load.more(20)
	load.unharmed()
}

// load dials one address from both clients, one connection after the other.
type load struct {
	s    *scene
	stop chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	made   map[string]int
	failed map[string]error
}

func (s *scene) load(target string) *load {
	l := &load{s: s, stop: make(chan struct{}), made: map[string]int{}, failed: map[string]error{}}
	for _, c := range s.clients {
		l.wg.Go(func() {
			for {
				_, err := s.ask(c, target)
				l.mu.Lock()
				l.made[c]++
				if err != nil && l.failed[c] == nil {
					l.failed[c] = fmt.Errorf("connection %d: %w", l.made[c], err)
				}
				l.mu.Unlock()
				select {
				case <-l.stop:
					return
				case <-time.After(15 * time.Millisecond):
				}
			}
		})
	}
	s.t.Cleanup(l.end)
	return l
}

// more waits until each client has made so many more connections.
func (l *load) more(count int) {
	l.s.t.Helper()
	l.mu.Lock()
	want := map[string]int{}
	for _, c := range l.s.clients {
		want[c] = l.made[c] + count
	}
	l.mu.Unlock()
	l.s.Eventually("the load goes on", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for c, n := range want {
			if l.made[c] < n {
				return fmt.Errorf("%s made %d of %d connections", c, l.made[c], n)
			}
		}
		return nil
	})
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.wg.Wait()
}

// unharmed ends the load; none of its connections may have failed.
func (l *load) unharmed() {
	l.end()
	l.s.each("every connection is answered", func(client string) error { return l.failed[client] })
	var counts []string
	for _, c := range l.s.clients {
		counts = append(counts, fmt.Sprintf("%s %d", c, l.made[c]))
	}
	l.s.t.Logf("connections: %s", strings.Join(counts, ", "))
}
