package shm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

func startInside(t *testing.T, part string) *side {
	t.Helper()
	if !startsItself() {
		t.Skip(emulated)
	}
	s, err := openSide(openDevice(t, Config{AccessTimeout: 100 * time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	s.t = t
	s.start(part, nil)
	return s
}

// A peer that is suspended inside an access keeps neither regions nor queue
// pairs from closing.
func TestSuspendedInsideAccess(t *testing.T) {
	s := startInside(t, "stuck")
	qp := s.qp.(*queuePair)
	for i := 0; qp.inbox.access().Load()&1 == 0; i++ {
		pause(i)
	}
	if err := s.memory.Close(); err != nil {
		t.Fatal(err)
	}
	<-s.qp.Done()
	if err := s.qp.Err(); !errors.Is(err, rdma.ErrTimeout) {
		t.Fatalf("error %v", err)
	}
	// The queue pair is closed, and says that memory of other regions is not safe.
	if err := s.qp.Close(); !errors.Is(err, rdma.ErrTimeout) {
		t.Fatalf("error %v", err)
	}
	if state := s.qp.State(); state != rdma.StateClosed {
		t.Fatal(state)
	}
}

// A peer that dies inside an access is waited for no longer than it takes to
// notice.
func TestKilledInsideAccess(t *testing.T) {
	s := startInside(t, "killed")
	<-s.qp.Done()
	if err := s.qp.Err(); !errors.Is(err, rdma.ErrDisconnected) {
		t.Fatalf("error %v", err)
	}
	if err := s.memory.Close(); err != nil {
		t.Fatal(err)
	}
}

// The only shared receive goes to others when a peer has died inside an access.
func TestKilledWithSharedReceive(t *testing.T) {
	device := openDevice(t, Config{})
	s, other := newSide(t, device, 4096), newSide(t, device, 4096)
	srq, err := s.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := srq.PostRecv([]rdma.RecvRequest{{ID: 7, SGEs: s.sge(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	shared := func(c *rdma.QueuePairConfig) { c.SharedReceive = srq }
	s.qp = s.pair(shared)
	s.start("killed", nil)
	<-s.qp.Done()
	to := s.pair(shared)
	other.qp = other.pair(nil)
	connect(t, device, other.qp, to)
	other.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: other.sge(0, 64)})
	other.expect(1, rdma.StatusSuccess)
	if c := s.expect(7, rdma.StatusSuccess); c.QueuePair != to.Number() {
		t.Fatalf("completion %+v", c)
	}
}

const nobody = 65534

// asNobody makes a child run as another user, from a copy of this binary that
// the user can read.
func asNobody(t *testing.T) func(*exec.Cmd) {
	t.Helper()
	if !startsItself() {
		t.Skip(emulated)
	}
	if os.Geteuid() != 0 {
		t.Skip("only the superuser can start a process of another user")
	}
	directory := t.TempDir()
	for d := directory; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // another user executes what is in there
			t.Fatal(err)
		}
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(executable)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	path := filepath.Join(directory, "child")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755) //nolint:gosec // another user executes it
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return func(c *exec.Cmd) {
		c.Path = path
		c.Dir = directory
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		c.Env = append(c.Env, allowVariable+"=0")
	}
}

// A process of another user is refused where it is not named, and where this host may
// refuse pages that it has mapped. It is told which, and no number of a user.
func TestOtherUserIsRefused(t *testing.T) {
	defer func(check func() error) { checkForeign = check }(checkForeign)
	for _, c := range []struct {
		name   string
		config Config
		host   error // what checkForeign says
		says   string
	}{
		{"not named", Config{}, nil, "AllowUIDs"},
		{"strict overcommit", Config{AllowUIDs: []uint32{nobody}}, memfd.ErrStrictOvercommit, "vm.overcommit_memory is 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			change := asNobody(t)
			checkForeign = func() error { return c.host }
			device := openDevice(t, c.config)
			l, err := device.Listen(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			limited, stop := context.WithTimeout(t.Context(), 20*time.Second) // for one that is let in
			defer stop()
			command := exec.CommandContext(limited, os.Args[0])
			command.Env = append(os.Environ(), partVariable+"=reader", addressVariable+"="+l.Address())
			change(command)
			var text bytes.Buffer
			command.Stderr = &text
			if err := command.Run(); err == nil {
				t.Fatal("connected")
			}
			if !strings.Contains(text.String(), c.says) || strings.Contains(text.String(), "65534") {
				t.Fatalf("the child says: %s", text.String())
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if r, err := l.Accept(ctx); err == nil {
				t.Fatalf("a request of %s reached Accept", r.RemoteAddress())
			}
		})
	}
}

// A process of another user that is allowed gets what its requests are about.
func TestOtherUserIsAllowed(t *testing.T) {
	change := asNobody(t)
	s, err := openSide(openDevice(t, Config{AllowUIDs: []uint32{nobody}}))
	if err != nil {
		t.Fatal(err)
	}
	s.t = t
	fill(s.memory.Bytes()[:4096], 5)
	s.start("reader", change)
	s.expect(0, rdma.StatusSuccess)
	m := s.memory.Bytes()
	if !bytes.Equal(m[4096:8192], m[:4096]) {
		t.Fatal("what was read and written back differs")
	}
	// It cannot have what none of its requests may be about.
	qp := s.qp.(*queuePair)
	hidden, err := s.domain.Allocate(4096, rdma.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []want{{byHandle: true, value: hidden.(*region).handle}, {value: hidden.Key()}} {
		if _, _, ok := qp.domain.grantFor(w, qp, qp.conn.foreign); ok {
			t.Errorf("%+v is granted to another user", w)
		}
	}
	if _, _, ok := qp.domain.grantFor(want{byHandle: true, value: s.memory.(*region).handle}, qp, true); !ok {
		t.Error("a region with a posted receive is not granted")
	}
}

// What a peer may only read it cannot even map for writing.
func TestReadOnlyRegion(t *testing.T) {
	a, b := newSides(t, 4096, nil)
	region, err := b.domain.Allocate(4096, rdma.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	fill(region.Bytes(), 3)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: a.sge(0, 4096), Remote: rdma.Remote{Address: region.Address(), Key: region.Key()}})
	a.expect(1, rdma.StatusSuccess)
	if !bytes.Equal(a.memory.Bytes(), region.Bytes()) {
		t.Fatal("a Read got other bytes")
	}
	peer := a.qp.(*queuePair).peer.Load()
	mapped := peer.find(want{value: region.Key()})
	if err := syscall.Mprotect(mapped.memory, syscall.PROT_READ|syscall.PROT_WRITE); err == nil {
		t.Fatal("a region for reading was made writable")
	}
}

func TestAddresses(t *testing.T) {
	directory := t.TempDir()
	device := openDevice(t, Config{SocketDirectory: directory})
	l, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(l.Address()) != directory {
		t.Errorf("listens at %s", l.Address())
	}
	if _, err := device.Listen(t.Context(), l.Address()); err == nil {
		t.Error("two listeners at one address")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// The socket of a process that crashed does not keep others from listening.
	path := filepath.Join(directory, "stale")
	stale, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.Bind(stale, &syscall.SockaddrUnix{Name: path}), syscall.Close(stale)); err != nil {
		t.Fatal(err)
	}
	if l, err = device.Listen(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"relative", "@", "/" + strings.Repeat("x", 200), "@a\x00b"} {
		if l, err := device.Listen(t.Context(), address); err == nil {
			l.Close()
			t.Errorf("listens at %q", address)
		}
	}
	s := newSide(t, device, 4096)
	for _, address := range []string{"@verbena-nobody-is-here", path} {
		_, err := s.pair(nil).Connect(t.Context(), address, nil)
		if err == nil || !strings.Contains(err.Error(), "share") {
			t.Errorf("connecting to %s: %v", address, err)
		}
	}
}
