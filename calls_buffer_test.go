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

const (
	methodEchoBuffer = 20 // long: answers with a buffer of its own
	methodEchoKept   = 21 // long: answers with the request's memory
	methodWatch      = 22 // long: waits for the end of the call, by Over and by its context
)

// Payloads in buffers arrive whole both ways, and no reference is left, whether the
// call succeeds or not.
func TestCallsWithBuffers(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{MaxMessage: 4 << 20}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		defer c.close(t)
		c.mux.Long(methodEchoBuffer, func(q Request) {
			b, err := q.Caller().Endpoint().Buffer(q.Context(), len(q.Payload()))
			if err != nil {
				_ = q.Fail(CodeApplication, err.Error())
				return
			}
			copy(b.Bytes(), q.Payload())
			if err := q.ReplyBuffer(b); err != nil {
				t.Error(err)
			}
		})
		c.mux.Long(methodEchoKept, func(q Request) {
			if err := q.ReplyBuffer(&q.Keep().Buffer); err != nil {
				t.Error(err)
			}
		})
		for _, size := range []int{0, 1, 20, 1 << 10, 32 << 10, 40 << 10, 512 << 10, 3 << 20} {
			want := bytes.Repeat([]byte{byte(size >> 10), 2, 3, 4, 5}, size/5+1)[:size]
			for _, method := range []uint32{methodEcho, methodEchoBuffer, methodEchoKept} {
				b, err := c.a.e.Buffer(p.ctx, size)
				if err != nil {
					t.Fatal(err)
				}
				copy(b.Bytes(), want)
				m, err := c.a.CallBuffer(p.ctx, method, b)
				if err != nil {
					t.Fatalf("%d bytes, method %d: %v", size, method, err)
				}
				if !bytes.Equal(m.Bytes(), want) {
					t.Errorf("%d bytes, method %d: %d came back, or others", size, method, len(m.Bytes()))
				}
				m.Release()
			}
		}
		gone, cancel := context.WithCancel(p.ctx)
		cancel()
		b, err := c.a.e.Buffer(p.ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.a.CallBuffer(gone, methodEcho, b); !errors.Is(err, ErrNotSent) || !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was given up before it began: %v", err)
		}
		if b, err = c.a.e.Buffer(p.ctx, 100); err != nil {
			t.Fatal(err)
		}
		var told *CallError
		if _, err := c.a.CallBuffer(p.ctx, methodFail, b); !errors.As(err, &told) {
			t.Errorf("the failure of a handler: %v", err)
		}
	})
}

// Calls with the same buffer at the same time each get their own answer: the header of one
// is not written over that of another.
func TestCallsFromOneBuffer(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		defer c.close(t)
		answered := func(err error) {
			// The last answer may be there, and the caller closed, before its send is over.
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
		c.mux.Long(methodEchoBuffer, func(q Request) {
			b, err := q.Caller().Buffer(q.Context(), len(q.Payload())+1)
			if err != nil {
				_ = q.Fail(CodeApplication, err.Error())
				return
			}
			copy(b.Bytes()[1:], q.Payload())
			b.Bytes()[0] = byte(q.Method())
			answered(q.ReplyBuffer(b))
		})
		c.mux.Long(methodEchoKept, func(q Request) {
			answered(q.ReplyBuffer(&q.Keep().Buffer))
		})
		for _, size := range []int{0, 100, 8 << 10, 200 << 10} {
			b, err := c.a.Buffer(p.ctx, size)
			if err != nil {
				t.Fatal(err)
			}
			copy(b.Bytes(), pattern(size, 3))
			var wg sync.WaitGroup
			for i := range 8 {
				method := []uint32{methodEchoBuffer, methodEchoKept}[i%2]
				wg.Go(func() {
					for range 20 {
						b.Retain()
						m, err := c.a.CallBuffer(p.ctx, method, b)
						if err != nil {
							t.Error(err)
							return
						}
						got := m.Bytes()
						if method == methodEchoBuffer && len(got) > 0 && got[0] == methodEchoBuffer {
							got = got[1:]
						}
						if !bytes.Equal(got, b.Bytes()) || len(m.Bytes())-len(got) != int(methodEchoKept-method) {
							t.Errorf("method %d answered %d bytes, or others than were sent", method, len(m.Bytes()))
						}
						m.Release()
					}
				})
			}
			wg.Wait()
			b.Release()
		}
	})
}

// Over is false while somebody waits, and true from the end of the request's context
// on.
func TestRequestOver(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		defer c.close(t)
		begun, over := make(chan struct{}), make(chan bool, 2)
		c.mux.Long(methodWatch, func(q Request) {
			over <- q.Over()
			close(begun)
			<-q.Context().Done()
			over <- q.Over()
			_ = q.Fail(CodeApplication, "nobody waits")
		})
		ctx, cancel := context.WithCancel(p.ctx)
		go func() {
			<-begun
			cancel()
		}()
		if _, err := c.a.Call(ctx, methodWatch, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was given up: %v", err)
		}
		if <-over {
			t.Error("a call that has just begun is over")
		}
		if !<-over {
			t.Error("a call that was given up is not over")
		}
	})
}

// A call with a buffer and an answer from one allocate nothing, at either end, short or long.
func TestCallBufferAllocations(t *testing.T) {
	if race.Enabled || checksBuffers {
		t.Skip("the build allocates")
	}
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		defer c.close(t)
		c.mux.Long(methodEchoKept, func(q Request) {
			if err := q.ReplyBuffer(&q.Keep().Buffer); err != nil {
				t.Error(err)
			}
		})
		for _, size := range w.payloads() {
			b, err := c.a.Buffer(p.ctx, size)
			if err != nil {
				t.Fatal(err)
			}
			allocatesNothing(t, fmt.Sprintf("a call with a buffer of %d bytes", size), size, func() (*Message, error) {
				b.Retain()
				return c.a.CallBuffer(p.ctx, methodEchoKept, b)
			})
			b.Release()
		}
	})
}
