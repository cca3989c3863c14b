// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A command that the holder starts is in another session than the caller's
// terminal. It gets a terminal of its own, whose other end the caller connects
// with the real one: Ctrl-C, job control and window sizes then work as usual.

// lastWords is how long output is waited for that a command wrote just before
// its end, when something of it still holds its terminal.
const lastWords = 200 * time.Millisecond

// openPTY makes a terminal: what is written to ours is typed on theirs.
func openPTY() (ours, theirs *os.File, err error) {
	ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	fd := -1
	raw, err := ours.SyscallConn()
	if err == nil {
		var inner error
		err = raw.Control(func(m uintptr) {
			if inner = unix.IoctlSetPointerInt(int(m), unix.TIOCSPTLCK, 0); inner != nil {
				return
			}
			n, _, errno := unix.Syscall(unix.SYS_IOCTL, m, unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
			if fd = int(n); errno != 0 {
				inner = errno
			}
		})
		err = errors.Join(err, inner)
	}
	if err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	return ours, os.NewFile(uintptr(fd), "terminal"), nil
}

// onTerminal runs a command on a terminal made for it.
func (c *execCall) onTerminal(r execRequest, s Stdio) (int, error) {
	in, out := s.In.(*os.File), s.Out.(*os.File)
	ours, theirs, err := openPTY()
	if err != nil {
		return 0, err
	}
	defer ours.Close()
	resize := func(os.Signal) { copyWindowSize(in, ours) }
	resize(nil)
	files := []*os.File{theirs, theirs, theirs}
	var more *stdioFiles
	if !isTerminal(s.Err) {
		if more, err = openStdio(Stdio{Err: s.Err}); err != nil {
			theirs.Close()
			return 0, err
		}
		files[2] = more.theirs[2]
		defer more.finish()
	}
	resized := catch(unix.SIGWINCH)
	defer signal.Stop(resized)
	// What is typed comes as bytes; these come from other processes.
	signals := catch(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	err = c.send(r, files)
	theirs.Close()
	if more != nil {
		more.handedOver()
	}
	if err != nil {
		return 0, err
	}
	restore, err := makeRaw(in)
	if err != nil {
		return 0, err
	}
	defer restore()
	defer onSignals(resized, resize)()
	defer c.handOn(signals)()
	stopTyping := typeInto(ours, in)
	defer stopTyping()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		_, _ = io.Copy(out, ours) // ends with EIO when nobody has the terminal open
	}()
	code, err := c.result()
	_ = ours.SetDeadline(time.Now().Add(lastWords))
	<-shown
	return code, err
}

func copyWindowSize(from, to *os.File) {
	size, err := unix.IoctlGetWinsize(int(from.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return // no size known: the default stays
	}
	raw, err := to.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
}

// makeRaw makes a terminal pass every byte as it is typed, and shows what comes
// as it comes; restore undoes it.
func makeRaw(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the terminal's settings: %w", err)
	}
	raw := *old
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("set up the terminal: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }, nil
}

// typeInto writes to a terminal what is typed on another until the returned
// function is called; what is typed later is left for others to read.
func typeInto(to io.Writer, from *os.File) (stop func()) {
	wake, wakeup, err := os.Pipe()
	if err != nil {
		return func() {} // out of descriptors: nothing can be typed
	}
	var typing sync.WaitGroup
	typing.Go(func() {
		defer wake.Close()
		fds := []unix.PollFd{{Fd: int32(from.Fd()), Events: unix.POLLIN}, {Fd: int32(wake.Fd()), Events: unix.POLLIN}}
		buf := make([]byte, 4096)
		for {
			if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
			if fds[1].Revents != 0 {
				return
			}
			if fds[0].Revents == 0 {
				continue
			}
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	return func() {
		wakeup.Close()
		typing.Wait()
	}
}
