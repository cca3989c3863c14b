// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/vishvananda/netlink"

	"aether.io/aether/internal/sandbox"
)

// What the node proxy stands beside: HAProxy in TCP mode, and the kernel alone.
// Their client is a pod that is not captured, on a link of the same kind.
const (
	haproxyName = "haproxy"
	haproxyPort = 19003
	// haproxyLoses is more than it was seen to: 3 % of connections that end one by
	// one, a third of 16 that end at once.
	haproxyLoses = 0.8
	dnatName     = "dnat"
)

// haproxy runs on the node, listens on the loopback of the uncaptured pod, and
// dials from the node or from that pod's namespace, by source mode. It logs every
// connection in one line, its address, Service, endpoint, bytes, time and end; when
// both threads write at once a line may be lost.
type haproxy struct {
	cmd *exec.Cmd
	log string
}

var haproxyConfig = template.Must(template.New("").Parse(`global
  nbthread {{.Threads}}
  maxconn 2000
  log stdout format raw local0 info
defaults
  mode tcp
  log global
  log-format '{"backend":"%b","client":"%ci:%cp","server":"%s","in":%U,"out":%B,"ms":%Tt,"state":"%ts"}'
  timeout connect 2s
  timeout client 1h
  timeout server 1h
listen web
  bind 127.0.0.1:{{.Port}} namespace {{.Listen}}
  balance roundrobin
{{- range $i, $s := .Servers}}
  server s{{$i}} {{$s}}{{with $.Dial}} namespace {{.}}{{end}}
{{- end}}
`))

// startHAProxy starts it with its files in dir and waits until it serves.
func startHAProxy(ctx context.Context, node *sandbox.Node, source, dir string) (*haproxy, error) {
	h := &haproxy{log: filepath.Join(dir, "haproxy.log")}
	netns := filepath.Base(netNSOf(node, plainPod))
	values := struct {
		Threads, Port int
		Listen, Dial  string
		Servers       []netip.AddrPort
	}{Threads: workers, Port: haproxyPort, Listen: netns}
	if source == "pod" {
		values.Dial = netns
	}
	for _, ip := range servers {
		values.Servers = append(values.Servers, netip.AddrPortFrom(ip, serverPort))
	}
	var text bytes.Buffer
	if err := haproxyConfig.Execute(&text, values); err != nil {
		return nil, fmt.Errorf("make HAProxy's configuration: %w", err)
	}
	config := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(config, text.Bytes(), 0o644); err != nil {
		return nil, fmt.Errorf("write HAProxy's configuration: %w", err)
	}
	log, err := os.OpenFile(h.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open HAProxy's log: %w", err)
	}
	defer log.Close()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		return nil, errors.New("haproxy is not installed: run tools/install-packages.sh haproxy:haproxy")
	}
	var errs bytes.Buffer
	h.cmd = exec.Command(path, "-db", "-f", config)
	h.cmd.Stdout, h.cmd.Stderr = log, &errs
	if err := node.InNode(h.cmd.Start); err != nil {
		return nil, fmt.Errorf("start HAProxy: %w", err)
	}
	err = eventually(ctx, 10*time.Second, func() error {
		return node.InPod(plainPod, func() error { return dialOnce(fmt.Sprintf("127.0.0.1:%d", haproxyPort)) })
	})
	if err != nil {
		h.stop()
		return nil, fmt.Errorf("wait for HAProxy: %w: %s", err, errs.String())
	}
	return h, nil
}

func dialOnce(target string) error {
	c, err := net.DialTimeout("tcp4", target, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

func (h *haproxy) stop() {
	_ = h.cmd.Process.Kill() // it may have ended
	_ = h.cmd.Wait()         // killed
}

func (h *haproxy) lane() lane {
	return lane{
		name: haproxyName, pod: plainPod, url: fmt.Sprintf("http://127.0.0.1:%d%s", haproxyPort, answerPath),
		log: h.log, mark: `"backend":"web"`, loses: haproxyLoses, pid: func() int { return h.cmd.Process.Pid },
	}
}

// dnatLane is the way of a Service through kube-proxy's nftables mode: the node
// sends the Service's address and port to a chain of the Service, and that to one
// endpoint's at random. The source stays the pod's. There is no log. The rules are
// there only while the lane is in use: with them the kernel tracks every
// connection through the node.
func dnatLane(node *sandbox.Node) lane {
	return lane{
		name: dnatName, pod: directPod, url: fmt.Sprintf("http://%s:%d%s", dnatVIP, webPort, answerPath),
		prepare: func(ctx context.Context) (func() error, error) {
			if err := nft(ctx, node, dnatRules()); err != nil {
				return nil, err
			}
			return func() error {
				// The last connections close by way of the rules, or they never do.
				time.Sleep(dnatLinger)
				return errors.Join(
					nft(context.WithoutCancel(ctx), node, "delete table ip "+dnatTable+"\n"),
					node.InNode(forgetConnections),
				)
			}, nil
		},
	}
}

const (
	dnatTable  = "bench_dnat"
	dnatLinger = 250 * time.Millisecond
)

// forgetConnections empties the kernel's table of tracked connections, so that
// every sample begins with an empty one.
func forgetConnections() error {
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("forget tracked connections: %w", err)
	}
	return nil
}

func dnatRules() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table ip %s {\n", dnatTable)
	var choices []string
	for i, ip := range servers {
		fmt.Fprintf(&b, "  chain endpoint-%d { meta l4proto tcp dnat to %s:%d; }\n", i, ip, serverPort)
		choices = append(choices, fmt.Sprintf("%d : goto endpoint-%d", i, i))
	}
	fmt.Fprintf(&b, "  chain service { numgen random mod %d vmap { %s }; }\n", len(servers), strings.Join(choices, ", "))
	fmt.Fprintf(&b, "  map services { type ipv4_addr . inet_proto . inet_service : verdict; elements = { %s . tcp . %d : goto service }; }\n", dnatVIP, webPort)
	b.WriteString("  chain prerouting { type nat hook prerouting priority -100; ip daddr . meta l4proto . th dport vmap @services; }\n}\n")
	return b.String()
}

// nft runs a script in the node's namespace.
func nft(ctx context.Context, node *sandbox.Node, script string) error {
	path, err := exec.LookPath("nft")
	if err != nil {
		path = "/usr/sbin/nft" // not on every user's PATH
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := node.InNode(cmd.Start); err != nil {
		return fmt.Errorf("run nft: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("run nft: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}
