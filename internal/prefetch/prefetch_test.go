package prefetch_test

import (
	"testing"

	"github.com/verbena-data/verbena/internal/prefetch"
)

// Whatever is asked for, memory stays as it is, and nothing beside it is touched.
func TestLinesOfAnyLength(t *testing.T) {
	b := make([]byte, 300)
	for from := range b {
		for _, most := range []int{0, 1, 64, 65, 1 << 20} {
			prefetch.ToRead(b[from:], most)
			prefetch.ToWrite(b[from:], most)
		}
	}
	prefetch.ToRead(nil, 64)
	prefetch.ToWrite(nil, 64)
	for i, v := range b {
		if v != 0 {
			t.Fatalf("byte %d became %d", i, v)
		}
	}
}
