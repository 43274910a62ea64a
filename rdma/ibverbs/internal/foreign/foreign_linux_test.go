//go:build linux && (amd64 || arm64) && !noibverbs

package foreign

import (
	"syscall"
	"testing"

	"github.com/ebitengine/purego"
)

func symbol(t testing.TB, name string) uintptr {
	t.Helper()
	if err := Init(); err != nil {
		t.Fatal(err)
	}
	p, err := purego.Dlsym(purego.RTLD_DEFAULT, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestErrnoComesBackFromTheSameCall(t *testing.T) {
	closeFD := symbol(t, "close")
	if r, errno := Call(closeFD, ^uintptr(0), 0, 0, 0, 0, 0); int32(r) != -1 || errno != syscall.EBADF {
		t.Errorf("Call: close(-1) = %d, %v", int32(r), errno)
	}
	for _, mode := range []Mode{Blocking, NonBlocking} {
		if r, errno := mode.Call3(closeFD, ^uintptr(0), 0, 0); r != -1 || errno != syscall.EBADF {
			t.Errorf("%v: close(-1) = %d, %v", mode, r, errno)
		}
	}
}
