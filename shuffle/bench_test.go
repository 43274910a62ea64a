package shuffle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/verbena-data/verbena/shuffle"
)

// BenchmarkOneProcess is what records cost that go from one thread to others of the same
// process: Send, Next or batches, and the hand-over of blocks.
func BenchmarkOneProcess(b *testing.B) {
	for _, size := range []int{100, 64 << 10} {
		b.Run(fmt.Sprint(size, "B"), func(b *testing.B) { benchmarkOneProcess(b, size, untilError) })
		b.Run(fmt.Sprint(size, "B by batches"), func(b *testing.B) { benchmarkOneProcess(b, size, untilErrorOfBatches) })
	}
}

func benchmarkOneProcess(b *testing.B, size int, until func(context.Context, *shuffle.Receiver) error) {
	const threads = 32
	x, err := shuffle.Join(context.Background(), shuffle.Config{Threads: threads, Memory: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	payload := make([]byte, 1<<16+size)
	var to [1 << 12]uint8
	for i := range to {
		to[i] = uint8(rand.IntN(threads))
	}
	b.SetBytes(int64(size))
	b.ResetTimer()
	var all sync.WaitGroup
	for i := range threads {
		all.Go(func() {
			if i > 0 {
				_ = x.Sender(i).Close()
			}
			if err := until(context.Background(), x.Receiver(i)); !errors.Is(err, io.EOF) {
				b.Error(err)
			}
		})
	}
	s := x.Sender(0)
	at := 0
	for i := range b.N {
		if err := s.Send(int(to[i%len(to)]), payload[at:at+size]); err != nil {
			b.Fatal(err)
		}
		if at += 64; at >= 1<<16 {
			at = 0
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	all.Wait()
}
