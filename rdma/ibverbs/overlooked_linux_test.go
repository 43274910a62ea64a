//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// TestUnread leaves bytes in a socket and finds them in the kernel's table.
func TestUnread(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s: %v", address, err)
			continue
		}
		defer l.Close()
		a, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		local, peer := b.LocalAddr().(*net.TCPAddr).AddrPort(), b.RemoteAddr().(*net.TCPAddr).AddrPort()
		if n, err := unread(local, peer); n != 0 || err != nil {
			t.Errorf("%s: %d bytes before any was sent, %v", address, n, err)
		}
		if _, err := a.Write(make([]byte, 70_001)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, make([]byte, 70_000)); err != nil {
			t.Fatal(err)
		}
		// The last byte may still be on its way; it cannot be anywhere else for long.
		for n := 0; n != 1; {
			if n, err = unread(local, peer); err != nil || n > 1 {
				t.Fatalf("%s: %d bytes, %v; want 1", address, n, err)
			}
		}
	}
	none := netip.MustParseAddrPort("127.0.0.1:1")
	if _, err := unread(none, none); err == nil {
		t.Error("a socket that is not there is found")
	}
}

func TestUnreadIn(t *testing.T) {
	const table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0200090A:1C06 00000000:0000 0A 00000000:00000005 00:00000000 00000000     0        0 15564 1\n" +
		"  25: 0200090A:1C06 0100090A:96F0 01 00000003:00000028 00:00000000 00000000     0        0 15028 1\n" +
		"  26: 0200090A:1C06 0100090A:96F1 06 00000000:00000007 00:00000000 00000000     0        0 15029 1\n"
	local := netip.MustParseAddrPort("10.9.0.2:7174")
	if n, err := unreadIn([]byte(table), local, netip.MustParseAddrPort("10.9.0.1:38640")); n != 0x28 || err != nil {
		t.Errorf("%d, %v; want 40", n, err)
	}
	if n, err := unreadIn([]byte(table), local, netip.MustParseAddrPort("10.9.0.1:38641")); err == nil {
		t.Errorf("%d bytes in a socket that is not established", n)
	}
}

// TestNudge posts requests that the application does not know of.
func TestNudge(t *testing.T) {
	s := newStubbed(t, 4, rdma.ClassIWARP)
	s.domain.empty = &region{domain: s.domain, address: 77, lkey: 6}
	for opcode, entries := range map[verbs.WROpcode]int32{verbs.WRWrite: 0, verbs.WRRead: 1} {
		if err := s.nudge(opcode); err != nil {
			t.Fatal(err)
		}
		wr := s.last(0)
		if wr.Opcode != opcode || wr.Flags != 0 || wr.NumSGE != entries || s.sendList.SGEs(0)[0].Length != 0 {
			t.Errorf("%+v with entries of %d bytes, want operation %d that is not signalled", wr, s.sendList.SGEs(0)[0].Length, opcode)
		}
		if s.sends.outstanding() != 0 {
			t.Errorf("%d requests are outstanding", s.sends.outstanding())
		}
		// One that is flushed is nobody's.
		s.waiting[0] = verbs.WC{ID: wr.ID, Status: verbs.StatusFlushed, QPNumber: s.number}
		s.onCQ.Available = 1
		var into [4]rdma.Completion
		if n, err := s.queue.Poll(into[:]); n != 0 || err != nil {
			t.Errorf("Poll: %d, %v", n, err)
		}
	}
	if state := s.State(); state != rdma.StateConnected {
		t.Errorf("the queue pair is in the state %s", state)
	}
}
