// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The network is the point-to-point kind (as the CNI plugin ptp makes it): one
// veth pair per pod, the pod's end holds its address as a /32, its default route
// leads to the node's address over that link, and the node has one /32 route per
// pod. The node's own address is on its loopback and answers on every link. The
// outside namespace hangs on the node the same way and holds its addresses on
// its loopback. The node's default route is a blackhole; no interface leads out
// of these namespaces at all.
const (
	podLink     = "eth0"     // a pod's end
	outsideLink = "outside0" // the node's end of the link to the outside
)

// podInterface is the name of the node's end of a pod's link. Interface names
// have at most 15 bytes.
func podInterface(key string) string {
	h := fnv.New64a()
	h.Write([]byte(key))
	return fmt.Sprintf("veth%011x", h.Sum64()>>20)
}

// nodeSysctls make the node a router that accepts asymmetric paths, as a
// Kubernetes node is; IPv6 stays on loopback alone.
var nodeSysctls = map[string]string{
	"net/ipv4/ip_forward":                    "1",
	"net/ipv4/conf/all/rp_filter":            "0",
	"net/ipv4/conf/default/rp_filter":        "0",
	"net/ipv4/conf/all/send_redirects":       "0",
	"net/ipv6/conf/default/disable_ipv6":     "1",
	"net/ipv4/neigh/default/gc_thresh3":      "8192",
	"net/ipv4/conf/all/accept_redirects":     "0",
	"net/ipv4/conf/default/accept_redirects": "0",
}

// podSysctls hold in pods and outside.
var podSysctls = map[string]string{
	"net/ipv4/conf/all/rp_filter":        "0",
	"net/ipv4/conf/default/rp_filter":    "0",
	"net/ipv6/conf/default/disable_ipv6": "1",
	// Unprivileged low ports and ping, as container runtimes set them.
	"net/ipv4/ip_unprivileged_port_start": "0",
	"net/ipv4/ping_group_range":           "0 2147483647",
}

// firstGroupOnly takes the place of the range of groups that may ping where the
// user namespace has no more than one.
const firstGroupOnly = "0 0"

// setSysctls writes them in a namespace. One the kernel does not have there
// (some exist for the first namespace only) is skipped.
func setSysctls(path string, values map[string]string) error {
	return inNetNS(path, func() error {
		for k, v := range values {
			if strings.HasSuffix(k, "ping_group_range") && rootless() {
				v = firstGroupOnly
			}
			err := os.WriteFile(filepath.Join("/proc/sys", k), []byte(v), 0o644)
			if err != nil && !os.IsNotExist(err) {
				return fmt.Errorf("set sysctl %s: %w", strings.ReplaceAll(k, "/", "."), err)
			}
		}
		return nil
	})
}

// netHandle is a netlink connection into a namespace.
func netHandle(path string) (*netlink.Handle, netns.NsHandle, error) {
	fd, err := netns.GetFromPath(path)
	if err != nil {
		return nil, -1, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	h, err := netlink.NewHandleAt(fd, unix.NETLINK_ROUTE)
	if err != nil {
		fd.Close()
		return nil, -1, fmt.Errorf("open netlink in %s: %w", path, err)
	}
	return h, fd, nil
}

// setUpNode makes the node's own network: loopback with the node's address and
// the blackhole.
func setUpNode(path string, nodeIP netip.Addr) error {
	if err := setSysctls(path, nodeSysctls); err != nil {
		return err
	}
	h, fd, err := netHandle(path)
	if err != nil {
		return err
	}
	defer fd.Close()
	defer h.Close()
	if err := loopbackUp(h, nodeIP); err != nil {
		return err
	}
	if err := h.RouteAdd(&netlink.Route{Dst: prefixNet(netip.MustParsePrefix("0.0.0.0/0")), Type: unix.RTN_BLACKHOLE}); err != nil {
		return fmt.Errorf("add blackhole route of the node: %w", err)
	}
	return nil
}

// loopbackUp brings lo up and puts addresses on it.
func loopbackUp(h *netlink.Handle, addrs ...netip.Addr) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	for _, a := range addrs {
		if err := h.AddrReplace(lo, &netlink.Addr{IPNet: hostNet(a)}); err != nil {
			return fmt.Errorf("put %s on loopback: %w", a, err)
		}
	}
	return nil
}

// connect makes a namespace one hop from the node: a veth pair, inside with
// default route over it, the node with a /32 route for each address. The first
// address is inside's own on the link unless onLoopback.
func connect(nodePath, insidePath, nodeSide string, nodeIP netip.Addr, addrs []netip.Addr, onLoopback bool) error {
	if err := setSysctls(insidePath, podSysctls); err != nil {
		return err
	}
	node, nodeFD, err := netHandle(nodePath)
	if err != nil {
		return err
	}
	defer nodeFD.Close()
	defer node.Close()
	inside, insideFD, err := netHandle(insidePath)
	if err != nil {
		return err
	}
	defer insideFD.Close()
	defer inside.Close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name = nodeSide
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: podLink, PeerNamespace: netlink.NsFd(insideFD)}
	if err := node.LinkAdd(veth); err != nil {
		return fmt.Errorf("make link %s: %w", nodeSide, err)
	}
	if err := connectInside(inside, nodeIP, addrs, onLoopback); err != nil {
		return err
	}
	link, err := node.LinkByName(nodeSide)
	if err != nil {
		return fmt.Errorf("find link %s: %w", nodeSide, err)
	}
	if err := node.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring link %s up: %w", nodeSide, err)
	}
	for _, a := range addrs {
		if err := addNodeRoute(node, link, nodeIP, a); err != nil {
			return err
		}
	}
	return nil
}

// addNodeRoute leads an address over a link; the node speaks to it from its own.
func addNodeRoute(node *netlink.Handle, link netlink.Link, nodeIP, a netip.Addr) error {
	r := &netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: hostNet(a), Scope: netlink.SCOPE_LINK, Src: nodeIP.AsSlice(),
	}
	if err := node.RouteReplace(r); err != nil {
		return fmt.Errorf("add route to %s: %w", a, err)
	}
	return nil
}

func connectInside(inside *netlink.Handle, nodeIP netip.Addr, addrs []netip.Addr, onLoopback bool) error {
	var onLo []netip.Addr
	if onLoopback {
		onLo = addrs
	}
	if err := loopbackUp(inside, onLo...); err != nil {
		return err
	}
	link, err := inside.LinkByName(podLink)
	if err != nil {
		return fmt.Errorf("find link %s: %w", podLink, err)
	}
	if !onLoopback {
		if err := inside.AddrAdd(link, &netlink.Addr{IPNet: hostNet(addrs[0])}); err != nil {
			return fmt.Errorf("set address %s: %w", addrs[0], err)
		}
	}
	if err := inside.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring link %s up: %w", podLink, err)
	}
	index := link.Attrs().Index
	routes := []*netlink.Route{
		{LinkIndex: index, Dst: hostNet(nodeIP), Scope: netlink.SCOPE_LINK},
		{LinkIndex: index, Dst: prefixNet(netip.MustParsePrefix("0.0.0.0/0")), Gw: nodeIP.AsSlice()},
	}
	for _, r := range routes {
		if err := inside.RouteAdd(r); err != nil {
			return fmt.Errorf("add route %s: %w", r.Dst, err)
		}
	}
	return nil
}

// disconnect removes a link by its node's end; both ends go. A link that is not
// there is no error.
func disconnect(nodePath, nodeSide string) error {
	h, fd, err := netHandle(nodePath)
	if err != nil {
		return err
	}
	defer fd.Close()
	defer h.Close()
	link, err := h.LinkByName(nodeSide)
	if err != nil {
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		return fmt.Errorf("find link %s: %w", nodeSide, err)
	}
	if err := h.LinkDel(link); err != nil {
		return fmt.Errorf("remove link %s: %w", nodeSide, err)
	}
	return nil
}

// setOutside gives the outside namespace exactly these addresses, and the node
// the routes to them.
func setOutside(nodePath, outsidePath string, nodeIP netip.Addr, add, remove []netip.Addr) error {
	node, nodeFD, err := netHandle(nodePath)
	if err != nil {
		return err
	}
	defer nodeFD.Close()
	defer node.Close()
	outside, outsideFD, err := netHandle(outsidePath)
	if err != nil {
		return err
	}
	defer outsideFD.Close()
	defer outside.Close()
	link, err := node.LinkByName(outsideLink)
	if err != nil {
		return fmt.Errorf("find link %s: %w", outsideLink, err)
	}
	lo, err := outside.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	for _, a := range remove {
		if err := outside.AddrDel(lo, &netlink.Addr{IPNet: hostNet(a)}); err != nil {
			return fmt.Errorf("take %s off outside: %w", a, err)
		}
		if err := node.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostNet(a)}); err != nil {
			return fmt.Errorf("remove route to %s: %w", a, err)
		}
	}
	for _, a := range add {
		if err := outside.AddrReplace(lo, &netlink.Addr{IPNet: hostNet(a)}); err != nil {
			return fmt.Errorf("put %s outside: %w", a, err)
		}
		if err := addNodeRoute(node, link, nodeIP, a); err != nil {
			return err
		}
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet {
	return prefixNet(netip.PrefixFrom(a, a.BitLen()))
}

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
