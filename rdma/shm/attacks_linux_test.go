package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

// An attacker speaks to a listener, or is connected to, by a bare socket.
type attacker struct {
	t      *testing.T
	socket *net.UnixConn
	files  []*memfd.File
}

func (a *attacker) close() {
	_ = a.socket.Close()
	for _, f := range a.files {
		_ = f.Close()
	}
}

// memory makes a memfd as this provider makes them.
func (a *attacker) memory(size int, published bool) int {
	a.t.Helper()
	create := memfd.Create
	if published {
		create = memfd.CreatePublished
	}
	f, err := create("attacker", size, memfd.Sparse)
	if err != nil {
		a.t.Fatal(err)
	}
	a.files = append(a.files, f)
	return f.FD()
}

// hello is a correct one, with its descriptors.
func (a *attacker) hello() (*hello, []int) {
	h := &hello{least: versionMin, greatest: versionMax, queuePair: 7, inbox: inboxShape{receives: 4, entries: 1, slots: 4}}
	return h, []int{a.memory(h.inbox.size(), false), a.memory(tableBytes, true), a.memory(bellBytes, false)}
}

func (a *attacker) send(packet []byte, descriptors ...int) {
	a.t.Helper()
	// The other side may have hung up already.
	_, _, _ = a.socket.WriteMsgUnix(packet, unix.UnixRights(descriptors...), nil)
}

// answer reads what the other side says. Alarms, which come by themselves, are passed
// over.
func (a *attacker) answer() string {
	a.t.Helper()
	for {
		if got := a.answerOrAlarm(); got != packetAlarm.String() {
			return got
		}
	}
}

func (a *attacker) answerOrAlarm() string {
	a.t.Helper()
	if err := a.socket.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		a.t.Fatal(err)
	}
	b := make([]byte, maxPacket)
	control := make([]byte, 128)
	n, m, _, _, err := a.socket.ReadMsgUnix(b, control)
	if err != nil || n == 0 {
		return "hung up"
	}
	messages, err := unix.ParseSocketControlMessage(control[:m])
	if err != nil {
		a.t.Error(err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			a.t.Error(err)
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	if k := packetType(b[0]); k == packetRefuse || k == packetGoodbye {
		return k.String() + ": " + string(b[1:n])
	}
	return packetType(b[0]).String()
}

// openPipe is a descriptor that is no memory.
func (a *attacker) openPipe() int {
	a.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { r.Close(); w.Close() })
	return int(r.Fd())
}

// eventfd is a descriptor of the attacker's.
func (a *attacker) eventfd(flags int) int {
	a.t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|flags)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// unsealed is a memfd that its owner can shrink under those who map it.
func (a *attacker) unsealed(size int) int {
	a.t.Helper()
	fd, err := unix.MemfdCreate("attacker", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// requestAttacks are connection requests that must be refused, with the reason.
var requestAttacks = map[string]struct {
	attack func(a *attacker)
	reason string // what the refusal says
}{
	"nothing but hanging up":      {func(a *attacker) { _ = a.socket.CloseWrite() }, ""},
	"an empty packet":             {func(a *attacker) { a.send(nil) }, ""},
	"a packet of zeroes":          {func(a *attacker) { a.send(make([]byte, maxPacket)) }, "instead of a connection request"},
	"a packet that is too long":   {func(a *attacker) { a.send(make([]byte, maxPacket+1)) }, "longer than"},
	"a packet of the wrong type":  {func(a *attacker) { a.send([]byte{byte(packetReady)}) }, "instead of a connection request"},
	"a hello cut short":           {func(a *attacker) { a.send([]byte{byte(packetHello), 'v', 'r'}) }, "malformed"},
	"a hello of another protocol": {func(a *attacker) { a.send(append([]byte{byte(packetHello)}, make([]byte, 200)...)) }, "no shm hello"},
	"a hello of a later version": {func(a *attacker) {
		h, fds := a.hello()
		h.least, h.greatest = versionMax+1, versionMax+3
		a.send(h.append(packetHello, nil), fds...)
	}, "update the older program"},
	"a hello with more private data than it says": {func(a *attacker) {
		h, fds := a.hello()
		a.send(append(h.append(packetHello, nil), 1, 2, 3), fds...)
	}, "malformed"},
	"an inbox of no receives": {func(a *attacker) {
		h, fds := a.hello()
		h.inbox.receives = 0
		a.send(h.append(packetHello, nil), fds...)
	}, "malformed"},
	"an inbox of very many slots": {func(a *attacker) {
		h, fds := a.hello()
		h.inbox.slots = 1 << 31
		a.send(h.append(packetHello, nil), fds...)
	}, "malformed"},
	"a doorbell out of range": {func(a *attacker) {
		h, fds := a.hello()
		h.bell.queue = 1 << 30
		a.send(h.append(packetHello, nil), fds...)
	}, "out of range"},
	"no descriptors": {func(a *attacker) {
		h, _ := a.hello()
		a.send(h.append(packetHello, nil))
	}, "0 descriptors"},
	"too few descriptors": {func(a *attacker) {
		h, fds := a.hello()
		a.send(h.append(packetHello, nil), fds[:2]...)
	}, "2 descriptors"},
	"one descriptor too many": {func(a *attacker) {
		h, fds := a.hello()
		a.send(h.append(packetHello, nil), append(fds, fds[0])...)
	}, "4 descriptors"},
	"very many descriptors": {func(a *attacker) {
		h, fds := a.hello()
		for range 100 {
			fds = append(fds, fds[0])
		}
		a.send(h.append(packetHello, nil), fds...)
	}, "more than"},
}

// acceptAttacks are requests that only show their faults when they are accepted.
var acceptAttacks = map[string]struct {
	attack func(a *attacker)
	reason string // in Accept's error
}{
	"an inbox that is no memory":           {func(a *attacker) { a.sendWith(0, a.openPipe()) }, "inbox"},
	"an inbox that can shrink":             {func(a *attacker) { h, _ := a.hello(); a.sendWith(0, a.unsealed(h.inbox.size())) }, "seal"},
	"an inbox that is too small":           {func(a *attacker) { a.sendWith(0, a.memory(512, false)) }, "bytes"},
	"a table that is no memory":            {func(a *attacker) { a.sendWith(1, a.openPipe()) }, ""},
	"a table that can shrink":              {func(a *attacker) { a.sendWith(1, a.unsealed(tableBytes)) }, "seal"},
	"a table that is too small":            {func(a *attacker) { a.sendWith(1, a.memory(4096, true)) }, "bytes"},
	"a doorbell that is no memory":         {func(a *attacker) { a.sendWith(2, a.openPipe()) }, ""},
	"a doorbell that can shrink":           {func(a *attacker) { a.sendWith(2, a.unsealed(bellBytes)) }, "seal"},
	"a doorbell that is too small":         {func(a *attacker) { a.sendWith(2, a.memory(4096, false)) }, "bytes"},
	"hanging up instead of a confirmation": {func(a *attacker) { a.sendWith(-1, 0); _ = a.socket.Close() }, "disconnected"},
	"nonsense instead of a confirmation":   {func(a *attacker) { a.sendWith(-1, 0); a.send([]byte{99}) }, "instead of the confirmation"},
	"a goodbye instead of a confirmation":  {func(a *attacker) { a.sendWith(-1, 0); a.send(appendText(packetGoodbye, "no")) }, "instead of the confirmation"},
	"no confirmation":                      {func(a *attacker) { a.sendWith(-1, 0) }, "timed out"},
}

// sendWith sends a correct hello in which one descriptor is replaced.
func (a *attacker) sendWith(i, fd int) {
	h, fds := a.hello()
	if i >= 0 {
		fds[i] = fd
	}
	a.send(h.append(packetHello, nil), fds...)
}

// connectedAttacks are what a peer may say once it is connected.
var connectedAttacks = map[string]struct {
	packets func(a *attacker) [][]byte
	files   func(a *attacker) []int // beside the last packet
	lives   bool                    // the connection must survive
	asked   bool                    // the victim has asked for the region of key 5
}{
	"nonsense":                  {packets: func(*attacker) [][]byte { return [][]byte{{200, 1, 2, 3}} }},
	"a second hello":            {packets: func(a *attacker) [][]byte { h, _ := a.hello(); return [][]byte{h.append(packetHello, nil)} }},
	"a second confirmation":     {packets: func(*attacker) [][]byte { return [][]byte{{byte(packetReady)}} }},
	"a packet that is too long": {packets: func(*attacker) [][]byte { return [][]byte{make([]byte, maxPacket+100)} }},
	"an alarm": {
		lives:   true,
		packets: func(*attacker) [][]byte { return [][]byte{appendAlarm(nil, 1)} },
		files:   func(a *attacker) []int { return []int{a.eventfd(unix.EFD_NONBLOCK)} },
	},
	"an alarm without a descriptor": {packets: func(*attacker) [][]byte { return [][]byte{appendAlarm(nil, 1)} }},
	"an alarm with two descriptors": {
		packets: func(*attacker) [][]byte { return [][]byte{appendAlarm(nil, 1)} },
		files:   func(a *attacker) []int { fd := a.eventfd(unix.EFD_NONBLOCK); return []int{fd, fd} },
	},
	"an alarm that is a pipe which never blocks": {
		packets: func(*attacker) [][]byte { return [][]byte{appendAlarm(nil, 1)} },
		files: func(a *attacker) []int {
			var ends [2]int
			if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
				a.t.Fatal(err)
			}
			a.t.Cleanup(func() { _, _ = unix.Close(ends[0]), unix.Close(ends[1]) })
			return ends[1:]
		},
	},
	"an alarm that is memory": {
		packets: func(*attacker) [][]byte { return [][]byte{appendAlarm(nil, 1)} },
		files:   func(a *attacker) []int { return []int{a.memory(4096, false)} },
	},
	"an alarm whose writers can block": {
		packets: func(*attacker) [][]byte { return [][]byte{appendAlarm(nil, 1)} },
		files:   func(a *attacker) []int { return []int{a.eventfd(0)} },
	},
	"a second alarm": {
		packets: func(a *attacker) [][]byte {
			a.send(appendAlarm(nil, 1), a.eventfd(unix.EFD_NONBLOCK))
			return [][]byte{appendAlarm(nil, 2)}
		},
		files: func(a *attacker) []int { return []int{a.eventfd(unix.EFD_NONBLOCK)} },
	},
	"an alarm cut short": {
		packets: func(*attacker) [][]byte { return [][]byte{appendAlarm(nil, 1)[:4]} },
		files:   func(a *attacker) []int { return []int{a.eventfd(unix.EFD_NONBLOCK)} },
	},
	"a want that is too short": {packets: func(*attacker) [][]byte { return [][]byte{{byte(packetWant), 0, 1}} }},
	"a region that nobody asked for": {
		packets: func(*attacker) [][]byte {
			return [][]byte{grant{want: want{value: 5}, found: true, key: 5, handle: 9, length: 4096}.append(nil)}
		},
		files: func(a *attacker) []int { return []int{a.memory(4096, false)} },
	},
	"an answer that nobody asked for": {packets: func(*attacker) [][]byte { return [][]byte{grant{want: want{value: 5}}.append(nil)} }},
	"another region than the one that was asked for": {
		asked: true,
		packets: func(*attacker) [][]byte {
			return [][]byte{grant{want: want{value: 6}, found: true, key: 6, handle: 9, length: 4096}.append(nil)}
		},
		files: func(a *attacker) []int { return []int{a.memory(4096, false)} },
	},
	"a region for receives that may not be written": {
		asked: true,
		packets: func(*attacker) [][]byte {
			return [][]byte{grant{want: want{byHandle: true, value: 5}, found: true, key: 5, handle: 5, length: 4096}.append(nil)}
		},
		files: func(a *attacker) []int { return []int{a.memory(4096, false)} },
	},
	"a region without a descriptor": {asked: true, packets: func(*attacker) [][]byte {
		return [][]byte{grant{want: want{value: 5}, found: true, key: 5, handle: 9, length: 4096}.append(nil)}
	}},
	"a region that is no memory": {
		asked: true,
		packets: func(*attacker) [][]byte {
			return [][]byte{grant{want: want{value: 5}, found: true, key: 5, handle: 9, length: 4096}.append(nil)}
		},
		files: func(a *attacker) []int { return []int{a.openPipe()} },
	},
	"a region that can shrink": {
		asked: true,
		packets: func(*attacker) [][]byte {
			return [][]byte{grant{want: want{value: 5}, found: true, key: 5, handle: 9, length: 4096}.append(nil)}
		},
		files: func(a *attacker) []int { return []int{a.unsealed(4096)} },
	},
	"a region of absurd length": {
		asked: true,
		packets: func(*attacker) [][]byte {
			return [][]byte{grant{want: want{value: 5}, found: true, key: 5, handle: 9, length: 1 << 60}.append(nil)}
		},
		files: func(a *attacker) []int { return []int{a.memory(4096, false)} },
	},
	"a region to pass on that nobody asked for": {
		packets: func(*attacker) [][]byte {
			return [][]byte{appendPassed(nil, grant{want: want{pass: true, value: 5}, found: true, key: 5, handle: 9, access: 2, length: 4096, state: 3}, promise{1, 3})}
		},
		files: func(a *attacker) []int { return []int{a.memory(4096, false), a.memory(tableBytes, true)} },
	},
	"a region to pass on without a promise": {
		packets: func(*attacker) [][]byte {
			return [][]byte{grant{want: want{pass: true, value: 5}, found: true, key: 5, handle: 9, access: 2, length: 4096, state: 3}.append(nil)}
		},
		files: func(a *attacker) []int { return []int{a.memory(4096, false), a.memory(tableBytes, true)} },
	},
	"a region that is passed on, with a table that can shrink": {
		asked: true,
		packets: func(*attacker) [][]byte {
			return [][]byte{appendPassed(nil, grant{want: want{value: 5}, found: true, key: 5, handle: 9, access: 2, length: 4096, state: 3}, promise{1, 3})}
		},
		files: func(a *attacker) []int { return []int{a.memory(4096, false), a.unsealed(tableBytes)} },
	},
	"a region that is passed on, with a table that is too small": {
		asked: true,
		packets: func(*attacker) [][]byte {
			return [][]byte{appendPassed(nil, grant{want: want{value: 5}, found: true, key: 5, handle: 9, access: 2, length: 4096, state: 3}, promise{1, 3})}
		},
		files: func(a *attacker) []int { return []int{a.memory(4096, false), a.memory(4096, true)} },
	},
	"a region that is passed on, for writing": {
		asked: true,
		packets: func(*attacker) [][]byte {
			return [][]byte{appendPassed(nil, grant{want: want{value: 5}, found: true, key: 5, handle: 9, access: 6, length: 4096, state: 3}, promise{1, 3})}
		},
		files: func(a *attacker) []int { return []int{a.memory(4096, false), a.memory(tableBytes, true)} },
	},
	"a question to pass on what is not there": {
		lives:   true,
		packets: func(*attacker) [][]byte { return [][]byte{want{pass: true, value: 5}.append(nil)} },
	},
	"a file that was not asked for": {
		packets: func(*attacker) [][]byte {
			return [][]byte{grant{want: want{file: true, value: 5}, found: true, key: 5, handle: 9, length: 1}.append(nil)}
		},
		files: func(a *attacker) []int { return []int{a.unsealed(4096)} },
	},
	"a file where a region was asked for": {
		asked: true,
		packets: func(*attacker) [][]byte {
			return [][]byte{grant{want: want{file: true, value: 5}, found: true, key: 5, handle: 9, length: 1}.append(nil)}
		},
		files: func(a *attacker) []int { return []int{a.unsealed(4096)} },
	},
	"very many descriptors": {
		packets: func(*attacker) [][]byte { return [][]byte{{byte(packetReady)}} },
		files: func(a *attacker) []int {
			fd, many := a.memory(4096, false), []int(nil)
			for range 200 {
				many = append(many, fd)
			}
			return many
		},
	},
	"hanging up": {packets: func(a *attacker) [][]byte { _ = a.socket.Close(); return nil }},
	// Guessing keys is answered, and opens nothing.
	"keys that open nothing": {lives: true, packets: func(*attacker) (all [][]byte) {
		for key := range uint32(64) {
			all = append(all, want{value: key}.append(nil), want{byHandle: true, value: 1<<27 + key}.append(nil))
		}
		return all
	}},
	"revoking what was never granted": {lives: true, packets: func(*attacker) [][]byte { return [][]byte{appendRevoke(nil, 12345)} }},
}

// table runs attacks one by one on a device that goes on to serve others. After
// all of them no descriptor is left.
func attackTable(t *testing.T, names []string, attack func(t *testing.T, device rdma.Device, name string)) {
	device := openDevice(t, Config{AccessTimeout: 500 * time.Millisecond})
	good := func() {
		t.Helper()
		a, b := newSide(t, device, 4096), newSide(t, device, 4096)
		a.qp, b.qp = a.pair(nil), b.pair(nil)
		connect(t, device, a.qp, b.qp)
		b.recv(1, b.sge(0, 64)...)
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 64)})
		a.expect(1, rdma.StatusSuccess)
		b.expect(1, rdma.StatusSuccess)
		for _, s := range []*side{a, b} {
			if err := s.domain.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	good()
	before := countDescriptors(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) { attack(t, device, name) })
		good()
	}
	// qemu-user keeps descriptors for itself of control messages that were cut off.
	if startsItself() {
		awaitDescriptors(t, before)
	}
}

func names[V any](table map[string]V) (all []string) {
	for name := range table {
		all = append(all, name)
	}
	return all
}

// accept accepts the next request.
func accept(ctx context.Context, l rdma.Listener, qp rdma.QueuePair) error {
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	return r.Accept(ctx, qp, nil)
}

func dialAttacker(t *testing.T, address string) *attacker {
	t.Helper()
	socket, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: address, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	a := &attacker{t: t, socket: socket}
	t.Cleanup(a.close)
	return a
}

// Whatever comes instead of a connection request is refused with a reason, and
// reaches no Accept.
func TestAttacksOnListener(t *testing.T) {
	attackTable(t, names(requestAttacks), func(t *testing.T, device rdma.Device, name string) {
		each := requestAttacks[name]
		l, err := device.Listen(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		a := dialAttacker(t, l.Address())
		each.attack(a)
		got := a.answer()
		if identity := fmt.Sprintf("process %d", os.Getpid()); strings.Contains(got, l.Address()) || strings.Contains(got, identity) {
			t.Errorf("the peer is told of a socket or a process: %q", got)
		}
		if !strings.HasPrefix(got, "refuse: ") && got != "hung up" || !strings.Contains(got, each.reason) {
			t.Errorf("the answer is %q, want a refusal that says %q", got, each.reason)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Accept(ctx); err == nil {
			t.Error("the request reaches Accept")
		}
	})
}

// A request whose faults show only when it is accepted fails Accept, within its
// deadline, and nothing else.
func TestAttacksOnAccept(t *testing.T) {
	attackTable(t, names(acceptAttacks), func(t *testing.T, device rdma.Device, name string) {
		each := acceptAttacks[name]
		l, err := device.Listen(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		s := newSide(t, device, 4096)
		s.qp = s.pair(nil)
		a := dialAttacker(t, l.Address())
		each.attack(a)
		r, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		limit := 30 * time.Second
		if each.reason == "timed out" {
			limit = 200 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		err = r.Accept(ctx, s.qp, nil)
		if err == nil || !strings.Contains(err.Error(), each.reason) {
			t.Errorf("Accept: %v, want an error that says %q", err, each.reason)
		}
		if state := s.qp.State(); state != rdma.StateError {
			t.Errorf("the queue pair is %s", state)
		}
		if err := s.domain.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A listener that is none: Connect ends within its deadline.
func TestAttacksOnConnect(t *testing.T) {
	attacks := map[string]struct {
		attack func(a *attacker)
		is     error
	}{
		"silence":                   {func(*attacker) {}, rdma.ErrTimeout},
		"hanging up":                {func(a *attacker) { _ = a.socket.Close() }, rdma.ErrDisconnected},
		"nonsense":                  {func(a *attacker) { a.send([]byte{77, 1, 2}) }, errPacket},
		"a packet that is too long": {func(a *attacker) { a.send(make([]byte, maxPacket+1)) }, errPacket},
		"an answer cut short":       {func(a *attacker) { a.send([]byte{byte(packetAccept), 1, 2}) }, errPacket},
		"an answer without descriptors": {func(a *attacker) {
			h, _ := a.hello()
			a.send(h.append(packetAccept, nil))
		}, errPacket},
		"an answer with an inbox that can shrink": {func(a *attacker) {
			h, fds := a.hello()
			a.send(h.append(packetAccept, nil), append([]int{a.unsealed(h.inbox.size())}, fds[1:]...)...)
		}, nil},
		"a refusal that is too long": {func(a *attacker) { a.send(append([]byte{byte(packetRefuse)}, make([]byte, 3000)...)) }, errPacket},
	}
	attackTable(t, names(attacks), func(t *testing.T, device rdma.Device, name string) {
		each := attacks[name]
		address := filepath.Join(t.TempDir(), "socket")
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: address, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var attacking sync.WaitGroup
		defer attacking.Wait()
		over := make(chan struct{})
		defer close(over)
		attacking.Go(func() {
			socket, err := l.AcceptUnix()
			if err != nil {
				t.Error(err)
				return
			}
			a := &attacker{t: t, socket: socket}
			defer a.close()
			a.answer() // the request
			each.attack(a)
			<-over
		})
		s := newSide(t, device, 4096)
		s.qp = s.pair(nil)
		limit := 30 * time.Second
		if each.is == rdma.ErrTimeout {
			limit = 300 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err = s.qp.Connect(ctx, address, nil)
		if err == nil || each.is != nil && !errors.Is(err, each.is) {
			t.Errorf("Connect: %v, want one that wraps %v", err, each.is)
		}
		if err := s.domain.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What a connected peer says by its socket fails its own connection at most, and
// touches no memory.
func TestAttacksOnConnection(t *testing.T) {
	attackTable(t, names(connectedAttacks), func(t *testing.T, device rdma.Device, name string) {
		each := connectedAttacks[name]
		l, err := device.Listen(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		s := newSide(t, device, 4096)
		s.qp = s.pair(nil)
		fill(s.memory.Bytes(), 9)
		content := bytes.Clone(s.memory.Bytes())
		a := dialAttacker(t, l.Address())
		a.sendWith(-1, 0)
		a.send([]byte{byte(packetReady)})
		if err := accept(t.Context(), l, s.qp); err != nil {
			t.Fatal(err)
		}
		if got := a.answer(); got != "accept" {
			t.Fatalf("the answer is a %s", got)
		}
		if each.asked {
			if _, err := s.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpWrite, SGEs: s.sge(0, 8), Remote: rdma.Remote{Key: 5}}}); err != nil {
				t.Fatal(err)
			}
			if got := a.answer(); got != "want" {
				t.Fatalf("the victim sends a %s", got)
			}
		}
		packets := each.packets(a)
		var answering sync.WaitGroup
		if each.lives {
			answering.Go(func() { // each want is answered by: there is none
				for range packets {
					if packets[0][0] != byte(packetWant) {
						return
					}
					if got := a.answer(); got != "region" {
						t.Errorf("the answer is a %s", got)
					}
				}
			})
		}
		for i, p := range packets {
			var files []int
			if each.files != nil && i == len(packets)-1 {
				files = each.files(a)
			}
			a.send(p, files...)
		}
		answering.Wait()
		if each.lives {
			// One more exchange, so that all before it has been looked at.
			a.send(want{value: 1}.append(nil))
			if got := a.answer(); got != "region" {
				t.Errorf("the answer is a %s", got)
			}
			if state := s.qp.State(); state != rdma.StateConnected {
				t.Errorf("the queue pair is %s: %v", state, s.qp.Err())
			}
		} else {
			select {
			case <-s.qp.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("the connection goes on")
			}
			if err := s.qp.Err(); !errors.Is(err, rdma.ErrDisconnected) {
				t.Errorf("Err: %v", err)
			}
		}
		if !bytes.Equal(s.memory.Bytes(), content) {
			t.Error("memory has changed")
		}
		if err := s.domain.Close(); err != nil {
			t.Error(err)
		}
	})
}
