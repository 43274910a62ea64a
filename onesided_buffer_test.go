package verbena

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/internal/usermem"
	"github.com/verbena-data/verbena/rdma"
)

// A buffer that is exposed stays its memory until the exposure is closed, whoever
// releases it, and goes back to its pool then.
func TestExposeBuffer(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		var buffers []*Buffer
		for i, n := range []int{64, 4096, 300_000, 5 << 20} {
			buffer, err := b.Buffer(p.ctx, n)
			if err != nil {
				t.Fatal(err)
			}
			copy(buffer.Bytes(), pattern(n, i))
			sent := make(chan error, 1)
			go func() { sent <- a.Send(p.ctx, 3, pattern(n, i)) }()
			m, err := b.Receive(p.ctx)
			if err := errors.Join(err, <-sent); err != nil {
				t.Fatal(err)
			}
			buffers = append(buffers, buffer, &m.Buffer)
		}
		buffers[1].cut(8) // as of the messages of calls
		for _, buffer := range buffers {
			data := buffer.Bytes()
			want := bytes.Clone(data)
			x, err := b.Expose(p.ctx, ExposeConfig{Buffer: buffer, Rights: allRights})
			if w.transport == "shm" {
				if !errors.Is(err, rdma.ErrUnsupported) || !strings.Contains(err.Error(), "Wrap") {
					t.Fatalf("%d bytes: %v", len(data), err)
				}
				buffer.Release()
				continue
			}
			if err != nil {
				t.Fatalf("%d bytes: %v", len(data), err)
			}
			token := x.Token()
			if token.Len() != len(data) || &x.Bytes()[0] != &data[0] {
				t.Fatal("something else is exposed")
			}
			buffer.Release() // the exposure has a reference
			into := make([]byte, len(data))
			if err := a.Get(p.ctx, token, 0, into); err != nil || !bytes.Equal(into, want) {
				t.Fatalf("a Get of %d bytes has read something else: %v", len(data), err)
			}
			copy(want[1:], pattern(len(data)-2, 9))
			if err := a.Put(p.ctx, token, 1, want[1:len(data)-1]); err != nil {
				t.Fatal(err)
			}
			if atomics(a) {
				before := binary.NativeEndian.Uint64(want)
				if got, err := a.FetchAdd(p.ctx, token, 0, 5); err != nil || got != before {
					t.Fatal(got, err)
				}
				binary.NativeEndian.PutUint64(want, before+5)
			}
			if err := a.Get(p.ctx, token, 0, into); err != nil || !bytes.Equal(into, want) {
				t.Fatal("a Put has written something else:", err)
			}
			if err := x.Revoke(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(data, want) {
				t.Fatal("what the peer has put is not in the buffer")
			}
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if all, _ := registrationsOf(b).count(); all != 0 {
			t.Errorf("%d registrations are left", all)
		}
		sendOne(t, p.ctx, a, b)
		closeBoth(t, a, b)
		for _, d := range p.server.Stats().Devices {
			for _, s := range d.Pools {
				if s.Used != 0 && s.Name != "receive" {
					t.Errorf("%s: %d bytes are still in use", s.Name, s.Used)
				}
			}
		}
	})
}

// What is behind the buffer in its pool, and the buffer when it is exposed no more, is
// none of the peer's.
func TestExposedBufferAlone(t *testing.T) {
	for _, late := range []bool{false, true} {
		eachWorld(t, func(t *testing.T, w world) {
			if w.transport == "shm" {
				t.Skip("there no memory of pools is exposed: TestExposeBuffer")
			}
			p := w.pair(t, Config{}, ListenConfig{})
			a, b := p.connect(t, w.transport)
			buffer, err := b.Buffer(p.ctx, 100)
			if err != nil {
				t.Fatal(err)
			}
			defer buffer.Release()
			x, err := b.Expose(p.ctx, ExposeConfig{Buffer: buffer, Rights: MayRead})
			if err != nil {
				t.Fatal(err)
			}
			token := x.Token()
			if late {
				if err := x.Close(); err != nil {
					t.Fatal(err)
				}
			} else {
				token.length += 8 // as a peer may that means harm
				defer x.Close()
			}
			if err := a.Get(p.ctx, token, 0, make([]byte, token.length)); err == nil {
				t.Error("the peer has read what is not exposed")
			}
			closeBoth(t, a, b)
		})
	}
}

// Over every transport a buffer can be exposed that wraps a Mapping.
func TestExposeWrapped(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("without memfd there is no such memory")
	}
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		m, err := NewMapping(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		copy(m.Bytes(), pattern(1<<20, 1))
		buffer, err := b.Wrap(p.ctx, m.Bytes()[4096:70_000])
		if err != nil {
			t.Fatal(err)
		}
		x, err := b.Expose(p.ctx, ExposeConfig{Buffer: buffer, Rights: MayRead})
		if err != nil {
			t.Fatal(err)
		}
		into := make([]byte, x.Token().Len())
		if err := a.Get(p.ctx, x.Token(), 0, into); err != nil || !bytes.Equal(into, m.Bytes()[4096:70_000]) {
			t.Fatal("a Get has read something else:", err)
		}
		if err := b.SendBuffer(p.ctx, 1, nil, buffer); err != nil { // and it is sent meanwhile
			t.Fatal(err)
		}
		got, err := a.Receive(p.ctx)
		if err != nil || !bytes.Equal(got.Bytes(), into) {
			t.Fatal("another message has arrived:", err)
		}
		got.Release()
		if err := m.Close(); !errors.Is(err, ErrInUse) {
			t.Fatal("closed while exposed:", err)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		closeBoth(t, a, b)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Memory of the runtime that is passed as the application's is refused with the reason,
// also as part of more.
func TestMemoryOfBuffersRefused(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		for _, n := range []int{100, 300_000, 5 << 20} {
			buffer, err := b.Buffer(p.ctx, n)
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan error, 1)
			go func() { sent <- a.Send(p.ctx, 3, pattern(n, 1)) }()
			m, err := b.Receive(p.ctx)
			if err := errors.Join(err, <-sent); err != nil {
				t.Fatal(err)
			}
			for name, memory := range map[string][]byte{"a buffer": buffer.Bytes(), "a message": m.Bytes(), "part of it": m.Bytes()[8:16]} {
				x, err := b.Expose(p.ctx, ExposeConfig{Memory: memory, Rights: MayRead})
				if !errors.Is(err, ErrMemory) || !errors.Is(err, usermem.ErrOwned) && !errors.Is(err, usermem.ErrGo) || !strings.Contains(err.Error(), "ExposeConfig.Buffer") {
					t.Errorf("%s of %d bytes exposed: %v", name, n, err)
				}
				if err == nil {
					_ = x.Close()
				}
				if _, err := a.Wrap(p.ctx, memory); !errors.Is(err, ErrMemory) {
					t.Errorf("%s of %d bytes wrapped: %v", name, n, err)
				}
			}
			if _, err := b.Expose(p.ctx, ExposeConfig{Memory: pattern(8, 1), Buffer: buffer, Rights: MayRead}); !errors.Is(err, ErrMemory) {
				t.Error(err)
			}
			m.Release()
			buffer.Release()
		}
		closeBoth(t, a, b)
	})
}

func registrationsOf(e *Endpoint) *registrations {
	if s, ok := e.carrier.(*shell); ok {
		return s.n.user
	}
	return e.env.user
}

func (r *registrations) count() (all, idle int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all), r.idle.Len()
}
