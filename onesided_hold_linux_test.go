package verbena

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A wakingProvider has devices whose completion queues are wakingQueues.
type wakingProvider struct{ rdma.Provider }

func (p wakingProvider) Devices(ctx context.Context) ([]rdma.Device, error) {
	devices, err := p.Provider.Devices(ctx)
	for i, d := range devices {
		devices[i] = wakingDevice{d.(rdma.StreamDevice)}
	}
	return devices, err
}

type wakingDevice struct{ rdma.StreamDevice }

func (d wakingDevice) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	domain, err := d.StreamDevice.OpenDomain(c)
	return wakingDomain{domain}, err
}

type wakingDomain struct{ rdma.Domain }

func (d wakingDomain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	q, err := d.Domain.NewCompletionQueue(depth)
	if err != nil {
		return nil, err
	}
	return &wakingQueue{EventQueue: q.(rdma.EventQueue)}, nil
}

func (d wakingDomain) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	c.SendCompletions, c.RecvCompletions = c.SendCompletions.(*wakingQueue).EventQueue, c.RecvCompletions.(*wakingQueue).EventQueue
	return d.Domain.NewQueuePair(c)
}

// A wakingQueue tells whether its worker sleeps, and counts how often that is woken.
type wakingQueue struct {
	rdma.EventQueue
	asleep atomic.Bool
	woken  atomic.Int64
}

func (q *wakingQueue) Wait(ctx context.Context) error {
	q.asleep.Store(true)
	err := q.EventQueue.Wait(ctx)
	q.asleep.Store(false)
	q.woken.Add(1)
	return err
}

// A Put that the socket takes is done when it is posted. Whoever has posted it sees that, and
// the worker sleeps on, which would look for more in vain.
func TestPutWakesNoWorker(t *testing.T) {
	w := worldOf(t, "iwarp")
	providers := w.providers
	w.providers = func(t testing.TB) (client, server []rdma.Provider) {
		client, server = providers(t)
		return []rdma.Provider{wakingProvider{client[0]}}, server
	}
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, "iwarp")
	_, token := exposeTo(t, b, 1<<16, MayWrite)
	const puts, most, size = 100, 5, 256 // all of them fit any socket
	buffer := newBuffer(t, p.ctx, a, size, 1)
	defer buffer.Release()
	queue := a.carrier.(*shell).w.cq.(*wakingQueue)
	for name, put := range map[string]func() error{
		"from a buffer": func() error { return a.PutBuffer(p.ctx, token, 0, buffer, 0, size) },
		"copied":        func() error { return a.Put(p.ctx, token, 0, buffer.Bytes()) },
	} {
		before := queue.woken.Load()
		for range puts {
			p.until(t, "the worker sleeps", queue.asleep.Load)
			if err := put(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Microsecond) // a worker that was woken runs, and is counted
		}
		// What the peer sends meanwhile may wake it, too.
		if woken := queue.woken.Load() - before; woken > most {
			t.Errorf("%s: the worker is woken by %d of %d Puts", name, woken, puts)
		}
	}
}
