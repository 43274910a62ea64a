package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/usermem"
	"github.com/verbena-data/verbena/rdma"
)

// pages maps anonymous memory as an application does.
func pages(t testing.TB, size, protection int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, protection, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if Forget(b) == nil { // whatever is in use stays mapped
			_ = unix.Munmap(b)
		}
	})
	return b
}

func newMapping(t testing.TB, size int) *Mapping {
	t.Helper()
	m, err := NewMapping(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// Memory of a Mapping is exposed in place on every transport, also part of it, and is
// still there when the exposure has ended.
func TestExposeMapping(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		m := newMapping(t, 1<<20)
		copy(m.Bytes(), pattern(1<<20, 1))
		part := m.Bytes()[4096+8 : 300_008]
		x, err := b.Expose(p.ctx, ExposeConfig{Memory: part, Rights: allRights})
		if err != nil {
			t.Fatal(err)
		}
		token := x.Token()
		if token.Len() != len(part) || &x.Bytes()[0] != &part[0] {
			t.Fatal(token.Len())
		}
		into := make([]byte, len(part))
		if err := a.Get(p.ctx, token, 0, into); err != nil || !bytes.Equal(into, part) {
			t.Fatal("a Get has read something else:", err)
		}
		if err := a.Put(p.ctx, token, 1000, pattern(5000, 7)); err != nil {
			t.Fatal(err)
		}
		if err := a.Get(p.ctx, token, 0, into[:1]); err != nil { // behind the Put
			t.Fatal(err)
		}
		if !bytes.Equal(part[1000:6000], pattern(5000, 7)) {
			t.Fatal("a Put has written somewhere else")
		}
		if atomics(a) {
			if _, err := a.FetchAdd(p.ctx, token, 80, 5); err != nil {
				t.Fatal(err)
			}
			if got := binary.NativeEndian.Uint64(part[80:]); got != binary.NativeEndian.Uint64(into[80:])+5 {
				t.Fatal(got)
			}
		}
		if err := a.Get(p.ctx, token, len(part)-7, into[:8]); !errors.Is(err, ErrBounds) {
			t.Fatal(err)
		}
		if err := m.Close(); !errors.Is(err, ErrInUse) {
			t.Fatal("closed while exposed:", err)
		}
		// The same memory may be exposed twice, with other rights.
		y, err := b.Expose(p.ctx, ExposeConfig{Memory: part[:100], Rights: MayRead})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Get(p.ctx, y.Token(), 0, into[:100]); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(x.Close(), y.Close(), m.Close()); err != nil {
			t.Fatal(err)
		}
		if all, _ := registrationsOf(b).count(); all != 0 {
			t.Errorf("%d registrations are left", all)
		}
		closeBoth(t, a, b)
	})
}

// Any mapping will do, but over shared memory, where the peer has to map it too.
func TestExposeAnonymous(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		memory := pages(t, 64<<10, unix.PROT_READ|unix.PROT_WRITE)
		x, err := b.Expose(p.ctx, ExposeConfig{Memory: memory, Rights: MayRead | MayWrite})
		if w.transport == "shm" {
			if !errors.Is(err, ErrMemory) || !errors.Is(err, rdma.ErrUnsupported) || errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "NewMapping") {
				t.Fatal(err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Put(p.ctx, x.Token(), 5, pattern(1000, 3)); err != nil {
			t.Fatal(err)
		}
		if err := a.Get(p.ctx, x.Token(), 0, make([]byte, 1)); err != nil || !bytes.Equal(memory[5:1005], pattern(1000, 3)) {
			t.Fatal("a Put has written somewhere else:", err)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		memory[5] = 0 // still mapped
		closeBoth(t, a, b)
	})
}

var escapes []byte

// What the runtime cannot use it refuses, with the reason.
func TestUserMemoryRefused(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{SendMemory: 8 << 20}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		escapes = make([]byte, 4096)
		readOnly := pages(t, 4096, unix.PROT_READ)
		file := t.TempDir() + "/file"
		fd, err := unix.Open(file, unix.O_CREAT|unix.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, 4096); err != nil {
			t.Fatal(err)
		}
		mapped, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(mapped) }()
		truncatable := usermem.ErrTruncatable
		if user, ok := registrationsOf(a).domain.(rdma.RegisteringDomain); ok && user.Pins() {
			truncatable = nil // the device holds the pages
		}
		for name, c := range map[string]struct {
			memory []byte
			want   error
		}{
			"Go heap":         {escapes, usermem.ErrGo},
			"part of it":      {escapes[100:108], usermem.ErrGo},
			"a file":          {mapped, truncatable},
			"for reading":     {readOnly, ErrRights},
			"more than there": {pages(t, 9<<20, unix.PROT_READ|unix.PROT_WRITE), ErrTooLong},
		} {
			x, err := b.Expose(p.ctx, ExposeConfig{Memory: c.memory, Rights: allRights &^ MayAtomic})
			if !errors.Is(err, c.want) || c.want != nil && c.want != ErrTooLong && !errors.Is(err, ErrMemory) {
				t.Errorf("%s: exposed: %v", name, err)
			}
			if err == nil {
				_ = x.Close()
			}
			if c.want == ErrRights {
				continue
			}
			buffer, err := a.Wrap(p.ctx, c.memory)
			if !errors.Is(err, c.want) {
				t.Errorf("%s: wrapped: %v", name, err)
			}
			if err == nil {
				buffer.Release()
			}
		}
		if err := Forget(mapped); err != nil {
			t.Error(err)
		}
		if _, err := b.Expose(p.ctx, ExposeConfig{Memory: readOnly, Size: 1, Rights: MayRead}); !errors.Is(err, ErrMemory) {
			t.Error(err)
		}
		if _, err := a.Wrap(p.ctx, nil); !errors.Is(err, ErrMemory) {
			t.Error(err)
		}
		for _, e := range []*Endpoint{a, b} {
			if all, _ := registrationsOf(e).count(); all != 0 {
				t.Errorf("%d registrations are left", all)
			}
			if used, _ := registrationsOf(e).room.inUse(); used != 0 {
				t.Errorf("%d bytes are counted", used)
			}
		}
		sendOne(t, p.ctx, a, b)
		closeBoth(t, a, b)
	})
}

// Memory of the application is sent, put and got from where it lies, and is registered
// once.
func TestWrap(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		_, token := exposeTo(t, b, 1<<20, allRights)
		memory := pages(t, 1<<20, unix.PROT_READ|unix.PROT_WRITE)
		for i, n := range []int{1, 100, 5000, 300_000, 1 << 20} {
			copy(memory, pattern(n, i))
			buffer, err := a.Wrap(p.ctx, memory[:n])
			if err != nil {
				t.Fatal(err)
			}
			buffer.Retain()
			if err := a.SendBuffer(p.ctx, 3, []byte("head"), buffer); err != nil {
				t.Fatal(err)
			}
			m, err := b.Receive(p.ctx)
			if err != nil || !bytes.Equal(m.Bytes(), append([]byte("head"), pattern(n, i)...)) {
				t.Fatal("another message has arrived:", err)
			}
			m.Release()
			if err := a.Settled(p.ctx, buffer); err != nil {
				t.Fatal(err)
			}
			if err := a.PutBuffer(p.ctx, token, 0, buffer, 0, n); err != nil {
				t.Fatal(err)
			}
			clear(memory)
			if err := a.GetBuffer(p.ctx, token, 0, buffer, 0, n); err != nil || !bytes.Equal(memory[:n], pattern(n, i)) {
				t.Fatal("a Get has read something else:", err)
			}
			if err := Forget(memory[:1]); !errors.Is(err, ErrInUse) {
				t.Fatal(err)
			}
			if err := a.Settled(p.ctx, buffer); err != nil {
				t.Fatal(err)
			}
			buffer.Release()
		}
		r := registrationsOf(a)
		if all, idle := r.count(); all != idle || all == 0 {
			t.Errorf("%d registrations, %d of them idle", all, idle)
		}
		if err := Forget(memory[4096:8192]); err != nil {
			t.Error(err)
		}
		if all, _ := r.count(); all != 0 {
			t.Errorf("%d registrations are left", all)
		}
		// For reading only.
		constant := pages(t, 8192, unix.PROT_READ)
		buffer, err := a.Wrap(p.ctx, constant)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.GetBuffer(p.ctx, token, 0, buffer, 0, 8); !errors.Is(err, ErrRights) {
			t.Error(err)
		}
		if err := a.PutBuffer(p.ctx, token, 0, buffer, 0, 8192); err != nil {
			t.Error(err)
		}
		buffer.Release()
		sendOne(t, p.ctx, a, b)
		closeBoth(t, a, b)
	})
}

// Many who use the same memory at once register it once; what is idle gives way to
// what is wanted; and nothing is left.
func TestRegistrationsAtOnce(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{SendMemory: 8 << 20}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		const size = 3 << 20
		var memory [4][]byte
		for i := range memory {
			memory[i] = pages(t, size, unix.PROT_READ|unix.PROT_WRITE)
		}
		r := registrationsOf(a)
		var wg sync.WaitGroup
		held := make(chan *Buffer, 16)
		for range 16 {
			wg.Go(func() {
				buffer, err := a.Wrap(p.ctx, memory[0])
				if err != nil {
					t.Error(err)
					return
				}
				held <- buffer
			})
		}
		wg.Wait()
		if all, _ := r.count(); all != 1 {
			t.Errorf("the same memory is registered %d times", all)
		}
		for range 16 {
			(<-held).Release()
		}
		// Four of 3 MiB take turns in 8 MiB.
		for i := range 16 {
			wg.Go(func() {
				for j := range 10 {
					buffer, err := a.Wrap(p.ctx, memory[(i+j)%4][i*100:])
					if err != nil {
						t.Error(err)
						return
					}
					buffer.Release()
				}
			})
		}
		wg.Wait()
		if used, _ := r.room.inUse(); used > 8<<20 {
			t.Errorf("%d bytes are registered", used)
		}
		// One that cannot be had does not wait for ever, and leaves nothing.
		x, err := a.Wrap(p.ctx, memory[0])
		if err != nil {
			t.Fatal(err)
		}
		y, err := a.Wrap(p.ctx, memory[1])
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(p.ctx)
		failed := make(chan error)
		go func() {
			_, err := a.Wrap(ctx, memory[2])
			failed <- err
		}()
		for _, waiting := r.room.inUse(); waiting == 0; _, waiting = r.room.inUse() {
			runtime.Gosched()
		}
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		x.Release()
		y.Release()
		for _, m := range memory {
			if err := Forget(m); err != nil {
				t.Error(err)
			}
		}
		if used, _ := r.room.inUse(); used != 0 {
			t.Errorf("%d bytes are still registered", used)
		}
		closeBoth(t, a, b)
	})
}

// Who finds as many registrations in use as there may be waits for one, and only as long as
// its context and its endpoint last. Of those that nobody uses, the oldest gives way.
func TestRegistrationsByNumber(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		gone, other := p.connect(t, w.transport)
		r := registrationsOf(a)
		const size = 64
		m := newMapping(t, (maxRegistrations+2)*size)
		piece := func(i int) []byte { return m.Bytes()[i*size:][:size] }
		var held []*Buffer
		for i := range maxRegistrations {
			buffer, err := a.Wrap(p.ctx, piece(i))
			if err != nil {
				t.Fatalf("piece %d: %v", i, err)
			}
			held = append(held, buffer)
		}

		type got struct {
			buffer *Buffer
			err    error
		}
		wrap := func(ctx context.Context, e *Endpoint) chan got {
			came := make(chan got, 1)
			go func() {
				buffer, err := e.Wrap(ctx, piece(maxRegistrations))
				came <- got{buffer, err}
			}()
			return came
		}
		waiting := func(n int) {
			t.Helper()
			p.until(t, "somebody waits", func() bool { return r.stats().Waiting == n })
		}
		ctx, cancel := context.WithCancel(p.ctx)
		givesUp := wrap(ctx, a)
		waiting(1)
		cancel()
		if g := <-givesUp; !errors.Is(g.err, context.Canceled) || errors.Is(g.err, ErrTooLong) {
			t.Errorf("who has given up is told %v", g.err)
		}
		ends := wrap(p.ctx, gone)
		waiting(1)
		closeBoth(t, gone, other)
		if g := <-ends; !errors.Is(g.err, ErrClosed) && !errors.Is(g.err, ErrPeerClosed) {
			t.Errorf("who has lost the endpoint is told %v", g.err)
		}

		// Two wait for the same memory, and a third exposes some.
		waiters := []chan got{wrap(p.ctx, a), wrap(p.ctx, a)}
		waiting(2)
		exposed := make(chan error, 1)
		go func() {
			x, err := a.Expose(p.ctx, ExposeConfig{Memory: piece(maxRegistrations + 1), Rights: MayRead})
			if err == nil {
				err = x.Close()
			}
			exposed <- err
		}()
		waiting(3)
		held[0].Release()
		held[1].Release()
		for _, came := range waiters {
			g := <-came
			if g.err != nil {
				t.Fatal(g.err)
			}
			held = append(held, g.buffer)
		}
		if err := <-exposed; err != nil {
			t.Error(err)
		}
		if all, idle := r.count(); all > maxRegistrations || idle != 0 || r.stats().Waiting != 0 {
			t.Errorf("%d registrations, %d of them idle, and %d wait", all, idle, r.stats().Waiting)
		}

		for _, buffer := range held[2:] { // in the order in which they give way
			buffer.Release()
		}
		for i := range 2 {
			buffer, err := a.Wrap(p.ctx, piece(i))
			if err != nil {
				t.Fatal(err)
			}
			buffer.Release()
		}
		if all, _ := r.count(); all != maxRegistrations {
			t.Errorf("%d registrations are kept", all)
		}
		for i := range maxRegistrations + 1 {
			// One was free: the two of the same memory share one.
			if is, want := r.has(piece(i)), i != 2; is != want {
				t.Errorf("piece %d is registered: %t", i, is)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if used, _ := r.places.inUse(); used != 0 {
			t.Errorf("%d places are still taken", used)
		}
		closeBoth(t, a, b)
	})
}

// has tells whether memory is registered.
func (r *registrations) has(memory []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g := range r.all {
		if within(memory, g.memory) {
			return true
		}
	}
	return false
}

// Memory that the application has mapped from a descriptor of its own.
func TestMapDescriptor(t *testing.T) {
	fd, err := unix.MemfdCreate("ours", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 20_000); err != nil {
		t.Fatal(err)
	}
	ours, err := unix.Mmap(fd, 0, 20_000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(ours) }()
	m, err := MapDescriptor(uintptr(fd))
	if err != nil {
		t.Fatal(err)
	}
	ours[19_999] = 7
	if len(m.Bytes()) != 20_000 || m.Bytes()[19_999] != 7 {
		t.Fatal(len(m.Bytes()))
	}
	if err := unix.Ftruncate(fd, 1); !errors.Is(err, unix.EPERM) {
		t.Fatal("it can still be truncated:", err)
	}
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		x, err := b.Expose(p.ctx, ExposeConfig{Memory: m.Bytes()[10_000:], Rights: MayRead})
		if err != nil {
			t.Fatal(err)
		}
		var into [1]byte
		if err := a.Get(p.ctx, x.Token(), 9_999, into[:]); err != nil || into[0] != 7 {
			t.Fatal(into, err)
		}
		if err := a.Put(p.ctx, x.Token(), 0, into[:]); !errors.Is(err, ErrRights) {
			t.Fatal(err)
		}
		closeBoth(t, a, b)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	unsealable, err := unix.MemfdCreate("unsealable", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unsealable)
	if err := unix.Ftruncate(unsealable, 4096); err != nil {
		t.Fatal(err)
	}
	file, err := unix.Open(t.TempDir()+"/file", unix.O_CREAT|unix.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	for name, fd := range map[string]int{"unsealable": unsealable, "file": file, "none": 1 << 20} {
		if m, err := MapDescriptor(uintptr(fd)); err == nil {
			t.Errorf("%s: mapped", name)
			_ = m.Close()
		}
	}
}

// A trusted peer reads a long message of a Mapping where it lies, and no longer than
// it is in use.
func TestWrapTrusted(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			t.Skip("nothing is read there")
		}
		p := w.pair(t, Config{}, ListenConfig{})
		g, err := p.client.NewGroup(GroupConfig{Name: "relay", Relay: true})
		if err != nil {
			t.Fatal(err)
		}
		a, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Transport: w.transport, Group: g, Trusted: true})
		if err != nil {
			t.Fatal(err)
		}
		b := p.accept(t)
		m := newMapping(t, 1<<20)
		copy(m.Bytes(), pattern(1<<20, 1))
		buffer, err := a.Wrap(p.ctx, m.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		at := buffer.owner.location()
		if s := a.carrier.(*shell); !s.mayShow(&at) {
			t.Error("the message would be copied")
		}
		if err := a.SendBuffer(p.ctx, 1, nil, buffer); err != nil {
			t.Fatal(err)
		}
		got, err := b.Receive(p.ctx)
		if err != nil || !bytes.Equal(got.Bytes(), pattern(1<<20, 1)) {
			t.Fatal("another message has arrived:", err)
		}
		got.Release()
		closeBoth(t, a, b)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}
