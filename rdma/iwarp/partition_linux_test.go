package iwarp

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/liveness"
	"github.com/verbena-data/verbena/internal/testnet"
	"github.com/verbena-data/verbena/rdma"
)

// short is the timeout of these tests: 30 s would tell nothing more.
const short = 1500 * time.Millisecond

// newDistantPair connects two sides that a cable joins.
func newDistantPair(t *testing.T, memory int) (a, b *side, cable *testnet.Cable) {
	cable = testnet.New(t)
	d := testDevice(t, Config{AllowRemote: true, PeerTimeout: short, lingerTimeout: 100 * time.Millisecond})
	a, b = newSide(t, d, memory, nil), newSide(t, d, memory, nil)
	var l net.Listener
	var ca, cb net.Conn
	var err error
	cable.B.Do(func() { l, err = net.Listen("tcp", cable.B.Address+":0") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cable.A.Do(func() { ca, err = net.Dial("tcp", l.Addr().String()) })
	if err != nil {
		t.Fatal(err)
	}
	if cb, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	joinStreams(t, a, b, ca, cb)
	return a, b, cable
}

// TestPartition cuts the cable. Both ends notice, whatever they were doing.
func TestPartition(t *testing.T) {
	const size = 1 << 20
	for name, before := range map[string]func(a, b *side){
		"in the middle of a Write": func(a, b *side) {
			a.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, size), Remote: b.at(0)})
		},
		"while a message waits for a receive": func(a, _ *side) {
			for id := range uint64(32) {
				a.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, size)})
			}
		},
		"while nothing happens": func(a, b *side) {
			// The answer tells that what a sent is acknowledged: a host may delay that.
			for _, way := range [][2]*side{{a, b}, {b, a}} {
				from, to := way[0], way[1]
				to.recv(1, 0, 8)
				from.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: from.sge(0, 8)})
				next(to.t, to.recvs)
				next(from.t, from.sends)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, cable := newDistantPair(t, size)
			before(a, b)
			cable.Cut()
			if name == "in the middle of a Write" {
				before(a, b) // in case the first was through
			}
			err := a.ended()
			wants(t, err, rdma.ErrDisconnected)
			if quick := errors.Is(err, liveness.ErrSilent); quick == (name == "while nothing happens") {
				t.Errorf("the end comes by %v", err)
			}
			wants(t, b.ended(), rdma.ErrDisconnected)
		})
	}
}

// TestSlowReceiverSurvives has a peer wait for receives for many timeouts, with
// everything in between full.
func TestSlowReceiverSurvives(t *testing.T) {
	const size, n = 1 << 20, 32
	d := testDevice(t, Config{PeerTimeout: short})
	a, b := newSide(t, d, size, nil), newSide(t, d, size, nil)
	joinListener(t, a, b)
	for id := range uint64(n) {
		a.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, size)})
	}
	// TCP_USER_TIMEOUT would end it here.
	ctx, cancel := context.WithTimeout(t.Context(), 4*short)
	defer cancel()
	select {
	case <-a.qp.Done():
		t.Fatal(a.qp.Err())
	case <-b.qp.Done():
		t.Fatal(b.qp.Err())
	case <-ctx.Done():
	}
	for id := range uint64(n) {
		b.recv(id, 0, size)
		if c := next(t, b.recvs); c.ID != id || c.Status != rdma.StatusSuccess {
			t.Fatalf("%+v", c)
		}
	}
	for id := range uint64(n) {
		if c := next(t, a.sends); c.ID != id || c.Status != rdma.StatusSuccess {
			t.Fatalf("%+v", c)
		}
	}
}
