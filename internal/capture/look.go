// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Sight is what is seen inside a pod's network namespace beside the rules.
type Sight struct {
	// Listening is true when something listens on ListenerAddress.
	Listening bool
	// Ports is how many local ports the pod can dial from.
	Ports int
	// Tracked and MaxTracked are the connections in the namespace's conntrack
	// table and how many it may hold; both 0 when there is no table.
	Tracked, MaxTracked uint64
	// Slowed is how many first segments the connection rate has dropped since the
	// rules were installed; 0 without rules.
	Slowed uint64
}

// See looks into a network namespace and changes nothing. Its errors are as
// Check's.
func See(netnsPath string) (s Sight, err error) {
	err = within(netnsPath, func(k kernel) (err error) {
		if s, err = see(); err != nil {
			return err
		}
		s.Slowed, err = slowed(k)
		return err
	})
	if err != nil {
		return s, fmt.Errorf("look into netns %s: %w", netnsPath, err)
	}
	return s, nil
}

// see looks at the namespace of the calling thread. What is under /proc/sys/net
// is its reader's, what is under /proc/net is the process's first thread's.
func see() (s Sight, err error) {
	if s.Listening, err = listens("/proc/thread-self/net/tcp"); err != nil {
		return s, err
	}
	ports, err := numbers("/proc/sys/net/ipv4/ip_local_port_range", 2)
	if err != nil {
		return s, err
	}
	s.Ports = int(ports[1]) - int(ports[0]) + 1
	tracked, err := numbers("/proc/sys/net/netfilter/nf_conntrack_count", 1)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	most, err := numbers("/proc/sys/net/netfilter/nf_conntrack_max", 1)
	if err != nil {
		return s, err
	}
	s.Tracked, s.MaxTracked = tracked[0], most[0]
	return s, nil
}

// slowed reads what the connection rate has dropped.
func slowed(k kernel) (uint64, error) {
	exists, err := tableExists(k.nft)
	if err != nil || !exists {
		return 0, err
	}
	rules, err := readRules(k.nft, string(Output))
	if err != nil {
		return 0, err
	}
	return counted(rules), nil
}

// listening is the state TCP_LISTEN in /proc/net/tcp.
const listening = "0A"

// listens looks for ListenerAddress in a table of sockets. Listening ones stand
// first in it.
func listens(table string) (bool, error) {
	f, err := os.Open(table)
	if err != nil {
		return false, fmt.Errorf("list sockets: %w", err)
	}
	defer f.Close()
	a := ListenerAddress().Addr().As4()
	want := fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a[:]), ListenerAddress().Port())
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// sl local_address rem_address st ...
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[1] == "local_address" {
			continue
		}
		if fields[3] != listening {
			return false, nil
		}
		if fields[1] == want {
			return true, nil
		}
	}
	if err := lines.Err(); err != nil {
		return false, fmt.Errorf("list sockets: %w", err)
	}
	return false, nil
}

// numbers reads a setting of n numbers.
func numbers(path string, n int) ([]uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a setting: %w", err)
	}
	fields := strings.Fields(string(b))
	if len(fields) != n {
		return nil, fmt.Errorf("read a setting: %s holds %q, want %d numbers", path, strings.TrimSpace(string(b)), n)
	}
	out := make([]uint64, n)
	for i, f := range fields {
		if out[i], err = strconv.ParseUint(f, 10, 64); err != nil {
			return nil, fmt.Errorf("read a setting: %s: %w", path, err)
		}
	}
	return out, nil
}
