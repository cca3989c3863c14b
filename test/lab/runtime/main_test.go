// SPDX-License-Identifier: Apache-2.0

// Package runtime_test changes a cluster while it is used: ranges and kinds that
// come and go, an API server that is away, history that is gone, Services that
// change places, workloads that roll. Clients are captured pods in mode enforce;
// every failure that one of them sees must have its cause in the access log.
package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m, lab.Config{}) }

// TestWhileItRuns is what changes while a cluster is used. It runs beside
// TestAPIServerIsAway, which mostly waits.
func TestWhileItRuns(t *testing.T) {
	t.Parallel()
	labtest.Cluster(t)
	t.Run("CreatedAndDialled", createdAndDialled)
	t.Run("ServiceCIDRComesAndGoes", serviceCIDRComesAndGoes)
	t.Run("ImportsComeAndGo", importsComeAndGo)
	t.Run("ServicesChangePlaces", servicesChangePlaces)
	t.Run("RollingUpdate", rollingUpdate)
	t.Run("HistoryIsGone", historyIsGone)
	t.Run("NodeStartsAlone", nodeStartsAlone)
	t.Run("NodeChangesItsZone", nodeChangesItsZone)
}

// within is a context for one step.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), labtest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

func errorOf(a lab.Answer) error { return errors.New(a.String()) }

// talkPort is where servers echo lines; servers' Services have it as port 81.
const talkPort = 9000

// server is a Deployment of pods that answer over HTTP and echo lines, and its
// Service. They are not captured, so they come and go when the agent does not work.
func server(name string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s, aether.io/managed: "false"}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: echo
        image: aether/echo
        args: [--http, ":80", --http, ":%[3]d", --tcp, ":%[4]d"]
        readinessProbe: {tcpSocket: {port: %[3]d}, periodSeconds: 1, failureThreshold: 1}
---`, name, replicas, labtest.EchoPort, talkPort) + serviceAt(name, name, "")
}

// serviceAt is a Service of an app, at an address if one is given.
func serviceAt(name, app, vip string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  clusterIP: %q
  selector: {app: %s}
  ports: [{name: http, port: 80, targetPort: %d}, {name: talk, port: 81, targetPort: %d}]`,
		name, vip, app, labtest.EchoPort, talkPort)
}

// isServed dials once and fails the test unless it was served by us: the log names
// the Service.
func isServed(t *testing.T, s *labtest.Space, pod string, vip netip.Addr, service string) {
	t.Helper()
	if err := served(within(t), s, pod, vip, service); err != nil {
		t.Error(err)
	}
}

func served(ctx context.Context, s *labtest.Space, pod string, vip netip.Addr, service string) error {
	a := s.Try(pod, vip, 80)
	if a.Outcome != echo.OK {
		return errorOf(a)
	}
	line, err := s.Logged(ctx, a.Verdict)
	if err != nil {
		return err
	}
	if line.ServiceName != service || line.ServiceNamespace != s.Namespace {
		return errorf("%s: logged as Service %s/%s in chain %s, want %s", a, line.ServiceNamespace, line.ServiceName, line.Chain, service)
	}
	return nil
}

// refused dials once and is an error unless we refused it for that reason.
func refused(ctx context.Context, s *labtest.Space, pod string, vip netip.Addr, reason string) error {
	a := s.Try(pod, vip, 80)
	if a.Outcome != echo.Reset {
		return errorf("%s, want a reset", a)
	}
	line, err := s.Logged(ctx, a.Verdict)
	if err == nil && (line.Outcome != "refused" || line.Reason != reason) {
		err = errorf("%s: logged as %s %s, want %s", a, line.Outcome, line.Reason, reason)
	}
	return err
}

// passedThrough dials an address that stranded gave somebody, and is an error unless
// we passed it through, by a chain of ours.
func passedThrough(ctx context.Context, s *labtest.Space, pod string, a netip.Addr, chain string) error {
	got := s.Try(pod, a, 80)
	if got.Outcome != echo.OK {
		return errorOf(got)
	}
	line, err := s.Logged(ctx, got.Verdict)
	if err == nil && (line.Outcome != "ok" || line.Endpoint != line.Dialled || line.Chain != chain) {
		err = errorf("%s: logged as %+v, want chain %s and the dialled address", got, line, chain)
	}
	return err
}

// The chains that pass through: what is outside every range, and what is in one.
const (
	outside = "cap_passthrough"
	inRange = "cap_svc"
)

// stranded gives a server's pod more addresses and the node the way there, as
// whoever else balances them would have it: they answer when they are passed
// through, and then only.
func stranded(t *testing.T, s *labtest.Space, app string, addresses ...netip.Addr) {
	t.Helper()
	list, err := s.Client().CoreV1().Pods(s.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	s.Must(err)
	pod := list.Items[0]
	for _, a := range addresses {
		single := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
		s.Must(s.Node.InPod(s.Namespace+"/"+pod.Name, func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.AddrAdd(lo, &netlink.Addr{IPNet: single})
		}))
		s.Must(s.Node.InNode(func() error {
			ways, err := netlink.RouteGet(net.ParseIP(pod.Status.PodIP))
			if err != nil {
				return err
			}
			// The pod's end takes it with it.
			return netlink.RouteAdd(&netlink.Route{
				Dst: single, LinkIndex: ways[0].LinkIndex, Gw: net.ParseIP(pod.Status.PodIP), Flags: int(netlink.FLAG_ONLINK),
			})
		}))
	}
}
