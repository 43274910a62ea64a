package shuffle_test

import (
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/shuffle"
)

// When a spill file takes no more, what did not go into it is not taken for spilt, nor what was written just before: the job ends with
// the reason, and no record is there twice.
func TestSpillFileIsFull(t *testing.T) {
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	x, err := shuffle.Join(t.Context(), shuffle.Config{Memory: 64 << 10, Spill: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 16 << 10, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	for n := 0; err == nil; n++ { // without a limit for ever
		err = x.Sender(0).Send(0, record(0, 0, n, 3000))
	}
	<-x.Done()
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if said := x.Err().Error(); !strings.Contains(said, "spill to") || !strings.Contains(said, syscall.EFBIG.Error()) {
		t.Errorf("%s, after %v", said, err)
	}
	if spilt := x.Spilt(0); spilt != 0 {
		t.Errorf("%d items are taken for spilt", spilt)
	}
}
