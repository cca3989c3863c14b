// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// programModule is where the cluster's programs come from: a module of its own, so
// that they are built with the versions Kubernetes itself asks for.
const programModule = "test/lab/kube"

// kubernetesModule names the version of the cluster.
const kubernetesModule = "k8s.io/kubernetes"

// programs are the cluster's, by the packages they are built from, in that order.
var programs = []struct{ name, source string }{
	{"etcd", "go.etcd.io/etcd/server/v3"},
	{"kube-apiserver", kubernetesModule + "/cmd/kube-apiserver"},
	{"kube-controller-manager", kubernetesModule + "/cmd/kube-controller-manager"},
	{"kube-proxy", kubernetesModule + "/cmd/kube-proxy"},
	{"kubectl", kubernetesModule + "/cmd/kubectl"},
}

// Programs returns the directory that holds etcd, kube-apiserver,
// kube-controller-manager, kube-proxy and kubectl, .build/lab/VERSION-HASH of the
// repository, and builds what is missing there. HASH is of the module's go.mod and
// go.sum, of the Go version and of the machine's kind: programs of one such
// directory never differ. A first build takes a quarter of an hour on two cores;
// progress is told of each program.
func Programs(ctx context.Context, root string, progress func(string)) (dir string, err error) {
	module := filepath.Join(root, programModule)
	version, err := moduleVersion(ctx, module, kubernetesModule)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, f := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(module, f))
		if err != nil {
			return "", fmt.Errorf("read the versions of the cluster's programs: %w", err)
		}
		hash.Write(b)
	}
	fmt.Fprint(hash, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	base := filepath.Join(root, ".build", "lab")
	dir = filepath.Join(base, fmt.Sprintf("%s-%x", version, hash.Sum(nil)[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make directory of programs: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(base, "lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	for i, p := range programs {
		target := filepath.Join(dir, p.name)
		if _, err := os.Stat(target); err == nil {
			continue
		}
		began := time.Now()
		progress(fmt.Sprintf("building %s for Kubernetes %s (%d of %d)", p.name, version, i+1, len(programs)))
		flags := []string{"-trimpath", "-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=" + version}
		if err := goBuild(ctx, module, target, progress, append(flags, p.source)...); err != nil {
			return "", err
		}
		progress(fmt.Sprintf("built %s in %.0f s", p.name, time.Since(began).Seconds()))
	}
	return dir, nil
}

// moduleVersion asks for the version of a module that another one requires.
func moduleVersion(ctx context.Context, dir, module string) (string, error) {
	cmd := goCommand(ctx, dir, "list", "-m", "-json", module)
	out, err := cmd.Output()
	var m struct{ Version string }
	if err == nil {
		err = json.Unmarshal(out, &m)
	}
	if ee := (*exec.ExitError)(nil); errors.As(err, &ee) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(ee.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("look up the version of %s: %w", module, err)
	}
	return m.Version, nil
}

func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	return cmd
}

// stillBuilding is how often who waits for a build is told that it goes on.
const stillBuilding = 30 * time.Second

// goBuild builds one program; the file is there as a whole or not at all.
func goBuild(ctx context.Context, dir, target string, progress func(string), args ...string) error {
	early := target + ".new"
	cmd := goCommand(ctx, dir, append([]string{"build", "-buildvcs=false", "-o", early}, args...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run go: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	began, tick := time.Now(), time.NewTicker(stillBuilding)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			progress(fmt.Sprintf("still building %s, %.0f s so far", filepath.Base(target), time.Since(began).Seconds()))
			continue
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("build %s: %w\n%s", path.Base(target), err, bytes.TrimSpace(said.Bytes()))
			}
		}
		if err := os.Rename(early, target); err != nil {
			return fmt.Errorf("keep %s: %w", path.Base(target), err)
		}
		return nil
	}
}

// lockFile waits for the lock of a file, which ends with its holder.
func lockFile(ctx context.Context, path string, progress func(string)) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			progress("waiting for another build of the same programs")
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ours are the product's programs the lab runs.
var ours = []string{"aether-agent", "aetherctl"}

// productPrograms puts aether-agent and aetherctl into a directory: those of
// $AETHER_BIN, or built from the repository.
func (c Config) productPrograms(ctx context.Context, dir string) error {
	if from := os.Getenv("AETHER_BIN"); from != "" {
		for _, name := range ours {
			if err := copyProgram(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("take %s from $AETHER_BIN: %w", name, err)
			}
		}
		return nil
	}
	packages := []string{}
	for _, name := range ours {
		packages = append(packages, "./cmd/"+name)
	}
	c.Progress("building " + strings.Join(ours, " and "))
	cmd := goCommand(ctx, c.Root, append([]string{"build", "-trimpath", "-buildvcs=false", "-o", dir + "/"}, packages...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(ours, " and "), err, bytes.TrimSpace(out))
	}
	return nil
}

// copyProgram copies an executable file: the lab's own does not change when
// somebody builds anew.
func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
