//go:build verbenadebug

package verbena

import (
	"log/slog"
	"slices"
	"strings"
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
