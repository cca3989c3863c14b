// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// target is what a person asks about: an address, or a Service port by name.
type target struct {
	text    string
	addr    netip.AddrPort // valid unless it is a name
	service string
	ns      string
	port    string // of a name: the port's name or number
}

// label is a DNS label, which names of Services, namespaces and ports are.
var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// parseTarget reads ADDRESS:PORT or SERVICE[.NAMESPACE[.svc[.cluster.local]]]:PORT.
// An IPv4-mapped IPv6 address is the IPv4 address it maps.
func parseTarget(s string) (target, error) {
	t, err := splitTarget(s)
	if err != nil {
		return target{}, badInput(program+" explain 10.96.0.10:80", "%q: %w", s, err)
	}
	return t, nil
}

func splitTarget(s string) (target, error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return target{}, errors.New("no port: want ADDRESS:PORT or SERVICE[.NAMESPACE]:PORT")
	}
	host, port := s[:i], s[i+1:]
	bracketed := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	if bracketed {
		host = host[1 : len(host)-1]
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return addressTarget(s, a, port, bracketed)
	}
	switch {
	case bracketed || strings.Contains(host, ":"):
		return target{}, errors.New("not an address: IPv6 is not captured, want an IPv4 address or a Service")
	case strings.Trim(host, "0123456789.") == "":
		return target{}, errors.New("not an IPv4 address")
	}
	return nameTarget(s, host, port)
}

func addressTarget(s string, a netip.Addr, port string, bracketed bool) (target, error) {
	a = a.Unmap()
	if !a.Is4() || (strings.Contains(s[:strings.LastIndexByte(s, ':')], ":") && !bracketed) {
		return target{}, errors.New("IPv6 is not captured: want an IPv4 address or a Service")
	}
	n, err := portNumber(port)
	if err != nil {
		return target{}, err
	}
	return target{text: s, addr: netip.AddrPortFrom(a, n)}, nil
}

func nameTarget(s, host, port string) (target, error) {
	name := host
	for _, suffix := range []string{".svc.cluster.local.", ".svc.cluster.local", ".svc"} {
		var cut bool
		if name, cut = strings.CutSuffix(name, suffix); cut {
			break
		}
	}
	service, ns, found := strings.Cut(name, ".")
	if !found {
		ns = "default"
	}
	if !label.MatchString(service) || !label.MatchString(ns) {
		return target{}, errors.New("neither an IPv4 address nor SERVICE[.NAMESPACE]")
	}
	if strings.Trim(port, "0123456789") == "" || strings.HasPrefix(port, "-") {
		if _, err := portNumber(port); err != nil {
			return target{}, err
		}
	} else if !label.MatchString(port) {
		return target{}, fmt.Errorf("port %q: want a name or a number", port)
	}
	return target{text: s, service: service, ns: ns, port: port}, nil
}

// portNumber reads a port number in plain decimal.
func portNumber(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("port %q: want a number from 1 to 65535", s)
	}
	return uint16(n), nil
}
