package perf

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A recorder keeps the times between marks. They go into the histogram many at
// a time, while nothing is measured.
type recorder struct {
	histogram *hdrhistogram.Histogram
	begin     time.Time
	last      time.Duration
	kept      int
	marked    int64 // messages since start
	deltas    [1024]delta
}

type delta struct {
	took  time.Duration
	share int64 // of how many messages; the time is divided among them
}

// longest is the longest time that a histogram keeps, in nanoseconds, and scale
// how much finer it is.
const (
	longest = int64(10 * time.Minute)
	scale   = 4
)

func newRecorder() *recorder {
	return &recorder{histogram: hdrhistogram.New(1, longest*scale, 3)}
}

// start begins a measurement.
func (r *recorder) start() {
	r.histogram.Reset()
	r.kept, r.marked = 0, 0
	r.begin, r.last = time.Now(), 0
}

// elapsed is the time since start.
func (r *recorder) elapsed() time.Duration { return time.Since(r.begin) }

// mark notes that share messages took the time since the last mark.
func (r *recorder) mark(share int64) time.Duration {
	now := time.Since(r.begin)
	r.deltas[r.kept] = delta{now - r.last, share}
	r.last = now
	r.marked += share
	if r.kept++; r.kept == len(r.deltas) {
		r.flush()
		r.last = time.Since(r.begin)
	}
	return now
}

func (r *recorder) flush() {
	for _, d := range r.deltas[:r.kept] {
		// Longer than the histogram has: as the longest.
		if r.histogram.RecordValue(max(int64(d.took)*scale/d.share, 1)) != nil {
			_ = r.histogram.RecordValue(longest * scale)
		}
	}
	r.kept = 0
}

// percentile is in nanoseconds.
func percentile(h *hdrhistogram.Histogram, q float64) float64 {
	return float64(h.ValueAtQuantile(q)) / scale
}
