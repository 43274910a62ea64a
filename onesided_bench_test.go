package verbena

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkGetBesideCopy reads memory that the other processor has just written, by a
// one-sided Get and, in turn, by a copy of this side's own. It reports the medians; the
// time of reading the clock is in both.
//
//	go test -run - -bench GetBesideCopy -benchtime 50000x .
func BenchmarkGetBesideCopy(b *testing.B) {
	for _, w := range worlds {
		if w.name != "shm" {
			continue
		}
		for _, size := range []int{8, 256, 4 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("%s/%d", w.name, size), func(b *testing.B) { getBesideCopy(b, w, size) })
		}
	}
}

func getBesideCopy(b *testing.B, w world, size int) {
	p := w.pair(b, Config{}, ListenConfig{})
	a, e := p.connect(b, "")
	x, token := exposeTo(b, e, size, MayRead)
	ctx := context.Background()
	buffer, err := a.Buffer(ctx, size)
	if err != nil {
		b.Fatal(err)
	}
	var asked, written atomic.Int64
	over := make(chan struct{})
	go func() {
		defer close(over)
		runtime.LockOSThread()
		memory := x.Bytes()
		for n := int64(1); ; n++ {
			for asked.Load() < n {
				if asked.Load() < 0 {
					return
				}
			}
			for i := 0; i < len(memory); i += 8 {
				memory[i] = byte(n)
			}
			written.Store(n)
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var round int64
	measure := func(f func()) time.Duration {
		round++
		asked.Store(round)
		for written.Load() < round {
		}
		start := time.Now()
		f()
		return time.Since(start)
	}
	var gets, copies, staged []time.Duration
	local := make([]byte, size)
	for b.Loop() {
		gets = append(gets, measure(func() {
			if err := a.GetBuffer(ctx, token, 0, buffer, 0, size); err != nil {
				b.Fatal(err)
			}
		}))
		if buffer.Bytes()[0] != byte(round) {
			b.Fatal("the Get has read something old")
		}
		staged = append(staged, measure(func() {
			if err := a.Get(ctx, token, 0, local); err != nil {
				b.Fatal(err)
			}
		}))
		copies = append(copies, measure(func() { copy(buffer.Bytes(), x.Bytes()) }))
	}
	asked.Store(-1)
	<-over
	get, into, one := median(gets), median(staged), median(copies)
	b.ReportMetric(get, "get-ns")
	b.ReportMetric(into, "get-into-slice-ns")
	b.ReportMetric(one, "memcpy-ns")
	b.ReportMetric(get/one, "get/memcpy")
	buffer.Release()
	_, _ = a.Close(), e.Close()
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2])
}

// BenchmarkGetAlone is what the software of a Get costs: the memory is in the cache of
// the processor that reads it.
func BenchmarkGetAlone(b *testing.B) {
	for _, w := range worlds {
		if w.name != "shm" {
			continue
		}
		b.Run(w.name+"/8", func(b *testing.B) {
			p := w.pair(b, Config{}, ListenConfig{})
			a, e := p.connect(b, "")
			_, token := exposeTo(b, e, 8, MayRead)
			ctx := context.Background()
			buffer, err := a.Buffer(ctx, 8)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := a.GetBuffer(ctx, token, 0, buffer, 0, 8); err != nil {
					b.Fatal(err)
				}
			}
			buffer.Release()
			_, _ = a.Close(), e.Close()
		})
	}
}
