package contention

import (
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want time.Duration
		ok   bool
	}{
		{"some avg10=86.67 avg60=74.74 avg300=63.41 total=1131037965\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", 1131037965 * time.Microsecond, true},
		{"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 0, true},
		{"some avg10=0.00 total=12", 12 * time.Microsecond, true},
		{"full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", 0, false},
		{"some avg10=0.00 avg60=0.00 avg300=0.00 total=\n", 0, false},
		{"some avg10=0.00 total=-4\n", 0, false},
		{"some total=99999999999999999999999999\n", 0, false},
		{"some", 0, false},
		{"", 0, false},
	} {
		if got, ok := parse([]byte(c.text)); got != c.want || ok != c.ok {
			t.Errorf("%q: %v, %v", c.text, got, ok)
		}
	}
}

// The account only grows, and a look allocates nothing.
func TestWaited(t *testing.T) {
	before, ok := Waited()
	if !ok {
		t.Skip("this kernel keeps no account")
	}
	for range 100 {
		after, ok := Waited()
		if !ok || after < before {
			t.Fatalf("%v, then %v, %v", before, after, ok)
		}
		before = after
	}
	if n := testing.AllocsPerRun(100, func() { Waited() }); n > 0 && !race.Enabled {
		t.Errorf("%v allocations", n)
	}
}
