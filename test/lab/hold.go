// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// HolderLog opens the file that the process which holds a lab of that name logs to.
func HolderLog(name string) (*os.File, error) {
	c := Config{Name: name}.withDefaults()
	if !namePattern.MatchString(c.Name) {
		return nil, fmt.Errorf("lab name %q: want 1 to 16 lower-case letters and digits", c.Name)
	}
	if err := os.MkdirAll(c.StateDir, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	f, err := os.OpenFile(c.paths().holderLog(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// endPatience is how long a lab may take to end.
const endPatience = time.Minute

// End asks the process that holds a lab to end it, waits for that, and removes what
// is left all the same; it says what it did.
func End(ctx context.Context, name string) (did []string, err error) {
	c := Config{Name: name}.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	asked := 0
	err = Poll(ctx, "lab "+c.Name+" has ended", func(ctx context.Context) error {
		removed, err := Clean(ctx, c.StateDir, c.Name)
		if !errors.Is(err, ErrRunning) {
			for _, r := range removed {
				did = append(did, "removed "+r)
			}
			if err != nil {
				return errEnded{err}
			}
			return nil
		}
		b, readErr := os.ReadFile(c.paths().lock())
		pid, convErr := strconv.Atoi(strings.TrimSpace(string(b)))
		if readErr != nil || convErr != nil || pid == asked {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			return fmt.Errorf("ask process %d to end: %w", pid, err)
		}
		asked = pid
		did = append(did, fmt.Sprintf("ended the lab of process %d", pid))
		return err
	})
	return did, err
}

// LookAround says in words what is there and how to see it.
func (c *Cluster) LookAround() string {
	var b strings.Builder
	line := func(what, how string) { fmt.Fprintf(&b, "  %-28s %s\n", what, how) }
	fmt.Fprintf(&b, "Lab %s is up: Kubernetes %s, node %s is ours.\n", c.cfg.Name, c.version(), c.cfg.our().Name)
	line("kubectl", fmt.Sprintf("export KUBECONFIG=%s; %s get nodes", c.Kubeconfig(), c.Program("kubectl")))
	aetherctl := c.Program("aetherctl")
	line("what runs, and where", fmt.Sprintf("%s sandbox status --sandbox %s", aetherctl, c.cfg.Name))
	line("a command in a pod", fmt.Sprintf("%s sandbox exec --sandbox %s POD -- CMD", aetherctl, c.cfg.Name))
	if !c.cfg.NoProxy {
		line("what the node answers", fmt.Sprintf("%s svc list --sandbox %s", aetherctl, c.cfg.Name))
	}
	line("our node's network", fmt.Sprintf("ip netns exec %s nft list table ip %s", nameOf(c.nodeNS()), kubeProxyTable))
	line("the control plane's network", "ip netns exec "+c.cfg.controlName()+" ip address")
	line("logs", c.paths.at("logs")+" and "+c.Node.Paths().Dir+"/logs")
	line("images for pods", "aether/echo and aether/client, or a command of this machine")
	line("the end", "make lab-down, or: kill "+strconv.Itoa(os.Getpid()))
	return strings.TrimRight(b.String(), "\n")
}

func nameOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
