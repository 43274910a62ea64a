package verbena

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// A wedgedDevice says of each queue pair that it closes that the peer may still be at
// its memory.
type wedgedDevice struct{ *fake.Device }

func (d wedgedDevice) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	domain, err := d.Device.OpenDomain(c)
	return wedgedDomain{domain}, err
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

type wedgedDomain struct{ rdma.Domain }

func (d wedgedDomain) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	qp, err := d.Domain.NewQueuePair(c)
	return wedgedPair{qp}, err
}

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
			return []rdma.Provider{fake.NewProvider("wedged", network.NewDevice(fake.InfiniBand("a")))}, []rdma.Provider{wedgedProvider{wedgedDevice{network.NewDevice(config)}}}
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
			left = n.shares.growing != 0 || n.shares.onTrial != 0 || n.shares.promised != 0 || len(n.shares.peers) != 0
			if left && p.ctx.Err() != nil {
				t.Fatalf("shared receives %t: %+v are counted", shared, n.shares)
			}
			n.shares.mu.Unlock()
		}
	}
}
