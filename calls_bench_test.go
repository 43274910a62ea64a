package verbena

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// BenchmarkCall is a call of 1 KiB and its answer, both ends in this process.
func BenchmarkCall(b *testing.B) {
	for _, w := range worlds {
		if strings.HasPrefix(w.name, "fake") {
			continue
		}
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", w.name, callers), func(b *testing.B) {
				p := w.pair(b, Config{}, ListenConfig{})
				c := p.callers(b, MuxConfig{})
				b.ReportAllocs()
				b.ResetTimer()
				var all sync.WaitGroup
				for i := range callers {
					n := b.N*(i+1)/callers - b.N*i/callers
					all.Go(func() {
						payload := make([]byte, 1<<10)
						for range n {
							if err := c.echo(p.ctx, c.a, methodEcho, payload); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				b.StopTimer()
				c.close(b)
			})
		}
	}
}

// BenchmarkLongCall is a call with a long payload and an answer of the same, in one piece and
// in two, both ends in this process.
func BenchmarkLongCall(b *testing.B) {
	for _, w := range worlds {
		if strings.HasPrefix(w.name, "fake") {
			continue
		}
		for _, size := range []int{10 << 10, 100 << 10, 1 << 20} {
			for _, joined := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%d/joined=%t", w.name, size, joined), func(b *testing.B) {
					p := w.pair(b, Config{}, ListenConfig{})
					c := p.callers(b, MuxConfig{})
					c.mux.Long(methodEchoJoined, func(q Request) {
						if err := q.ReplyJoined(q.Payload()[:50], q.Payload()[50:]); err != nil {
							b.Error(err)
						}
					})
					payload := make([]byte, size)
					b.SetBytes(int64(2 * size))
					b.ReportAllocs()
					for b.Loop() {
						var m *Message
						var err error
						if joined {
							m, err = c.a.CallJoined(p.ctx, methodEchoJoined, payload[:50], payload[50:])
						} else {
							m, err = c.a.Call(p.ctx, methodEchoLong, payload)
						}
						if err != nil {
							b.Fatal(err)
						}
						m.Release()
					}
					c.close(b)
				})
			}
		}
	}
}

// BenchmarkBesideFlood is a call of 63 endpoints in turn, without and with a 64th
// endpoint of the same worker that floods it with notifications.
func BenchmarkBesideFlood(b *testing.B) {
	for _, w := range worlds {
		if w.name != "shm" {
			continue
		}
		for _, flood := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/flood=%t", w.name, flood), func(b *testing.B) {
				p := w.pair(b, Config{Workers: 1}, ListenConfig{})
				var pairs []*callers2
				for range 64 {
					pairs = append(pairs, p.callers(b, MuxConfig{}))
				}
				ctx, stop := context.WithCancel(p.ctx)
				var flooding sync.WaitGroup
				if flood {
					flooding.Go(func() {
						payload := make([]byte, 100)
						for pairs[63].a.Notify(ctx, methodCount, payload) == nil {
						}
					})
				}
				payload := make([]byte, 1<<10)
				var took []time.Duration
				i := 0
				for b.Loop() {
					start := time.Now()
					if err := pairs[i%63].echo(p.ctx, pairs[i%63].a, methodEcho, payload); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(start))
					i++
				}
				stop()
				flooding.Wait()
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
				b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
				for _, c := range pairs {
					c.close(b)
				}
			})
		}
	}
}
