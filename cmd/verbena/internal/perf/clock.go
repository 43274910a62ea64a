package perf

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A recorder keeps the times between marks. It buffers them and fills the histogram
// while nothing is measured. One goroutine uses it.
type recorder struct {
	histogram   *hdrhistogram.Histogram
	tick        float64 // nanoseconds
	began, last uint64  // ticks
	marked      int64   // messages since start
	kept        int
	sum         uint64 // of what was read, so that the compiler keeps the reading
	deltas      [1024]delta
}

type delta struct {
	ticks uint64
	share int64 // how many messages the time is divided among
}

// longest is the longest time that a histogram keeps, in nanoseconds. scale is how
// many steps it has in a nanosecond.
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

// resume lets the time since the last mark not count.
func (r *recorder) resume() { r.last = now() }

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
		// RecordValue refuses values beyond the histogram's range.
		_ = r.histogram.RecordValue(min(max(took, 1), longest*scale))
	}
	r.kept = 0
}

// tickLength measures how many nanoseconds a tick of now is.
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
		counting = false // the counter does not run evenly
		return 1
	}
	return (first + second) / 2
})

// counting says that now reads the processor's counter. It changes only before
// the first recorder is made.
var counting = hasCounter

var epoch = time.Now()

// now is a time in ticks. Reading the processor's own counter takes a third of the
// time that reading the system's clock does, which matters in round trips of 100 ns.
// perftest and UCX read it as well.
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
