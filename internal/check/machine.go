// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
)

const (
	// fewPorts is a third of Linux's default range.
	fewPorts = 10_000
	// fewBacklog is below every default since Linux 5.4.
	fewBacklog = 1024
	// littleSpace is a file system on which the state files may soon not fit.
	littleSpace, littleShare = 64 << 20, 2
	// clockSlack is how far two readings of one clock may be apart.
	clockSlack = 2 * time.Second
	// future is how far ahead of now a file may be, as after a leap or with a
	// file system of another machine.
	future = time.Minute

	kernelMajor, kernelMinor = 5, 9
)

func assessRecords(f Facts) []api.Finding {
	out := []api.Finding{statistics(f.Envoy)}
	out = append(out, accessLog(f)...)
	out = append(out, stateFiles(f.Disk)...)
	d := f.Disk
	directory := ok("state-directory", "files can be made in %s", d.StateDir)
	if d.Writable.Err != "" {
		directory = finding("state-directory", api.FindingFailed, "nothing can be written: "+d.Writable.Err,
			"mkdir -p "+d.StateDir+" && mount -o remount,rw $(findmnt -n -o TARGET -T "+d.StateDir+")")
	}
	return append(out, directory, space(d.StateDir, d.Space), space(d.AccessLog, d.LogSpace))
}

func statistics(e Envoy) api.Finding {
	const id = "statistics"
	if e.Stats.Err != "" {
		return notChecked(id, "Envoy's statistics cannot be read: "+e.Stats.Err)
	}
	if n := e.Stats.Value.StatsOverflow; n > 0 {
		return finding(id, api.FindingWarning, fmt.Sprintf("%d counts did not fit their scope (5,000 series of refusals, 40,000 of the rest)", n),
			"aetherctl proxy restart   # counts anew; series that stand still are forgotten after one to two hours")
	}
	return ok(id, "every count fitted its scope")
}

func accessLog(f Facts) []api.Finding {
	const id = "access-log"
	d, e := f.Disk, f.Envoy
	out := []api.Finding{ok(id, "Envoy logs to %s", d.AccessLog)}
	switch {
	case d.LogMissing && len(f.Pods) == 0:
		out[0] = ok(id, "%s is not there yet: Envoy makes it with its first listener", d.AccessLog)
	case d.LogMissing:
		out[0] = finding(id, api.FindingFailed, d.AccessLog+" is not there: somebody took it away, and Envoy goes on with the file that had the name",
			"curl -X POST --unix-socket "+f.RunDir+"/envoy-admin.sock http://envoy/reopen_logs")
	case d.LogWritable.Err != "":
		out[0] = finding(id, api.FindingFailed, "Envoy cannot log: "+d.LogWritable.Err,
			fmt.Sprintf("mkdir -p $(dirname %[1]s) && touch %[1]s", d.AccessLog))
	}
	if e.Stats.Err != "" {
		return append(out, notChecked(id, "whether records were lost: Envoy's statistics cannot be read: "+e.Stats.Err))
	}
	s := e.Stats.Value
	if n := s.LogWriteFailed + s.LogReopenFailed; n > 0 {
		out = append(out, finding(id, api.FindingFailed, fmt.Sprintf("%d writes of the log failed since Envoy started", n),
			fmt.Sprintf("df -h %s; ls -l %s", d.AccessLog, d.AccessLog), "then restart Envoy, which counts anew"))
	}
	if s.LogDropped > 0 {
		out = append(out, finding(id, api.FindingWarning, fmt.Sprintf("%d lines of the log or records for the agent were left out by their rate since Envoy started; their connections are counted all the same", s.LogDropped),
			"aetherctl metrics envoy | grep aether_   # the counters know all of them"))
	}
	if s.RecordsDropped > 0 {
		out = append(out, finding(id, api.FindingWarning, fmt.Sprintf("%d records could not be sent to the agent since Envoy started; what shows connections misses them", s.RecordsDropped),
			"aetherctl metrics envoy | grep aether_   # the counters know all of them"))
	}
	return out
}

func stateFiles(d Disk) []api.Finding {
	const id = "state-files"
	var out []api.Finding
	for _, f := range d.Files {
		if f.Unsaved != "" {
			out = append(out, finding(id, api.FindingFailed, f.Name+" cannot be written: "+f.Unsaved, "df -h "+d.StateDir+"; ls -ld "+d.StateDir))
		}
		if f.Damaged != "" {
			out = append(out, finding(id, api.FindingWarning, f.Name+" was damaged when the agent started: "+f.Damaged,
				"ls -l "+d.StateDir+"/*.damaged-*   # what was set aside", "restart the agent, which begins with whole files"))
		}
	}
	if len(out) == 0 {
		out = append(out, ok(id, "%s are written and were whole at the start", names(d.Files)))
	}
	return out
}

func names(fs []File) string {
	var out []string
	for _, f := range fs {
		out = append(out, f.Name)
	}
	return strings.Join(out, " and ")
}

func space(of string, l Look[Space]) api.Finding {
	const id = "disk-space"
	if l.Err != "" {
		return notChecked(id, l.Err)
	}
	s := l.Value
	seen := fmt.Sprintf("%d MiB of %d are free where %s is", s.FreeBytes>>20, s.Bytes>>20, of)
	fix := []string{"df -h " + of + "; df -i " + of, "du -xh --max-depth=1 $(dirname " + of + ")"}
	switch {
	case s.FreeBytes < 1<<20:
		return finding(id, api.FindingFailed, seen, fix...)
	case s.FreeBytes < littleSpace || s.FreeBytes*100 < s.Bytes*littleShare:
		return finding(id, api.FindingWarning, seen, fix...)
	case s.Inodes > 0 && s.FreeInodes*100 < s.Inodes*littleShare:
		return finding(id, api.FindingWarning, fmt.Sprintf("%s, but only %d of %d inodes", seen, s.FreeInodes, s.Inodes), fix...)
	}
	return ok(id, "%s", seen)
}

func assessMachine(f Facts) []api.Finding {
	out := clock(f.Now, f.Clock)
	out = append(out, kernel(f))
	k := f.Kernel
	switch {
	case f.Agent.EgressSource != "node":
		out = append(out, finding("node-ports", api.FindingNote, "pods dial from their own ports (--egress-source=pod): see pod-ports"))
	case k.Ports.Err != "":
		out = append(out, notChecked("node-ports", k.Ports.Err))
	case k.Ports.Value < fewPorts:
		out = append(out, finding("node-ports", api.FindingWarning, fmt.Sprintf("the node has %d ports to dial from, for all pods", k.Ports.Value),
			`sysctl -w net.ipv4.ip_local_port_range="10240 65535"`))
	default:
		out = append(out, ok("node-ports", "the node has %d ports to dial from", k.Ports.Value))
	}
	out = append(out, conntrack("the node's namespace", k.Conntrack))
	for _, p := range f.Pods {
		if p.NetNSErr == "" && p.Sight.Err == "" {
			if c := conntrack("the namespace of pod "+p.Name, Saw(p.Sight.Value.Conntrack, nil)); c.State != api.FindingOK {
				out = append(out, c)
			}
		}
	}
	return append(out, backlog(k.Backlog))
}

func clock(now time.Time, c Clock) []api.Finding {
	const id = "clock"
	var out []api.Finding
	var seen []string
	sync := "timedatectl set-ntp true   # or start your NTP client; then restart the agent"
	switch {
	case c.Boot.Err != "":
		out = append(out, notChecked(id, "when the machine started: "+c.Boot.Err))
	case c.Boot.Value.Year() < 2024:
		out = append(out, finding(id, api.FindingFailed, fmt.Sprintf("by the wall clock it is %s, and the machine started %s: that is before this program was written",
			stamp(now), stamp(c.Boot.Value)), sync))
	default:
		seen = append(seen, fmt.Sprintf("it is %s, %s after the machine started", stamp(now), roughly(now.Sub(c.Boot.Value))))
	}
	switch n := c.Newest; {
	case n.Err != "":
		out = append(out, notChecked(id, "times of files: "+n.Err))
	case n.Value.Name == "":
		seen = append(seen, "there is no state file to compare with")
	case n.Value.At.Sub(now) > future:
		out = append(out, finding(id, api.FindingWarning, fmt.Sprintf("%s was written %s from now: the clock was ahead then, or is behind now",
			n.Value.Name, roughly(n.Value.At.Sub(now))), sync))
	default:
		seen = append(seen, "no state file is from the future")
	}
	switch s := c.Step; {
	case s.Err != "":
		out = append(out, notChecked(id, "steps since the agent started: "+s.Err))
	case s.Value > clockSlack || s.Value < -clockSlack:
		out = append(out, finding(id, api.FindingWarning, fmt.Sprintf("the wall clock stepped by %s since the agent started", roughly(s.Value)), sync))
	default:
		seen = append(seen, "the clock has not stepped since the agent started")
	}
	switch {
	case c.Synchronised.Err != "":
		out = append(out, notChecked(id, "whether it is synchronised: "+c.Synchronised.Err))
	case !c.Synchronised.Value:
		out = append(out, finding(id, api.FindingNote, "the kernel does not know its clock to be synchronised", sync))
	default:
		seen = append(seen, "the kernel says it is synchronised")
	}
	if len(seen) > 0 {
		out = append([]api.Finding{ok(id, "%s", strings.Join(seen, "; "))}, out...)
	}
	return out
}

// kernel goes by the rules that are installed: what is there works.
func kernel(f Facts) api.Finding {
	const id = "kernel"
	k := f.Kernel.Release
	if k.Err != "" {
		return notChecked(id, k.Err)
	}
	if older(k.Value) {
		return finding(id, api.FindingFailed, "Linux "+k.Value, "use Linux 5.9 or newer")
	}
	for _, p := range f.Pods {
		if p.NetNSErr == "" && p.Sight.Err == "" && len(p.Sight.Value.Differences) == 0 {
			return ok(id, "Linux %s has what capture needs: pod %s has its rules", k.Value, p.Name)
		}
	}
	return notChecked(id, "Linux "+k.Value+" is new enough, but no pod has its rules, which would prove the rest: "+
		"modprobe -a nft_ct nft_fib_ipv4 nft_tproxy nft_reject_ipv4")
}

// older reports whether a kernel release is below 5.9; what cannot be read is.
func older(release string) bool {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return true
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return true
	}
	digits := strings.IndexFunc(parts[1]+" ", func(r rune) bool { return r < '0' || r > '9' })
	minor, err := strconv.Atoi(parts[1][:digits])
	return err != nil || major < kernelMajor || major == kernelMajor && minor < kernelMinor
}

func conntrack(where string, l Look[Conntrack]) api.Finding {
	const id = "conntrack"
	if l.Err != "" {
		return notChecked(id, l.Err)
	}
	c := l.Value
	if c.Off {
		return ok(id, "no connections are tracked in %s", where)
	}
	seen := fmt.Sprintf("%d of at most %d connections are tracked in %s", c.Count, c.Max, where)
	fix := fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*c.Max)
	switch {
	case c.Max > 0 && c.Count*100 >= c.Max*95:
		return finding(id, api.FindingFailed, seen, fix)
	case c.Max > 0 && c.Count*100 >= c.Max*nearly:
		return finding(id, api.FindingWarning, seen, fix)
	}
	return ok(id, "%s", seen)
}

func backlog(l Look[int]) api.Finding {
	const id = "backlog"
	if l.Err != "" {
		return notChecked(id, l.Err)
	}
	if l.Value < fewBacklog {
		return finding(id, api.FindingWarning, fmt.Sprintf("net.core.somaxconn is %d", l.Value), "sysctl -w net.core.somaxconn=4096")
	}
	return ok(id, "net.core.somaxconn is %d", l.Value)
}
