package perf

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A host that moves the processors between two measurements makes a ratio of 1 to 5 or
// 5 to 1 out of 2. So what is compared takes turns, and a turn is short.
func TestLevelsTakeTurns(t *testing.T) {
	plans := []Plan{
		plan(LevelVerbs, "shm", TestSend, ModeLatency, WaitSpin, 8), plan(LevelRuntime, "shm", TestSend, ModeLatency, WaitSpin, 8),
	}
	// The processors are far from each other in every fourth round trip of two turns.
	levels, turn := "", 0
	run := func(p Plan, a Amount) (*Measurement, error) {
		if a.Duration != turnLength {
			t.Errorf("a turn of %v", a.Duration)
		}
		levels += p.Level[:1]
		r := newRecorder()
		r.start()
		ns := map[string]int64{LevelVerbs: 180, LevelRuntime: 400}[p.Level]
		if turn++; turn%8 > 5 {
			ns *= 3
		}
		for range 10 {
			_ = r.histogram.RecordValue(ns * scale)
		}
		return &Measurement{Plan: p, Iterations: 10, Took: a.Duration, Histogram: r.histogram, OneWay: 2, CPU: time.Second, Verified: 5, Registered: 7, Resident: 9}, nil
	}
	all, err := inTurns(plans, Amount{Duration: 8 * turnLength}, run)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("vr", 8); levels != want {
		t.Errorf("measured in the order %s, not %s", levels, want)
	}
	for i, m := range all {
		if m.Plan != plans[i] || m.Iterations != 80 || m.Histogram.TotalCount() != 80 || len(m.Turns) != 8 || m.Took != 8*turnLength || m.CPU != 8*time.Second || m.Verified != 40 ||
			m.Registered != 7 || m.Resident != 9 {
			t.Errorf("all turns of a level make %+v", m)
		}
	}
	if got, want := all[1].Beside(all[0]), "runtime beside verbs, send, 8: 2.22 times as long (half of 8 turns: 2.22 to 2.22)"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	if got := all[1].Beside(&Measurement{Turns: []float64{1}}); got != "" {
		t.Errorf("turns beside none: %q", got)
	}
}

// Of 10 turns 7 are slow, and have fewer messages, so that most messages are fast.
func TestTurnsCountEvenly(t *testing.T) {
	var turns []*hdrhistogram.Histogram
	for i := range 10 {
		h := newRecorder().histogram
		value, count := int64(800), int64(300)
		if i < 3 {
			value, count = 200, 1000
		}
		if err := h.RecordValues(value, count); err != nil {
			t.Fatal(err)
		}
		turns = append(turns, h)
	}
	merged := evenly(turns)
	if low, middle := merged.ValueAtQuantile(29), merged.ValueAtQuantile(50); low != 200 || middle != 800 || merged.TotalCount() != 10_000 {
		t.Errorf("the 29th percentile is %d and the median %d of %d", low, middle, merged.TotalCount())
	}
}

// What has a number of messages instead, or streams, or pauses, has one turn.
func TestOneTurn(t *testing.T) {
	two := func(mode string) []Plan {
		return []Plan{plan(LevelVerbs, "shm", TestSend, mode, WaitSpin, 8), plan(LevelRuntime, "shm", TestSend, mode, WaitSpin, 8)}
	}
	for _, test := range []struct {
		plans  []Plan
		amount Amount
		runs   int
	}{
		{two(ModeLatency), Amount{Iterations: 50, Duration: time.Second}, 2},
		{two(ModeLatency), Amount{Duration: time.Second, Pause: time.Millisecond}, 2},
		{two(ModeLatency), Amount{Duration: turnLength / 2}, 2},
		{two(ModeRate), Amount{Duration: time.Second}, 2},
		{two(ModeLatency)[:1], Amount{Duration: time.Second}, 1},
	} {
		runs := 0
		_, err := inTurns(test.plans, test.amount, func(p Plan, a Amount) (*Measurement, error) {
			if runs++; a != test.amount {
				t.Errorf("%+v became %+v", test.amount, a)
			}
			return &Measurement{Plan: p, Histogram: newRecorder().histogram, OneWay: 1}, nil
		})
		if err != nil || runs != test.runs {
			t.Errorf("%+v: %d runs, %v", test.amount, runs, err)
		}
	}
	broken := errors.New("broken")
	if _, err := inTurns(two(ModeLatency), Amount{}, func(Plan, Amount) (*Measurement, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("the failure of a turn became %v", err)
	}
}

func TestAlike(t *testing.T) {
	a := func(level string, size int) Plan { return plan(level, "shm", TestSend, ModeLatency, WaitSpin, size) }
	groups := Alike([]Plan{a(LevelVerbs, 8), a(LevelVerbs, 64), a(LevelRuntime, 8), a(LevelRuntime, 64), a(LevelRuntime, 1024)})
	if len(groups) != 3 || len(groups[0]) != 2 || len(groups[1]) != 2 || len(groups[2]) != 1 ||
		groups[0][1] != a(LevelRuntime, 8) || groups[1][0] != a(LevelVerbs, 64) || groups[2][0] != a(LevelRuntime, 1024) {
		t.Errorf("%+v", groups)
	}
	if groups := Alike([]Plan{a(LevelVerbs, 8), a(LevelVerbs, 8), a(LevelVerbs, 8)}); len(groups) != 3 {
		t.Errorf("a plan that is there three times: %+v", groups)
	}
}
