// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/test/accesslog"
)

// Cluster is a running lab held by this process. Pods and Services are named
// "namespace/name", or "name" in namespace default. Methods may be called from any
// goroutine.
type Cluster struct {
	// The programs of the cluster. Tests stop, kill and pause them as they like.
	Etcd, APIServer, ControllerManager, KubeProxy *Process
	// Node is our node: its pods, agent and Envoy.
	Node *sandbox.Node

	cfg      Config
	paths    paths
	log      *slog.Logger
	lock     *os.File
	programs string // directory
	forker   *daemon.Forker
	ca       *authority

	rest    *rest.Config
	http    *http.Client
	client  kubernetes.Interface
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper

	kubelet  *kubelet
	forward  *forwarder
	access   accesslog.Log
	downOnce sync.Once
	downErr  error
}

// ErrRunning is returned by Up and Clean when a lab of that name is running.
var ErrRunning = errors.New("a lab of that name is running")

// Up makes the cluster and waits until it works: control plane and kube-proxy
// ready, agent and Envoy connected. ctx bounds the start only. When it fails
// nothing is left but the programs that were built.
func Up(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg, err := cfg.withDefaults().resolve()
	if err != nil {
		return nil, err
	}
	programs, err := Programs(ctx, cfg.Root, cfg.Progress)
	if err != nil {
		return nil, err
	}
	lock, err := takeLock(cfg)
	if err != nil {
		return nil, err
	}
	removed, err := cleanLeftovers(ctx, cfg)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("remove what an earlier lab left: %w", err)
	}
	if len(removed) > 0 {
		cfg.Progress("removed what an earlier lab left: " + strings.Join(removed, ", "))
	}
	c := &Cluster{
		cfg: cfg, paths: cfg.paths(), log: cfg.Log, lock: lock, programs: programs, forker: daemon.NewForker(),
	}
	c.makeProcesses()
	if err := c.up(ctx); err != nil {
		return nil, errors.Join(err, c.Down(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func (c *Cluster) up(ctx context.Context) error {
	for _, d := range c.paths.subdirectories() {
		if err := os.MkdirAll(c.paths.at(d), 0o700); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	if err := c.prepareCredentials(); err != nil {
		return err
	}
	if err := c.cfg.makeControl(); err != nil {
		return err
	}
	var started errgroup.Group
	// kube-apiserver waits for etcd by itself.
	started.Go(c.Etcd.launch)
	started.Go(c.APIServer.launch)
	started.Go(func() error { return c.cfg.productPrograms(ctx, c.paths.at("bin")) })
	if err := started.Wait(); err != nil {
		return err
	}
	if err := c.startNode(ctx); err != nil {
		return err
	}
	c.access.Path = c.Node.Paths().AccessLog
	c.kubelet = newKubelet(c.client, c.Node, c.cfg, c.log)
	c.kubelet.start()
	var err error
	c.forward, err = newForwarder(c.cfg.controlNS(), apiAddress(), c.kubeconfigAt)
	return err
}

// startNode brings our node up. What agent and kube-proxy need of the cluster is
// made as soon as the node's network is there.
func (c *Cluster) startNode(ctx context.Context) error {
	var err error
	c.Node, err = sandbox.Up(ctx, sandbox.Config{
		Name: c.cfg.Name, Node: c.cfg.our().Name, Mode: c.cfg.Mode, EgressSource: c.cfg.EgressSource,
		AgentPath: c.paths.at("bin", "aether-agent"), SelfPath: c.paths.at("bin", "aetherctl"),
		PodCIDR: c.cfg.PodCIDR, NodeIP: c.cfg.nodeIP(0), NoProxy: c.cfg.NoProxy,
		Source: c.agentSource(), AgentArgs: c.cfg.AgentArgs, StartTimeout: c.cfg.StartTimeout,
		Prepare: c.prepareNode, Progress: c.cfg.Progress, Log: c.log,
	})
	return err
}

// prepareNode runs when the node's network is there and agent and Envoy are not.
func (c *Cluster) prepareNode(ctx context.Context, nodeNS string, nodeIP netip.Addr) error {
	if err := c.cfg.linkControl(nodeNS, nodeIP); err != nil {
		return err
	}
	began := time.Now()
	if err := c.APIServer.AwaitReady(ctx); err != nil {
		return err
	}
	c.cfg.Progress(fmt.Sprintf("kube-apiserver %s is ready after %.1f s more", c.version(), time.Since(began).Seconds()))
	if err := c.registerNodes(ctx); err != nil {
		return err
	}
	if err := c.writeKubeProxyConfig(); err != nil {
		return err
	}
	var started errgroup.Group
	started.Go(func() error { return c.ControllerManager.Start(ctx) })
	started.Go(func() error { return c.KubeProxy.Start(ctx) })
	started.Go(func() error {
		if c.cfg.NoProxy {
			return nil
		}
		return c.grantAgent(ctx)
	})
	if err := started.Wait(); err != nil {
		return err
	}
	c.cfg.Progress("kube-controller-manager and kube-proxy (nftables) work")
	return nil
}

// version is kube-apiserver's own word, empty when it does not answer.
func (c *Cluster) version() string {
	v, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return ""
	}
	return v.GitVersion
}

// nodeNS is our node's network namespace; the sandbox makes it.
func (c *Cluster) nodeNS() string { return filepath.Join(netnsDir, "aether-"+c.cfg.Name+"-node") }

// Down ends everything and removes it. A second call returns what the first did.
func (c *Cluster) Down(ctx context.Context) error {
	c.downOnce.Do(func() { c.downErr = c.tearDown(ctx) })
	return c.downErr
}

func (c *Cluster) tearDown(ctx context.Context) error {
	if c.forward != nil {
		c.forward.close()
	}
	if c.kubelet != nil {
		c.kubelet.stop()
	}
	c.KubeProxy.Stop()
	var errs []error
	if c.Node != nil {
		errs = append(errs, c.Node.Down(ctx))
	}
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
	c.ControllerManager.Kill()
	c.APIServer.Kill() // it would wait for requests that nobody makes any more
	c.Etcd.Kill()
	_, err := cleanLeftovers(ctx, c.cfg)
	c.forker.Close()
	errs = append(errs, err, os.Remove(c.paths.lock()), c.lock.Close())
	_ = os.Remove(c.cfg.StateDir) // fails while it holds another lab
	return errors.Join(errs...)
}

// takeLock claims the lab's name. The lock ends with the process.
func takeLock(c Config) (*os.File, error) {
	if err := os.MkdirAll(c.StateDir, 0o755); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	for {
		f, err := os.OpenFile(c.paths().lock(), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("open lock: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			pid := holderOf(f)
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%w: %s, held by process %s", ErrRunning, c.Name, pid)
			}
			return nil, fmt.Errorf("lock %s: %w", c.paths().lock(), err)
		}
		mine, err1 := f.Stat()
		named, err2 := os.Stat(c.paths().lock())
		if err1 != nil || err2 != nil || !os.SameFile(mine, named) {
			f.Close() // its last holder removed it
			continue
		}
		if err := f.Truncate(0); err == nil {
			_, err = fmt.Fprint(f, os.Getpid())
			if err == nil {
				return f, nil
			}
		}
		f.Close()
		return nil, fmt.Errorf("write lock %s", c.paths().lock())
	}
}

// holderOf reads who wrote the lock.
func holderOf(f *os.File) string {
	b := make([]byte, 20)
	n, err := f.ReadAt(b, 0)
	if n == 0 && err != nil {
		return "unknown"
	}
	return string(b[:n])
}

// cleanLeftovers removes what a lab of that name has or left: it says what. The
// caller has the lock.
func cleanLeftovers(ctx context.Context, c Config) (removed []string, err error) {
	removed, err = sandbox.Clean(ctx, "", c.Name)
	if err != nil {
		return removed, err
	}
	more, err := c.removeControl()
	removed = append(removed, more...)
	if err != nil {
		return removed, err
	}
	if _, err := os.Stat(c.paths().dir); err == nil {
		removed = append(removed, c.paths().dir)
	}
	if err := os.RemoveAll(c.paths().dir); err != nil {
		return removed, fmt.Errorf("remove files: %w", err)
	}
	return removed, nil
}

// Clean removes what a dead lab of that name left and says what there was;
// ErrRunning when it is not dead. stateDir and name "" are the defaults.
func Clean(ctx context.Context, stateDir, name string) (removed []string, err error) {
	c := Config{StateDir: stateDir, Name: name}.withDefaults()
	lock, err := takeLock(c)
	if err != nil {
		return nil, err
	}
	removed, err = cleanLeftovers(ctx, c)
	if err := os.Remove(c.paths().holderLog()); err == nil {
		removed = append(removed, c.paths().holderLog())
	}
	err = errors.Join(err, os.Remove(c.paths().lock()), lock.Close())
	_ = os.Remove(c.StateDir)
	return removed, err
}
