// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"aether.io/aether/internal/agent"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/envoy"
)

// The commands. No command runs the agent.
const (
	commandRun       = ""
	commandBootstrap = "bootstrap"
	commandVersion   = "version"
)

// options are a parsed command line.
type options struct {
	command      string
	config       agent.Config
	manifestDirs []string
	kubeconfig   string
	logLevel     string
	logFormat    string
	bootstrap    envoy.BootstrapSettings
}

const usage = `Usage:
  aether-agent [flags]             run the agent until SIGTERM or SIGINT
  aether-agent bootstrap [flags]   print Envoy's bootstrap for this node
  aether-agent proxy [flags]       run this node's Envoy: see aether-agent proxy --help
  aether-agent version             print the version

Flags:
`

// parse reads a command line. An error says which flag is wrong and what is
// wanted; flag.ErrHelp means that help was asked for and given.
func parse(args []string, stderr io.Writer) (options, error) {
	o := options{config: agent.DefaultConfig()}
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.command, args = args[0], args[1:]
	}
	switch o.command {
	case commandRun, commandBootstrap, commandVersion:
	default:
		return o, fmt.Errorf("unknown command %q", o.command)
	}
	fs := flag.NewFlagSet("aether-agent", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // main prints the error
	limit := o.define(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stderr, usage)
			fs.SetOutput(stderr)
			fs.PrintDefaults()
		}
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.command == commandVersion {
		return o, nil
	}
	if *limit > math.MaxUint32 {
		return o, fmt.Errorf("pod connection limit %d: want at most %d", *limit, uint32(math.MaxUint32))
	}
	o.config.Envoy.PodConnectionLimit = uint32(*limit)
	o.bootstrap.NodeID = o.config.Node
	o.bootstrap.XDSSocket = o.config.XDSSocket()
	o.bootstrap.RecordSocket = o.config.RecordSocket()
	o.bootstrap.AdminSocket = o.config.AdminSocket()
	return o, o.check()
}

// define declares the flags. It returns what does not fit a field.
func (o *options) define(fs *flag.FlagSet) (podConnectionLimit *uint64) {
	c := &o.config
	fs.StringVar(&c.Node, "node-name", "", "`name` of this node's Node object (required)")
	fs.StringVar(&c.Zone, "zone", "", "`zone` of this node; default: the Node object's label topology.kubernetes.io/zone")
	fs.StringVar((*string)(&c.Mode), "service-egress", string(c.Mode),
		"what becomes of a dialled Service: passthrough (measure only), balance (serve what can be served) or enforce (serve or refuse)")
	fs.StringVar((*string)(&c.Envoy.EgressSource), "egress-source", string(c.Envoy.EgressSource),
		"whose address servers see: pod or node")
	fs.Func("manifest-dir", "`directory` of Kubernetes YAML to watch instead of the Kubernetes API; may be repeated, a later one wins", func(s string) error {
		if s == "" {
			return errors.New("want a directory")
		}
		o.manifestDirs = append(o.manifestDirs, s)
		return nil
	})
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how to reach the Kubernetes API; default: the service account of the agent's pod. Not with --manifest-dir")
	fs.Func("service-range", "comma-separated `CIDRs` that replace the ServiceCIDR objects", func(s string) error {
		ps, err := parseRange(s)
		c.ServiceRange = append(c.ServiceRange, ps...)
		return err
	})
	fs.StringVar(&c.RunDir, "run-dir", c.RunDir, "`directory` of the sockets")
	fs.StringVar(&c.StateDir, "state-dir", c.StateDir, "`directory` of what outlives a restart")
	fs.DurationVar(&c.DemandWindow, "demand-window", c.DemandWindow, "how long a Service port is remembered after its last dial")
	fs.DurationVar(&c.NoServiceHold, "no-service-hold", c.NoServiceHold,
		"how long the first dial of an address that no Service has waits for the Service to appear, at most 3s; with the Kubernetes API only for its endpoints, once the Service has come")
	fs.IntVar(&c.LookRate, "look-rate", c.LookRate,
		"with the Kubernetes API: `number` of addresses without a known Service that are looked at a second before they are refused; after a quiet time twice as many")
	fs.StringVar(&c.MetricsAddress, "metrics-address", c.MetricsAddress, "`host:port` of /metrics, /healthz and /readyz; empty for none")
	fs.StringVar(&c.Envoy.AccessLogPath, "access-log", c.Envoy.AccessLogPath, "`file` Envoy writes its access log to")
	o.defineRecords(fs)
	fs.StringVar(&c.Envoy.TrustDomain, "trust-domain", c.Envoy.TrustDomain, "SPIFFE trust `domain` of the pods' identities")
	fs.DurationVar(&c.ScrapeInterval, "scrape-interval", c.ScrapeInterval, "how often Envoy's connection counts are read")
	fs.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&o.logFormat, "log-format", "text", "text or json")
	fs.IntVar(&c.CompactNames, "compact-names", c.CompactNames,
		"how many names one Envoy may be asked for before it is hot restarted to forget them; 0 for never")
	limit := fs.Uint64("pod-connection-limit", uint64(c.Envoy.PodConnectionLimit), "connections that one chain of one pod's listener holds at a time")
	fs.Uint64Var(&o.bootstrap.DescriptorLimit, "descriptor-limit", descriptorLimit(),
		"bootstrap: descriptors that Envoy may open (RLIMIT_NOFILE)")
	fs.Func("access-log-success-percent", "bootstrap: `percent` of the connections without a failure that Envoy logs (default 0)", func(s string) error {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return errors.New("want a number from 0 to 100")
		}
		o.bootstrap.AccessLogSuccessPercent = uint32(n)
		return nil
	})
	return limit
}

func (o *options) check() error {
	var errs []error
	if _, err := daemon.NewLogger(io.Discard, o.logLevel, o.logFormat); err != nil {
		errs = append(errs, err)
	}
	if len(o.manifestDirs) > 0 && o.kubeconfig != "" {
		errs = append(errs, errors.New("two sources of Services: give --manifest-dir or --kubeconfig"))
	}
	if o.command == commandBootstrap {
		errs = append(errs, o.bootstrap.Validate())
	}
	errs = append(errs, o.config.Validate())
	return errors.Join(errs...)
}

// parseRange reads a comma-separated list of IPv4 prefixes.
func parseRange(s string) ([]netip.Prefix, error) {
	var ps []netip.Prefix
	for part := range strings.SplitSeq(s, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("%q is no CIDR such as 10.96.0.0/16", part)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// descriptorLimit returns this process's limit, which a child process inherits.
func descriptorLimit() uint64 {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return r.Cur
}

// defineRecords declares the flags of what the agent and the access log are told.
func (o *options) defineRecords(fs *flag.FlagSet) {
	e := &o.config.Envoy
	rate := func(name string, to *uint32, usage string) {
		fs.Func(name, fmt.Sprintf("%s (default %d)", usage, *to), func(s string) error {
			n, err := strconv.ParseUint(s, 10, 32)
			if err != nil || n == 0 {
				return errors.New("want a number from 1")
			}
			*to = uint32(n)
			return nil
		})
	}
	rate("record-rate", &e.RecordRate, "`number` of ended connections a second that Envoy tells the agent of, and as many again that failed or were refused")
	rate("access-log-fault-rate", &e.AccessLogFaultRate, "`number` of refusals and failures a second that Envoy's access log holds")
	fs.DurationVar(&e.RecordInterval, "record-interval", e.RecordInterval, "how often Envoy tells the agent of each open connection")
}
