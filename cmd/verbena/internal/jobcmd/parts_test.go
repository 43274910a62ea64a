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

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "7": 7, "7B": 7, "1K": 1 << 10, "1KiB": 1 << 10, "512MiB": 512 << 20, "2G": 2 << 30, "2GiB": 2 << 30, "3M": 3 << 20, "1T": 1 << 40, "4TiB": 4 << 40,
		"4194304TiB": 1 << 62,
	} {
		var s Size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s: %d, %v; want %d", text, s, err, want)
		}
		// What it says is understood.
		var again Size
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("%d says %s, which is %d: %v", s, s.String(), again, err)
		}
	}
	for _, text := range []string{"", "B", "GiB", "-1", "-1K", "1.5G", "1 G", "1g", "1GB", "much", "4194305TiB", "9223372036854775807K", "99999999999999999999"} {
		s := Size(5)
		if err := s.Set(text); err == nil || s != 5 {
			t.Errorf("%q is taken: %d", text, s)
		}
	}
	for s, want := range map[Size]string{512 << 20: "512MiB", 3 << 30: "3GiB", 1536 << 20: "1610612736", 1000: "1000", 1<<20 + 1: "1048577", 1 << 10: "1KiB", 2 << 40: "2TiB"} {
		if got := s.String(); got != want {
			t.Errorf("%d says %s, want %s", s, got, want)
		}
	}
}

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
