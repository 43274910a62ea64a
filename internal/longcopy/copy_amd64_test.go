package longcopy

import "testing"

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
