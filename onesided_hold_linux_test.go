package verbena

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A wakingProvider counts how often those who wait for the queues of its devices are woken.
type wakingProvider struct {
	rdma.Provider
	woken *atomic.Int64
}

func (p wakingProvider) Devices(ctx context.Context) ([]rdma.Device, error) {
	devices, err := p.Provider.Devices(ctx)
	for i, d := range devices {
		devices[i] = wakingDevice{d.(rdma.StreamDevice), p.woken}
	}
	return devices, err
}

type wakingDevice struct {
	rdma.StreamDevice
	woken *atomic.Int64
}

func (d wakingDevice) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	domain, err := d.StreamDevice.OpenDomain(c)
	return wakingDomain{domain, d.woken}, err
}

type wakingDomain struct {
	rdma.Domain
	woken *atomic.Int64
}

func (d wakingDomain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	q, err := d.Domain.NewCompletionQueue(depth)
	if err != nil {
		return nil, err
	}
	return wakingQueue{q.(rdma.EventQueue), d.woken}, nil
}

func (d wakingDomain) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	c.SendCompletions, c.RecvCompletions = c.SendCompletions.(wakingQueue).EventQueue, c.RecvCompletions.(wakingQueue).EventQueue
	return d.Domain.NewQueuePair(c)
}

type wakingQueue struct {
	rdma.EventQueue
	woken *atomic.Int64
}

func (q wakingQueue) Wait(ctx context.Context) error {
	err := q.EventQueue.Wait(ctx)
	q.woken.Add(1)
	return err
}

// asleep waits until the worker of a sleeps: the completion of a message, for which nobody holds
// the queue, wakes it.
func asleep(t *testing.T, p *pair, a, b *Endpoint, woken *atomic.Int64) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 20*time.Second; {
		time.Sleep(2 * takeover)
		before := woken.Load()
		if err := a.Send(p.ctx, 1, make([]byte, 2*soon)); err != nil {
			t.Fatal(err)
		}
		m, err := b.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
		time.Sleep(2 * takeover) // it falls asleep again
		if woken.Load() > before {
			return
		}
	}
	t.Fatal("the worker does not fall asleep")
}

// A Put that the socket takes is done when it is posted. Whoever has posted it sees that, and
// the worker sleeps on, which would look for more in vain.
func TestPutWakesNoWorker(t *testing.T) {
	w := worldOf(t, "iwarp")
	var woken atomic.Int64
	providers := w.providers
	w.providers = func(t testing.TB) (client, server []rdma.Provider) {
		client, server = providers(t)
		return []rdma.Provider{wakingProvider{client[0], &woken}}, server
	}
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, "iwarp")
	_, token := exposeTo(t, b, 1<<16, MayWrite)
	const puts, most, size = 100, 5, 256 // all of them fit any socket
	buffer := newBuffer(t, p.ctx, a, size, 1)
	defer buffer.Release()
	for name, put := range map[string]func() error{
		"from a buffer": func() error { return a.PutBuffer(p.ctx, token, 0, buffer, 0, size) },
		"copied":        func() error { return a.Put(p.ctx, token, 0, buffer.Bytes()) },
	} {
		// What else goes on between the two may wake the worker now and then.
		fewest := int64(puts)
		for range 5 {
			asleep(t, p, a, b, &woken)
			before := woken.Load()
			for range puts {
				if err := put(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(100 * time.Microsecond) // it would fall asleep again
			}
			if fewest = min(fewest, woken.Load()-before); fewest <= most {
				break
			}
		}
		if fewest > most {
			t.Errorf("%s: the worker is woken by %d of %d Puts", name, fewest, puts)
		}
	}
}
