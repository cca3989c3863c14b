// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"aether.io/aether/internal/daemon"
)

// The exec socket of a sandbox in an ordinary user's namespaces. The caller
// sends one byte with its standard files (SCM_RIGHTS), then an execRequest, then
// any number of execSignal; it gets an execResult when the command has ended or
// could not be started. A caller that goes away takes the command with it.

// execRequest asks for a command in a pod.
type execRequest struct {
	Pod  string   `json:"pod"`
	Argv []string `json:"argv"`
	// Term is the caller's $TERM, empty for none.
	Term string `json:"term,omitempty"`
	// Terminal is true when the first file is a terminal made for the command: it
	// gets a session of its own, which that terminal controls.
	Terminal bool `json:"terminal,omitempty"`
}

// execSignal is a signal for the command's process group.
type execSignal struct {
	Signal syscall.Signal `json:"signal"`
}

// execResult is how it ended. An error means that it could not be run.
type execResult struct {
	Code  int    `json:"code"`
	Error string `json:"error,omitempty"`
}

// stdFiles is how many files come with a request.
const stdFiles = 3

// serveExec serves the exec socket until the returned function is called. A
// sandbox of root has none: there the caller enters the pod by itself.
func (n *Node) serveExec() (stop func(), err error) {
	if !rootless() {
		return func() {}, nil
	}
	l, err := daemon.ListenUnix(n.paths.exec(), 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	calls.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			calls.Go(func() {
				defer conn.Close()
				// At the end the commands have ended; a caller may still be silent.
				defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })()
				code, err := n.serveCommand(conn.(*net.UnixConn))
				r := execResult{Code: code}
				if err != nil {
					r.Error = err.Error()
				}
				_ = json.NewEncoder(conn).Encode(r) // the caller may be gone
			})
		}
	})
	return func() {
		l.Close()
		cancel()
		calls.Wait()
	}, nil
}

// serveCommand runs one command with the caller's files.
func (n *Node) serveCommand(conn *net.UnixConn) (int, error) {
	files, err := receiveFiles(conn)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return 0, err
	}
	messages := json.NewDecoder(conn)
	var r execRequest
	if err := messages.Decode(&r); err != nil {
		return 0, fmt.Errorf("read request: %w", err)
	}
	ch, err := n.startCommand(r, files)
	if err != nil {
		return 0, err
	}
	for _, f := range files { // the command's are the last: whoever reads sees the end
		f.Close()
	}
	var listening sync.WaitGroup
	listening.Go(func() {
		for {
			var s execSignal
			if err := messages.Decode(&s); err != nil {
				s.Signal = syscall.SIGKILL // the caller is gone, or we have answered
			}
			select {
			case <-ch.ended:
				return
			default:
			}
			_ = syscall.Kill(-ch.pid, s.Signal) // it may just have ended
			if s.Signal == syscall.SIGKILL {
				return
			}
		}
	})
	<-ch.ended
	_ = conn.CloseRead()
	listening.Wait()
	return exitCode(ch.err), nil
}

func (n *Node) startCommand(r execRequest, files []*os.File) (*child, error) {
	if len(r.Argv) == 0 {
		return nil, errors.New("no command given")
	}
	p, err := n.pod(r.Pod)
	if err != nil {
		return nil, err
	}
	spec, env, err := p.surroundings(p.execTarget().spec, false)
	if err != nil {
		return nil, err
	}
	cmd, err := spec.command(n.cfg.SelfPath, r.Argv)
	if err != nil {
		return nil, err
	}
	cmd.Env = env
	if r.Term != "" {
		cmd.Env = append(cmd.Env, "TERM="+r.Term)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = r.Terminal, r.Terminal
	return n.starter.start(cmd)
}

// receiveFiles reads the first byte and the files with it. What came is returned
// with an error, too.
func receiveFiles(conn *net.UnixConn) ([]*os.File, error) {
	rights := make([]byte, unix.CmsgSpace(4*stdFiles))
	count, size, _, _, err := conn.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, fmt.Errorf("receive the caller's files: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	if err != nil {
		return nil, fmt.Errorf("receive the caller's files: %w", err)
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // not files
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "caller"))
		}
	}
	if count != 1 || len(files) != stdFiles {
		return files, fmt.Errorf("receive the caller's files: got %d, want %d", len(files), stdFiles)
	}
	return files, nil
}
