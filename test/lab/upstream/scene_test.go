// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// brief bounds a dial that nobody may answer, usual one that somebody should.
const (
	brief = 700 * time.Millisecond
	usual = 3 * time.Second
)

// dial makes one connection and asks who is there.
func (s *scene) dial(client, target string, most time.Duration) (lab.Answer, error) {
	return s.Cluster.Dial(s.t.Context(), client, echo.Client{Mode: "http", Target: target, Timeout: most})
}

// ask is dial for an answer; none is an error.
func (s *scene) ask(client, target string) (lab.Answer, error) {
	a, err := s.dial(client, target, usual)
	if err == nil && a.Outcome != echo.OK {
		err = errors.New(a.String())
	}
	return a, err
}

// poll waits for a condition. It is for checks, which run beside the test.
func (s *scene) poll(what string, check func() error) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), labtest.Patience)
	defer cancel()
	return lab.Poll(ctx, what, func(context.Context) error { return check() })
}

// consecutive is how many dials in a row have to end as a check wants it.
const consecutive = 12

// up: all these pods answer, and no others, so many times in a row.
func (s *scene) up(target string, pods ...string) {
	s.each(fmt.Sprintf("%s is answered by %s alone", target, strings.Join(pods, ", ")), func(client string) error {
		return s.poll("they answer", func() error { return s.answeredBy(client, target, pods) })
	})
}

func (s *scene) answeredBy(client, target string, pods []string) error {
	seen := map[string]bool{}
	for i := 0; i < consecutive || len(seen) < len(pods); i++ {
		if i >= consecutive*(len(pods)+1) {
			return fmt.Errorf("in %d connections only %d of them answered", i, len(seen))
		}
		a, err := s.ask(client, target)
		if err != nil {
			return err
		}
		if !slices.Contains(pods, a.By.Pod) {
			return fmt.Errorf("%s answered", a.By.Pod)
		}
		seen[a.By.Pod] = true
	}
	return nil
}

// down: nobody answers, three times in a row.
func (s *scene) down(target string) {
	s.each(target+" is not answered", func(client string) error {
		return s.poll("nobody answers", func() error {
			for range 3 {
				a, err := s.dial(client, target, brief)
				if err != nil {
					return err
				}
				if a.Outcome == echo.OK {
					return fmt.Errorf("%s answered", a.By.Pod)
				}
			}
			return nil
		})
	})
}

// sticky: one pod answers all the time.
func (s *scene) sticky(target string) {
	s.each(target+" is answered by one pod", func(client string) error {
		return s.poll("one answers all the time", func() error {
			pods, err := s.whoAnswers(client, target, consecutive+3)
			if err == nil && len(pods) > 1 {
				err = fmt.Errorf("%v answered", pods)
			}
			return err
		})
	})
}

// spread: more than one pod answers.
func (s *scene) spread(target string) {
	s.each(target+" is answered by several pods", func(client string) error {
		return s.poll("several answer", func() error {
			pods, err := s.whoAnswers(client, target, consecutive+3)
			if err == nil && len(pods) < 2 {
				err = fmt.Errorf("%v alone answered", pods)
			}
			return err
		})
	})
}

func (s *scene) whoAnswers(client, target string, count int) ([]string, error) {
	var pods []string
	for range count {
		a, err := s.ask(client, target)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(pods, a.By.Pod) {
			pods = append(pods, a.By.Pod)
		}
	}
	return pods, nil
}

// at is where a Service's port is dialled.
func (s *scene) at(service string, port int) string {
	s.t.Helper()
	return lab.Target(s.VIP(service), port)
}

// patch changes a Service by a JSON merge patch.
func (s *scene) patch(service, change string) {
	s.t.Helper()
	_, err := s.Client().CoreV1().Services(s.Namespace).Patch(s.t.Context(), service, types.MergePatchType, []byte(change), metav1.PatchOptions{})
	s.Must(err)
}

// removePod deletes a pod and does not wait for its end.
func (s *scene) removePod(name string) {
	s.t.Helper()
	s.Must(s.Client().CoreV1().Pods(s.Namespace).Delete(s.t.Context(), name, metav1.DeleteOptions{}))
}

// addressOf is a pod's, which runs.
func (s *scene) addressOf(name string) netip.Addr {
	s.t.Helper()
	p, err := s.Client().CoreV1().Pods(s.Namespace).Get(s.t.Context(), name, metav1.GetOptions{})
	s.Must(err)
	a, err := netip.ParseAddr(p.Status.PodIP)
	s.Must(err)
	return a
}

// endpoints are a Service's, by pod: "ready", "serving" and "terminating" where
// they are.
func (s *scene) endpoints(service string) (map[string]string, error) {
	list, err := s.Client().DiscoveryV1().EndpointSlices(s.Namespace).List(s.t.Context(),
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if e.TargetRef == nil {
				continue
			}
			var is []string
			for _, c := range []struct {
				name string
				set  *bool
			}{{"ready", e.Conditions.Ready}, {"serving", e.Conditions.Serving}, {"terminating", e.Conditions.Terminating}} {
				if c.set != nil && *c.set {
					is = append(is, c.name)
				}
			}
			out[e.TargetRef.Name] = strings.Join(is, " ")
		}
	}
	return out, nil
}

// awaitEndpoint waits until a pod's endpoint is as told; "" is neither.
func (s *scene) awaitEndpoint(service, pod, state string) {
	s.t.Helper()
	s.Eventually(fmt.Sprintf("endpoint %s of %s is %q", pod, service, state), func() error {
		all, err := s.endpoints(service)
		if err != nil {
			return err
		}
		if got, there := all[pod]; !there || got != state {
			return fmt.Errorf("endpoints are %v", all)
		}
		return nil
	})
}

// pod is one that answers over HTTP at port 8080, uncaptured unless it says so.
type pod struct {
	name, app string
	node      string // empty: the lab takes one after the other
	captured  bool
	unready   bool   // whatever its probe says
	slow      bool   // goes on serving for long when it is deleted
	args      string // of the server, instead of --http :8080
	ports     string // of its container, instead of http at 8080
	spec      string // more lines of its spec
}

func (p pod) String() string {
	args, ports, spec := p.args, p.ports, p.spec
	if args == "" {
		args = `--http, ":8080"`
	}
	if ports == "" {
		ports = "{name: http, containerPort: 8080}"
	}
	grace, hook := 1, ""
	if p.slow {
		grace, hook = 300, "\n    lifecycle: {preStop: {sleep: {seconds: 299}}}"
	}
	annotations := ""
	if p.unready {
		annotations = `sandbox.aether.io/ready: "false"`
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s, aether.io/managed: %q}, annotations: {%s}}
spec:
  nodeName: %q
  terminationGracePeriodSeconds: %d
  containers:
  - name: server
    image: aether/echo
    args: [%s]
    ports: [%s]
    readinessProbe: {tcpSocket: {port: %s}, periodSeconds: 1, failureThreshold: 1}%s%s`,
		p.name, p.app, fmt.Sprint(p.captured), annotations, p.node, grace, args, ports, firstPort(args), hook, spec)
}

// firstPort is the number in the first address of a server's arguments.
func firstPort(args string) string {
	_, rest, _ := strings.Cut(args, `":`)
	number, _, _ := strings.Cut(rest, `"`)
	return number
}

// run makes pods and waits until they are ready, but for those that never are.
func (s *scene) run(pods ...pod) {
	s.t.Helper()
	for _, p := range pods {
		s.Apply(p.String())
	}
	for _, p := range pods {
		if !p.unready {
			s.Ready(p.name)
			continue
		}
		s.Eventually("pod "+p.name+" runs", func() error {
			got, err := s.Client().CoreV1().Pods(s.Namespace).Get(s.t.Context(), p.name, metav1.GetOptions{})
			if err == nil && got.Status.PodIP == "" {
				err = fmt.Errorf("it is %s", got.Status.Phase)
			}
			return err
		})
	}
}

// some are pods of an app, NAME-1 and so on, on the nodes that are not ours.
func some(app string, count int) (pods []pod, names []string) {
	for i := range count {
		p := pod{name: fmt.Sprintf("%s-%d", app, i+1), app: app, node: nodes[1+i%(len(nodes)-1)].Name}
		pods, names = append(pods, p), append(names, p.name)
	}
	return pods, names
}

// web is the port that most Services have.
const web = "{name: http, port: 80, targetPort: 8080}"

// service is a Service of an app; spec are more fields of its spec, in flow style.
func service(name, app, spec string, ports ...string) string {
	selector := ""
	if app != "" {
		selector = "selector: {app: " + app + "}, "
	}
	if spec != "" {
		spec = ", " + spec
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {%sports: [%s]%s}}",
		name, selector, strings.Join(ports, ", "), spec)
}
