package verbena

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// A peer on a poor link keeps its message, however long the parts are; one that brings
// next to nothing, or nothing any more, does not.
func TestPace(t *testing.T) {
	const patience = 10 * time.Second
	for _, test := range []struct {
		what        string
		first, part int           // bytes
		every       time.Duration // a part
		read        bool          // its Read is under way meanwhile
		late        bool
	}{
		{"64 KiB a second", 0, 64 << 10, time.Second, false, false},
		{"the same in short parts", 0, 64, time.Second / 1024, false, false},
		{"the same in long parts", 0, 2 << 20, 32 * time.Second, true, false},
		{"nothing", 0, 0, time.Second, false, true},
		{"single bytes", 0, 1, time.Millisecond, false, true},
		{"single bytes after much", 64 << 20, 1, time.Millisecond, false, true},
		{"a Read without an answer", 0, 512 << 10, time.Hour, true, true},
	} {
		var p pace
		began := time.Unix(1, 0)
		p.begin(began)
		p.brought(began, test.first)
		reading := 0
		if test.read {
			reading = test.part
		}
		long := 2 * time.Hour
		if race.Enabled {
			long /= 12
		}
		late := false
		for now := began; now.Sub(began) < long && !late; {
			now = now.Add(test.every)
			late = p.late(now, reading, patience)
			p.brought(now, test.part)
		}
		if late != test.late {
			t.Errorf("%s: late %t", test.what, late)
		}
	}
}

// serve handles what comes to the raw peer until its connection ends, and has its
// receive posted again.
func (raw *rawPeer) serve(handle func(wire.Packet)) {
	var batch [16]rdma.Completion
	for {
		n, err := raw.cq.Poll(batch[:])
		if err != nil {
			return
		}
		for _, c := range batch[:n] {
			if c.Op != rdma.OpRecv {
				continue
			}
			if c.Status != rdma.StatusSuccess {
				return
			}
			p, _, err := wire.ParsePacket(raw.received(c.ID)[:c.Length])
			if err != nil {
				raw.t.Error(err)
			}
			if raw.receive(c.ID) != nil {
				return
			}
			handle(p)
		}
		select {
		case <-raw.qp.Done():
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// A peer that leaves a message unfinished while others wait is ended, also if it brings
// a byte now and then, and if this side sends to it meanwhile.
func TestTricklingPeerGivesWay(t *testing.T) {
	defer func(d time.Duration) { stalled = d }(stalled)
	stalled = 200 * time.Millisecond
	for _, trickles := range []bool{true, false} {
		w := worldOf(t, "fakeband")
		p := w.pair(t, Config{ReceiveMemory: 8 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
		raw, e := newRawEnd(t, p, w, hostNumber(0))
		const total = 900 << 10
		var all sync.WaitGroup
		all.Go(func() { // the application waits for the message, as others do for memory
			_, _ = e.Receive(p.ctx)
		})
		raw.announce(t, 4096, total)
		p.hasMemory(t, e)
		o := wire.Offer{Address: raw.region.Address() + 4096, Key: raw.region.Key(), Offset: 4096, Length: 1, Total: total}
		all.Go(func() {
			raw.serve(func(got wire.Packet) {
				switch {
				case got.Kind == wire.Taken && trickles:
					raw.send(t, put(wire.Packet{Kind: wire.Offered, Length: wire.OfferSize}, offerBody(o)...))
					o.Offset++
				case got.Kind == wire.Eager:
					raw.send(t, put(wire.Packet{Kind: wire.Credit, Credits: 1}))
				}
			})
		})
		if !trickles {
			all.Go(func() {
				for e.Send(p.ctx, 1, make([]byte, soon+1)) == nil {
					select { // no faster than the bytes come
					case <-e.Done():
					case <-time.After(time.Millisecond):
					}
				}
			})
		}
		stop := p.server.firstDomain(w.transport).endStalled() // somebody waits
		select {
		case <-e.Done():
			if err := e.Err(); !errors.Is(err, ErrProtocol) {
				t.Errorf("trickles %t: it ended with %v", trickles, err)
			}
		case <-p.ctx.Done():
			t.Errorf("trickles %t: it keeps its memory", trickles)
		}
		stop()
		_ = e.Close()
		all.Wait()
	}
}
