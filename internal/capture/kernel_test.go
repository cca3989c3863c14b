// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// nftText is the table as nft prints it, in one spelling for all its versions.
func (n netns) nftText(t testing.TB) string {
	t.Helper()
	return normalise(n.exec(t, "nft", "list", "table", "ip", TableName))
}

// normalise evens out how versions of nft spell the same rule.
func normalise(text string) string {
	for _, r := range []struct{ from, to string }{
		{`priority -150;`, `priority mangle;`},
		{`tcp flags & \(syn \| ack\) != syn`, `tcp flags != syn / syn,ack`},
		{`meta l4proto tcp (tcp |reject with tcp reset)`, `$1`},
		{` +\n`, "\n"},
	} {
		text = regexp.MustCompile(r.from).ReplaceAllString(text, r.to)
	}
	return text
}

// state is all of a network namespace that capture may touch.
func (n netns) state(t testing.TB) string {
	t.Helper()
	return n.exec(t, "nft", "list", "ruleset") + n.exec(t, "ip", "rule") + n.routes(t) + n.exec(t, "ip", "-6", "rule")
}

// routes lists the divert table; the kernel says ENOENT until it first exists.
func (n netns) routes(t testing.TB) string {
	t.Helper()
	return n.exec(t, "sh", "-c", "ip route show table 100 2>/dev/null || true")
}

func TestTextIsWhatNftPrints(t *testing.T) {
	n := newNetns(t, "text")
	prefix := netip.MustParsePrefix
	for name, c := range map[string]Config{
		"all": all, "mesh only": meshOnly, "tuned": tuned, "slow": slow, "slow mesh only": {ConnectionRate: 7}, "fastest": {ConnectionRate: MaxConnectionRate},
		"edges": {
			ExcludePorts:  []PortRange{{1, 1}, {65535, 65535}, {2, 9}},
			ExcludeRanges: []netip.Prefix{prefix("0.0.0.0/32"), prefix("255.255.255.255/32"), prefix("10.0.0.0/9"), prefix("10.128.0.0/9"), prefix("11.0.0.0/30")},
		},
		"everything": {RedirectAll: true, ExcludePorts: []PortRange{{1, 65535}}, ExcludeRanges: []netip.Prefix{prefix("0.0.0.0/0")}},
		"the most": func() Config {
			var c Config
			for i := range MaxExclusions {
				c.ExcludePorts = append(c.ExcludePorts, PortRange{uint16(1 + 2*i), uint16(1 + 2*i)})
				c.ExcludeRanges = append(c.ExcludeRanges, netip.PrefixFrom(numberAddr(0x0a000000+uint32(2*i)), 32))
			}
			return c
		}(),
	} {
		if err := Install(n.path, c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(n.nftText(t), Rules(c).Text()); d != "" {
			t.Errorf("%s: nft prints otherwise (-nft +ours):\n%s", name, d)
		}
		if err := Check(n.path, c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// For any two Configs: the kernel holds what Text says, and Check accepts it and
// tells it from another.
func TestTextAndCheckForAnyConfig(t *testing.T) {
	n := newNetns(t, "any")
	rapid.Check(t, func(rt *rapid.T) {
		c, other := anyConfig().Draw(rt, "config"), anyConfig().Draw(rt, "other")
		if err := Install(n.path, c); err != nil {
			rt.Fatal(err)
		}
		if d := cmp.Diff(n.nftText(t), Rules(c).Text()); d != "" {
			rt.Fatalf("nft prints otherwise (-nft +ours):\n%s", d)
		}
		if err := Check(n.path, c); err != nil {
			rt.Fatal(err)
		}
		same := Rules(c).Text() == Rules(other).Text()
		if err := Check(n.path, other); (err == nil) != same {
			rt.Fatalf("same rules = %v, and Check says %v", same, err)
		}
	})
}

func TestInstallTwiceIsOnce(t *testing.T) {
	n := newNetns(t, "twice")
	var once string
	for i := range 3 {
		if err := Install(n.path, tuned); err != nil {
			t.Fatal(err)
		}
		now := n.state(t)
		if i == 0 {
			once = now
		}
		if d := cmp.Diff(once, now); d != "" {
			t.Errorf("install number %d changed something:\n%s", i+1, d)
		}
	}
	if !strings.Contains(once, "fwmark 0xae71 lookup 100") || !strings.Contains(once, "local default dev lo") {
		t.Errorf("no policy rule or route:\n%s", once)
	}
	if up := n.exec(t, "ip", "-o", "link", "show", "lo"); !strings.Contains(up, "LOWER_UP") {
		t.Errorf("lo is not up: %s", up)
	}
}

func TestInstallReplaces(t *testing.T) {
	n := newNetns(t, "replace")
	for _, c := range []Config{tuned, meshOnly, all, tuned} {
		if err := Install(n.path, c); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(Rules(c).Text(), n.nftText(t)); d != "" {
			t.Errorf("not replaced:\n%s", d)
		}
	}
}

// A table that an older version left, or somebody bent, is put right.
func TestInstallRepairs(t *testing.T) {
	n := newNetns(t, "repair")
	for name, damage := range map[string]string{
		"nothing":              "",
		"foreign chain":        "add chain ip aether_capture divert { type filter hook input priority 0; }",
		"chain of other kind":  "delete table ip aether_capture; add table ip aether_capture; add chain ip aether_capture output { type filter hook output priority 0; }",
		"foreign rule":         "insert rule ip aether_capture output counter accept",
		"policy drop":          "add chain ip aether_capture output { policy drop; }",
		"dormant":              "add table ip aether_capture { flags dormant; }",
		"table without chains": "delete table ip aether_capture; add table ip aether_capture",
	} {
		if err := Install(n.path, all); err != nil {
			t.Fatal(err)
		}
		if damage != "" {
			n.exec(t, "nft", damage)
		}
		if err := Install(n.path, all); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(Rules(all).Text(), n.nftText(t)); d != "" {
			t.Errorf("%s: not repaired:\n%s", name, d)
		}
		if err := Check(n.path, all); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	n := newNetns(t, "remove")
	command(t, "ip", "-n", n.name, "link", "set", "lo", "up")
	n.exec(t, "nft", "add table ip others; add chain ip others c; add table ip6 aether_capture")
	n.exec(t, "ip", "rule", "add", "fwmark", "0x1", "lookup", "100")
	n.exec(t, "ip", "route", "add", "192.0.2.0/24", "dev", "lo", "table", "100")
	before := n.state(t)
	if err := Remove(n.path); err != nil {
		t.Fatalf("remove what is not there: %v", err)
	}
	if d := cmp.Diff(before, n.state(t)); d != "" {
		t.Errorf("removing nothing changed something:\n%s", d)
	}
	if err := Install(n.path, tuned); err != nil {
		t.Fatal(err)
	}
	if before == n.state(t) {
		t.Fatal("install changed nothing")
	}
	for range 2 {
		if err := Remove(n.path); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(before, n.state(t)); d != "" {
			t.Errorf("something is left, or more is gone:\n%s", d)
		}
	}
}

func TestCheckSaysWhatDiffers(t *testing.T) {
	n := newNetns(t, "check")
	rows := []struct {
		name, damage string
		want         []string
	}{
		{"table", "nft delete table ip aether_capture", []string{"there is no nft table ip aether_capture"}},
		{"policy rule", "ip rule del fwmark 0xae71", []string{"there is no policy rule 100: from all fwmark 0xae71 lookup 100"}},
		{"policy rule for some", "ip rule del fwmark 0xae71; ip rule add prio 100 from 10.0.0.0/8 fwmark 0xae71 lookup 100", []string{"there is no policy rule 100"}},
		{"route", "ip route flush table 100", []string{"there is no route local default dev lo in table 100"}},
		{"route to less", "ip route flush table 100; ip route add local 10.0.0.0/8 dev lo table 100", []string{"there is no route local default"}},
		{"lo", "ip link set lo down", []string{"lo is down"}},
		{"chain", "nft delete chain ip aether_capture prerouting", []string{"there is no chain prerouting"}},
		{"another chain", "nft add chain ip aether_capture more", []string{"there is a chain more that is not ours"}},
		{"policy", "nft 'add chain ip aether_capture output { policy drop; }'", []string{"the policy of chain output is not accept"}},
		{
			"empty chain", "nft flush chain ip aether_capture prerouting",
			[]string{"chain prerouting lacks rule 1", "chain prerouting lacks rule 2", "tproxy to 127.0.0.1:18001"},
		},
		{"foreign rule first", "nft insert rule ip aether_capture output counter accept", []string{"rule 1 of chain output is none that we write"}},
		{
			"our rule in a wrong place", "nft insert rule ip aether_capture output ip daddr { 10.0.0.0/8, 192.168.0.0/16 } accept",
			[]string{`rule 1 of chain output should not be there, "ip daddr { 10.0.0.0/8, 192.168.0.0/16 } accept"`},
		},
		{"rule repeated", "nft add rule ip aether_capture output fib daddr type local accept", []string{"the rules of chain output are in another order or repeated"}},
		{
			"other listener", "nft flush chain ip aether_capture prerouting; nft add rule ip aether_capture prerouting iif lo meta mark 0xae71 ct mark 0xae71 meta l4proto tcp tproxy to 127.0.0.1:18002 accept",
			[]string{"chain prerouting lacks rule 1", `should not be there, "iif \"lo\" meta mark 0x0000ae71 ct mark 0x0000ae71 meta l4proto tcp tproxy to 127.0.0.1:18002 accept"`},
		},
		{
			"a condition more", "nft flush chain ip aether_capture prerouting; nft add rule ip aether_capture prerouting iif lo ip ttl 1 meta mark 0xae71 reject with tcp reset",
			[]string{"rule 1 of chain prerouting is none that we write"},
		},
		{
			"chain elsewhere", "nft 'delete table ip aether_capture; add table ip aether_capture; add chain ip aether_capture output { type filter hook output priority 0; }'",
			[]string{"chain output is not of type route at hook output, priority mangle", "there is no chain prerouting"},
		},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if err := Install(n.path, all); err != nil {
				t.Fatal(err)
			}
			if err := Check(n.path, all); err != nil {
				t.Fatalf("just installed: %v", err)
			}
			n.exec(t, "sh", "-ec", row.damage)
			err := Check(n.path, all)
			var d *Drift
			if !errors.As(err, &d) || d.Netns != n.path || len(d.Differences) == 0 {
				t.Fatalf("Check = %v, want a *Drift", err)
			}
			for _, want := range append(row.want, n.path) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

func TestErrorsNameTheNamespaceAndTheStep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	operations := map[string]func(string) error{
		"install": func(p string) error { return Install(p, all) },
		"remove":  Remove,
		"check":   func(p string) error { return Check(p, all) },
	}
	for name, do := range operations {
		missing := "/run/netns/captest-there-is-none"
		err := do(missing)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s in a missing namespace: %v, want fs.ErrNotExist", name, err)
		}
		for _, want := range []string{name, missing, "open the network namespace"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not say %q", name, err, want)
			}
		}
		err = do(file)
		if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "open the network namespace") {
			t.Errorf("%s of a plain file: %v", name, err)
		}
	}
	for name, do := range map[string]func(Config) error{
		"install": func(c Config) error { return Install("/run/netns/x", c) },
		"check":   func(c Config) error { return Check("/run/netns/x", c) },
	} {
		if err := do(Config{ExcludePorts: []PortRange{{9, 1}}}); err == nil || !strings.Contains(err.Error(), "excluded ports 9-1") {
			t.Errorf("%s of a bad config: %v", name, err)
		}
	}
}

// netnsOfThread identifies the network namespace of the calling thread.
func netnsOfThread(t testing.TB) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func TestThreadsStayInTheirNamespace(t *testing.T) {
	n := newNetns(t, "thread")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := netnsOfThread(t)
	operations := []func() error{
		func() error { return Install(n.path, tuned) },
		func() error { return Check(n.path, tuned) },
		func() error { return Install(n.path, Config{ExcludePorts: []PortRange{{9, 1}}}) },
		func() error { return Remove(n.path) },
		func() error { return Install("/run/netns/captest-there-is-none", all) },
	}
	for i, do := range operations {
		_ = do()
		if now := netnsOfThread(t); now != home {
			t.Errorf("operation %d: the thread is in %s, was in %s", i, now, home)
		}
	}
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("list threads: %v", err)
	}
	for _, task := range tasks {
		// A thread may end between the listing and the look.
		if link, err := os.Readlink(task); err == nil && link != home {
			t.Errorf("%s is %s, want %s", task, link, home)
		}
	}
}

// openFiles counts the process's file descriptors that are sockets or
// namespaces.
func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, e := range entries {
		link, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && (strings.HasPrefix(link, "socket:") || strings.HasPrefix(link, "net:") || strings.Contains(link, "netns")) {
			count++
		}
	}
	return count
}

func TestNoFileDescriptorIsLeft(t *testing.T) {
	n := newNetns(t, "fds")
	before := openFiles(t)
	for range 20 {
		if err := errors.Join(Install(n.path, tuned), Check(n.path, tuned), Remove(n.path)); err != nil {
			t.Fatal(err)
		}
		_ = Check(n.path, tuned)
		_ = Install("/run/netns/captest-there-is-none", all)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d sockets and namespaces open, were %d", after, before)
	}
}

// Several at once, in one namespace and in several: one of them wins whole.
func TestConcurrentInstalls(t *testing.T) {
	spaces := []netns{newNetns(t, "a"), newNetns(t, "b")}
	configs := []Config{all, meshOnly, tuned}
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			if err := Install(spaces[i%2].path, configs[i%3]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, n := range spaces {
		text := n.nftText(t)
		if text != Rules(all).Text() && text != Rules(meshOnly).Text() && text != Rules(tuned).Text() {
			t.Errorf("a mixture:\n%s", text)
		}
		if rules := strings.Count(n.exec(t, "ip", "rule"), "fwmark"); rules != 1 {
			t.Errorf("%d policy rules", rules)
		}
	}
}

// BenchmarkInstall is what a new pod waits for.
func BenchmarkInstall(b *testing.B) {
	n := newNetns(b, "bench")
	for b.Loop() {
		if err := Install(n.path, tuned); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := Remove(n.path); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkInstallAgain is dearer: the kernel holds the netlink socket's close
// until it has freed the rules that were replaced.
func BenchmarkInstallAgain(b *testing.B) {
	n := newNetns(b, "bench")
	for b.Loop() {
		if err := Install(n.path, tuned); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	n := newNetns(b, "bench")
	if err := Install(n.path, tuned); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := Check(n.path, tuned); err != nil {
			b.Fatal(err)
		}
	}
}
