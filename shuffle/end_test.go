package shuffle_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/shuffle"
)

// Wait says that all have received all, and not before: neither while a receiver of this process has not come to the end, nor
// while one of another process has not.
func TestWaitWaitsForAllReceivers(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		exchanges := w.join(t, 3, shuffle.Config{Threads: 2})
		ctx := testContext(t)
		for _, x := range exchanges {
			for thread := range x.Threads() {
				if err := errors.Join(x.Sender(thread).Send(5, []byte("record")), x.Sender(thread).Close()); err != nil {
					t.Fatal(err)
				}
			}
		}
		// All but one come to the end; it has records before it.
		for partition := range 5 {
			if _, err := exchanges[partition/2].Receiver(partition % 2).Next(ctx); err != io.EOF {
				t.Fatal(err)
			}
		}
		late := exchanges[2].Receiver(1)
		for range 6 {
			if b, err := late.Next(ctx); err != nil || string(b) != "record" {
				t.Fatalf("%q, %v", b, err)
			}
		}
		for _, x := range exchanges {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			if err := x.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("process %d does not wait for a receiver of process 2: %v", x.Rank(), err)
			}
			cancel()
		}
		if _, err := late.Next(ctx); err != io.EOF {
			t.Fatal(err)
		}
		for _, x := range exchanges {
			if err := x.Wait(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

// Batches are what they were as long as they are held, whatever comes behind them, also if it is spilt; and their memory comes
// back.
func TestBatchesAreHeld(t *testing.T) {
	for name, spill := range map[string]string{"": "", "spill": t.TempDir()} {
		for _, w := range worlds {
			t.Run(w.name+" "+name, func(t *testing.T) {
				exchanges := w.join(t, 2, shuffle.Config{Memory: 256 << 10, Spill: spill})
				ctx := testContext(t)
				const records, longest = 3000, 300
				var all sync.WaitGroup
				for _, x := range exchanges {
					all.Go(func() {
						s := x.Sender(0)
						for n := range records {
							if err := s.Send(0, record(x.Rank(), 0, n, longest)); err != nil {
								t.Error(err)
								return
							}
						}
						if err := s.Close(); err != nil {
							t.Error(err)
						}
					})
				}
				all.Go(func() {
					if _, err := exchanges[1].Receiver(0).Next(ctx); err != io.EOF {
						t.Error(err)
					}
				})
				r := exchanges[0].Receiver(0)
				var held []*shuffle.Batch
				var next [2]int
				read := func(b *shuffle.Batch) {
					for got, ok := b.Next(); ok; got, ok = b.Next() {
						from := int(got[3])
						if !bytes.Equal(got, record(from, 0, next[from], longest)) {
							t.Fatalf("record %d of process %d is wrong", next[from], from)
						}
						next[from]++
					}
					b.Release()
				}
				for {
					b, err := r.NextBatch(ctx)
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					if held = append(held, b); len(held) > 4 {
						read(held[0])
						held = held[1:]
					}
				}
				for _, b := range held {
					read(b)
				}
				all.Wait()
				if next != [2]int{records, records} {
					t.Errorf("%v records, want %d each", next, records)
				}
				for _, x := range exchanges {
					if err := x.Wait(ctx); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// What has been spilt is neither moved nor looked at when more is: only what lies in memory is in the queue for that.
func TestSpiltIsOutOfTheQueue(t *testing.T) {
	x := alone(t, shuffle.Config{Memory: 64 << 10, Spill: t.TempDir()})
	s, r := x.Sender(0), x.Receiver(0)
	const records = 2000
	most := 0
	for n := range records {
		if err := s.Send(0, record(0, 0, n, 1000)); err != nil {
			t.Fatal(err)
		}
		most = max(most, x.Resident(0))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if spilt := x.Spilt(0); spilt < 10*most || most > shuffle.Depth {
		t.Errorf("%d blocks are spilt, and there were up to %d in the queue", spilt, most)
	}
	for n := range records {
		if b, err := r.Next(t.Context()); err != nil || !bytes.Equal(b, record(0, 0, n, 1000)) {
			t.Fatalf("record %d: %d bytes, %v", n, len(b), err)
		}
	}
}

// What was spilt is read once, and in order, however much of it is left unread when more is spilt.
func TestSpillFileIsUsedAgain(t *testing.T) {
	x := alone(t, shuffle.Config{Memory: 64 << 10, Spill: t.TempDir()})
	s, r := x.Sender(0), x.Receiver(0)
	ctx := testContext(t)
	sent, got := 0, 0
	spilt := uint64(0)
	for left := range 200 { // records that stay unread, while the next 100 are sent
		for range 100 + 2*left {
			if err := s.Send(0, record(0, 0, sent, 1000)); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		for ; got < sent-left; got++ {
			if sent-got < 20 { // the last part may not have gone out
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			if b, err := r.Next(ctx); err != nil || !bytes.Equal(b, record(0, 0, got, 1000)) {
				t.Fatalf("record %d, with %d unread: %d bytes, %v", got, left, len(b), err)
			}
		}
		if now := x.Stats().Spilt; now == spilt {
			t.Fatalf("nothing was spilt with %d unread", left)
		} else {
			spilt = now
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for ; got < sent; got++ {
		if b, err := r.Next(ctx); err != nil || !bytes.Equal(b, record(0, 0, got, 1000)) {
			t.Fatalf("record %d: %d bytes, %v", got, len(b), err)
		}
	}
	if _, err := r.Next(ctx); err != io.EOF {
		t.Error(err)
	}
}
