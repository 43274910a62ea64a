package longcopy

import (
	"strconv"
	"testing"
	"unsafe"
)

// The ways of both kinds of processors are tested, whichever this one is.
func TestFillWithoutStringInstructions(t *testing.T) {
	defer func(fast bool) { fastStrings = fast }(fastStrings)
	fastStrings = false
	testFill(t, func() {})
}

func TestFillPastTheCaches(t *testing.T) {
	defer pastCaches.Store(firstPastCaches())
	testFill(t, func() { pastCaches.Store(0) })
	if pastCaches.Load() == 0 {
		t.Error("nothing was stored past the caches: nothing was learnt")
	}
}

// What memory costs follows what is measured, but no single measurement spoils it, and
// what was true once is tried again.
func TestSlowMemoryIsTriedAgain(t *testing.T) {
	defer pastCaches.Store(firstPastCaches())
	pastCaches.Store(firstPastCaches())
	shared := 3 * firstPastCaches() // through a cache whose lines another processor has
	if !slow(shared, worth*laterPart) {
		t.Fatal("a part that takes three times as long through the cache goes on that way")
	}
	learn(1000 * firstPastCaches())
	if !slow(shared, worth*laterPart) {
		t.Fatalf("one measurement has made memory as slow as %d ticks", pastCaches.Load())
	}
	for range 100 {
		learn(20 * firstPastCaches())
	}
	if slow(shared, worth*laterPart) {
		t.Fatal("memory that takes 20 times as long is used still")
	}
	tries := 0
	for ; !slow(shared, worth*laterPart) && tries < 10_000; tries++ {
	}
	if tries < 100 || tries == 10_000 {
		t.Fatalf("memory that was slow once is tried again after %d slow parts", tries)
	}
}

func TestChasing(t *testing.T) {
	memory := make([]byte, 3*4096)
	for from, slow := range map[int][]int{0: {1, 16, 31, 63, 4097}, 100: {101, 163}, 4090: {4095, 4096}} {
		for _, to := range slow {
			if !chasing(memory[to:], memory[from:]) {
				t.Errorf("memory %d bytes behind its source is moved by a string instruction", to-from)
			}
		}
	}
	for _, to := range []int{100, 164, 99, 1000, 4096 + 100, 4096 + 99} {
		if chasing(memory[to:], memory[100:]) {
			t.Errorf("memory %d bytes behind its source is not", to-100)
		}
	}
}

// BenchmarkFillByDistance copies 8 KiB to memory that begins so many bytes behind its
// source, within a page.
func BenchmarkFillByDistance(b *testing.B) {
	memory := make([]byte, 128<<10)
	begin := int(-uintptr(unsafe.Pointer(&memory[0])) & 4095)
	for _, distance := range []int{0, 1, 16, 31, 32, 63, 64, 4032} {
		b.Run(strconv.Itoa(distance), func(b *testing.B) {
			to, from := memory[begin+4096:][:8<<10], memory[begin+64<<10-distance:]
			b.SetBytes(int64(len(to)))
			for b.Loop() {
				Fill(to, from)
			}
		})
	}
}
