package shuffle_test

import (
	"testing"

	"github.com/verbena-data/verbena/shuffle"
)

// Between Reserve and Commit nothing else is sent: it would lie where the reserved record does.
func TestReservedRecordIsNotDisturbed(t *testing.T) {
	for _, threads := range []int{1, 8} { // with a lane of its own, and with one that is shared
		for _, n := range []int{10, 200, 100_000} {
			x := alone(t, shuffle.Config{Threads: threads})
			s := x.Sender(0)
			into, err := s.Reserve(0, n)
			if err != nil {
				t.Fatal(err)
			}
			for name, call := range map[string]func() error{
				"Send":   func() error { return s.Send(0, []byte("abc")) },
				"Send 1": func() error { return s.Send(threads-1, nil) },
				"Flush":  s.Flush,
				"Close":  s.Close,
			} {
				if err := call(); err == nil {
					t.Errorf("%d threads, %d bytes: %s between Reserve and Commit", threads, n, name)
				}
			}
			for i := range into {
				into[i] = byte(i)
			}
			if err := s.Commit(n); err != nil {
				t.Fatal(err)
			}
			if err := s.Send(0, []byte("abc")); err != nil {
				t.Fatal(err)
			}
			for thread := range threads {
				if err := x.Sender(thread).Close(); err != nil {
					t.Fatal(err)
				}
			}
			got := drain(t, x.Receiver(0))
			if len(got) != 2 || len(got[0]) != n || got[0][n-1] != byte(n-1) || string(got[1]) != "abc" {
				t.Errorf("%d threads, %d bytes: %d records arrived: %.40q", threads, n, len(got), got)
			}
		}
	}
}
