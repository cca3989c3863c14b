// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"

	"aether.io/aether/internal/capture"
	"aether.io/aether/internal/sandbox/echo"
)

// Answer is how one connection went, and who answered it.
type Answer struct {
	echo.Verdict
	// By is the server that answered, in modes http and server-first; empty when
	// nobody did. Its Pod is the pod's host name, its Remote whom it saw.
	By echo.Identity
}

// String says it in one line.
func (a Answer) String() string {
	if a.Outcome == echo.OK {
		return fmt.Sprintf("%s answered by %s on %s", a.Target, a.By.Pod, a.By.Node)
	}
	return fmt.Sprintf("%s: %s in phase %q: %s", a.Target, a.Outcome, a.Phase, a.Error)
}

// Dial makes one connection from a pod: captured or not, as the pod is. The target
// is a literal address: there is no DNS in the lab. An error means that it could
// not be tried; what became of it is in the Answer.
func (c *Cluster) Dial(ctx context.Context, pod string, client echo.Client) (Answer, error) {
	var a Answer
	err := c.Node.InPod(pod, func() error {
		a.Verdict = client.Do(ctx)
		return nil
	})
	if err != nil {
		return a, fmt.Errorf("dial from pod %s: %w", pod, err)
	}
	if a.Outcome == echo.OK && (client.Mode == "http" || client.Mode == "server-first") {
		if err := json.Unmarshal([]byte(a.Answer), &a.By); err != nil {
			return a, fmt.Errorf("read who answered %s: %q: %w", a.Target, a.Answer, err)
		}
	}
	return a, nil
}

// Ask is Dial in mode http with the client's default timeout of 5 s.
func (c *Cluster) Ask(ctx context.Context, pod string, vip netip.Addr, port int) (Answer, error) {
	return c.Dial(ctx, pod, echo.Client{Mode: "http", Target: Target(vip, port)})
}

// Target is address:port.
func Target(a netip.Addr, port int) string { return a.String() + ":" + strconv.Itoa(port) }

// StopCapture takes a pod's capture rules away, as if it never had been captured;
// its listener stays. StartCapture brings them back.
func (c *Cluster) StopCapture(pod string) error {
	return c.withNetNS(pod, capture.Remove)
}

// StartCapture installs the capture rules of a pod without annotations.
func (c *Cluster) StartCapture(pod string) error {
	return c.withNetNS(pod, func(path string) error {
		conf, err := capture.ParseAnnotations(nil, true)
		if err != nil {
			return err
		}
		return capture.Install(path, conf)
	})
}

func (c *Cluster) withNetNS(pod string, f func(path string) error) error {
	pods, _ := c.Node.Pods()
	ns, name := splitName(pod)
	for _, p := range pods {
		if p.Namespace == ns && p.Name == name {
			return f(p.NetNS)
		}
	}
	return fmt.Errorf("no pod %s", pod)
}
