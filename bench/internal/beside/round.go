package beside

import (
	"context"
	"errors"
	"slices"

	"github.com/verbena-data/verbena/bench/internal/host"
)

// A Measure is one measurement: nanoseconds, messages or bytes per second, and so on.
type Measure func(context.Context) (float64, error)

// A Round is one pair of measurements, and how far apart the processors were.
type Round struct {
	Ours   float64 `json:"ours"`
	Theirs float64 `json:"theirs"`
	// Distances of the processors in nanoseconds: before the first measurement,
	// between the two, after the second.
	Distances [3]float64 `json:"distances_ns"`
	OursFirst bool       `json:"ours_first"`
	Alike     bool       `json:"alike"` // the processors did not move in it
}

// Alike is how much the distances within a round may differ, as a factor.
const Alike = 1.35

// Near tells near from far: whether a line takes less than 120 ns.
func (r *Round) Near() bool { return r.Distances[1] < 120 }

// Pair measures both, one after the other.
func Pair(ctx context.Context, ours, theirs Measure, oursFirst bool) (r Round, err error) {
	r.OursFirst = oursFirst
	steps := []struct {
		m    Measure
		into *float64
	}{{ours, &r.Ours}, {theirs, &r.Theirs}}
	if !oursFirst {
		slices.Reverse(steps)
	}
	if r.Distances[0], err = host.Distance(); err != nil {
		return r, err
	}
	for i, s := range steps {
		if *s.into, err = s.m(ctx); err != nil {
			return r, err
		}
		if *s.into <= 0 {
			return r, errors.New("a measurement came to nothing")
		}
		if r.Distances[i+1], err = host.Distance(); err != nil {
			return r, err
		}
	}
	r.Alike = slices.Max(r.Distances[:])/slices.Min(r.Distances[:]) <= Alike
	return r, nil
}
