// Package beside is one comparison as every command under bench prints it with
// --json: a line of JSON with what was measured, beside whom, and whether the
// target was reached.
package beside

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A Row is a comparison. Ours and Theirs are medians over the rounds, in Unit.
type Row struct {
	What   string  `json:"what"`
	Beside string  `json:"beside"`
	Ours   float64 `json:"ours"`
	Theirs float64 `json:"theirs"`
	Ratio  float64 `json:"ratio"` // of the medians
	Target string  `json:"target,omitempty"`
	// Met is not there without a target, or if nothing was measured.
	Met  *bool  `json:"met,omitempty"`
	Unit string `json:"unit"` // "ns", or what is counted in a second
	// Low and High are the least and the greatest ratio of a round.
	Low     float64 `json:"low,omitempty"`
	High    float64 `json:"high,omitempty"`
	Skipped string  `json:"skipped,omitempty"` // why it could not be measured
}

// A Target is what a ratio of ours to theirs has to reach. The zero value is none.
type Target struct{ limit, least float64 }

// AtMost is reached by ratios up to limit.
func AtMost(limit float64) Target { return Target{limit: limit} }

// AtLeast is reached by ratios from least.
func AtLeast(least float64) Target { return Target{least: least} }

// ParseTarget reads what String writes of a target; ok is false if it is none.
func ParseTarget(s string) (t Target, ok bool) {
	for prefix, of := range map[string]func(float64) Target{"at most ": AtMost, "at least ": AtLeast} {
		if number, found := strings.CutPrefix(s, prefix); found {
			v, err := strconv.ParseFloat(number, 64)
			return of(v), err == nil
		}
	}
	return Target{}, false
}

// Limit is the ratio that is asked for.
func (t Target) Limit() float64 { return max(t.limit, t.least) }

// Least tells that greater ratios are better.
func (t Target) Least() bool { return t.least > 0 }

// None tells that there is no target.
func (t Target) None() bool { return t == Target{} }

// Reached tells whether ratio is good enough.
func (t Target) Reached(ratio float64) bool {
	if t.least > 0 {
		return ratio >= t.least
	}
	return ratio <= t.limit
}

// String is empty if there is none.
func (t Target) String() string {
	switch {
	case t.least > 0:
		return fmt.Sprintf("at least %g", t.least)
	case t.limit > 0:
		return fmt.Sprintf("at most %g", t.limit)
	}
	return ""
}

// Judge sets the row's target, and whether its ratio reaches it if it was measured.
func (r *Row) Judge(t Target) {
	r.Target, r.Met = t.String(), nil
	if !t.None() && r.Skipped == "" {
		met := t.Reached(r.Ratio)
		r.Met = &met
	}
}

// Mark is what a table shows of Met.
func (r *Row) Mark() string {
	switch {
	case r.Skipped != "":
		return "not measured"
	case r.Met == nil:
		return ""
	case *r.Met:
		return "met"
	}
	return "**missed**"
}

// Write writes rows to w, one line of JSON each.
func Write[R any](w io.Writer, rows []R) error {
	encoder := json.NewEncoder(w)
	for _, r := range rows {
		if err := encoder.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// Middle is the median of values, of which there is at least one. Of an even number
// it is the mean of the two in the middle.
func Middle(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
