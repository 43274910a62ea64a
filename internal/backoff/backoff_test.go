package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Pauses double up to the greatest, and each lies between half and one and a half of
// its mean.
func TestPauses(t *testing.T) {
	p := Policy{100 * time.Millisecond, 10 * time.Second}
	for failures, mean := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 7: 6400 * time.Millisecond,
		8: 10 * time.Second, 9: 10 * time.Second, 1 << 30: 10 * time.Second,
	} {
		least, most := time.Hour, time.Duration(0)
		for range 10000 {
			d := p.Pause(failures)
			least, most = min(least, d), max(most, d)
		}
		if least < mean/2 || most > mean*3/2+1 {
			t.Errorf("after %d failures pauses of %v to %v, want %v to %v", failures, least, most, mean/2, mean*3/2)
		}
		// One of 10,000 draws lies in each outer tenth, but for a chance of 10^-450.
		if least > mean*6/10 || most < mean*14/10 {
			t.Errorf("after %d failures pauses of %v to %v do not spread over %v to %v", failures, least, most, mean/2, mean*3/2)
		}
	}
	if d := (Policy{time.Second, time.Millisecond}).Pause(1); d > 2*time.Millisecond {
		t.Errorf("the first pause is %v, above the greatest", d)
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Sleep(t.Context(), time.Second, nil) || time.Since(began) != time.Second {
			t.Errorf("slept for %v", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if Sleep(ctx, time.Hour, nil) || time.Since(began) != 2*time.Second {
			t.Errorf("woke after %v", time.Since(began))
		}
		if Sleep(ctx, 0, nil) {
			t.Error("slept beyond its context")
		}
		stop := make(chan struct{})
		close(stop)
		if Sleep(t.Context(), time.Hour, stop) {
			t.Error("slept on")
		}
	})
}
