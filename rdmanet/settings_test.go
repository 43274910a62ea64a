package rdmanet

import (
	"slices"
	"testing"

	"github.com/verbena-data/verbena"
)

// What writes are cut into, by tuning, eager size and what was configured.
func TestSettings(t *testing.T) {
	table := verbena.Tuning{Stream: 512 << 10, Pieces: 4}
	for _, c := range []struct {
		name   string
		cfg    settings
		tuning verbena.Tuning
		eager  int
		write  int
		want   []int
	}{
		{"short write in pieces", settings{}, table, 32<<10 + 48, 70 << 10, []int{32 << 10, 32 << 10, 6 << 10}},
		{"long write", settings{}, table, 32<<10 + 48, 600 << 10, []int{512 << 10, 32 << 10, 32 << 10, 24 << 10}},
		{"no eager messages", settings{}, verbena.Tuning{Stream: 128 << 10}, 0, 300 << 10, []int{128 << 10, 128 << 10, 44 << 10}},
		{"configured", settings{chunk: 100}, table, 32 << 10, 250, []int{100, 100, 50}},
	} {
		c.cfg.fill(c.tuning, c.eager)
		var got []int
		for left := c.write; left > 0; {
			n := c.cfg.next(left)
			got = append(got, n)
			left -= n
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
