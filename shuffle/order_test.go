package shuffle_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/verbena-data/verbena/shuffle"
)

// Each partition's records come in the order of their keys, all of them, also when they do not
// fit into the memory for sorting; or in the order of whole records.
func TestInOrder(t *testing.T) {
	key := func(record []byte) []byte { return record[4:12] }
	for _, c := range []struct {
		name    string
		order   shuffle.Order
		records int
		length  int
	}{
		{"by key", shuffle.Order{Key: key}, 2000, 40},
		{"whole", shuffle.Order{}, 2000, 40},
		{"by key with little memory", shuffle.Order{Key: key, Memory: 8 << 20, Dir: t.TempDir()}, 2500, 4000},
	} {
		t.Run(c.name, func(t *testing.T) {
			exchanges := worlds[1].join(t, 2, shuffle.Config{})
			ctx := testContext(t)
			var all sync.WaitGroup
			for _, x := range exchanges {
				all.Go(func() {
					random := rand.New(rand.NewPCG(uint64(x.Rank()), 9))
					record := make([]byte, c.length)
					s := x.Sender(0)
					for n := range c.records {
						binary.BigEndian.PutUint32(record, uint32(n))
						binary.BigEndian.PutUint64(record[4:], random.Uint64N(1000))
						for to := range x.Partitions() {
							if err := s.Send(to, record); err != nil {
								t.Error(err)
								return
							}
						}
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
				all.Go(func() {
					var last []byte
					seen := make([]int, c.records)
					err := x.Receiver(0).InOrder(ctx, c.order, func(record []byte) error {
						k := record
						if c.order.Key != nil {
							k = key(record)
						}
						if bytes.Compare(last, k) > 0 {
							return errors.New("out of order")
						}
						last = append(last[:0], k...)
						seen[binary.BigEndian.Uint32(record)]++
						return nil
					})
					if err != nil {
						t.Error(err)
					}
					for n, times := range seen {
						if times != 2 {
							t.Errorf("record %d came %d times, each process has sent it once", n, times)
							return
						}
					}
				})
			}
			all.Wait()
			for _, x := range exchanges {
				if err := x.Wait(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// What take fails with is what InOrder fails with, and too little memory is refused.
func TestInOrderFails(t *testing.T) {
	x := alone(t, shuffle.Config{})
	if err := errors.Join(x.Sender(0).Send(0, []byte("b")), x.Sender(0).Send(0, []byte("a")), x.Sender(0).Close()); err != nil {
		t.Fatal(err)
	}
	nothing := func([]byte) error { return nil }
	if err := x.Receiver(0).InOrder(t.Context(), shuffle.Order{Memory: 1}, nothing); err == nil {
		t.Error("a byte of memory was enough")
	}
	enough := errors.New("enough")
	calls := 0
	err := x.Receiver(0).InOrder(t.Context(), shuffle.Order{}, func(record []byte) error {
		if calls++; string(record) != "a" {
			t.Errorf("%q", record)
		}
		return enough
	})
	if !errors.Is(err, enough) || calls != 1 {
		t.Errorf("%v after %d", err, calls)
	}
}

// A record that the exchange takes may be too long to be ordered: the error says how much memory it wants.
func TestInOrderOfLongRecords(t *testing.T) {
	const memory = 8 << 20
	for _, n := range []int{memory/4 - memory/16, memory / 4} {
		x := alone(t, shuffle.Config{})
		sent := make(chan error, 1)
		go func() { sent <- errors.Join(x.Sender(0).Send(0, make([]byte, n)), x.Sender(0).Close()) }()
		calls := 0
		order := shuffle.Order{Memory: memory, Key: func(record []byte) []byte { return record[:1] }}
		err := x.Receiver(0).InOrder(t.Context(), order, func([]byte) error { calls++; return nil })
		switch {
		case n < memory/4 && (err != nil || calls != 1):
			t.Errorf("%d bytes: %v", n, err)
		case n == memory/4 && (!errors.Is(err, shuffle.ErrTooLong) || !strings.Contains(err.Error(), "Order.Memory") || calls != 0):
			t.Errorf("%d bytes: %v", n, err)
		}
		if err := errors.Join(x.Receiver(0).Each(t.Context(), func([]byte) error { return nil }), <-sent, x.Wait(t.Context())); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// The end of ctx, and the exchange's failure, end InOrder also when all records have come.
func TestInOrderEnds(t *testing.T) {
	const records, most = 20_000, 2000
	gone := errors.New("gone")
	for _, how := range []string{"context", "exchange"} {
		x := alone(t, shuffle.Config{})
		sent := make(chan error, 1)
		go func() {
			s := x.Sender(0)
			for n := range records {
				if err := s.Send(0, binary.BigEndian.AppendUint32(nil, uint32(n))); err != nil {
					sent <- err
					return
				}
			}
			sent <- s.Close()
		}()
		ctx, end := context.WithCancelCause(t.Context())
		calls := 0
		err := x.Receiver(0).InOrder(ctx, shuffle.Order{Memory: 8 << 20}, func([]byte) error {
			switch calls++; {
			case calls > 1 && how == "exchange":
				runtime.Gosched() // that it has failed is told beside this
			case calls > 1:
			case how == "context":
				end(gone)
			default:
				x.Abort(gone)
				<-x.Ended()
			}
			return nil
		})
		if !errors.Is(err, gone) || calls > most {
			t.Errorf("%s: %v after %d of %d records", how, err, calls, records)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		end(nil)
	}
}
