package host

import "testing"

func TestWarmMemory(t *testing.T) {
	for _, n := range []int64{0, 1 << 20, 1<<20 + 1} {
		if err := WarmMemory(n); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
