package waking

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// allowed is which processors the calling thread may have.
func allowed(t *testing.T) string {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Errorf("affinity: %v", err)
	}
	return fmt.Sprintf("%x", set)
}
