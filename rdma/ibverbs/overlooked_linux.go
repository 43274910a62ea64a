//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// A target of some drivers may leave in its socket what the initiator sends first,
// until more comes (see [quirks.Driver.OverlooksFirst]). Both ends do something about
// it. A target finds the data in the socket and has the initiator send a little more.
// An initiator cannot see that, and sends a little in any case, for targets that are
// not of this package.
const (
	// overlookedLooks is how often a target looks whether data stay in the socket.
	overlookedLooks = 4
	// overlookedLook is the time between two looks. The driver takes data in within
	// microseconds.
	overlookedLook = 2 * time.Millisecond
	// overlookedPatience is how long a target waits for an answer to what it asked for.
	overlookedPatience = time.Second
)

// nudgeTarget has an initiator send a little, in the background.
func (p *queuePair) nudgeTarget() {
	p.domain.background.Go(func() {
		began := time.Now()
		timer := time.NewTimer(quirks.Nudges[0])
		defer timer.Stop()
		for _, at := range quirks.Nudges {
			timer.Reset(at - time.Since(began))
			select {
			case <-p.done:
				return
			case <-timer.C:
			}
			if p.nudge(verbs.WRWrite) != nil {
				return
			}
		}
	})
}

// nudge posts a Write or Read of nothing. It has no completion, and a place in the
// device's queue beside those of the application: see [quirks.Driver.SendDepth].
func (p *queuePair) nudge(opcode verbs.WROpcode) error {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	select {
	case <-p.done:
		return p.Err()
	default:
	}
	wr := p.sendList.At(0)
	wr.ID, wr.Opcode, wr.Flags, wr.NumSGE = 0, opcode, 0, 0
	if opcode == verbs.WRRead {
		wr.NumSGE = int32(p.domain.atLeastOne(p.sendList.SGEs(0), 0))
	}
	wr.SetRemote(0, 1) // peers do not check the key of an access of 0 bytes
	wr.SetImmediate(0)
	_, err := p.hw.PostSend(p.sendList, 1)
	return err
}

// freeSocket makes the driver take in what the initiator sent while it was accepted.
// If the same bytes lie in the socket for 4 looks, it posts a Read of nothing, whose
// answer is more data, which the driver does not overlook. It returns when the socket
// is empty or after a second, so that the application's requests come after the Read.
func (p *queuePair) freeSocket(ctx context.Context, c *connection, mayRead bool) {
	local, peer := c.id.LocalAddress(), c.id.PeerAddress()
	stays := 0
	for i := 0; ; i++ {
		n, err := unread(local, peer)
		if err != nil || n == 0 || i > 0 && n != stays {
			return // nothing is known, or all is well
		}
		if stays = n; i == overlookedLooks {
			break
		}
		time.Sleep(overlookedLook)
	}
	if !mayRead || p.nudge(verbs.WRRead) != nil {
		return
	}
	p.domain.device.provider.config.Logger.Debug("ibverbs asks a peer for a sign: the driver overlooked what it has sent", "device", p.domain.device.attributes.Name, "peer", peer, "bytes", stays)
	for end := time.Now().Add(overlookedPatience); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(overlookedLook) {
		if n, err := unread(local, peer); err != nil || n == 0 {
			return
		}
	}
}

// procNet is where the kernel tells of the sockets of this thread's network; tests
// put a directory of their own here.
var procNet = "/proc/thread-self/net"

// unread is how many bytes lie in the established TCP socket between two addresses.
func unread(local, peer netip.AddrPort) (int, error) {
	name := procNet + "/tcp"
	if local.Addr().Unmap().Is6() {
		name += "6"
	}
	table, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return unreadIn(table, local, peer)
}

// unreadIn looks into the kernel's table of TCP sockets: proc(5), /proc/net/tcp.
func unreadIn(table []byte, local, peer netip.AddrPort) (int, error) {
	const established = "01"
	key := fmt.Appendf(nil, ": %s %s %s ", procAddress(local), procAddress(peer), established)
	_, row, ok := bytes.Cut(table, key)
	if !ok {
		return 0, fmt.Errorf("no socket from %s to %s", local, peer)
	}
	queues, _, _ := bytes.Cut(row, []byte(" "))
	_, received, ok := bytes.Cut(queues, []byte(":"))
	n, err := strconv.ParseUint(string(received), 16, 32)
	if !ok || err != nil {
		return 0, fmt.Errorf("the socket from %s to %s has the queues %q", local, peer, queues)
	}
	return int(n), nil
}

// procAddress writes an address as the kernel's tables do: 32 bits at a time, each
// as a number of this machine.
func procAddress(a netip.AddrPort) []byte {
	var b []byte
	for part := a.Addr().Unmap().AsSlice(); len(part) > 0; part = part[4:] {
		b = fmt.Appendf(b, "%08X", binary.NativeEndian.Uint32(part))
	}
	return fmt.Appendf(b, ":%04X", a.Port())
}
