// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sys/unix"
)

// unixHTTP asks an HTTP server on a Unix socket. One request takes at most its
// timeout and reads at most its limit.
type unixHTTP struct {
	socket string
	client *http.Client
}

func newUnixHTTP(socket string, timeout time.Duration) unixHTTP {
	return unixHTTP{socket, &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
			DisableKeepAlives: true,
		},
	}}
}

// get returns the body of a reply that is 200 and has at most limit bytes.
func (u unixHTTP) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://socket"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", u.socket, err)
	}
	resp, err := u.client.Do(req)
	if err != nil {
		if ue := (*url.Error)(nil); errors.As(err, &ue) { // its address means nothing to a person
			err = ue.Err
		}
		return nil, fmt.Errorf("ask %s: %w", u.socket, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask %s for %s: %s", u.socket, path, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("ask %s: read the reply: %w", u.socket, err)
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("ask %s for %s: the reply has more than %d bytes", u.socket, path, limit)
	}
	return body, nil
}

// decode is get for a JSON reply.
func (u unixHTTP) decode(ctx context.Context, path string, limit int64, into any) error {
	body, err := u.get(ctx, path, limit)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("ask %s for %s: decode the reply: %w", u.socket, path, err)
	}
	return nil
}

// peerPID returns the process that listens on a Unix socket.
func peerPID(ctx context.Context, socket string) (int, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, fmt.Errorf("find the process behind %s: %w", socket, err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("find the process behind %s: %w", socket, err)
	}
	var who *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) { who, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, fmt.Errorf("find the process behind %s: %w", socket, err)
	}
	if inner != nil {
		return 0, fmt.Errorf("find the process behind %s: %w", socket, inner)
	}
	if who.Pid <= 0 { // of another PID namespace
		return 0, fmt.Errorf("find the process behind %s: it is in a PID namespace that cannot be seen from here", socket)
	}
	return int(who.Pid), nil
}
