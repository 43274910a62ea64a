package verbena

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/rdma"
)

func put(p wire.Packet, body ...byte) []byte {
	b := make([]byte, wire.HeaderSize)
	p.Put(b)
	return append(b, body...)
}

func offerBody(o wire.Offer) []byte {
	b := make([]byte, wire.OfferSize)
	o.Put(b)
	return b
}

// A rawPeer speaks to a server with nothing but a queue pair.
type rawPeer struct {
	t      *testing.T
	qp     rdma.QueuePair
	region rdma.Region
	cq     rdma.CompletionQueue
	sent   int
}

func newRawPeer(t *testing.T, p *pair, w world, params []byte) (*rawPeer, error) {
	return newRawPeerFrom(t, p, w, "127.0.0.1", params)
}

// newRawPeerFrom is a raw peer on a host with another address.
func newRawPeerFrom(t *testing.T, p *pair, w world, host string, params []byte) (*rawPeer, error) {
	h := hello.Hello{Least: 1, Greatest: 1, Service: "test/1", Host: p.client.host[:], Candidates: []hello.Candidate{{Name: w.name}}}
	first, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	_, a, err := exchangeFrom(t, host, p.listener.Addr().String(), first)
	if err != nil || a.Accept == nil {
		t.Fatal(a, err)
	}
	d := p.client.transports[0].devices()[0].dev
	domain, err := d.OpenDomain(rdma.DomainConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { domain.Close() })
	raw := &rawPeer{t: t}
	if raw.cq, err = domain.NewCompletionQueue(256); err != nil {
		t.Fatal(err)
	}
	if raw.region, err = domain.Allocate(2<<20, rdma.AccessLocalWrite|rdma.AccessRemoteRead); err != nil {
		t.Fatal(err)
	}
	raw.qp, err = domain.NewQueuePair(rdma.QueuePairConfig{SendCompletions: raw.cq, RecvCompletions: raw.cq, SendDepth: 64, RecvDepth: 64})
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(64) {
		if err := raw.receive(id); err != nil {
			t.Fatal(err)
		}
	}
	_, err = raw.qp.Connect(p.ctx, a.Accept.Address, append(append([]byte(nil), a.Accept.Token...), params...))
	return raw, err
}

// receive posts a receive, whose message will lie at received.
func (raw *rawPeer) receive(id uint64) error {
	_, err := raw.qp.PostRecv([]rdma.RecvRequest{{ID: id, SGEs: []rdma.SGE{{Region: raw.region, Offset: 1<<20 + int(id)<<14, Length: 16 << 10}}}})
	return err
}

func (raw *rawPeer) received(id uint64) []byte { return raw.region.Bytes()[1<<20+id<<14:] }

var rawParameters = wire.Parameters{Window: 8, Control: 2, Chunks: 4, Receive: 16 << 10, MaxMessage: 1 << 20}

// newRawEnd is a raw peer on a host, and the server's end of its connection.
func newRawEnd(t *testing.T, p *pair, w world, host string) (*rawPeer, *Endpoint) {
	t.Helper()
	raw, err := newRawPeerFrom(t, p, w, host, rawParameters.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	return raw, p.accept(t)
}

// hostNumber is the address of another host than the one that tests dial from.
func hostNumber(i int) string { return fmt.Sprintf("127.0.1.%d", i+1) }

// hasMemory waits until a long message of e has memory.
func (p *pair) hasMemory(t *testing.T, e *Endpoint) {
	t.Helper()
	for s := e.carrier.(*shell); ; runtime.Gosched() {
		s.mu.Lock()
		have := s.long.bytes > 0
		s.mu.Unlock()
		if have {
			return
		}
		if p.ctx.Err() != nil {
			t.Fatal("the message gets no memory")
		}
	}
}

// announce offers the first part of a long message that never goes on.
func (raw *rawPeer) announce(t *testing.T, part, total int) {
	t.Helper()
	o := wire.Offer{Address: raw.region.Address() + 4096, Key: raw.region.Key(), Length: uint32(part), Total: uint32(total)}
	raw.post(t, 0, put(wire.Packet{Kind: wire.Offered, Length: wire.OfferSize}, offerBody(o)...))
}

// send posts a message of the raw peer's of at most 128 bytes. Sixteen may be on their
// way at a time.
func (raw *rawPeer) send(t *testing.T, b []byte) {
	t.Helper()
	raw.sent++
	raw.post(t, 2048+raw.sent%16*128, b)
}

func (raw *rawPeer) post(t *testing.T, at int, b []byte) {
	t.Helper()
	copy(raw.region.Bytes()[at:], b)
	if _, err := raw.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: raw.region, Offset: at, Length: len(b)}}}}); err != nil && !errors.Is(err, rdma.ErrState) {
		t.Fatal(err) // what comes after the end of the connection is nobody's
	}
}
