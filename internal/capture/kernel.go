// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Install makes the network namespace at netnsPath capture as c says: lo is up,
// the route and the policy rule are there, and the nft table holds Rules(c) and
// nothing else. What was installed before is replaced in one transaction;
// connections keep what was decided for them when they began. On an error the
// rules that were in force before still are.
//
// It needs CAP_NET_ADMIN and CAP_SYS_ADMIN in the user namespace that owns the
// network namespace, not on the host, and a kernel of 5.9 or newer with nft's ct,
// fib, tproxy and reject. It is safe for concurrent use. The error names the
// namespace and the step; errors.Is tells fs.ErrNotExist when there is no such
// namespace.
func Install(netnsPath string, c Config) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("install capture in netns %s: %w", netnsPath, err)
	}
	err := within(netnsPath, func(k kernel) error {
		// The rules come last: marked packets need their route.
		if err := k.addRoute(); err != nil {
			return err
		}
		if err := k.addPolicyRule(); err != nil {
			return err
		}
		if err := writeTable(k.nft, Rules(c)); err != nil {
			return fmt.Errorf("write nft table %s: %w", TableName, withHint(err))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("install capture in netns %s: %w", netnsPath, err)
	}
	return nil
}

// Remove takes away what Install made; what is not there is no error. lo stays
// up. Connections that are captured end, for their segments have no way to the
// proxy any more. The error is as Install's.
func Remove(netnsPath string) error {
	err := within(netnsPath, func(k kernel) error {
		if err := deleteTable(k.nft); err != nil {
			return fmt.Errorf("delete nft table %s: %w", TableName, err)
		}
		if err := k.deletePolicyRules(); err != nil {
			return err
		}
		return k.deleteRoute()
	})
	if err != nil {
		return fmt.Errorf("remove capture from netns %s: %w", netnsPath, err)
	}
	return nil
}

// kernel is a way into one network namespace, good on the thread that is in it.
type kernel struct {
	route *netlink.Handle
	nft   *nftables.Conn
}

// within runs do with sockets of the network namespace at path, on a thread of
// its own that is in the namespace meanwhile; the calling thread never is.
func within(path string, do func(kernel) error) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("open the network namespace: %w", bare(err))
	}
	target, err := ns.GetNS(path)
	if err != nil {
		return fmt.Errorf("open the network namespace: %w", bare(err))
	}
	defer func() { _ = target.Close() }()
	var inside error
	entered := false
	err = target.Do(func(ns.NetNS) error {
		entered = true
		inside = withSockets(do)
		return nil
	})
	switch {
	case inside != nil:
		return inside
	case err != nil && !entered:
		return fmt.Errorf("enter the network namespace: %w", err)
	case err != nil:
		return fmt.Errorf("leave the network namespace: %w", err)
	}
	return nil
}

// withSockets opens the netlink sockets in the network namespace of the thread.
func withSockets(do func(kernel) error) error {
	route, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a route netlink socket: %w", err)
	}
	defer route.Close()
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("open an nftables netlink socket: %w", err)
	}
	defer func() { _ = conn.CloseLasting() }()
	return do(kernel{route: route, nft: conn})
}

// bare takes the path off a file error: ours names it already.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// withHint adds what a refusal of the rules usually means.
func withHint(err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EOPNOTSUPP):
		return fmt.Errorf("%w (the kernel needs nft_ct, nft_fib_ipv4, nft_tproxy and nft_reject_ipv4, loaded before where a user namespace cannot load them)", err)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w (CAP_NET_ADMIN in the user namespace that owns the network namespace is needed)", err)
	}
	return err
}
