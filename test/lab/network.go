// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The control plane has a namespace of its own with one link, which leads to our
// node. Its address is on its loopback, its default route leads to the node, so
// that it answers pods of all nodes; nothing of it leads out. The default route of
// the node leads into a bridge without ports, which swallows what it gets: unlike
// a blackhole route it lets packets come as far as kube-proxy's rules for what is
// forwarded, as a node's way out does.
const (
	netnsDir    = "/run/netns"
	controlLink = "control0" // the node's end
	nodeLink    = "node0"    // the control plane's end
	sinkLink    = "sink0"
)

// controlName names the namespace. It has no dot, which pods' have, and is not
// what the sandbox of that name calls its own.
func (c Config) controlName() string { return "aether-" + c.Name + "-control" }

func (c Config) controlNS() string { return filepath.Join(netnsDir, c.controlName()) }

// makeControl makes the control plane's namespace, without a link.
func (c Config) makeControl() error {
	done := make(chan error)
	go func() {
		// The thread ends with the goroutine unless its namespace is set back.
		runtime.LockOSThread()
		old, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer old.Close()
		made, err := netns.NewNamed(c.controlName())
		if netns.Set(old) == nil {
			runtime.UnlockOSThread()
		}
		if err != nil {
			done <- fmt.Errorf("make network namespace %s: %w", c.controlName(), err)
			return
		}
		done <- made.Close()
	}()
	if err := <-done; err != nil {
		return err
	}
	return ns.WithNetNSPath(c.controlNS(), func(ns.NetNS) error {
		for k, v := range map[string]string{"net/ipv6/conf/default/disable_ipv6": "1", "net/ipv4/ip_forward": "0"} {
			if err := os.WriteFile("/proc/sys/"+k, []byte(v), 0o644); err != nil && !os.IsNotExist(err) {
				return fmt.Errorf("set sysctl %s: %w", k, err)
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback: %w", err)
		}
		if err := netlink.AddrReplace(lo, &netlink.Addr{IPNet: hostNet(controlIP)}); err != nil {
			return fmt.Errorf("set address of the control plane: %w", err)
		}
		return netlink.LinkSetUp(lo)
	})
}

// linkControl joins the control plane and the node, and gives the node its way
// out that leads nowhere.
func (c Config) linkControl(nodeNS string, nodeIP netip.Addr) error {
	control, err := netns.GetFromPath(c.controlNS())
	if err != nil {
		return fmt.Errorf("open namespace of the control plane: %w", err)
	}
	defer control.Close()
	err = ns.WithNetNSPath(nodeNS, func(ns.NetNS) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = controlLink
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: nodeLink, PeerNamespace: netlink.NsFd(control)}
		if err := addRoute(veth, netlink.Route{Dst: hostNet(controlIP), Src: nodeIP.AsSlice()}); err != nil {
			return err
		}
		attrs = netlink.NewLinkAttrs()
		attrs.Name = sinkLink
		if err := addRoute(&netlink.Bridge{LinkAttrs: attrs}, netlink.Route{Dst: anywhere(), Src: nodeIP.AsSlice()}); err != nil {
			return err
		}
		// Nobody is asked who has an address, so nobody says that none has.
		sink, err := netlink.LinkByName(sinkLink)
		if err != nil {
			return fmt.Errorf("find link %s: %w", sinkLink, err)
		}
		return netlink.LinkSetARPOff(sink)
	})
	if err != nil {
		return fmt.Errorf("link the node to the control plane: %w", err)
	}
	return ns.WithNetNSPath(c.controlNS(), func(ns.NetNS) error {
		link, err := netlink.LinkByName(nodeLink)
		if err != nil {
			return fmt.Errorf("find link %s: %w", nodeLink, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("bring link %s up: %w", nodeLink, err)
		}
		for _, r := range []netlink.Route{
			{LinkIndex: link.Attrs().Index, Dst: hostNet(nodeIP), Scope: netlink.SCOPE_LINK, Src: controlIP.AsSlice()},
			{LinkIndex: link.Attrs().Index, Dst: anywhere(), Gw: nodeIP.AsSlice(), Src: controlIP.AsSlice()},
		} {
			if err := netlink.RouteAdd(&r); err != nil {
				return fmt.Errorf("add route %s of the control plane: %w", r.Dst, err)
			}
		}
		return nil
	})
}

// addRoute makes an interface and leads a route over it.
func addRoute(link netlink.Link, r netlink.Route) error {
	name := link.Attrs().Name
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("make link %s: %w", name, err)
	}
	made, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(made); err != nil {
		return fmt.Errorf("bring link %s up: %w", name, err)
	}
	r.LinkIndex, r.Scope = made.Attrs().Index, netlink.SCOPE_LINK
	if err := netlink.RouteReplace(&r); err != nil {
		return fmt.Errorf("add route %s: %w", r.Dst, err)
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
}

func anywhere() *net.IPNet { return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)} }

// dialIn dials from a namespace. The address holds an IP.
func dialIn(path string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		nsErr := ns.WithNetNSPath(path, func(ns.NetNS) error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return nil
		})
		if nsErr != nil {
			return nil, fmt.Errorf("enter %s: %w", path, nsErr)
		}
		return conn, err
	}
}

// removeControl kills what runs in the control plane's namespace and removes it;
// it says what there was.
func (c Config) removeControl() (removed []string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(c.controlNS(), &st); errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look for what an earlier lab left: %w", err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		pids, err := processesIn(st.Ino)
		if err != nil {
			return removed, err
		}
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return removed, fmt.Errorf("end processes %v of the control plane: still there after 5 s", pids)
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
				removed = append(removed, fmt.Sprintf("process %d", pid))
			}
		}
	}
	if err := unix.Unmount(c.controlNS(), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return removed, fmt.Errorf("unmount %s: %w", c.controlNS(), err)
	}
	if err := os.Remove(c.controlNS()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return removed, fmt.Errorf("remove namespace of the control plane: %w", err)
	}
	return append(removed, c.controlName()), nil
}

// processesIn lists the processes of a network namespace, but for this one, whose
// threads only visit.
func processesIn(inode uint64) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &st) == nil && st.Ino == inode {
			out = append(out, pid)
		}
	}
	return out, nil
}
