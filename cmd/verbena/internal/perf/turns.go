package perf

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// turnLength is how long a row is measured before the next one has its turn. A virtual
// machine's host moves its processors near to each other and far, every few tenths of
// a second where it is busy, and a line then takes 220 ns instead of 45.
const turnLength = 100 * time.Millisecond

// Alike groups plans that differ in their level and in nothing else, in the order of the
// first of each group. A plan that is there twice is measured twice, in two groups.
func Alike(plans []Plan) [][]Plan {
	var groups [][]Plan
	at := map[Plan]int{} // the last group of plans without their level
	for _, p := range plans {
		key := p
		key.Level = ""
		i, ok := at[key]
		if !ok || slices.Contains(groups[i], p) {
			i, at[key] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], p)
	}
	return groups
}

// RunInTurns carries out measurements that are to be compared with each other. In mode
// lat, where they have a duration, they take turns of a tenth of a second, each with
// connections of its own. So whatever changes on the host meanwhile changes for all.
// What comes out of one plan is of all its turns.
func (c *Client) RunInTurns(ctx context.Context, plans []Plan, amount Amount) ([]*Measurement, error) {
	return inTurns(plans, amount, func(p Plan, a Amount) (*Measurement, error) { return c.Run(ctx, p, a) })
}

func inTurns(plans []Plan, amount Amount, run func(Plan, Amount) (*Measurement, error)) ([]*Measurement, error) {
	turns := 1
	if len(plans) > 1 && plans[0].Mode == ModeLatency && amount.Iterations == 0 && amount.Pause == 0 {
		turns = max(int(amount.Duration/turnLength), 1)
	}
	amount.Duration /= time.Duration(turns)
	all := make([]*Measurement, len(plans))
	times := make([][]*hdrhistogram.Histogram, len(plans)) // of each turn
	for range turns {
		for i, p := range plans {
			m, err := run(p, amount)
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], m.Histogram)
			m.Turns = []float64{m.Quantile(50)}
			if all[i] == nil {
				all[i] = m
			} else {
				all[i].add(m)
			}
		}
	}
	for i, m := range all {
		m.Histogram = evenly(times[i])
	}
	return all, nil
}

// evenly merges histograms of turns so that each turn counts as much as any other. A
// level is slowed down by another factor than the next one where the processors are
// far. So if every message counted as much, the median of one level would be that of
// the turns far, and the median of the other that of the turns near.
func evenly(turns []*hdrhistogram.Histogram) *hdrhistogram.Histogram {
	if len(turns) == 1 {
		return turns[0]
	}
	most := int64(0)
	for _, h := range turns {
		most = max(most, h.TotalCount())
	}
	merged := newRecorder().histogram
	for _, h := range turns {
		for _, bar := range h.Distribution() {
			if bar.Count > 0 { // of values within the range, so it is not refused
				_ = merged.RecordValues(bar.To, int64(math.Round(float64(bar.Count)*float64(most)/float64(h.TotalCount()))))
			}
		}
	}
	return merged
}

// add makes what came out of a later turn part of m, but for its times.
func (m *Measurement) add(turn *Measurement) {
	m.Iterations += turn.Iterations
	m.Took += turn.Took
	m.CPU += turn.CPU
	m.Verified += turn.Verified
	m.Registered, m.Resident = max(m.Registered, turn.Registered), max(m.Resident, turn.Resident)
	m.Turns = append(m.Turns, turn.Turns...)
}

// Beside tells how m's median compares with that of other, which had turns between
// those of m: the median of the turns' ratios, and the quarters between which half of
// them are. It is empty if there were fewer than four turns.
func (m *Measurement) Beside(other *Measurement) string {
	n := len(m.Turns)
	if n < 4 || n != len(other.Turns) {
		return ""
	}
	ratios := make([]float64, n)
	for i, p50 := range m.Turns {
		ratios[i] = p50 / other.Turns[i]
	}
	slices.SortFunc(ratios, cmp.Compare[float64])
	return fmt.Sprintf("%s beside %s, %s, %s: %.2f times as long (half of %d turns: %.2f to %.2f)", m.Plan.Level, other.Plan.Level,
		m.Plan.Test, FormatSize(m.Plan.Size), ratios[n/2], n, ratios[n/4], ratios[n-1-n/4])
}
