package verbena

import (
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/rdma"
)

// A Receive that waits for memory goes on with the next message when the peer gives
// the long one up.
func TestGivenUpMessageEndsItsWait(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 8 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
	raw, e := newRawEnd(t, p, w, "127.0.0.1")
	defer e.Close()
	giveBack := takeAll(t, p.server.firstDomain(w.transport).longPool)
	defer giveBack()
	raw.announce(t, 4096, 900<<10)
	received := make(chan *Message, 1)
	go func() {
		m, err := e.Receive(p.ctx)
		if err != nil {
			t.Error(err)
		}
		received <- m
	}()
	all := e.carrier.(*shell).n.shares
	for waits := false; !waits; { // for its first memory, or for all of it
		all.mu.Lock()
		waits = all.onTrial > 0
		for _, sh := range all.peers {
			waits = waits || sh.firm > 0
		}
		all.mu.Unlock()
		if p.ctx.Err() != nil {
			t.Fatal("Receive asks for no memory")
		}
	}
	b := put(wire.Packet{Kind: wire.Eager, Tag: 5, Length: 2}, 'h', 'i')
	copy(raw.region.Bytes()[1000:], b)
	if _, err := raw.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: raw.region, Offset: 1000, Length: len(b)}}}}); err != nil {
		t.Fatal(err)
	}
	if m := <-received; m != nil {
		if m.Tag != 5 || string(m.Bytes()) != "hi" {
			t.Errorf("received %d %q", m.Tag, m.Bytes())
		}
		m.Release()
	}
}
