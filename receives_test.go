package verbena

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/rdma"
)

// freeRegions are enough for what a test takes.
const freeRegions = 16

// stuckDomain registers freeRegions, and further ones when the test lets it.
type stuckDomain struct {
	rdma.Domain
	asked atomic.Int32
	stuck chan struct{} // closed: further ones are registered
}

func (d *stuckDomain) Allocate(size int, access rdma.Access) (rdma.Region, error) {
	if d.asked.Add(1) > freeRegions {
		<-d.stuck
	}
	return &heapRegion{memory: make([]byte, size)}, nil
}

type heapRegion struct {
	rdma.Region
	memory []byte
}

func (r *heapRegion) Bytes() []byte { return r.memory }
func (r *heapRegion) Close() error  { return nil }

// countingPoster takes all receives.
type countingPoster struct{ posted atomic.Int32 }

func (p *countingPoster) PostRecv(requests []rdma.RecvRequest) (int, error) {
	p.posted.Add(int32(len(requests)))
	return len(requests), nil
}

// An endpoint that is being set up while others wait for a region gets its receives as
// memory comes back, one at a time.
func TestAdmissionWaitsForEachReceive(t *testing.T) {
	const size, awake = 32 << 10, 3 * mostRefusals
	domain := &stuckDomain{stuck: make(chan struct{})}
	pool := slab.New(domain, rdma.AccessLocalWrite, 64<<20)
	defer pool.Close()
	out := make(chan slab.Slab, 1<<16)
	var other sync.WaitGroup
	other.Go(func() {
		for domain.asked.Load() <= freeRegions {
			s, err := pool.GetNow(t.Context(), size)
			if err != nil {
				t.Error(err)
				return
			}
			out <- s
		}
	})
	for domain.asked.Load() <= freeRegions {
		time.Sleep(10 * time.Microsecond)
	}
	defer other.Wait()
	defer close(domain.stuck)
	poster := &countingPoster{}
	r := newReceives(poster, pool, slog.New(slog.DiscardHandler), 0, size, 64, true)
	sh := newShares(pool, 64).join("peer")
	admitted := make(chan error, 1)
	go func() {
		_, err := r.admit(sh, 1, 16, awake)
		admitted <- err
	}()
	for i := range awake {
		pool.Put(<-out)
		for poster.posted.Load() != int32(i+1) {
			select {
			case err := <-admitted:
				t.Fatalf("admitted with %d receives of %d: %v", poster.posted.Load(), awake, err)
			default:
				time.Sleep(10 * time.Microsecond)
			}
		}
	}
	if err := <-admitted; err != nil {
		t.Error(err)
	}
}

// Applications hold all receives that were posted while no memory is left for
// others. When there is some again, messages come in although nothing was released.
func TestReceivesComeBackByThemselves(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{ReceiveMemory: 8 << 20, Tuning: TuningTable{w.transport: {Window: 64}}}, ListenConfig{})
	a, b := p.connect(t, "")
	n := p.server.firstDomain(w.transport)
	giveBack := takeAll(t, n.receivePool)
	var held []*Message
	receive := func() {
		m, err := b.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, m)
	}
	for i := 0; b.carrier.(*shell).window.recv.posted.Load() > 0; i++ {
		if err := a.Send(p.ctx, uint32(i), []byte("held")); err != nil {
			t.Fatal(err)
		}
		receive()
	}
	if err := a.Send(p.ctx, 99, []byte("waits")); err != nil {
		t.Fatal(err)
	}
	giveBack()
	receive()
	if last := held[len(held)-1]; last.Tag != 99 {
		t.Errorf("got message %d", last.Tag)
	}
	for _, m := range held {
		m.Release()
	}
}
