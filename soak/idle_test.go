package main

import (
	"strings"
	"testing"
	"time"
)

// The soak fails for what an idle connection costs too much, and for nothing else.
func TestIdleIsJudged(t *testing.T) {
	for _, c := range []struct {
		name                 string
		transport            string
		connections          int
		share                float64
		registered, resident int64
		want                 string // in the error; empty: none
	}{
		{"in bounds", "shm", 1000, 0.1, 64 << 10, 96 << 10, ""},
		{"processor", "tcp", 1, 0.11, 0, 0, "of a core"},
		{"registered", "iwarp", fewIdle, 0, 64<<10 + 1, 0, "are registered"},
		{"registered by the first", "iwarp", 1, 0, 264 << 10, 0, "are registered"},
		{"resident", "shm", fewIdle, 0, 0, 96<<10 + 1, "are resident"},
		{"resident over sockets", "tcp", fewIdle, 0, 0, 200 << 10, ""},
	} {
		err := judgeIdle(c.transport, c.connections, c.share, c.registered, c.resident)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// One busy tenth is told apart; two are not.
func TestBusiestTenthIsToldApart(t *testing.T) {
	used := make([]time.Duration, idleTenths)
	used[3] = 50 * time.Millisecond
	if s := shareOf(used, time.Second); s.mean != 0 || s.busiest != 5 {
		t.Errorf("50 ms in one of ten seconds: %+v", s)
	}
	used[7] = 36 * time.Millisecond
	if s := shareOf(used, time.Second); s.mean < 0.39 || s.mean > 0.41 || s.busiest != 5 {
		t.Errorf("50 and 36 ms in two of ten seconds: %+v", s)
	}
}
