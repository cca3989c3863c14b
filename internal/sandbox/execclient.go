// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// execThrough asks the holder to run a command in a pod and returns its exit
// code.
func execThrough(ctx context.Context, socket string, r execRequest, s Stdio) (int, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, fmt.Errorf("reach the sandbox: %w", err)
	}
	defer conn.Close()
	call := &execCall{conn: conn.(*net.UnixConn), out: json.NewEncoder(conn)}
	interactive := isTerminal(s.In)
	if interactive && isTerminal(s.Out) {
		r.Terminal = true
		return call.onTerminal(r, s)
	}
	files, err := openStdio(s)
	if err != nil {
		return 0, err
	}
	defer files.finish()
	var signals chan os.Signal
	if interactive {
		signals = catch(os.Interrupt, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP)
		defer signal.Stop(signals)
	}
	if err := call.send(r, files.theirs); err != nil {
		return 0, err
	}
	files.handedOver()
	if interactive {
		// The command is not in the terminal's foreground, but this process is.
		defer call.handOn(signals)()
		return call.result()
	}
	defer context.AfterFunc(ctx, func() { call.signal(syscall.SIGKILL) })()
	code, err := call.result()
	if err == nil {
		err = ctx.Err()
	}
	return code, err
}

// execCall is the caller's end.
type execCall struct {
	conn *net.UnixConn
	mu   sync.Mutex // guards out
	out  *json.Encoder
}

// send sends the files and the request.
func (c *execCall) send(r execRequest, files []*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	if _, _, err := c.conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("send files to the sandbox: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(r); err != nil {
		return fmt.Errorf("send the command to the sandbox: %w", err)
	}
	return nil
}

// signal sends one to the command. A command that has ended already is no error.
func (c *execCall) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(execSignal{Signal: s})
}

// catch has signals of this process sent to the channel.
func catch(which ...os.Signal) chan os.Signal {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, which...)
	return signals
}

// handOn gives caught signals to the command until the returned function is
// called.
func (c *execCall) handOn(signals chan os.Signal) (stop func()) {
	return onSignals(signals, func(s os.Signal) {
		if n, ok := s.(syscall.Signal); ok {
			c.signal(n)
		}
	})
}

// onSignals calls f for each caught signal until the returned function is
// called.
func onSignals(signals chan os.Signal, f func(os.Signal)) (stop func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for s := range signals {
			f(s)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
		<-ended
	}
}

// result waits for the end of the command.
func (c *execCall) result() (int, error) {
	var r execResult
	if err := json.NewDecoder(c.conn).Decode(&r); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			err = errors.New("the sandbox has ended")
		}
		return 0, fmt.Errorf("wait for the command: %w", err)
	}
	if r.Error != "" {
		return 0, errors.New(r.Error)
	}
	return r.Code, nil
}

// stdioFiles are files for a command: those of a Stdio, or pipes to and from it.
type stdioFiles struct {
	theirs  []*os.File
	opened  []*os.File // of theirs, to be closed here
	copying sync.WaitGroup
	closeIn func()
}

func openStdio(s Stdio) (*stdioFiles, error) {
	f := &stdioFiles{closeIn: func() {}}
	err := f.reader(s.In)
	for _, w := range []io.Writer{s.Out, s.Err} {
		if err == nil {
			err = f.writer(w)
		}
	}
	if err != nil {
		f.handedOver()
		f.finish()
		return nil, fmt.Errorf("open files for the command: %w", err)
	}
	return f, nil
}

func (f *stdioFiles) reader(r io.Reader) error {
	if file, ok := r.(*os.File); ok {
		f.theirs = append(f.theirs, file)
		return nil
	}
	if r == nil {
		return f.null()
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	f.theirs, f.opened = append(f.theirs, theirs), append(f.opened, theirs)
	f.closeIn = func() { ours.Close() }
	go func() { // not waited for: a reader may have nothing to say for long
		_, _ = io.Copy(ours, r) // the command need not read it all
		ours.Close()
	}()
	return nil
}

func (f *stdioFiles) writer(w io.Writer) error {
	if file, ok := w.(*os.File); ok {
		f.theirs = append(f.theirs, file)
		return nil
	}
	if w == nil {
		return f.null()
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	f.theirs, f.opened = append(f.theirs, theirs), append(f.opened, theirs)
	f.copying.Go(func() {
		_, _ = io.Copy(w, ours)
		ours.Close()
	})
	return nil
}

func (f *stdioFiles) null() error {
	file, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		f.theirs, f.opened = append(f.theirs, file), append(f.opened, file)
	}
	return err
}

// handedOver closes what the command has now.
func (f *stdioFiles) handedOver() {
	for _, o := range f.opened {
		o.Close()
	}
}

// finish waits until all that the command wrote is copied.
func (f *stdioFiles) finish() {
	f.copying.Wait()
	f.closeIn()
}
