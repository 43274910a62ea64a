package perf

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A recorder keeps the times between marks. They go into the histogram many at
// a time, while nothing is measured. One goroutine uses it.
type recorder struct {
	histogram   *hdrhistogram.Histogram
	tick        float64 // nanoseconds
	began, last uint64  // ticks
	marked      int64   // messages since start
	kept        int
	sum         uint64 // of what was read, so that it is
	deltas      [1024]delta
}

type delta struct {
	ticks uint64
	share int64 // of how many messages; the time is divided among them
}

// longest is the longest time that a histogram keeps, in nanoseconds, and scale
// how much finer it is.
const (
	longest = int64(10 * time.Minute)
	scale   = 4
)

func newRecorder() *recorder {
	return &recorder{histogram: hdrhistogram.New(1, longest*scale, 3), tick: tickLength()}
}

// start begins a measurement.
func (r *recorder) start() {
	r.histogram.Reset()
	r.kept, r.marked = 0, 0
	r.began = now()
	r.last = r.began
}

// elapsed is the time from start to the last mark.
func (r *recorder) elapsed() time.Duration {
	return time.Duration(float64(r.last-r.began) * r.tick)
}

// mark notes that share messages took the time since the last mark.
func (r *recorder) mark(share int64) {
	t := now()
	r.deltas[r.kept] = delta{t - r.last, share}
	r.last = t
	r.marked += share
	if r.kept++; r.kept == len(r.deltas) {
		r.flush()
		r.last = now()
	}
}

func (r *recorder) flush() {
	for _, d := range r.deltas[:r.kept] {
		took := int64(float64(d.ticks) * r.tick * scale / float64(d.share))
		// RecordValue refuses what is longer than the histogram has.
		_ = r.histogram.RecordValue(min(max(took, 1), longest*scale))
	}
	r.kept = 0
}

// tickLength is what a tick of now takes, in nanoseconds.
var tickLength = sync.OnceValue(func() float64 {
	if !hasCounter {
		return 1
	}
	measure := func() float64 {
		from, began := counter(), time.Now()
		time.Sleep(10 * time.Millisecond)
		to, took := counter(), time.Since(began)
		return float64(took) / float64(to-from)
	}
	first, second := measure(), measure()
	if first <= 0 || first > 1000 || first/second > 1.01 || second/first > 1.01 {
		counting = false // such as a counter that changes its speed
		return 1
	}
	return (first + second) / 2
})

// counting says that now reads the processor's counter. It changes only before
// the first recorder is made.
var counting = hasCounter

var epoch = time.Now()

// now is a time in ticks. The processor's own counter costs a third of what the
// system's clock does, which shows in round trips of 100 ns; perftest and UCX read
// it as well.
func now() uint64 {
	if counting {
		return counter()
	}
	return uint64(time.Since(epoch))
}

// percentile is in nanoseconds.
func percentile(h *hdrhistogram.Histogram, q float64) float64 {
	return float64(h.ValueAtQuantile(q)) / scale
}
