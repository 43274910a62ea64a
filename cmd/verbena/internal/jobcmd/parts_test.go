package jobcmd

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/verbena-data/verbena/shuffle"
)

// A process tells ten times a second at most, however many threads have something to tell.
func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []int64
		p := &Part{tell: func(done, total int64) {
			if total != 1000 {
				t.Errorf("a total of %d", total)
			}
			told = append(told, done)
		}}
		begin := time.Now()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for time.Since(begin) < time.Second {
					p.Tell(time.Since(begin).Milliseconds(), 1000)
					time.Sleep(time.Millisecond)
				}
			})
		}
		all.Wait()
		if len(told) != 10 {
			t.Errorf("told %d", told)
		}
		for i, done := range told {
			if done != int64(100*i) {
				t.Errorf("told %d", told)
			}
		}
	})
}

// Bars add up what processes have done, each of which tells all that it has done so far.
func TestBars(t *testing.T) {
	var shown strings.Builder
	bar := progressbar.NewOptions64(-1, progressbar.OptionSetWriter(&shown))
	b := newBars(bar, 3)
	for _, c := range []struct {
		rank        int
		done, total int64
		sum, of     int64
	}{
		{0, 10, 100, 10, 100},
		{1, 20, 100, 30, 100},
		{0, 15, 100, 35, 100}, // not 45
		{2, 5, 200, 40, 200},  // another total
		{2, 500, 200, 200, 200},
	} {
		b.set(c.rank, advance{c.done, c.total})
		if s := bar.State(); s.CurrentNum != c.sum || bar.GetMax64() != c.of {
			t.Errorf("%+v: %d of %d", c, s.CurrentNum, bar.GetMax64())
		}
	}
	none := newBars(nil, 1) // where there is no terminal
	none.set(0, advance{1, 2})
	none.finish()
}

func TestOver(t *testing.T) {
	shm, iwarp := shuffle.Way{Transport: "shm", Mode: shuffle.OneSided}, shuffle.Way{Transport: "iwarp", Mode: shuffle.TwoSided}
	for want, ways := range map[string][]shuffle.Way{"": nil, " over shm (one-sided)": {shm}, " over shm (one-sided) and iwarp (two-sided)": {shm, iwarp}} {
		if got := Over(ways); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
