// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process with NET_RAW can write frames to lo that carry the divert mark and
// have not passed the output chain, so with any destination it likes; with a
// source beyond the pod it can read the answers on eth0 and go on. The proxy must
// not answer them. (Frames to 127/8 the kernel drops by itself.)
func TestForgedFramesDoNotReachTheProxy(t *testing.T) {
	w := newWorld(t)
	w.install(t, all)
	w.proxy(t)
	w.pod.serve(t, "0.0.0.0:8080", "app")
	raw := openRaw(t, w.pod)
	for i, dst := range []string{"169.254.169.254:80", vip + ":80", podIP + ":18001"} {
		src := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.9"), uint16(45000+i))
		flags, err := raw.provoke(src, ap(dst), int(DivertMark))
		if err != nil {
			t.Errorf("%s: %v", dst, err)
			continue
		}
		if flags&tcpRST == 0 || flags&flagSYN != 0 {
			t.Errorf("%s: answered with flags %#x, want a reset", dst, flags)
		}
	}
	// The same frame without the mark does reach who listens: the check can fail.
	if flags, err := raw.provoke(ap("198.51.100.9:45100"), ap(podIP+":8080"), 0); err != nil || flags != flagSYN|flagACK {
		t.Errorf("unmarked frame to a server of the pod: flags %#x, %v; want SYN and ACK", flags, err)
	}
}

const tcpRST = 0x04

// rawSocket writes whole frames to lo and reads what leaves by eth0.
type rawSocket struct{ lo, eth0 int }

func openRaw(t *testing.T, n netns) rawSocket {
	t.Helper()
	open := func(device string) (fd int) {
		err := n.do(t, func() error {
			link, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			// All protocols: only then are frames shown that leave.
			protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
			if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol)); err != nil {
				return err
			}
			return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index})
		})
		if err != nil {
			t.Fatalf("open a packet socket on %s: %v", device, err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	return rawSocket{lo: open("lo"), eth0: open("eth0")}
}

// provoke sends a SYN and returns the TCP flags of what is answered to src.
func (s rawSocket) provoke(src, dst netip.AddrPort, mark int) (flags byte, err error) {
	if err := unix.SetsockoptInt(s.lo, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
		return 0, err
	}
	if _, err := unix.Write(s.lo, synFrame(src, dst)); err != nil {
		return 0, err
	}
	deadline := time.Now().Add(answerTimeout)
	frame := make([]byte, 2048)
	for time.Now().Before(deadline) {
		poll := []unix.PollFd{{Fd: int32(s.eth0), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, 100); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
		if poll[0].Revents == 0 {
			continue
		}
		n, err := unix.Read(s.eth0, frame)
		if err != nil {
			return 0, err
		}
		const ip, tcp = 14, 34
		if n < tcp+20 || frame[ip+9] != byte(TCP) {
			continue
		}
		from, to := binary.BigEndian.Uint16(frame[tcp:]), binary.BigEndian.Uint16(frame[tcp+2:])
		if from == dst.Port() && to == src.Port() {
			return frame[tcp+13], nil
		}
	}
	return 0, errors.New("no answer")
}

// synFrame is a first segment in an Ethernet frame for lo.
func synFrame(src, dst netip.AddrPort) []byte {
	s, d := src.Addr().As4(), dst.Addr().As4()
	frame := append(make([]byte, 12), 0x08, 0x00)

	ip := []byte{0x45, 0, 0, 40, 0, 1, 0, 0, 64, byte(TCP), 0, 0}
	ip = append(append(ip, s[:]...), d[:]...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))

	tcp := binary.BigEndian.AppendUint16(nil, src.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, dst.Port())
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, flagSYN, 0xff, 0xff, 0, 0, 0, 0)
	pseudo := append(append(append([]byte{}, s[:]...), d[:]...), 0, byte(TCP), 0, byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))

	return append(append(frame, ip...), tcp...)
}

// checksum is the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
