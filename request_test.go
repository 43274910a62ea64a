package verbena

import (
	"errors"
	"strings"
	"testing"
)

// What a handler is told of its request, and of answers that are not sent as they are.
func TestRequest(t *testing.T) {
	const (
		methodTwice = 100 + iota
		methodLow
		methodLong
		methodKeep
	)
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		type answered struct {
			notification  bool
			first, second error
		}
		told := make(chan answered, 1)
		c.mux.Short(methodTwice, func(q Request) {
			told <- answered{q.Notification(), q.Reply(q.Payload()), q.Fail(CodeApplication, "")}
		})
		c.mux.Short(methodLow, func(q Request) { _ = q.Fail(CodeBusy, "low") })
		long := make(chan error, 2)
		c.mux.Long(methodLong, func(q Request) {
			if q.Payload()[0] == 0 {
				long <- q.Reply(make([]byte, q.Caller().e.MaxMessage()-15))
			} else {
				long <- q.Fail(CodeApplication, strings.Repeat("x", q.Caller().e.MaxMessage()-15))
			}
		})
		c.mux.Short(methodKeep, func(q Request) {
			m := q.Keep()
			if q.Payload() != nil || q.Keep() != nil {
				t.Error("a payload that was kept is still the request's")
			}
			_ = q.Reply(m.Bytes())
			m.Release()
		})

		if err := c.echo(p.ctx, c.a, methodTwice, []byte("once")); err != nil {
			t.Fatal(err)
		}
		if got := <-told; got.notification || got.first != nil || !errors.Is(got.second, ErrAnswered) {
			t.Errorf("of a call: %+v", got)
		}
		if err := c.a.Notify(p.ctx, methodTwice, []byte("once")); err != nil {
			t.Fatal(err)
		}
		if got := <-told; !got.notification || got.first != nil || !errors.Is(got.second, ErrAnswered) {
			t.Errorf("of a notification: %+v", got)
		}
		var failed *CallError
		if _, err := c.a.Call(p.ctx, methodLow, nil); !errors.As(err, &failed) || failed.Code != CodeApplication || failed.Text != "low" {
			t.Errorf("a code of the runtime's: %v", err)
		}
		for way := range byte(2) {
			if _, err := c.a.Call(p.ctx, methodLong, []byte{way}); !errors.As(err, &failed) || failed.Code != CodeTooLong {
				t.Errorf("an answer that is too long: %v", err)
			}
			if err := <-long; !errors.Is(err, ErrTooLong) {
				t.Errorf("an answer that is too long: %v", err)
			}
		}
		if err := c.echo(p.ctx, c.a, methodKeep, []byte("kept")); err != nil {
			t.Error(err)
		}
		c.close(t)
	})
}
