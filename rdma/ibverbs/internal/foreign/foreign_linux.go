//go:build linux && (amd64 || arm64) && !noibverbs

package foreign

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ebitengine/purego"
)

// Mode is how a foreign function is entered.
type Mode uint8

const (
	// Blocking is for functions that may make a system call or wait.
	Blocking Mode = iota
	// NonBlocking is for functions that return within microseconds, always.
	NonBlocking
)

func (m Mode) String() string {
	if m == NonBlocking {
		return "non-blocking"
	}
	return "blocking"
}

// errnoLocation is the address of C's __errno_location, read by the shims.
// Zero leaves errno alone.
var errnoLocation uintptr //nolint:unused // the assembly reads it

// Init finds what the calls need of the C library. It must have returned nil
// before anything is called; it may be called any number of times.
var Init = sync.OnceValue(func() error {
	address, err := purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location")
	if err != nil {
		return fmt.Errorf("foreign: the C library has no __errno_location: %w", err)
	}
	if address == 0 {
		return errors.New("foreign: the C library's __errno_location is nil")
	}
	errnoLocation = address
	return nil
})
