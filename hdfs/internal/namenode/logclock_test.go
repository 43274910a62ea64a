package namenode

import (
	"log/slog"
	"testing"
	"time"
)

func TestLogClock(t *testing.T) {
	const year = 365 * 24 * time.Hour
	var c logClock
	log := slog.New(slog.DiscardHandler)
	for i, step := range []struct{ steady, wall, want time.Duration }{
		{0, 0, 0},
		{time.Hour, time.Hour + time.Second, time.Hour + time.Second}, // drift
		{2 * time.Hour, 2 * time.Hour, 2 * time.Hour},
		{2*time.Hour + time.Second, year, 2*time.Hour + time.Second}, // a leap
		{2*time.Hour + time.Minute, year + time.Minute, 2*time.Hour + time.Minute},
		{2*time.Hour + 2*time.Minute, 2*time.Hour + 2*time.Minute, 2*time.Hour + 2*time.Minute}, // set right
		{3 * time.Hour, -year, 3 * time.Hour},                                                   // backwards
		{3*time.Hour + leapPatience - 1, -year + leapPatience, 3*time.Hour + leapPatience - 1},
		{3*time.Hour + leapPatience, -year + leapPatience, -year + leapPatience}, // and it stays so
		{4 * time.Hour, -year + time.Hour, -year + time.Hour},
	} {
		if got := c.reading(step.steady, step.wall, log); got != step.want {
			t.Fatalf("step %d: the log has %v, want %v", i, got, step.want)
		}
	}
	var real logClock
	now := time.Now()
	if got := real.millis(now, log); got != now.UnixMilli() {
		t.Fatalf("now is %d, the log has %d", now.UnixMilli(), got)
	}
	if got := real.millis(now.Add(time.Hour), log); got != now.Add(time.Hour).UnixMilli() {
		t.Fatalf("an hour later the log has %d", got)
	}
}
