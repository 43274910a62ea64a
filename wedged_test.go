package verbena

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// A wedgedDevice says of each queue pair that it closes that the peer may still be at
// its memory. It may also keep its completion queues until the domain is closed.
type wedgedDevice struct {
	*fake.Device
	keeps bool
}

func (d wedgedDevice) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	domain, err := d.Device.OpenDomain(c)
	return wedgedDomain{domain, d.keeps}, err
}

func (d wedgedDevice) Listen(ctx context.Context, address string) (rdma.Listener, error) {
	l, err := d.Device.Listen(ctx, address)
	return wedgedListener{l}, err
}

type wedgedListener struct{ rdma.Listener }

func (l wedgedListener) Accept(ctx context.Context) (rdma.ConnectRequest, error) {
	r, err := l.Listener.Accept(ctx)
	return wedgedRequest{r}, err
}

type wedgedRequest struct{ rdma.ConnectRequest }

func (r wedgedRequest) Accept(ctx context.Context, qp rdma.QueuePair, private []byte) error {
	return r.ConnectRequest.Accept(ctx, qp.(wedgedPair).QueuePair, private)
}

type wedgedDomain struct {
	rdma.Domain
	keeps bool
}

func (d wedgedDomain) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	c.SendCompletions, c.RecvCompletions = unwedged(c.SendCompletions), unwedged(c.RecvCompletions)
	qp, err := d.Domain.NewQueuePair(c)
	return wedgedPair{qp}, err
}

func (d wedgedDomain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	cq, err := d.Domain.NewCompletionQueue(depth)
	if err != nil || !d.keeps {
		return cq, err
	}
	return wedgedQueue{cq}, nil
}

type wedgedQueue struct{ rdma.CompletionQueue }

func unwedged(cq rdma.CompletionQueue) rdma.CompletionQueue {
	if w, ok := cq.(wedgedQueue); ok {
		return w.CompletionQueue
	}
	return cq
}

func (q wedgedQueue) Close() error { return fmt.Errorf("a queue pair uses it: %w", rdma.ErrInUse) }

type wedgedPair struct{ rdma.QueuePair }

func (p wedgedPair) Close() error {
	return errors.Join(p.QueuePair.Close(), errors.New("the peer may still be at the memory"))
}

type wedgedProvider struct{ device rdma.Device }

func (wedgedProvider) Name() string { return "wedged" }

func (p wedgedProvider) Devices(context.Context) ([]rdma.Device, error) {
	return []rdma.Device{p.device}, nil
}

// A queue pair that does not close cleanly takes its regions with it, and nothing of what
// its peer may have: others get it again.
func TestWedgedQueuePairsGiveBack(t *testing.T) {
	for _, shared := range []bool{true, false} {
		config := fake.InfiniBand("b")
		config.Capabilities &^= rdma.CapStreams
		if !shared {
			config.Capabilities &^= rdma.CapSharedReceive
		}
		network := fake.NewNetwork()
		w := world{name: "wedged", transport: "wedged", providers: func(testing.TB) (c, s []rdma.Provider) {
			return []rdma.Provider{fake.NewProvider("wedged", network.NewDevice(fake.InfiniBand("a")))}, []rdma.Provider{wedgedProvider{wedgedDevice{network.NewDevice(config), false}}}
		}}
		p := w.pair(t, Config{ReceiveMemory: 32 << 20, Linger: 10 * time.Millisecond}, ListenConfig{})
		for range 20 { // more than its share has room for
			raw, e := newRawEnd(t, p, w, hostNumber(0))
			raw.announce(t, 4096, 900<<10)
			var receiver sync.WaitGroup
			receiver.Go(func() { _, _ = e.Receive(p.ctx) }) // ends with Close
			p.hasMemory(t, e)
			_ = e.Close()
			receiver.Wait()
		}
		n := p.server.firstDomain(w.transport)
		for _, pool := range []*slab.Pool{n.receivePool, n.longPool, n.sendPool, n.offerPool} {
			for pool.InUse() > 0 { // the regions go by themselves
				if p.ctx.Err() != nil {
					t.Fatalf("shared receives %t: %+v", shared, n.pools())
				}
				runtime.Gosched()
			}
		}
		for left := true; left; runtime.Gosched() {
			n.shares.mu.Lock()
			left = n.shares.growing != 0 || n.shares.onTrial != 0 || n.shares.promised.Load() != 0 || len(n.shares.peers) != 0
			if left && p.ctx.Err() != nil {
				t.Fatalf("shared receives %t: %+v are counted", shared, n.shares)
			}
			n.shares.mu.Unlock()
		}
	}
}

// isClosed tells whether a domain takes no more.
func isClosed(n *domain) bool {
	r, err := n.domain.Allocate(4096, 0)
	if err == nil {
		_ = r.Close() // the test looks again
	}
	return errors.Is(err, rdma.ErrClosed)
}

// A worker whose queue could not be closed still runs when the runtime has been closed.
// If a handler on it releases the last message, the domain is closed, and the worker
// does not wait for itself.
func TestLastReleaseOnAWedgedWorker(t *testing.T) {
	network := fake.NewNetwork()
	device := func(name string) *fake.Device {
		config := fake.InfiniBand(name)
		config.Capabilities &^= rdma.CapStreams
		return network.NewDevice(config)
	}
	w := world{name: "wedged", transport: "wedged", providers: func(testing.TB) (c, s []rdma.Provider) {
		return []rdma.Provider{fake.NewProvider("wedged", device("a"))}, []rdma.Provider{wedgedProvider{wedgedDevice{device("b"), true}}}
	}}
	p := w.pair(t, Config{Linger: 10 * time.Millisecond}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	n := p.server.firstDomain(w.transport)
	mux := NewMux(MuxConfig{})
	kept, closed, handled := make(chan struct{}), make(chan struct{}), make(chan struct{})
	mux.Short(1, func(q Request) { // it waits, as none should, for the runtime to be closed under it
		m := q.Keep()
		close(kept)
		<-closed
		m.Release()
		close(handled)
	})
	server, err := NewCaller(b, mux)
	if err != nil {
		t.Fatal(err)
	}
	client, err := NewCaller(a, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Notify(p.ctx, 1, []byte("the last message")); err != nil {
		t.Fatal(err)
	}
	<-kept
	_ = client.Close()
	_ = server.Close()
	_ = p.server.Close() // which says what could not be closed
	close(closed)
	select {
	case <-handled:
	case <-p.ctx.Done():
		t.Fatal("the worker waits for itself")
	}
	p.until(t, "the domain is closed", func() bool { return isClosed(n) })
}
