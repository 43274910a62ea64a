package launch

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/testneed"
)

// The processes of a job meet where nothing is left of it, and where other users are turned away: who dials is not answered, and what
// listens is not told anything.
func TestOtherUsersAreTurnedAway(t *testing.T) {
	if os.Geteuid() != 0 {
		testneed.Missing(t, "only root can be another user", "run it as root")
	}
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	met := make(chan error, 2)
	meet := func(rank int, place string) {
		m, err := Meet(ctx, Worker{Rank: rank, Size: 2, Rendezvous: place}, ":1")
		if err == nil {
			m.Done()
		}
		met <- err
	}

	place, remove, err := newPlace()
	if err != nil {
		t.Fatal(err)
	}
	go meet(0, place)
	asAnother(t, func(fd int) {
		for unix.Connect(fd, &unix.SockaddrUnix{Name: strings.TrimPrefix(place, unixPrefix)}) != nil && ctx.Err() == nil {
		}
		_, _ = unix.Write(fd, []byte(`{"protocol":"`+protocol+`","rank":1,"size":2,"address":":9"}`+"\n")) // it may have gone already
		if n, _ := unix.Read(fd, make([]byte, 1)); n > 0 {
			t.Error("another user's process is answered")
		}
	})
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	go meet(1, place)
	for range 2 {
		if err := <-met; err != nil {
			t.Error(err)
		}
	}
	if err := remove(); err != nil {
		t.Error(err)
	}

	if place, _, err = newPlace(); err != nil {
		t.Fatal(err)
	}
	asAnother(t, func(fd int) {
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: strings.TrimPrefix(place, unixPrefix)}); err != nil {
			t.Error(err)
		}
		if err := unix.Listen(fd, 1); err != nil {
			t.Error(err)
		}
		go meet(1, place)
		if err := <-met; err == nil || !strings.Contains(err.Error(), "user 4711 is at the other end") {
			t.Error(err)
		}
	})
}

// asAnother calls a function with a new socket in a thread that is another user's.
func asAnother(t *testing.T, do func(fd int)) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		same := ^uintptr(0)
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, same, 4711, same); err != 0 {
			t.Error(err)
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		do(fd)
		_ = unix.Close(fd)
	}()
	<-done
}
