package shm

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

// asUser calls f on a thread of another user, which only the superuser can make.
// What f connects by is of that user to the kernel, and to the peer.
func asUser(t *testing.T, user uint32, f func()) {
	t.Helper()
	if !startsItself() {
		t.Skip(emulated)
	}
	if os.Geteuid() != 0 {
		t.Skip("only the superuser can act for another user")
	}
	const keep = ^uintptr(0)
	failed := make(chan error)
	go func() {
		defer close(failed)
		// The thread is given back only if it is the superuser's again.
		runtime.LockOSThread()
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(user), keep); err != 0 {
			failed <- err
			return
		}
		f()
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); err != 0 {
			failed <- err
			return
		}
		runtime.UnlockOSThread()
	}()
	for err := range failed {
		t.Fatal("setresuid:", err)
	}
}

// dialSilent opens sockets that say nothing, until the deadline of one.
func dialSilent(t *testing.T, address string, count int) (sockets []net.Conn) {
	t.Helper()
	for range count {
		var d net.Dialer
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		c, err := d.DialContext(ctx, "unixpacket", address)
		cancel()
		if err != nil {
			t.Error(err)
			break
		}
		sockets = append(sockets, c)
	}
	return sockets
}

func closeAll(sockets []net.Conn) {
	for _, c := range sockets {
		c.Close()
	}
}

// serve accepts requests until the listener closes, the first one to the side's
// queue pair, if it has one.
func serve(t *testing.T, s *side, l rdma.Listener) (wait func()) {
	done := make(chan struct{})
	first := s.qp
	go func() {
		defer close(done)
		for {
			r, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			qp := first
			if first = nil; qp == nil {
				qp = s.pair(nil)
			}
			if err := r.Accept(t.Context(), qp, nil); err != nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() { // also of a test that skips in the middle
		l.Close()
		<-done
	})
	return func() { <-done }
}

// Sockets that say nothing, more than a listener reads from, keep nobody from
// connecting. The oldest ones give way and are told that the listener is busy.
func TestSilentSockets(t *testing.T) {
	device := openDevice(t, Config{})
	l, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	s, served := newSide(t, device, 4096), newSide(t, device, 4096)
	wait := serve(t, served, l)
	before := countDescriptors(t)
	sockets := dialSilent(t, l.Address(), 2*maxReading)
	defer closeAll(sockets)
	for range 3 {
		if _, err := s.pair(nil).Connect(t.Context(), l.Address(), nil); err != nil {
			t.Fatal("Connect behind them:", err)
		}
	}
	first := &attacker{t: t, socket: sockets[0].(*net.UnixConn)}
	if got := first.answer(); got != "reject" {
		t.Errorf("the oldest one's answer is a %s", got)
	}
	// Their own ends are here, too, and so are six ends of the good connections.
	if open := countDescriptors(t) - before; open > len(sockets)+maxReading+16 {
		t.Errorf("%d silent sockets hold %d descriptors", len(sockets), open)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wait()
}

// Of other users' sockets nothing is read, and none takes a place.
func TestSilentSocketsOfOthers(t *testing.T) {
	device := openDevice(t, Config{})
	l, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	s, served := newSide(t, device, 4096), newSide(t, device, 4096)
	wait := serve(t, served, l)
	var sockets []net.Conn
	asUser(t, nobody, func() { sockets = dialSilent(t, l.Address(), 2*maxReading) })
	defer closeAll(sockets)
	if _, err := s.pair(nil).Connect(t.Context(), l.Address(), nil); err != nil {
		t.Fatal("Connect behind them:", err)
	}
	silent := &l.(*listener).silent
	silent.mu.Lock()
	count := silent.count
	silent.mu.Unlock()
	if count != 0 {
		t.Errorf("%d sockets of another user have places", count)
	}
	for _, c := range sockets {
		// What it sends before it reads does not take the refusal away.
		_, _ = c.Write([]byte("anything"))
		a := &attacker{t: t, socket: c.(*net.UnixConn)}
		if got := a.answer(); got != "refuse: "+refusal {
			t.Fatalf("the answer to another user is %q", got)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wait()
}

// Requests of another user that nobody accepts leave room for those of others.
func TestWaitingRequestsOfOthers(t *testing.T) {
	device := openDevice(t, Config{AllowUIDs: []uint32{nobody}})
	l, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var attackers []*attacker
	asUser(t, nobody, func() {
		for range maxWaitingOther + 1 {
			a := dialAttacker(t, l.Address())
			a.sendWith(-1, 0)
			attackers = append(attackers, a)
		}
	})
	refused := make(chan string)
	for _, a := range attackers {
		go func() { refused <- a.answer() }()
	}
	if got := <-refused; got != "reject" {
		t.Errorf("the answer to one too many is %q", got)
	}
	// Each that is taken makes room for another.
	r, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Reject(nil)
	if got := <-refused; got != "reject" {
		t.Errorf("the answer is %q", got)
	}
	asUser(t, nobody, func() {
		a := dialAttacker(t, l.Address())
		a.sendWith(-1, 0)
		attackers = append(attackers, a)
	})
	for range maxWaitingOther {
		r, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Reject(nil)
	}
	for range len(attackers) - 3 {
		<-refused
	}
}

// connPair returns a connection and the socket at its other end.
func connPair(t *testing.T) (*conn, *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		ends[i] = c.(*net.UnixConn)
	}
	t.Cleanup(func() { ends[0].Close(); ends[1].Close() })
	c, err := newConn(ends[0], &Config{})
	if err != nil {
		t.Fatal(err)
	}
	return c, ends[1]
}

// A packet that there is room for is written, although its time is over before the
// writer has a processor. One for which there is none is given up.
func TestLatePacketIsWritten(t *testing.T) {
	c, other := connPair(t)
	c.limit = time.Nanosecond
	packet := make([]byte, maxPacket)
	var err error
	written := 0
	for ; err == nil; written++ {
		err = c.write(packet)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || written == 1 {
		t.Fatalf("packet %d: %v", written, err)
	}
	for range written - 1 {
		if n, err := other.Read(packet); n != len(packet) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := c.write(packet); err != nil {
		t.Error("with room again:", err)
	}
}

// The user with the most silent sockets loses the oldest that has sent nothing.
func TestWhoGivesWay(t *testing.T) {
	s := silent{byUser: make(map[uint32][]*conn)}
	var others []*net.UnixConn
	next := func(user uint32) *conn {
		c, other := connPair(t)
		others = append(others, other)
		c.peer.Uid = user
		return c
	}
	few := []*conn{next(1), next(1), next(1)}
	for _, c := range few {
		s.add(c)
	}
	var many []*conn
	for range maxReading {
		c := next(2)
		many = append(many, c)
		if len(many) == 2 {
			// A request that has come stays.
			if _, err := others[len(others)-1].Write([]byte("request")); err != nil {
				t.Fatal(err)
			}
		}
		s.add(c)
	}
	if s.count != maxReading {
		t.Errorf("%d sockets", s.count)
	}
	for i, c := range many {
		if gaveWay := s.remove(c); gaveWay != (i == 0 || i == 2 || i == 3) {
			t.Errorf("socket %d of many: gave way %v", i, gaveWay)
		}
	}
	for _, c := range few {
		if s.remove(c) {
			t.Error("a socket of another user gave way")
		}
	}
	if s.count != 0 || len(s.byUser) != 0 {
		t.Errorf("%d sockets of %d users are left", s.count, len(s.byUser))
	}
}

// What a peer is told of a socket that failed does not name it.
func TestNoRequestNamesNoSocket(t *testing.T) {
	for _, life := range []func() (context.Context, context.CancelFunc){
		func() (context.Context, context.CancelFunc) { return context.WithCancel(context.Background()) },
		func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return ctx, cancel
		},
	} {
		ctx, cancel := life()
		defer cancel()
		l := &listener{context: ctx}
		for _, err := range []error{
			&net.OpError{Op: "read", Net: "unixpacket", Source: &net.UnixAddr{Name: "@verbena-secret"}, Err: os.ErrDeadlineExceeded},
			io.EOF, errors.New("read @verbena-secret"),
		} {
			if got := l.noRequest(err); strings.Contains(got, "secret") {
				t.Errorf("the peer is told %q", got)
			}
		}
	}
}
