package pressure

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/testneed"
)

// A report of the kernel ends the wait; so does wake, for good. A socket's urgent
// data is reported as stalls are.
func TestPoller(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	here, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	f, err := here.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	p := newPoller([]*os.File{f})
	if p == nil {
		t.Fatal("no poller")
	}
	defer p.close()
	if p.wait(time.Millisecond) {
		t.Error("reported without a reason")
	}
	raw, err := there.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	urgent := func() {
		if err := raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte{1}, unix.MSG_OOB, nil) }); err != nil {
			t.Error(err)
		}
	}
	urgent()
	if !p.wait(time.Hour) {
		t.Error("not reported")
	}
	woken := make(chan struct{})
	read := make([]byte, 1) // or the report stays
	if rc, err := here.(*net.TCPConn).SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _, _, _ = unix.Recvfrom(int(fd), read, unix.MSG_OOB) })
	}
	go func() {
		defer close(woken)
		p.wait(time.Hour)
	}()
	p.wake()
	<-woken
	p.wait(time.Hour)
}

// The kernel takes the triggers, and the files are given back.
func TestTriggers(t *testing.T) {
	if _, err := os.Stat(machineStalls); errors.Is(err, fs.ErrNotExist) {
		testneed.Missing(t, "no "+machineStalls, "a kernel with PSI")
	}
	files := At("/").triggers()
	if len(files) == 0 {
		f, err := os.OpenFile(machineStalls, os.O_RDWR, 0)
		if err == nil {
			_, err = f.WriteString(trigger)
			f.Close()
		}
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EOPNOTSUPP) {
			testneed.Missing(t, "no triggers: "+err.Error(), "the superuser's rights, or a newer kernel")
		}
		t.Fatalf("no triggers, although they could be opened: %v", err)
	}
	p := newPoller(files)
	if p == nil {
		t.Fatal("the kernel does not poll its own files")
	}
	p.wait(time.Millisecond)
	p.wake()
	p.wait(time.Hour)
	p.close()
	for _, f := range files {
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("left open: %v", err)
		}
	}
}

// The watcher of the process sees its machine, and leaves nothing behind.
func TestProcess(t *testing.T) {
	r := Process().Now()
	if r.Limit == 0 || r.Used == 0 || r.LimitOf == "" {
		t.Errorf("nothing is known: %+v", r)
	}
	Process().Subscribe(func(Reading) {}, nil)()
}
