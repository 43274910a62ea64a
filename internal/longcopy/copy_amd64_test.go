package longcopy

import "testing"

// The ways of both kinds of processors are tested, whichever this one is.
func TestFillWithoutStringInstructions(t *testing.T) {
	defer func(fast bool) { fastStrings = fast }(fastStrings)
	fastStrings = false
	testFill(t)
}
