package verbena

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// Bytes that a buffer does not hold are refused wherever a part of one is named, also where
// its memory goes on. Nothing is sent, and the buffer stays the caller's.
func TestRangesOutsideBuffers(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		from, to := p.connect(t, w.transport)
		x, token := exposeTo(t, to, 64, allRights)
		c := p.callers(t, MuxConfig{})
		defer c.close(t)
		c.streams()
		s, err := c.a.Stream(p.ctx, streamBack, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		b, err := from.Buffer(p.ctx, 9)
		if err != nil {
			t.Fatal(err)
		}
		b.data = b.data[:5] // as of a message in longer memory
		copy(b.Bytes(), "whole")
		inBatch := func(add func(*Batch, Token, int, *Buffer, int, int)) func(int, int) error {
			return func(least, end int) error {
				batch := from.Batch()
				add(batch, token, 0, b, least, end)
				return batch.Do(p.ctx)
			}
		}
		ways := map[string]func(least, end int) error{
			"Endpoint.SendRange": func(least, end int) error { return from.SendRange(p.ctx, 1, nil, b, least, end) },
			"Endpoint.PutBuffer": func(least, end int) error { return from.PutBuffer(p.ctx, token, 0, b, least, end) },
			"Endpoint.GetBuffer": func(least, end int) error { return from.GetBuffer(p.ctx, token, 0, b, least, end) },
			"Batch.PutBuffer":    inBatch((*Batch).PutBuffer),
			"Batch.GetBuffer":    inBatch((*Batch).GetBuffer),
			"Stream.SendRange":   func(least, end int) error { return s.SendRange(p.ctx, b, least, end) },
			"Endpoint.TrySendRange": func(least, end int) error {
				if from.TrySendRange(1, b, least, end) {
					return nil
				}
				return ErrBounds
			},
		}
		for _, part := range [][2]int{{-1, 3}, {4, 3}, {0, 6}, {6, 6}, {3, -1}, {-2, -1}, {0, cap(b.data)}, {0, cap(b.data) + 1}, {0, 1 << 62}} {
			for name, way := range ways {
				if err := outcomeOf(way, part); !errors.Is(err, ErrBounds) {
					t.Errorf("%s of bytes %d to %d of 5: %v", name, part[0], part[1], err)
				}
			}
		}
		if !bytes.Equal(b.Bytes(), []byte("whole")) || !bytes.Equal(x.Bytes(), make([]byte, 64)) {
			t.Errorf("the buffer has %q, what is exposed %q", b.Bytes(), x.Bytes())
		}
		if err := from.SendRange(p.ctx, 2, nil, b, 5, 5); err != nil {
			t.Fatal(err)
		}
		m, err := to.Receive(p.ctx)
		if err != nil || m.Tag != 2 {
			t.Fatal("a message that was refused has come", err)
		}
		m.Release()
		closeBoth(t, from, to)
	})
}

// outcomeOf is the error of naming a part of a buffer, or of a panic.
func outcomeOf(way func(least, end int) error, part [2]int) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it panics: %v", p)
		}
	}()
	return way(part[0], part[1])
}
