package crc32c

import "testing"

// The ways of all processors are tested, whichever this one is.
func TestOnOtherProcessors(t *testing.T) {
	defer func(a, c bool) { able, counts = a, c }(able, counts)
	for _, has := range []bool{counts, false} {
		able, counts = false, has
		TestAgainstStandardLibrary(t)
		TestSums(t)
	}
}
