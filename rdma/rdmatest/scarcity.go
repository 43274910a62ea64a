package rdmatest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// WithoutDescriptors calls f while this process can open nothing: every call that
// needs a descriptor fails with EMFILE. No other test may run beside it.
func WithoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	lowest, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(lowest); err != nil {
		t.Fatal(err)
	}
	now := before
	now.Cur = uint64(lowest)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}
