package verbena

import (
	"testing"

	"github.com/verbena-data/verbena/internal/pressure"
)

// listed counts the free buffers of a class.
func (c *bufferClass) listed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.free)
}

// Free buffers of endpoints over TCP are used again, leave when nobody needs them, and go
// at once under memory pressure.
func TestFreeBuffers(t *testing.T) {
	own := &bufferClass{size: 1 << 20}
	follow := func(level pressure.Level) {
		followWithBuffers(pressure.Reading{Level: level}, []*bufferClass{own})
	}
	var taken []*heapBuffer
	for range 5 {
		taken = append(taken, own.take())
	}
	for _, b := range taken {
		b.free()
	}
	if n := own.listed(); n != 5 {
		t.Fatalf("%d buffers are free, want 5", n)
	}
	own.sweep() // from now on it is known who is needed
	if again := own.take(); again != taken[4] {
		t.Error("not the buffer that came back last")
	} else {
		again.free()
	}
	own.sweep()
	if n := own.listed(); n != 1 {
		t.Errorf("%d buffers are free, want the one that was needed", n)
	}
	own.sweep()
	if n := own.listed(); n != 0 {
		t.Errorf("%d buffers are free that nobody has needed", n)
	}
	// Under pressure.
	own.take().free()
	defer follow(pressure.Calm)
	for _, level := range []pressure.Level{pressure.Tight, pressure.Critical} {
		follow(level)
		if n := own.listed(); n != 0 {
			t.Errorf("%v: %d buffers are free", level, n)
		}
		own.take().free()
		if n := own.listed(); n != 0 {
			t.Errorf("%v: %d buffers have been kept", level, n)
		}
	}
	follow(pressure.Calm)
	own.take().free()
	if n := own.listed(); n != 1 {
		t.Errorf("calm again: %d buffers are free, want one", n)
	}
	// No class keeps more than its bound.
	taken = taken[:0]
	for range mostListed>>20 + 3 {
		taken = append(taken, own.take())
	}
	for _, b := range taken {
		b.free()
	}
	if n := own.listed(); n != mostListed>>20 {
		t.Errorf("%d buffers of 1 MiB are free, want %d", n, mostListed>>20)
	}
}
