package verbena

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/patience"
)

// BenchmarkStages tells where the processor time of a message goes. One goroutine
// does the work of both ends, 4 messages at a time, so nothing travels between
// processors and nobody waits.
func BenchmarkStages(b *testing.B) {
	const batch = 4
	for _, w := range worlds {
		if strings.HasPrefix(w.name, "fake") {
			continue
		}
		for _, size := range []int{8, 1 << 10} {
			b.Run(fmt.Sprintf("%s/%d", w.name, size), func(b *testing.B) {
				p := w.pair(b, Config{Tuning: batchTuning(w, batch)}, ListenConfig{})
				a, e := p.connect(b, "")
				from, ok := a.carrier.(*shell)
				if !ok {
					b.Skip("no queue pair")
				}
				to := e.carrier.(*shell)
				// The workers leave their queues to this goroutine, so nobody is woken.
				for _, s := range []*shell{from, to} {
					s.w.callers.others.Add(1)
					defer s.w.callers.others.Add(-1)
				}
				payload := make([]byte, size)
				var spent [4]time.Duration
				var messages [batch]*Message
				for b.Loop() {
					start := patience.Processors.Now()
					lap := func(i int) {
						now := patience.Processors.Now()
						spent[i] += now - start
						start = now
					}
					for range batch {
						for !from.sendNow(1, payload) {
							from.w.poll()
						}
					}
					lap(0)
					for n := 0; n < batch; {
						if to.w.poll(); !to.in.readable.Load() {
							from.w.poll() // a Send may wait for a receive
							continue
						}
						to.mu.Lock()
						for m := to.next(); m != nil; m = to.next() {
							messages[n] = m
							n++
						}
						to.mu.Unlock()
					}
					lap(1)
					for _, m := range messages {
						m.Release()
					}
					lap(2)
					from.w.poll() // what has been sent, and credits
					lap(3)
				}
				for i, stage := range []string{"send", "receive", "release", "complete"} {
					b.ReportMetric(float64(spent[i])/float64(b.N*batch), stage+"-ns/msg")
				}
				_, _ = a.Close(), e.Close()
			})
		}
	}
}

func batchTuning(w world, batch int) TuningTable {
	if w.transport == TransportTCP {
		return nil
	}
	return TuningTable{w.transport: {Window: 2 * batch, Spin: -1}}
}

// BenchmarkAlone is a message there and one back, all by one goroutine, so that
// nothing travels between processors: what the software of both ends costs.
func BenchmarkAlone(b *testing.B) {
	for _, w := range worlds {
		if w.name != "shm" {
			continue
		}
		for _, size := range []int{8, 1 << 10} {
			b.Run(fmt.Sprintf("%s/%d", w.name, size), func(b *testing.B) {
				p := w.pair(b, Config{}, ListenConfig{})
				a, e := p.connect(b, "")
				payload := make([]byte, size)
				ctx := context.Background()
				one := func(from, to *Endpoint) {
					if err := from.Send(ctx, 1, payload); err != nil {
						b.Fatal(err)
					}
					m, err := to.Receive(ctx)
					if err != nil {
						b.Fatal(err)
					}
					m.Release()
				}
				b.ReportAllocs()
				for b.Loop() {
					one(a, e)
					one(e, a)
				}
				_, _ = a.Close(), e.Close()
			})
		}
	}
}
