// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dumpAttempts bounds how often a listing is repeated that a change in the
// kernel interrupted.
const dumpAttempts = 5

// list repeats a netlink listing until no change interrupted it.
func list[T any](what string, dump func() ([]T, error)) ([]T, error) {
	for attempt := 1; ; attempt++ {
		out, err := dump()
		switch {
		case err == nil:
			return out, nil
		case attempt == dumpAttempts || !errors.Is(err, netlink.ErrDumpInterrupted):
			return nil, fmt.Errorf("list %s: %w", what, err)
		}
	}
}

// policyRule is "from all fwmark DivertMark lookup RouteTable".
func policyRule() *netlink.Rule {
	r := netlink.NewRule()
	r.Family = netlink.FAMILY_V4
	r.Priority = RulePriority
	r.Mark = DivertMark
	r.Table = RouteTable
	return r
}

// divertRoute is "local default dev lo scope host table RouteTable".
func divertRoute(lo netlink.Link) *netlink.Route {
	return &netlink.Route{
		LinkIndex: lo.Attrs().Index,
		Dst:       &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
		Table:     RouteTable,
		Type:      unix.RTN_LOCAL,
		Scope:     netlink.SCOPE_HOST,
		Protocol:  unix.RTPROT_STATIC,
	}
}

func (k kernel) addRoute() error {
	lo, err := k.route.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := k.route.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	if err := k.route.RouteReplace(divertRoute(lo)); err != nil {
		return fmt.Errorf("add the route in table %d: %w", RouteTable, err)
	}
	return nil
}

// addPolicyRule adds the rule unless it is there. The kernel also refuses it as
// existing when there is one at our priority, for our mark and table, that has
// more conditions; such a rule is a damaged one of ours and makes room.
func (k kernel) addPolicyRule() error {
	add := func() error { return k.route.RuleAdd(policyRule()) }
	err := add()
	if errors.Is(err, syscall.EEXIST) {
		there, errList := k.hasPolicyRule()
		if there || errList != nil {
			return errList
		}
		if err := k.deletePolicyRules(); err != nil {
			return err
		}
		err = add()
	}
	if err != nil {
		return fmt.Errorf("add the policy rule for mark %#x: %w", DivertMark, err)
	}
	return nil
}

// deletePolicyRules deletes until there is none: whoever restores saved rules may
// have made copies.
func (k kernel) deletePolicyRules() error {
	for {
		err := k.route.RuleDel(policyRule())
		if errors.Is(err, syscall.ENOENT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("delete the policy rule for mark %#x: %w", DivertMark, err)
		}
	}
}

func (k kernel) deleteRoute() error {
	lo, err := k.route.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := k.route.RouteDel(divertRoute(lo)); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("delete the route in table %d: %w", RouteTable, err)
	}
	return nil
}

// hasPolicyRule looks for the rule as Install makes it.
func (k kernel) hasPolicyRule() (bool, error) {
	want := policyRule()
	found, err := list("policy rules", func() ([]netlink.Rule, error) {
		return k.route.RuleListFiltered(netlink.FAMILY_V4, want, netlink.RT_FILTER_MARK|netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PRIORITY)
	})
	if err != nil {
		return false, err
	}
	for _, r := range found {
		everyPacket := r.Src == nil && r.Dst == nil && r.IifName == "" && r.OifName == "" && !r.Invert &&
			r.IPProto == 0 && r.Sport == nil && r.Dport == nil && r.UIDRange == nil && r.Tos == 0
		if everyPacket && (r.Mask == nil || *r.Mask == ^uint32(0)) {
			return true, nil
		}
	}
	return false, nil
}

// hasRoute looks for the route as Install makes it.
func (k kernel) hasRoute(lo netlink.Link) (bool, error) {
	want := divertRoute(lo)
	found, err := list(fmt.Sprintf("routes of table %d", RouteTable), func() ([]netlink.Route, error) {
		return k.route.RouteListFiltered(netlink.FAMILY_V4, want, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF|netlink.RT_FILTER_TYPE)
	})
	if err != nil {
		return false, err
	}
	for _, r := range found {
		if ones, _ := maskOf(r.Dst); ones == 0 {
			return true, nil
		}
	}
	return false, nil
}

// maskOf returns the mask of a route's destination, which may be nil for a
// default route.
func maskOf(dst *net.IPNet) (ones, bits int) {
	if dst == nil {
		return 0, 32
	}
	return dst.Mask.Size()
}
