package verbena

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/verbena-data/verbena/internal/race"
)

const methodEchoJoined = 23 // long: answers with the request's own memory, in two pieces

// Payloads in two pieces arrive as one, both ways, and their memory is the caller's again
// at once.
func TestCallsInTwoPieces(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{MaxMessage: 4 << 20}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		defer c.close(t)
		c.mux.Long(methodEchoJoined, func(q Request) {
			payload := q.Payload()
			n := min(len(payload), 100)
			if err := q.ReplyJoined(payload[:n], payload[n:]); err != nil {
				t.Error(err)
			}
		})
		for _, head := range []int{0, 1, 100, 5 << 10, 300 << 10} {
			for _, body := range []int{0, 1, 1 << 10, 32 << 10, 40 << 10, 64 << 10, 130<<10 + 1, 512 << 10, 3 << 20} {
				first, second := bytes.Clone(pattern(head, 5)), bytes.Clone(pattern(body, 6))
				want := append(bytes.Clone(first), second...)
				for _, method := range []uint32{methodEcho, methodEchoJoined} {
					m, err := c.a.CallJoined(p.ctx, method, first, second)
					clear(first)
					clear(second)
					if err != nil {
						t.Fatalf("%d and %d bytes, method %d: %v", head, body, method, err)
					}
					if !bytes.Equal(m.Bytes(), want) {
						t.Errorf("%d and %d bytes, method %d: %d came back, or others", head, body, method, len(m.Bytes()))
					}
					m.Release()
					copy(first, want)
					copy(second, want[head:])
				}
			}
		}
		long := make([]byte, 64<<10)
		gone, cancel := context.WithCancel(p.ctx)
		cancel()
		if _, err := c.a.CallJoined(gone, methodEcho, nil, long); !errors.Is(err, ErrNotSent) || !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was given up before it began: %v", err)
		}
		if _, err := c.a.CallJoined(p.ctx, methodEcho, long[:1], make([]byte, 4<<20)); !errors.Is(err, ErrNotSent) || !errors.Is(err, ErrTooLong) {
			t.Errorf("a call that is too long: %v", err)
		}
		var told *CallError
		if _, err := c.a.CallJoined(p.ctx, methodFail, long[:1], long); !errors.As(err, &told) {
			t.Errorf("the failure of a handler: %v", err)
		}
		c.mux.Long(methodEchoBuffer, func(q Request) {
			if err := q.ReplyJoined(long, make([]byte, 4<<20)); !errors.Is(err, ErrTooLong) {
				t.Errorf("an answer that is too long: %v", err)
			}
		})
		if _, err := c.a.Call(p.ctx, methodEchoBuffer, nil); !errors.As(err, &told) || told.Code != CodeTooLong {
			t.Errorf("an answer that is too long: %v", err)
		}
	})
}

// What is long is not put together before it is sent, wherever it goes and whatever is in
// front.
func TestLongPiecesAreNotJoined(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		defer c.close(t)
		for _, head := range []int{0, 100, 6 << 10} {
			if !c.a.joins(make([]byte, head), make([]byte, 1<<20)) {
				t.Errorf("1 MiB behind %d bytes is copied to them", head)
			}
		}
	})
}

// Long calls of many goroutines, whose pieces take turns, do not get into each other.
func TestManyCallsInTwoPieces(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		defer c.close(t)
		c.mux.Long(methodEchoJoined, func(q Request) {
			if err := q.ReplyJoined(q.Payload()[:1], q.Payload()[1:]); err != nil {
				t.Error(err)
			}
		})
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				body := pattern(90<<10+i*(50<<10), i)
				for range 20 {
					m, err := c.a.CallJoined(p.ctx, methodEchoJoined, []byte{byte(i)}, body)
					if err != nil {
						t.Error(err)
						return
					}
					if b := m.Bytes(); len(b) == 0 || b[0] != byte(i) || !bytes.Equal(b[1:], body) {
						t.Errorf("goroutine %d: %d bytes came back, or others", i, len(b))
					}
					m.Release()
				}
			})
		}
		wg.Wait()
	})
}

// A call with a payload in two pieces and an answer of two allocate nothing, at either end,
// however long either piece is.
func TestJoinedAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		defer c.close(t)
		for _, size := range w.payloads() {
			for _, head := range []int{50, 6 << 10} {
				if head > size {
					continue
				}
				c.mux.Long(methodEchoJoined, func(q Request) {
					if err := q.ReplyJoined(q.Payload()[:head], q.Payload()[head:]); err != nil {
						t.Error(err)
					}
				})
				payload := make([]byte, size)
				allocatesNothing(t, fmt.Sprintf("a call with %d bytes, %d of them in front,", size, head), size, func() (*Message, error) {
					return c.a.CallJoined(p.ctx, methodEchoJoined, payload[:head], payload[head:])
				})
			}
		}
	})
}
