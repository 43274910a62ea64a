//go:build verbenadebug

package verbena

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

// panicOf returns what f panics with.
func panicOf(f func()) (text string) {
	defer func() { text, _ = recover().(string) }()
	f()
	return ""
}

// The debug build finds a second Release, a use after the last one, also when the
// memory belongs to another message by then, and what was never released; each with
// the place.
func TestCheckedBuffers(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		var log lockedBuffer
		p := w.pair(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		for _, size := range []int{10, 5000, 300_000} {
			receive := func() *Message {
				sent := make(chan error, 1)
				go func() { sent <- a.Send(p.ctx, 3, pattern(size, 1)) }()
				m, err := b.Receive(p.ctx)
				if err != nil {
					t.Fatal(err)
				}
				if err := <-sent; err != nil {
					t.Fatal(err)
				}
				return m
			}
			first := receive()
			kept := first.Bytes()
			first.Retain()
			first.Release()
			if first.Bytes() == nil || first.Tag != 3 {
				t.Error("released with a reference left")
			}
			first.Release()
			if w.transport != TransportTCP && !slices.Contains(kept, poison) {
				t.Error("what was released can be read on")
			}
			second := receive()
			for use, f := range map[string]func(){
				"Bytes": func() { first.Bytes() }, "Release": first.Release, "Retain": first.Retain,
				"SendBuffer": func() { _ = b.SendBuffer(p.ctx, 1, nil, &first.Buffer) },
			} {
				if text := panicOf(f); !strings.Contains(text, use+" of a buffer after") || strings.Count(text, "TestCheckedBuffers") < 2 {
					t.Errorf("%s: %q", use, text)
				}
			}
			second.Release()
		}
		leaked, err := a.Buffer(p.ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		defer leaked.Release()
		if err := p.client.Close(); err != nil {
			t.Error(err)
		}
		if s := log.String(); !strings.Contains(s, "a buffer was not released") || !strings.Contains(s, "TestCheckedBuffers") {
			t.Errorf("nobody is told of a leak: %s", s)
		}
	})
}

// One-sided operations on a buffer that has been released are found, also when it was
// released between the filling of a batch and Do.
func TestCheckedOneSided(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		_, token := exposeTo(t, b, 4096, allRights)
		released, late := newBuffer(t, p.ctx, a, 100, 1), newBuffer(t, p.ctx, a, 100, 1)
		if err := a.PutBuffer(p.ctx, token, 0, released, 0, 100); err != nil {
			t.Fatal(err)
		}
		if err := a.GetBuffer(p.ctx, token, 0, released, 0, 100); err != nil {
			t.Fatal(err)
		}
		batch := a.Batch()
		batch.PutBuffer(token, 0, late, 0, 100)
		released.Release()
		late.Release()
		for use, f := range map[string]func(){
			"PutBuffer": func() { _ = a.PutBuffer(p.ctx, token, 0, released, 0, 0) },
			"GetBuffer": func() { _ = a.GetBuffer(p.ctx, token, 0, released, 0, 0) },
			"Settled":   func() { _ = a.Settled(p.ctx, released) },
			"Bytes":     func() { _, _ = b.Expose(p.ctx, ExposeConfig{Buffer: released, Rights: MayRead}) },
			"Do":        func() { _ = batch.Do(p.ctx) },
		} {
			if text := panicOf(f); !strings.Contains(text, use+" of a buffer after") || strings.Count(text, "TestCheckedOneSided") < 2 {
				t.Errorf("%s: %q", use, text)
			}
		}
		for use, f := range map[string]func(){
			"PutBuffer": func() { a.Batch().PutBuffer(token, 0, released, 0, 0) },
			"GetBuffer": func() { a.Batch().GetBuffer(token, 0, released, 0, 0) },
		} {
			if text := panicOf(f); !strings.Contains(text, use+" of a buffer after") {
				t.Errorf("%s of a batch: %q", use, text)
			}
		}
	})
}

// What calls and streams hand out is checked as well.
func TestCheckedCalls(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		var log lockedBuffer
		p := w.pair(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		mux := NewMux(MuxConfig{})
		const keep, pass, stream = 1, 2, 3
		kept := make(chan *Message, 1)
		mux.Long(keep, func(q Request) {
			m := q.Keep()
			_ = q.Reply(m.Bytes())
			kept <- m
		})
		mux.Long(pass, func(q Request) { _ = q.ReplyBuffer(&q.Keep().Buffer) })
		mux.Stream(stream, func(q Request, s *Stream) {
			_ = s.Send(q.Context(), pattern(100, 1))
			_ = q.Reply(pattern(100, 2))
		})
		client, err := NewCaller(a, nil)
		if err != nil {
			t.Fatal(err)
		}
		server, err := NewCaller(b, mux)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]*Buffer{}
		m, err := client.Call(p.ctx, keep, pattern(5000, 1))
		if err != nil || !bytes.Equal(m.Bytes(), pattern(5000, 1)) {
			t.Fatal("an answer that was kept and sent on is another:", err)
		}
		got["an answer"], got["a request"] = &m.Buffer, &(<-kept).Buffer
		request, err := a.Buffer(p.ctx, 64)
		if err != nil {
			t.Fatal(err)
		}
		copy(request.Bytes(), pattern(64, 1))
		if m, err = client.CallBuffer(p.ctx, pass, request); err != nil || !bytes.Equal(m.Bytes(), pattern(64, 1)) {
			t.Fatal("a request that was kept and sent on comes as another:", err)
		}
		got["an answer to a buffer"] = &m.Buffer
		s, err := client.Stream(p.ctx, stream, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got["a piece"], err = s.Recv(p.ctx); err != nil || !bytes.Equal(got["a piece"].Bytes(), pattern(100, 1)) {
			t.Fatal("another piece has arrived:", err)
		}
		if m, err = s.Answer(p.ctx); err != nil {
			t.Fatal(err)
		}
		got["the answer of a stream"] = &m.Buffer
		for name, b := range got {
			b.Release()
			for use, f := range map[string]func(){"Bytes": func() { b.Bytes() }, "Release": b.Release} {
				if text := panicOf(f); !strings.Contains(text, use+" of a buffer after") || !strings.Contains(text, "TestCheckedCalls") {
					t.Errorf("%s, %s: %q", name, use, text)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if log.String() != "" {
			t.Errorf("it is all released, and the log says %s", log.String())
		}
		leaked, err := client.Call(p.ctx, pass, pattern(10, 1))
		if err != nil {
			t.Fatal(err)
		}
		defer leaked.Release()
		var both sync.WaitGroup
		both.Go(func() { _ = client.Close() })
		both.Go(func() { _ = server.Close() })
		both.Wait()
		mux.Close()
		if err := p.client.Close(); err != nil {
			t.Error(err)
		}
		if s := log.String(); !strings.Contains(s, "a buffer was not released") || !strings.Contains(s, "TestCheckedCalls") {
			t.Errorf("nobody is told of an answer that leaks: %s", s)
		}
	})
}
