// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/daemon"
)

const (
	runDirMode  = 0o755
	ownMode     = 0o600
	mailboxSize = 64
)

// Supervisor runs one node's Envoy. It runs once.
type Supervisor struct {
	cfg    Config
	log    *slog.Logger
	output io.Writer
	base   uint32
	admin  admin

	forker  *daemon.Forker
	in      chan message
	ended   chan struct{} // closed when the loop has ended
	helpers sync.WaitGroup
	life    context.Context // ends with the loop

	// Only the loop touches what follows.
	machine machine
	running map[int]*process
	stands  map[int]*standIn // by child
	asking  map[uint64]chan<- outcome
	lastReq uint64
	info    serverInfo // of the Envoy that serves
	from    inputs     // what it was started from
}

// process is a started Envoy.
type process struct {
	cmd    *exec.Cmd
	from   inputs
	info   serverInfo // valid once live
	cancel context.CancelFunc
}

// message is an event for the machine, or a question to the shell.
type message struct {
	event  event
	info   serverInfo // with live
	reply  chan<- outcome
	status chan<- api.ProxyStatus
}

// New checks the configuration. Envoys write to output.
func New(c Config, log *slog.Logger, output io.Writer) (*Supervisor, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Supervisor{
		cfg: c, log: log, output: output, admin: newAdmin(c.run(adminSocket)),
		in: make(chan message, mailboxSize), ended: make(chan struct{}),
		running: map[int]*process{}, stands: map[int]*standIn{}, asking: map[uint64]chan<- outcome{},
		machine: machine{timing: timing{start: c.StartTimeout, shutdown: c.ShutdownTime, grace: endGrace}},
	}, nil
}

// Run runs Envoy until ctx ends, and then ends every epoch: with SIGTERM, and after
// 3 s with SIGKILL. It returns an error only when it cannot begin: without its run
// directory, its lock or its socket.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := os.MkdirAll(s.cfg.RunDir, runDirMode); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	lock, err := daemon.Acquire(s.cfg.run(lockFile))
	if err != nil {
		return fmt.Errorf("use run directory: %w", err)
	}
	defer lock.Release()
	if s.base, err = s.cfg.baseID(); err != nil {
		return err
	}
	l, err := daemon.ListenUnix(s.cfg.run(apiSocket), ownMode)
	if err != nil {
		return err
	}
	s.log.Info("supervisor of Envoy starts", "pid", os.Getpid(), "path", s.cfg.Envoy, "version", daemon.Version())
	s.forker = daemon.NewForker()
	defer s.forker.Close()
	serve, endServe := context.WithCancel(context.WithoutCancel(ctx))
	var served sync.WaitGroup
	served.Go(func() {
		if err := daemon.ServeHTTP(serve, l, s.routes(), s.log); err != nil {
			s.log.Error("serve the supervisor's API", "err", err)
		}
	})
	var endLife context.CancelFunc
	s.life, endLife = context.WithCancel(context.WithoutCancel(ctx))
	if s.cfg.RestartOnChange {
		s.helpers.Go(func() { s.watch(s.life) })
	}
	s.loop(ctx)
	close(s.ended)
	endLife()
	endServe()
	served.Wait()
	s.helpers.Wait()
	s.sweep()
	s.log.Info("supervisor of Envoy stopped")
	return nil
}

// loop feeds the machine until every Envoy has ended after ctx.
func (s *Supervisor) loop(ctx context.Context) {
	s.feed(begun{})
	done := ctx.Done()
	for !s.machine.finished() {
		var wake <-chan time.Time
		var timer *time.Timer
		if at, ok := s.machine.wake(); ok {
			timer = time.NewTimer(time.Until(at))
			wake = timer.C
		}
		select {
		case m := <-s.in:
			s.receive(m)
		case <-wake:
			s.feed(ticked{})
		case <-done:
			done = nil
			s.feed(stopped{})
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// tell sends the loop a message; it is lost when the loop has ended.
func (s *Supervisor) tell(m message) bool {
	select {
	case s.in <- m:
		return true
	case <-s.ended:
		return false
	}
}

func (s *Supervisor) receive(m message) {
	switch ev := m.event.(type) {
	case asked:
		s.lastReq++
		ev.id = s.lastReq
		s.asking[ev.id] = m.reply
		s.feed(ev)
	case live:
		if p := s.running[ev.id]; p != nil {
			p.info = m.info
			s.info, s.from = m.info, p.from
		}
		s.feed(ev)
	case exited:
		delete(s.running, ev.id)
		s.feed(ev)
	case nil:
		m.status <- s.status(time.Now())
	default:
		s.feed(ev)
	}
}

// feed has the machine take a step, and does what follows from it. An effect may
// come to an event of its own at once.
func (s *Supervisor) feed(ev event) {
	for queue := []event{ev}; len(queue) > 0; queue = queue[1:] {
		for _, f := range s.machine.step(time.Now(), queue[0]) {
			if more := s.perform(f); more != nil {
				queue = append(queue, more)
			}
		}
	}
}

func (s *Supervisor) perform(f effect) event {
	switch f := f.(type) {
	case prepare:
		s.prepare(f.serial)
	case start:
		return s.start(f)
	case kill:
		if p := s.running[f.id]; p != nil {
			// The only other error is that it has ended already.
			_ = p.cmd.Process.Signal(f.signal)
		}
	case answer:
		for _, r := range f.to {
			// One that was told that it waits is not there any more.
			if reply := s.asking[r.id]; reply != nil {
				reply <- f.outcome
				delete(s.asking, r.id)
			}
		}
	case clearMark:
		if err := newSharedMemory(s.base + uint32(f.slot)).clear(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Error("later hot restarts may fail", "err", err)
		}
	case tidy:
		if err := newSharedMemory(s.base + uint32(f.slot)).remove(); err != nil {
			s.log.Warn("something is left behind", "err", err)
		}
	case stand:
		s.stand(f)
	case leave:
		if in := s.stands[f.child]; in != nil {
			in.close()
			delete(s.stands, f.child)
		}
	case say:
		s.say(f)
	}
	return nil
}

func (s *Supervisor) say(f say) {
	var args []any
	if f.epoch.id != 0 {
		args = append(args, "pid", f.epoch.pid, "state", f.epoch.phase.String(), "count", f.epoch.number)
	}
	if f.reason != "" {
		args = append(args, "reason", f.reason)
	}
	s.log.Log(context.Background(), f.level, f.text, args...)
}

// prepare checks, beside the loop, that another Envoy could take over.
func (s *Supervisor) prepare(serial int) {
	version := s.info.HotRestart
	s.helpers.Go(func() {
		in, err := s.cfg.resolve()
		if err == nil {
			err = s.cfg.check(s.life, in, version)
		}
		s.tell(message{event: prepared{serial: serial, err: err}})
	})
}

// start forks an Envoy, and has its readiness and its end told.
func (s *Supervisor) start(f start) event {
	in, err := s.cfg.resolve()
	if err != nil {
		return exited{id: f.id, how: err.Error()}
	}
	base := s.base + uint32(f.slot)
	cmd := exec.Command(in.binary)
	cmd.Args = s.cfg.command(in.binary, base, f.number)
	cmd.Stdout, cmd.Stderr = s.output, s.output
	if err := s.forker.Start(cmd); err != nil {
		return exited{id: f.id, how: err.Error()}
	}
	ctx, cancel := context.WithCancel(s.life)
	s.running[f.id] = &process{cmd: cmd, from: in, cancel: cancel}
	s.log.Info("Envoy started", "pid", cmd.Process.Pid, "count", f.number, "path", in.binary)
	var starts atomic.Bool // it was seen to be starting
	memory := newSharedMemory(base)
	s.helpers.Go(func() {
		for ctx.Err() == nil {
			if memory.marked() {
				starts.Store(true)
			}
			if info, ok := s.admin.serving(ctx, base, f.number); ok {
				s.tell(message{event: live{f.id}, info: info})
				return
			}
			select {
			case <-time.After(pollInterval):
			case <-ctx.Done():
			}
		}
	})
	s.helpers.Go(func() {
		err := cmd.Wait()
		cancel()
		how := "exit code 0"
		if err != nil {
			how = err.Error()
		}
		s.tell(message{event: exited{id: f.id, how: how, clean: err == nil, tookOver: starts.Load() && !memory.marked()}})
	})
	return started{id: f.id, pid: cmd.Process.Pid}
}

// stand answers an Envoy in the place of its parent.
func (s *Supervisor) stand(f stand) {
	if s.stands[f.child] != nil {
		return
	}
	in, err := newStandIn(s.hotSocket("parent", f.slot, f.number), s.hotSocket("child", f.slot, f.number+1))
	if err != nil {
		s.log.Error("the Envoy that serves may abort", "err", err)
		return
	}
	s.stands[f.child] = in
}

// hotSocket returns the path of a socket by which epochs of a chain talk. Envoy
// numbers them modulo three.
func (s *Supervisor) hotSocket(role string, slot, number int) string {
	id := uint64(s.base+uint32(slot))*10 + uint64(number%3)
	return s.cfg.run(fmt.Sprintf("%s_%s_%d", hotPrefix, role, id))
}

// sweep removes what Envoys leave in the run directory.
func (s *Supervisor) sweep() {
	left, err := filepath.Glob(s.cfg.run(hotPrefix + "_*"))
	if err != nil {
		return // the pattern is a constant's
	}
	for _, path := range append(left, s.cfg.run(adminSocket)) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("something is left behind", "path", path, "err", err)
		}
	}
}
