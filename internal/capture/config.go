// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The pod annotations that tune capture.
const (
	// RedirectAllAnnotation is "true" or "false"; absent means the node's default.
	RedirectAllAnnotation = "capture.aether.io/redirect-all"
	// ExcludePortsAnnotation lists destination ports that are not captured: ports
	// or ranges a-b, separated by commas. They hold for both transports.
	ExcludePortsAnnotation = "capture.aether.io/exclude-outbound-ports"
	// ExcludeRangesAnnotation lists destinations that are not captured: IPv4 CIDRs
	// or addresses, separated by commas. Host bits are ignored.
	ExcludeRangesAnnotation = "capture.aether.io/exclude-outbound-ip-ranges"
	// ConnectionRateAnnotation is how many captured connections a second the pod
	// may begin, 1 to MaxConnectionRate; absent means any number.
	ConnectionRateAnnotation = "capture.aether.io/connection-rate"
)

// MaxConnectionRate is far above what one proxy takes.
const MaxConnectionRate = 1_000_000

// MaxExclusions bounds each of the two exclusion lists: the elements of a set
// have to fit one netlink attribute of 64 KiB.
const MaxExclusions = 1024

// Config is what differs between pods. The zero value captures nothing but the
// mesh ports.
type Config struct {
	// RedirectAll captures every TCP connection; without it only MeshHTTPPort and
	// MeshTCPPort are captured.
	RedirectAll bool
	// ExcludePorts are destination ports left alone; at most MaxExclusions.
	ExcludePorts []PortRange
	// ExcludeRanges are IPv4 destinations left alone; at most MaxExclusions.
	ExcludeRanges []netip.Prefix
	// ConnectionRate is how many captured connections a second may begin, after
	// as many at once; 0 is any number. A first segment beyond it is dropped, so
	// that the connection is made when the kernel repeats it, a second later: a
	// pod that floods slows itself down, and not its neighbours.
	ConnectionRate uint32
}

// PortRange is the ports First to Last, both included.
type PortRange struct{ First, Last uint16 }

// String is "a", or "a-b" for more than one port.
func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Validate says what is wrong with a Config that was not parsed from
// annotations; nil means that Rules and Install can use it.
func (c Config) Validate() error {
	var errs []error
	for _, r := range c.ExcludePorts {
		if r.First == 0 || r.First > r.Last {
			errs = append(errs, fmt.Errorf("excluded ports %d-%d: not a range of ports from 1 to 65535", r.First, r.Last))
		}
	}
	for _, p := range c.ExcludeRanges {
		if !p.IsValid() || !p.Addr().Is4() {
			errs = append(errs, fmt.Errorf("excluded range %s: not IPv4", p))
		}
	}
	if c.ConnectionRate > MaxConnectionRate {
		errs = append(errs, fmt.Errorf("connection rate %d: at most %d is possible", c.ConnectionRate, MaxConnectionRate))
	}
	if n := len(c.ExcludePorts); n > MaxExclusions {
		errs = append(errs, fmt.Errorf("%d excluded ports, at most %d are possible", n, MaxExclusions))
	}
	if n := len(c.ExcludeRanges); n > MaxExclusions {
		errs = append(errs, fmt.Errorf("%d excluded ranges, at most %d are possible", n, MaxExclusions))
	}
	return errors.Join(errs...)
}

// AnnotationError is one thing wrong with a pod's capture annotations.
type AnnotationError struct {
	Annotation string
	Element    string // the element of the list, or the whole value
	Reason     string
}

func (e *AnnotationError) Error() string {
	return fmt.Sprintf("annotation %s: %q: %s", e.Annotation, e.Element, e.Reason)
}

// ParseAnnotations reads a pod's capture annotations; others are ignored.
// Absent ones mean defaultRedirectAll and no exclusions. The error joins one
// *AnnotationError for each bad element, and then the Config is empty.
func ParseAnnotations(annotations map[string]string, defaultRedirectAll bool) (Config, error) {
	c := Config{RedirectAll: defaultRedirectAll}
	var errs []error
	bad := func(annotation, element, reason string) {
		errs = append(errs, &AnnotationError{Annotation: annotation, Element: element, Reason: reason})
	}
	if v, ok := annotations[RedirectAllAnnotation]; ok {
		switch strings.TrimSpace(v) {
		case "true":
			c.RedirectAll = true
		case "false":
			c.RedirectAll = false
		default:
			bad(RedirectAllAnnotation, v, `want "true" or "false"`)
		}
	}
	if v, ok := annotations[ConnectionRateAnnotation]; ok {
		n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 32)
		if err != nil || n == 0 || n > MaxConnectionRate {
			bad(ConnectionRateAnnotation, v, fmt.Sprintf("want a number from 1 to %d", MaxConnectionRate))
		}
		c.ConnectionRate = uint32(n)
	}
	for _, element := range elements(annotations[ExcludePortsAnnotation]) {
		r, reason := parsePorts(element)
		if reason != "" {
			bad(ExcludePortsAnnotation, element, reason)
		}
		c.ExcludePorts = append(c.ExcludePorts, r)
	}
	for _, element := range elements(annotations[ExcludeRangesAnnotation]) {
		p, reason := parseRange(element)
		if reason != "" {
			bad(ExcludeRangesAnnotation, element, reason)
		}
		c.ExcludeRanges = append(c.ExcludeRanges, p)
	}
	if n := len(c.ExcludePorts); n > MaxExclusions {
		bad(ExcludePortsAnnotation, fmt.Sprintf("%d elements", n), fmt.Sprintf("at most %d are possible", MaxExclusions))
	}
	if n := len(c.ExcludeRanges); n > MaxExclusions {
		bad(ExcludeRangesAnnotation, fmt.Sprintf("%d elements", n), fmt.Sprintf("at most %d are possible", MaxExclusions))
	}
	if len(errs) > 0 {
		return Config{}, errors.Join(errs...)
	}
	return c, nil
}

// elements splits a comma list; an empty value is an empty list.
func elements(list string) []string {
	if strings.TrimSpace(list) == "" {
		return nil
	}
	parts := strings.Split(list, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// parsePorts reads "a" or "a-b"; a reason means that it is neither.
func parsePorts(s string) (r PortRange, reason string) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, errA := parsePort(first)
	b, errB := parsePort(last)
	switch {
	case s == "":
		return PortRange{}, "empty element"
	case errA != nil || errB != nil:
		return PortRange{}, "want a port from 1 to 65535, or a range a-b of them"
	case a > b:
		return PortRange{}, "the range ends before it begins"
	}
	return PortRange{First: a, Last: b}, ""
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return uint16(n), err
}

// parseRange reads an IPv4 CIDR or address; a reason means that it is neither.
func parseRange(s string) (p netip.Prefix, reason string) {
	if s == "" {
		return netip.Prefix{}, "empty element"
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, errAddr := netip.ParseAddr(s)
		if errAddr != nil {
			return netip.Prefix{}, "want an IPv4 CIDR such as 10.0.0.0/8, or an IPv4 address"
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if !p.Addr().Is4() {
		return netip.Prefix{}, "not IPv4; IPv6 is never captured"
	}
	return p.Masked(), ""
}
