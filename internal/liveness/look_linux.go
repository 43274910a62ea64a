package liveness

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// look asks the kernel. It reports false when the connection is closed and when
// the kernel does not count segments (before Linux 4.6, and gVisor).
func look(raw syscall.RawConn) (counts, bool) {
	var info *unix.TCPInfo
	var errno error
	err := raw.Control(func(fd uintptr) {
		info, errno = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err != nil || errno != nil || info.Segs_in|info.Segs_out == 0 {
		return counts{}, false
	}
	return counts{
		inFlight: info.Unacked > 0 || info.Notsent_bytes > 0,
		heard:    info.Segs_in,
		acked:    info.Bytes_acked,
		asked: asked{
			segments: info.Segs_out, retransmits: info.Retransmits,
			probes: info.Probes, backoff: info.Backoff,
		},
	}, true
}

// boundBackoff has the kernel ask a silent peer, or one that does not read, at
// least so often. Otherwise the time between two probes doubles up to two
// minutes, and a peer that did not read for long before it was partitioned is
// noticed that much later. It reports false where the kernel cannot do it: before 6.15.
func boundBackoff(raw syscall.RawConn, limit time.Duration) bool {
	ms := int(min(max(limit, time.Second), 2*time.Minute).Milliseconds()) // what the kernel takes
	return setOption(raw, unix.TCP_RTO_MAX_MS, ms)
}

// setUserTimeout has the kernel end the connection when its peer's window has been
// closed for so long, or never if it is 0.
func setUserTimeout(raw syscall.RawConn, after time.Duration) {
	setOption(raw, unix.TCP_USER_TIMEOUT, int(after.Milliseconds()))
}

func setOption(raw syscall.RawConn, option, value int) (ok bool) {
	err := raw.Control(func(fd uintptr) { ok = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value) == nil })
	return ok && err == nil
}
