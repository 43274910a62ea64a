package verbena

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// Whatever a peer sends, the endpoint that it sends it to fails with the reason,
// and no other.
func TestHostilePeer(t *testing.T) {
	var w world
	for _, w = range worlds {
		if w.name == "fakeband" {
			break
		}
	}
	p := w.pair(t, Config{MaxMessage: 1 << 20}, ListenConfig{})
	good, other := p.connect(t, "")
	u32 := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	offered := func(o wire.Offer) []byte {
		return put(wire.Packet{Kind: wire.Offered, Length: wire.OfferSize}, offerBody(o)...)
	}
	for _, c := range []struct {
		name  string
		sends [][]byte
		want  string
	}{
		{"empty", [][]byte{{}}, "shorter than its header"},
		{"short", [][]byte{{1, 2, 3}}, "shorter than its header"},
		{"unknown kind", [][]byte{put(wire.Packet{Kind: 99})}, "unknown kind 99"},
		{"length too great", [][]byte{put(wire.Packet{Kind: wire.Eager, Length: 1 << 31})}, "length 2147483648"},
		{"length too small", [][]byte{put(wire.Packet{Kind: wire.Eager}, 1)}, "length 0"},
		{"unknown flags", [][]byte{put(wire.Packet{Kind: wire.Eager, Flags: 0x80})}, "flags 0x80"},
		{"credits without end", [][]byte{put(wire.Packet{Kind: wire.Credit, Credits: 65535})}, "too many"},
		{"control credits of nothing", [][]byte{put(wire.Packet{Kind: wire.Credit, Control: 9})}, "too many"},
		{"confirmation of nothing", [][]byte{put(wire.Packet{Kind: wire.Taken, Length: wire.TakenSize}, u32(0)...)}, "offer 0, which is not open"},
		{"confirmation out of bounds", [][]byte{put(wire.Packet{Kind: wire.Taken, Length: wire.TakenSize}, u32(1<<31)...)}, "which is not open"},
		{"offer of nothing", [][]byte{offered(wire.Offer{Total: 10})}, "bytes 0 to 0 of 10"},
		{"offer beyond its message", [][]byte{offered(wire.Offer{Offset: 5, Length: 6, Total: 10})}, "bytes 5 to 11 of 10"},
		{"offer that wraps", [][]byte{offered(wire.Offer{Offset: 1<<32 - 1, Length: 2, Total: 10})}, "of 10"},
		{"offer of too much", [][]byte{offered(wire.Offer{Length: 10, Total: 1 << 30})}, "at most"},
		{"offer out of the middle", [][]byte{offered(wire.Offer{Offset: 5, Length: 5, Total: 10})}, "does not continue"},
		{"offer with a wrong key", [][]byte{offered(wire.Offer{Length: 5, Total: 5, Key: 12345})}, "remote access"},
		{"anything after goodbye", [][]byte{put(wire.Packet{Kind: wire.Goodbye}), put(wire.Packet{Kind: wire.Eager})}, ""},
	} {
		raw, e := newRawEnd(t, p, w, "127.0.0.1")
		for i, b := range c.sends {
			raw.post(t, i*100, b)
		}
		_, err := e.Receive(p.ctx)
		if c.want == "" {
			if err != io.EOF {
				t.Errorf("%s: %v", c.name, err)
			}
		} else if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), e.RemoteAddr().String()) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if c.want != "" {
			<-raw.qp.Done() // the peer is told
		}
		if err := e.Close(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for name, params := range map[string][]byte{
		"none": nil, "short": rawParameters.Append(nil)[:10], "revision": append([]byte{9}, rawParameters.Append(nil)[1:]...),
		"no window": wire.Parameters{Control: 2, Chunks: 4, Receive: 16 << 10, MaxMessage: 1}.Append(nil),
	} {
		if raw, err := newRawPeer(t, p, w, params); err == nil {
			<-raw.qp.Done() // connected, and then judged
		} else if name != "no window" && !strings.Contains(err.Error(), "reject") {
			t.Errorf("parameters: %s: %v", name, err)
		}
	}
	if err := good.Send(p.ctx, 1, []byte("undisturbed")); err != nil {
		t.Fatal(err)
	}
	m, err := other.Receive(p.ctx)
	if err != nil || string(m.Bytes()) != "undisturbed" {
		t.Fatal(m, err)
	}
	m.Release()
}
