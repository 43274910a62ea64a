package history_test

import (
	"context"
	"sync"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
	"github.com/verbena-data/verbena/rdma/rdmatest/history"
)

// run runs links over two fakes.
func run(t *testing.T, a, b *fake.Device, seed uint64, links int, options history.Options) {
	t.Helper()
	sideA, err := history.NewSide(a, options)
	if err != nil {
		t.Fatal(err)
	}
	sideB, err := history.NewSide(b, options)
	if err != nil {
		t.Fatal(err)
	}
	l, err := b.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range links {
		link := history.Link{Seed: seed + uint64(i), Rounds: 6}
		var ends sync.WaitGroup
		ends.Go(func() {
			if err := sideA.Run(t.Context(), history.Initiator, link, func(ctx context.Context, qp rdma.QueuePair) error {
				_, err := qp.Connect(ctx, l.Address(), nil)
				return err
			}); err != nil {
				t.Error(err)
			}
		})
		ends.Go(func() {
			if err := sideB.Run(t.Context(), history.Target, link, func(ctx context.Context, qp rdma.QueuePair) error {
				r, err := l.Accept(ctx)
				if err != nil {
					return err
				}
				return r.Accept(ctx, qp, nil)
			}); err != nil {
				t.Error(err)
			}
		})
		ends.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	for _, s := range []*history.Side{sideA, sideB} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d operations, %d messages, %d rounds", sideA.Stats.Operations()+sideB.Stats.Operations(), sideA.Stats.Messages.Load(), sideA.Stats.Rounds.Load())
}

func TestFake(t *testing.T) {
	for class, config := range map[string]func(string) fake.Config{"infiniband": fake.InfiniBand, "iwarp": fake.IWARP} {
		t.Run(class, func(t *testing.T) {
			n := fake.NewNetwork()
			c, d := config("a"), config("b")
			c.HeapMemory, d.HeapMemory = true, true
			run(t, n.NewDevice(c), n.NewDevice(d), 1, 60, history.Options{})
		})
	}
}
