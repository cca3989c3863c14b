// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// first is the first segment of a connection of the pod.
func first(dst string) Packet {
	return Packet{Hook: Output, Src: ap(podIP + ":40000"), Dst: ap(dst), Proto: TCP, SYN: true}
}

// with returns p changed.
func with(p Packet, change func(*Packet)) Packet {
	change(&p)
	return p
}

// tuned excludes a bit of everything.
var tuned = Config{
	RedirectAll:   true,
	ExcludePorts:  []PortRange{{3306, 3306}, {9000, 9099}},
	ExcludeRanges: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.0.2.7/32")},
}

// slow may begin few connections a second.
var slow = Config{RedirectAll: true, ConnectionRate: 5}

var (
	all      = Config{RedirectAll: true}
	meshOnly = Config{}
)

func udp(p *Packet)   { p.Proto, p.SYN = UDP, false }
func later(p *Packet) { p.SYN = false }

// markRows are told apart by anything but the destination.
func markRows() []outputRow {
	return []outputRow{
		{"any connection", all, first("10.96.0.1:80"), true},
		{"outside the cluster", all, first("203.0.113.9:443"), true},
		{"another pod", all, first("10.244.7.9:8080"), true},

		{"redirect-all off", meshOnly, first("10.96.0.1:80"), false},
		{"redirect-all off, mesh HTTP port", meshOnly, first("10.96.0.1:18081"), true},
		{"redirect-all off, mesh TCP port", meshOnly, first("10.96.0.1:18082"), true},
		{"redirect-all off, beside the mesh ports", meshOnly, first("10.96.0.1:18083"), false},
		{"redirect-all off, udp mesh port", meshOnly, with(first("10.96.0.1:18082"), udp), false},

		{"mark of the proxy", all, with(first("10.96.0.1:80"), func(p *Packet) { p.Mark = ProxyMark }), false},
		{"mark of somebody else", all, with(first("10.96.0.1:80"), func(p *Packet) { p.Mark = 0x4000 }), true},
		{"divert mark set by a socket", all, with(first("10.96.0.1:80"), func(p *Packet) { p.Mark = DivertMark }), true},
		{"divert mark set by a socket, excluded port", tuned, with(first("10.96.0.1:3306"), func(p *Packet) { p.Mark = DivertMark }), false},
		{"divert mark set by a socket, loopback", all, with(first("127.0.0.1:18001"), func(p *Packet) { p.Mark = DivertMark; p.DstLocal = true }), false},
		{"divert mark set by a socket, metadata service", all, with(first("169.254.169.254:80"), func(p *Packet) { p.Mark = DivertMark }), false},

		{"reply", all, with(first("10.244.7.9:40000"), func(p *Packet) { p.CtReply = true; p.SYN = false }), false},
		{"reply of a captured connection", all, with(first(podIP+":40000"), func(p *Packet) { p.CtReply, p.SYN, p.CtMark, p.DstLocal = true, false, DivertMark, true }), false},

		{"later segment, captured", all, with(first("10.96.0.1:80"), func(p *Packet) { p.SYN = false; p.CtMark = DivertMark }), true},
		{"later segment, captured, now excluded", tuned, with(first("10.96.0.1:3306"), func(p *Packet) { p.SYN = false; p.CtMark = DivertMark }), true},
		{"later segment, not captured", all, with(first("10.96.0.1:80"), later), false},
		{"repeated first segment", all, with(first("10.96.0.1:80"), func(p *Packet) { p.CtMark = DivertMark }), true},
		{"first segment that conntrack does not follow", all, with(first("10.96.0.1:80"), func(p *Packet) { p.Untracked = true }), false},
		{"later segment that conntrack does not follow", all, with(first("10.96.0.1:80"), func(p *Packet) { p.Untracked = true; p.SYN = false }), false},
	}
}

// destinationRows are the destinations left alone, and their edges.
func destinationRows() []outputRow {
	return []outputRow{
		{"this host", all, first("0.1.2.3:80"), false},
		{"after this host", all, first("1.0.0.0:80"), true},
		{"loopback", all, first("127.8.8.8:80"), false},
		{"before loopback", all, first("126.255.255.255:80"), true},
		{"after loopback", all, first("128.0.0.0:80"), true},
		{"link-local", all, first("169.254.0.0:80"), false},
		{"link-local, last", all, first("169.254.255.255:80"), false},
		{"before link-local", all, first("169.253.255.255:80"), true},
		{"after link-local", all, first("169.255.0.0:80"), true},
		{"multicast", all, first("224.0.0.1:80"), false},
		{"multicast, last", all, first("239.255.255.255:80"), false},
		{"after multicast", all, first("240.0.0.0:80"), true},
		{"the pod's own address", all, with(first(podIP+":8080"), func(p *Packet) { p.DstLocal = true }), false},
		{"the pod's own address, capture port", all, with(first(podIP+":18001"), func(p *Packet) { p.DstLocal = true }), false},
	}
}

// portRows are the ports left alone and the exclusions, and their edges.
func portRows() []outputRow {
	return []outputRow{
		{"DNS over TCP", all, first("10.96.0.10:53"), false},
		{"DNS over UDP", all, with(first("10.96.0.10:53"), udp), false},
		{"beside DNS", all, first("10.96.0.10:54"), true},
		{"UDP", all, with(first("10.96.0.1:80"), udp), false},

		{"excluded port", tuned, first("10.96.0.1:3306"), false},
		{"excluded port over UDP", tuned, with(first("10.96.0.1:3306"), udp), false},
		{"beside the excluded port", tuned, first("10.96.0.1:3307"), true},
		{"before the excluded ports", tuned, first("10.96.0.1:8999"), true},
		{"first of the excluded ports", tuned, first("10.96.0.1:9000"), false},
		{"last of the excluded ports", tuned, first("10.96.0.1:9099"), false},
		{"after the excluded ports", tuned, first("10.96.0.1:9100"), true},
		{"excluded range", tuned, first("172.16.0.0:80"), false},
		{"excluded range, last", tuned, first("172.31.255.255:80"), false},
		{"after the excluded range", tuned, first("172.32.0.0:80"), true},
		{"excluded address", tuned, first("192.0.2.7:80"), false},
		{"beside the excluded address", tuned, first("192.0.2.8:80"), true},
		{"mesh port excluded", Config{ExcludePorts: []PortRange{{18081, 18081}}}, first("10.96.0.1:18081"), false},
	}
}

// outputRow says what leaves the pod, and whether it is marked for the proxy.
type outputRow struct {
	name     string
	config   Config
	packet   Packet
	captured bool
}

// One row for each rule and its edges.
func TestOutput(t *testing.T) {
	for _, row := range slices.Concat(markRows(), destinationRows(), portRows()) {
		t.Run(row.name, func(t *testing.T) {
			v := Rules(row.config).Evaluate(row.packet)
			if v.Outcome != Accepted {
				t.Errorf("outcome %s, output never does but accept", v.Outcome)
			}
			if captured := v.Mark == DivertMark; captured != row.captured {
				t.Errorf("captured = %v, want %v\n%s", captured, row.captured, strings.Join(v.Trace, "\n"))
			}
			if row.captured && v.CtMark != DivertMark {
				t.Errorf("captured, and the connection is marked %#x", v.CtMark)
			}
			if m := row.packet.Mark; !row.captured && m != DivertMark && v.Mark != m {
				t.Errorf("not captured, and the mark changed from %#x to %#x", m, v.Mark)
			}
		})
	}
}

// What the output chain marked comes in again on lo.
func TestPrerouting(t *testing.T) {
	back := Packet{
		Hook: Prerouting, Iface: "lo", Src: ap(podIP + ":40000"), Dst: ap("10.96.0.1:80"), Proto: TCP, SYN: true,
		Mark: DivertMark, CtMark: DivertMark,
	}
	rows := []struct {
		name   string
		packet Packet
		want   Outcome
	}{
		{"captured", back, Diverted},
		{"captured, later segment", with(back, func(p *Packet) { p.SYN = false }), Diverted},
		{"captured, no proxy", with(back, func(p *Packet) { p.NoProxy = true }), Rejected},
		{"marked but not chosen by output", with(back, func(p *Packet) { p.CtMark = 0 }), Rejected},
		{"marked and untracked", with(back, func(p *Packet) { p.Untracked = true }), Rejected},
		{"answer of the proxy", with(back, func(p *Packet) { p.Mark = 0 }), Accepted},
		{"from outside", with(back, func(p *Packet) { p.Iface = "eth0" }), Accepted},
		{"UDP", with(back, func(p *Packet) { p.Proto = UDP }), Accepted},
		{"on lo, not captured", with(back, func(p *Packet) { p.Mark, p.CtMark = 0, 0 }), Accepted},
	}
	for _, row := range rows {
		if v := Rules(tuned).Evaluate(row.packet); v.Outcome != row.want {
			t.Errorf("%s: %s, want %s\n%s", row.name, v.Outcome, row.want, strings.Join(v.Trace, "\n"))
		}
	}
}

func TestTraceNamesTheRules(t *testing.T) {
	p := with(first("10.96.0.1:80"), func(p *Packet) { p.Mark = DivertMark })
	want := []string{
		"output 1: meta mark 0x0000ae71 meta mark set 0x00000000",
		"output 9: meta l4proto tcp ct mark set 0x0000ae71",
		"output 10: meta l4proto tcp ct mark 0x0000ae71 meta mark set 0x0000ae71",
		"output: policy accept",
	}
	if d := cmp.Diff(want, Rules(Config{RedirectAll: true}).Evaluate(p).Trace); d != "" {
		t.Error(d)
	}
}

// The specification in one sentence each, written without the rules.
func specOutput(c Config, p Packet) (captured bool) {
	if p.Proto != TCP || p.Mark == ProxyMark || p.Untracked || p.CtReply {
		return false
	}
	if p.CtMark == DivertMark {
		return true
	}
	within := func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(p.Dst.Addr()) }
	excluded := p.Dst.Port() == 53 || p.DstLocal ||
		within("0.0.0.0/8") || within("127.0.0.0/8") || within("169.254.0.0/16") || within("224.0.0.0/4") ||
		slices.ContainsFunc(c.ExcludeRanges, func(r netip.Prefix) bool { return r.Contains(p.Dst.Addr()) }) ||
		slices.ContainsFunc(c.ExcludePorts, func(r PortRange) bool { return r.First <= p.Dst.Port() && p.Dst.Port() <= r.Last })
	wanted := c.RedirectAll || p.Dst.Port() == 18081 || p.Dst.Port() == 18082
	return p.SYN && wanted && !excluded
}

// specDropped: what would begin a captured connection, beyond the rate. What
// conntrack does not follow is neither an answer nor captured earlier.
func specDropped(c Config, p Packet) bool {
	if p.Untracked {
		p.Untracked, p.CtReply, p.CtMark = false, false, 0
	}
	return c.ConnectionRate > 0 && p.OverRate && p.CtMark != DivertMark && specOutput(c, p)
}

func specPrerouting(p Packet) Outcome {
	switch {
	case p.Proto != TCP || p.Iface != "lo" || p.Mark != DivertMark:
		return Accepted
	case p.Untracked || p.CtMark != DivertMark || p.NoProxy:
		return Rejected
	}
	return Diverted
}

// The evaluator agrees with the specification on any packet under any Config.
func TestRulesMeetTheSpecification(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig().Draw(t, "config")
		rules := Rules(c)
		for _, p := range rapid.SliceOfN(anyPacket(c), 30, 30).Draw(t, "packets") {
			got := rules.Evaluate(p)
			if d := cmp.Diff(specVerdict(c, p), Verdict{Outcome: got.Outcome, Mark: got.Mark, CtMark: got.CtMark}); d != "" {
				t.Fatalf("%+v: %s\n%s", p, d, strings.Join(got.Trace, "\n"))
			}
		}
	})
}

func specVerdict(c Config, p Packet) Verdict {
	if p.Hook == Prerouting {
		return Verdict{Outcome: specPrerouting(p), Mark: p.Mark, CtMark: p.CtMark}
	}
	switch {
	case specDropped(c, p):
		left := p.Mark
		if left == DivertMark {
			left = 0
		}
		return Verdict{Outcome: Dropped, Mark: left, CtMark: p.CtMark}
	case specOutput(c, p):
		return Verdict{Outcome: Accepted, Mark: DivertMark, CtMark: DivertMark}
	case p.Mark == DivertMark:
		return Verdict{Outcome: Accepted, CtMark: p.CtMark}
	}
	return Verdict{Outcome: Accepted, Mark: p.Mark, CtMark: p.CtMark}
}

// Only a first segment that would be captured counts against the rate.
func TestConnectionRate(t *testing.T) {
	over := func(p *Packet) { p.OverRate = true }
	rows := []struct {
		name   string
		config Config
		packet Packet
		want   Outcome
	}{
		{"within the rate", slow, first("10.96.0.1:80"), Accepted},
		{"beyond it", slow, with(first("10.96.0.1:80"), over), Dropped},
		{"beyond it, no rate", all, with(first("10.96.0.1:80"), over), Accepted},
		{"beyond it, a later segment", slow, with(with(first("10.96.0.1:80"), over), later), Accepted},
		{"beyond it, repeated of one that was let pass", slow, with(with(first("10.96.0.1:80"), over), func(p *Packet) { p.CtMark = DivertMark }), Accepted},
		{"beyond it, DNS", slow, with(first("10.96.0.10:53"), over), Accepted},
		{"beyond it, the proxy's own", slow, with(with(first("10.96.0.1:80"), over), func(p *Packet) { p.Mark = ProxyMark }), Accepted},
		{"beyond it, an answer", slow, with(with(first("10.96.0.1:80"), over), func(p *Packet) { p.CtReply = true }), Accepted},
		{"mesh only, beyond it, not captured", Config{ConnectionRate: 5}, with(first("10.96.0.1:80"), over), Accepted},
		{"mesh only, beyond it", Config{ConnectionRate: 5}, with(first("10.96.0.1:18081"), over), Dropped},
	}
	for _, row := range rows {
		if v := Rules(row.config).Evaluate(row.packet); v.Outcome != row.want {
			t.Errorf("%s: %s, want %s\n%s", row.name, v.Outcome, row.want, strings.Join(v.Trace, "\n"))
		}
	}
}

// Nothing a process can set makes an excluded destination reach the proxy, on
// its way out or back in.
func TestNoMarkReachesTheProxyWithoutOutput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig().Draw(t, "config")
		p := anyPacket(c).Draw(t, "packet")
		p.Hook, p.Iface, p.CtMark = Output, "", 0
		out := Rules(c).Evaluate(p)
		forged := p
		forged.Hook, forged.Iface, forged.Mark, forged.CtMark = Prerouting, "lo", out.Mark, out.CtMark
		if in := Rules(c).Evaluate(forged); (in.Outcome == Diverted) != (specOutput(c, p) && !specDropped(c, p) && !p.NoProxy) {
			t.Fatalf("%+v came back as %+v", p, in)
		}
	})
}

// The exclusions of a set are those of its list, in order, apart from each other.
func TestRangesAreMerged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig().Draw(t, "config")
		ports := portRanges(c.ExcludePorts)
		for i := 1; i < len(ports); i++ {
			if int(ports[i-1].Last)+1 >= int(ports[i].First) {
				t.Fatalf("%v and %v are not apart", ports[i-1], ports[i])
			}
		}
		ranges := addrRanges(c.ExcludeRanges)
		for i := 1; i < len(ranges); i++ {
			if ranges[i-1].Last.Next().Compare(ranges[i].First) >= 0 {
				t.Fatalf("%v and %v are not apart", ranges[i-1], ranges[i])
			}
		}
	})
}

func anyConfig() *rapid.Generator[Config] {
	return rapid.Custom(func(t *rapid.T) Config {
		c := Config{
			RedirectAll:    rapid.Bool().Draw(t, "redirect all"),
			ConnectionRate: rapid.SampledFrom([]uint32{0, 0, 1, 200, MaxConnectionRate}).Draw(t, "connection rate"),
		}
		for range rapid.IntRange(0, 6).Draw(t, "ports") {
			a, b := nearPort().Draw(t, "a"), nearPort().Draw(t, "b")
			c.ExcludePorts = append(c.ExcludePorts, PortRange{min(a, b), max(a, b)})
		}
		for range rapid.IntRange(0, 6).Draw(t, "ranges") {
			p := netip.PrefixFrom(nearAddr().Draw(t, "address"), rapid.IntRange(0, 32).Draw(t, "bits"))
			c.ExcludeRanges = append(c.ExcludeRanges, p.Masked())
		}
		return c
	})
}

// nearPort and nearAddr draw from few values that lie close, so that ranges
// touch, overlap and meet packets; and now and then from all.
func nearPort() *rapid.Generator[uint16] {
	return rapid.OneOf(
		rapid.SampledFrom([]uint16{1, 52, 53, 54, 18080, 18081, 18082, 18083, 65534, 65535}),
		rapid.Uint16Range(8000, 8008), rapid.Uint16Range(1, 65535))
}

func nearAddr() *rapid.Generator[netip.Addr] {
	edges := []string{
		"0.0.0.0", "0.255.255.255", "1.0.0.0", "126.255.255.255", "127.0.0.1", "128.0.0.0", "169.253.255.255",
		"169.254.169.254", "169.255.0.0", "223.255.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.0", "255.255.255.255", vip, podIP,
	}
	return rapid.OneOf(
		rapid.Map(rapid.SampledFrom(edges), netip.MustParseAddr),
		rapid.Map(rapid.Uint32Range(0x0a600000, 0x0a600008), numberAddr), rapid.Map(rapid.Uint32(), numberAddr))
}

func anyPacket(c Config) *rapid.Generator[Packet] {
	return rapid.Custom(func(t *rapid.T) Packet {
		addr := nearAddr().Draw(t, "destination")
		if len(c.ExcludeRanges) > 0 && rapid.Bool().Draw(t, "at a range") {
			p := rapid.SampledFrom(c.ExcludeRanges).Draw(t, "range")
			addr = rapid.SampledFrom([]netip.Addr{p.Addr(), lastOf(p)}).Draw(t, "edge")
		}
		return Packet{
			Hook:      rapid.SampledFrom([]Hook{Output, Output, Prerouting}).Draw(t, "hook"),
			Iface:     rapid.SampledFrom([]string{"", "lo", "eth0"}).Draw(t, "interface"),
			Src:       ap(podIP + ":40000"),
			Dst:       netip.AddrPortFrom(addr, nearPort().Draw(t, "port")),
			Proto:     rapid.SampledFrom([]Protocol{TCP, TCP, TCP, UDP, 1}).Draw(t, "protocol"),
			SYN:       rapid.Bool().Draw(t, "SYN"),
			DstLocal:  rapid.SampledFrom([]bool{false, false, true}).Draw(t, "local"),
			Mark:      rapid.SampledFrom([]uint32{0, 0, DivertMark, ProxyMark, DivertMark | 1<<16, 0x4000}).Draw(t, "mark"),
			CtMark:    rapid.SampledFrom([]uint32{0, 0, DivertMark, 1}).Draw(t, "connection mark"),
			CtReply:   rapid.Bool().Draw(t, "reply"),
			Untracked: rapid.SampledFrom([]bool{false, false, true}).Draw(t, "untracked"),
			OverRate:  rapid.SampledFrom([]bool{false, false, true}).Draw(t, "over rate"),
			NoProxy:   rapid.SampledFrom([]bool{false, false, true}).Draw(t, "no proxy"),
		}
	})
}
