// SPDX-License-Identifier: Apache-2.0

package echo

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxTargets bounds what one range may stand for.
const maxTargets = 1 << 20

// expand returns the targets that a text stands for: itself, or each in turn of
// a range of IPv4 addresses, "10.96.1.0-10.96.254.231:80", or of ports,
// "10.96.0.10:1-65535".
func expand(text string) ([]string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil || !strings.Contains(port, "-") && !isAddressRange(host) {
		return []string{text}, nil // a host name may hold a dash
	}
	from, to, found := strings.Cut(host, "-")
	if !found {
		to = from
	}
	first, err1 := netip.ParseAddr(from)
	last, err2 := netip.ParseAddr(to)
	if err1 != nil || err2 != nil || !first.Is4() || !last.Is4() || last.Less(first) {
		return nil, fmt.Errorf("target %q: want an IPv4 address, or two joined by a dash", text)
	}
	from, to, found = strings.Cut(port, "-")
	if !found {
		to = from
	}
	low, err1 := strconv.ParseUint(from, 10, 16)
	high, err2 := strconv.ParseUint(to, 10, 16)
	if err1 != nil || err2 != nil || low == 0 || high < low {
		return nil, fmt.Errorf("target %q: want a port, or two joined by a dash", text)
	}
	count := uint64(number(last)-number(first)) + 1
	if count*(high-low+1) > maxTargets {
		return nil, fmt.Errorf("target %q: more than %d addresses and ports", text, maxTargets)
	}
	var out []string
	for a := first; ; a = a.Next() {
		for p := low; p <= high; p++ {
			out = append(out, netip.AddrPortFrom(a, uint16(p)).String())
		}
		if a == last {
			return out, nil
		}
	}
}

func isAddressRange(host string) bool {
	from, _, found := strings.Cut(host, "-")
	_, err := netip.ParseAddr(from)
	return found && err == nil
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// expandAll expands every text.
func expandAll(texts []string) ([]string, error) {
	if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "-") }) {
		return texts, nil
	}
	var out []string
	for _, text := range texts {
		targets, err := expand(text)
		if err != nil {
			return nil, err
		}
		out = append(out, targets...)
	}
	return out, nil
}
