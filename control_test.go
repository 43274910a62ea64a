package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/rdma"
)

func put(p packet, body ...byte) []byte {
	b := make([]byte, packetHeader)
	p.put(b)
	return append(b, body...)
}

func offerBody(o offer) []byte {
	b := make([]byte, offerSize)
	o.put(b)
	return b
}

func FuzzPacket(f *testing.F) {
	f.Add(put(packet{kind: packetEager, tag: 7, length: 3, credits: 2, control: 1, flags: packetStarved}, 1, 2, 3))
	f.Add(put(packet{kind: packetOffer, length: offerSize}, offerBody(offer{id: 1, key: 2, address: 3, length: 4, total: 9, offset: 5})...))
	f.Add(put(packet{kind: packetTaken, length: takenSize}, 0, 0, 0, 1))
	f.Add(put(packet{kind: packetCredit, credits: 4}))
	f.Add(put(packet{kind: packetGoodbye}))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, body, err := parsePacket(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		if again := put(p, body...); !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
		if p.kind == packetOffer {
			o, err := parseOffer(body, 1<<20)
			if err != nil {
				return
			}
			if uint64(o.offset)+uint64(o.length) > uint64(o.total) || o.total > 1<<20 || o.length == 0 {
				t.Fatalf("accepted %+v", o)
			}
			if !bytes.Equal(offerBody(o), body) {
				t.Fatalf("%x became %x", body, offerBody(o))
			}
		}
	})
}

func FuzzFrame(f *testing.F) {
	add := func(fr frame) {
		var b [frameHeader]byte
		fr.put(&b)
		f.Add(b[:])
	}
	add(frame{kind: frameOpening, length: parametersSize})
	add(frame{kind: frameData, flags: fragmentFirst | fragmentLast, tag: 1, length: 5, total: 5})
	add(frame{kind: frameGoodbye})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < frameHeader {
			return
		}
		header := (*[frameHeader]byte)(b)
		fr, err := parseFrame(header)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		var again [frameHeader]byte
		fr.put(&again)
		if again != *header {
			t.Fatalf("%x became %x", *header, again)
		}
		if fr.length > maxFragment {
			t.Fatalf("accepted %+v", fr)
		}
	})
}

func FuzzParameters(f *testing.F) {
	f.Add(parameters{window: 8, control: 2, chunks: 4, receive: 1 << 14, maxMessage: 1 << 20}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parseParameters(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		if p2, err := parseParameters(p.append(nil)); err != nil || p2 != p {
			t.Fatalf("%+v became %+v, %v", p, p2, err)
		}
	})
}

// FuzzStream feeds an endpoint whatever follows the openings. It ends in order,
// with an error that says what was wrong, or because the peer is gone; memory
// stays in bounds and what it delivers was sent.
func FuzzStream(f *testing.F) {
	fr := func(fr frame, body string) []byte {
		var b [frameHeader]byte
		fr.put(&b)
		return append(b[:], body...)
	}
	const both = fragmentFirst | fragmentLast
	f.Add(append(fr(frame{kind: frameData, flags: both, length: 3, total: 3}, "abc"), fr(frame{kind: frameGoodbye}, "")...))
	f.Add(append(fr(frame{kind: frameData, flags: fragmentFirst, length: 3, total: 5}, "abc"), fr(frame{kind: frameData, flags: fragmentLast, length: 2, total: 5}, "de")...))
	f.Add(append(fr(frame{kind: frameData, flags: fragmentFirst, length: 3, total: 5}, "abc"), fr(frame{kind: frameData, flags: both, length: 1, total: 1}, "x")...))
	f.Add(fr(frame{kind: frameData, flags: fragmentFirst, length: 1, total: 1 << 29}, "x"))
	r, err := New(Config{MaxMessage: 1 << 30})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		near, far := net.Pipe()
		go func() {
			go io.Copy(io.Discard, near)
			near.Write(parameters{maxMessage: 1}.append(fr(frame{kind: frameOpening, length: parametersSize}, "")))
			near.Write(b)
			near.Close()
		}()
		e := newEndpoint(r, "test/1", far.LocalAddr(), far.RemoteAddr(), Selection{})
		if err := newStream(ctx, e, far); err != nil {
			t.Fatal(err)
		}
		total := 0
		for {
			m, err := e.Receive(ctx)
			if err != nil {
				if err != io.EOF && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrPeerDied) {
					t.Fatal(err)
				}
				break
			}
			if total += len(m.Bytes()); total > len(b) || cap(m.Bytes()) > assemblyLimit {
				t.Fatalf("%d bytes of %d, %d committed", total, len(b), cap(m.Bytes()))
			}
			m.Release()
		}
		_ = e.Close() // the peer is gone
	})
}

// A rawPeer speaks to a server with nothing but a queue pair.
type rawPeer struct {
	t      *testing.T
	qp     rdma.QueuePair
	region rdma.Region
	cq     rdma.CompletionQueue
}

func newRawPeer(t *testing.T, p *pair, w world, params []byte) (*rawPeer, error) {
	h := hello.Hello{Least: 1, Greatest: 1, Service: "test/1", Host: p.client.host[:], Candidates: []hello.Candidate{{Name: w.name}}}
	first, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	_, a, err := exchange(t, p.listener.Addr().String(), first)
	if err != nil || a.Accept == nil {
		t.Fatal(a, err)
	}
	d := p.client.transports[0].devices[0].dev
	domain, err := d.OpenDomain(rdma.DomainConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { domain.Close() })
	raw := &rawPeer{t: t}
	if raw.cq, err = domain.NewCompletionQueue(256); err != nil {
		t.Fatal(err)
	}
	if raw.region, err = domain.Allocate(1<<20, rdma.AccessLocalWrite|rdma.AccessRemoteRead); err != nil {
		t.Fatal(err)
	}
	raw.qp, err = domain.NewQueuePair(rdma.QueuePairConfig{SendCompletions: raw.cq, RecvCompletions: raw.cq, SendDepth: 64, RecvDepth: 64})
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if _, err := raw.qp.PostRecv([]rdma.RecvRequest{{SGEs: []rdma.SGE{{Region: raw.region, Offset: 512 << 10, Length: 64 << 10}}}}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = raw.qp.Connect(p.ctx, a.Accept.Address, append(append([]byte(nil), a.Accept.Token...), params...))
	return raw, err
}

var rawParameters = parameters{window: 8, control: 2, chunks: 4, receive: 16 << 10, maxMessage: 1 << 20}

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
	offered := func(o offer) []byte {
		return put(packet{kind: packetOffer, length: offerSize}, offerBody(o)...)
	}
	for _, c := range []struct {
		name  string
		sends [][]byte
		want  string
	}{
		{"empty", [][]byte{{}}, "shorter than its header"},
		{"short", [][]byte{{1, 2, 3}}, "shorter than its header"},
		{"unknown kind", [][]byte{put(packet{kind: 99})}, "unknown kind 99"},
		{"length too great", [][]byte{put(packet{kind: packetEager, length: 1 << 31})}, "length 2147483648"},
		{"length too small", [][]byte{put(packet{kind: packetEager}, 1)}, "length 0"},
		{"unknown flags", [][]byte{put(packet{kind: packetEager, flags: 0x80})}, "flags 0x80"},
		{"credits without end", [][]byte{put(packet{kind: packetCredit, credits: 65535})}, "too many"},
		{"control credits of nothing", [][]byte{put(packet{kind: packetCredit, control: 9})}, "too many"},
		{"confirmation of nothing", [][]byte{put(packet{kind: packetTaken, length: takenSize}, u32(0)...)}, "offer 0, which is not open"},
		{"confirmation out of bounds", [][]byte{put(packet{kind: packetTaken, length: takenSize}, u32(1<<31)...)}, "which is not open"},
		{"offer of nothing", [][]byte{offered(offer{total: 10})}, "bytes 0 to 0 of 10"},
		{"offer beyond its message", [][]byte{offered(offer{offset: 5, length: 6, total: 10})}, "bytes 5 to 11 of 10"},
		{"offer that wraps", [][]byte{offered(offer{offset: 1<<32 - 1, length: 2, total: 10})}, "of 10"},
		{"offer of too much", [][]byte{offered(offer{length: 10, total: 1 << 30})}, "at most"},
		{"offer out of the middle", [][]byte{offered(offer{offset: 5, length: 5, total: 10})}, "does not continue"},
		{"offer with a wrong key", [][]byte{offered(offer{length: 5, total: 5, key: 12345})}, "remote access"},
		{"anything after goodbye", [][]byte{put(packet{kind: packetGoodbye}), put(packet{kind: packetEager})}, ""},
	} {
		raw, err := newRawPeer(t, p, w, rawParameters.append(nil))
		if err != nil {
			t.Fatal(err)
		}
		e, err := p.listener.Accept(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range c.sends {
			copy(raw.region.Bytes()[i*100:], b)
			if _, err := raw.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: raw.region, Offset: i * 100, Length: len(b)}}}}); err != nil {
				t.Fatal(err)
			}
		}
		_, err = e.Receive(p.ctx)
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
		"none": nil, "short": rawParameters.append(nil)[:10], "revision": append([]byte{9}, rawParameters.append(nil)[1:]...),
		"no window": parameters{control: 2, chunks: 4, receive: 16 << 10, maxMessage: 1}.append(nil),
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
