package verbena

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// A credit comes back with the last reference to a message, and not before.
func TestCreditOfLastReference(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		if w.transport == TransportTCP {
			t.Skip("credits are TCP's own there")
		}
		const window = 4
		config := Config{Tuning: TuningTable{w.transport: {Window: window, MaxWindow: window}}}
		p := w.pair(t, config, ListenConfig{})
		a, b := p.connect(t, w.transport)
		var held []*Message
		for i := range window {
			if err := a.Send(p.ctx, uint32(i), pattern(100, i)); err != nil {
				t.Fatal(err)
			}
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			m.Retain()
			m.Retain()
			held = append(held, m)
		}
		for range 2 {
			for i, m := range held {
				m.Release()
				if !bytes.Equal(m.Bytes(), pattern(100, i)) {
					t.Fatalf("message %d changed with a reference left", i)
				}
			}
			ctx, cancel := context.WithTimeout(p.ctx, 50*time.Millisecond)
			if err := a.Send(ctx, 0, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a message was sent without a credit: %v", err)
			}
			cancel()
		}
		for _, m := range held {
			m.Release()
		}
		if err := a.Send(p.ctx, 9, nil); err != nil {
			t.Fatal(err)
		}
		m, err := b.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	})
}

// References may be released by many goroutines at once; exactly one Release is the
// last one.
func TestReferencesOfManyGoroutines(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		var log lockedBuffer
		p := w.pair(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		const rounds, users = 200, 4
		go func() {
			for i := range rounds {
				if err := a.Send(p.ctx, uint32(i), pattern(i%3*40_000, i)); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		for i := range rounds {
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range users {
				m.Retain()
				wg.Go(func() {
					if !bytes.Equal(m.Bytes(), pattern(i%3*40_000, i)) {
						t.Errorf("message %d changed", i)
					}
					m.Release()
				})
			}
			m.Release()
			wg.Wait()
		}
		if s := log.String(); strings.Contains(s, "twice") {
			t.Error(s)
		}
	})
}
