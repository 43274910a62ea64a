package rpc

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
)

// desk has a method whose calls are answered when the test wants it.
type desk struct {
	mu      sync.Mutex
	open    []late
	handled int // calls that a handler ran
	answers Answers
}

// late answers with what came, or as a test says.
type late struct {
	Deferred
	req    *ping
	answer func() (proto.Message, error)
}

func (l late) Answer() (proto.Message, error) {
	if l.answer != nil {
		return l.answer()
	}
	return l.req, nil
}

func (d *desk) method(ctx context.Context, req *ping) (*ping, error) {
	short := FromContext(ctx).Short
	call, ok := Defer(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case ok:
		d.open = append(d.open, late{Deferred: call, req: req})
		return nil, ErrDeferred
	case short:
		return nil, ErrLong
	}
	d.handled++
	return req, nil
}

// answer answers all calls, after change has seen each.
func (d *desk) answer(change func(*late)) {
	d.mu.Lock()
	open := d.open
	d.open = nil
	d.mu.Unlock()
	for _, l := range open {
		if change != nil {
			change(&l)
		}
		d.answers.Add(l.Deferred, l)
	}
	d.answers.Flush()
}

func (d *desk) counts() (open, handled int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open), d.handled
}

func (d *desk) want(t *testing.T, open, handled int) {
	t.Helper()
	synctest.Wait()
	if o, h := d.counts(); o != open || h != handled {
		t.Errorf("%d calls deferred and %d run by handlers, want %d and %d", o, h, open, handled)
	}
}

// Deferred calls get their answers, whatever those are; they count where those count that
// handlers run.
func TestDeferredCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d desk
		p := newPipes(Config{Handlers: 3, MaxInFlight: 2}, Methods{"later": Handle(d.method).Short(), "echo": Handle(echo)})
		first, second := p.conn(t, ClientID{1}, "ada"), p.conn(t, ClientID{2}, "bob")
		var calls sync.WaitGroup
		call := func(c *Conn, user string, check func(error)) {
			calls.Go(func() {
				got := &ping{}
				err := c.Call(t.Context(), "later", &ping{EffectiveUser: &user}, got)
				if check != nil {
					check(err)
				} else if err != nil || got.GetEffectiveUser() != user {
					t.Errorf("%q answers %q, %v", got.GetEffectiveUser(), user, err)
				}
			})
			synctest.Wait()
		}
		call(first, "one", nil)
		call(first, "two", nil)
		d.want(t, 2, 0)
		call(first, "beyond what a connection may have", nil) // waits unread
		call(second, "three", nil)
		d.want(t, 3, 0)
		call(second, "beyond what handlers run", nil) // waits in the queue
		d.want(t, 3, 0)
		if n := testutil.ToFloat64(p.protocols[testProtocol].methods["later"].running); n != 3 {
			t.Errorf("%v calls run, want 3", n)
		}
		d.answer(nil)
		d.want(t, 0, 2)
		calls.Wait()

		// Errors are answers, too, and so is what comes of a panic.
		call(first, "", func(err error) { wantClass(t, err, exception.FileNotFound) })
		d.answer(func(l *late) {
			l.answer = func() (proto.Message, error) { return nil, exception.New(exception.FileNotFound, "none") }
		})
		call(second, "", func(err error) { wantClass(t, err, exception.IO) })
		d.answer(func(l *late) { l.answer = func() (proto.Message, error) { panic("a test") } })
		calls.Wait()
		if n := testutil.ToFloat64(p.protocols[testProtocol].methods["later"].failed); n != 2 {
			t.Errorf("%v calls failed, want 2", n)
		}

		// The end of a connection waits for its calls; their answers go nowhere.
		call(first, "", func(err error) {
			if err == nil {
				t.Error("an answer by a connection that is closed")
			}
		})
		d.want(t, 1, 2)
		closed := make(chan struct{})
		go func() {
			p.stop()
			close(closed)
		}()
		time.Sleep(time.Minute)
		select {
		case <-closed:
			t.Error("the server ended with a call that has no answer")
		default:
		}
		d.answer(nil)
		<-closed
		calls.Wait()
		first.Close()
		second.Close()
	})
}

// Answers to the calls of one connection go out together.
func TestAnswersGoOutTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d desk
		p := newPipes(Config{}, Methods{"later": Handle(d.method).Short()})
		nc, _ := p.dial(t.Context(), "")
		go func() {
			_, _ = nc.Write(join([]byte("hrpc\x09\x00\x00"), contextFrame(t), callFrame(t, 1, testProtocol, "later", 1, &ping{}),
				callFrame(t, 2, testProtocol, "later", 1, &ping{}), callFrame(t, 3, testProtocol, "later", 1, &ping{})))
		}()
		d.want(t, 3, 0)
		d.answer(nil)
		b := make([]byte, 4096)
		n, err := nc.Read(b) // a pipe gives no more than one Write
		if err != nil {
			t.Fatal(err)
		}
		if got := len(responses(t, b[:n])); got != 3 {
			t.Errorf("%d answers in one write, want 3", got)
		}
		nc.Close()
		p.stop()
	})
}

// Only a short call can be deferred.
func TestDeferOutsideAShortCall(t *testing.T) {
	for _, ctx := range []context.Context{t.Context(), WithCall(t.Context(), &Call{Short: true})} {
		if _, ok := Defer(ctx); ok {
			t.Error("what is no call of a connection was deferred")
		}
	}
}

// A request that refers to memory which is only lent is not deferred: it would belong to
// the method for good.
func TestDeferLentRequest(t *testing.T) {
	address, _ := startServer(t, Config{}, Methods{"lent": Handle(func(ctx context.Context, req *blob) (*blob, error) {
		if _, ok := Defer(ctx); ok {
			return nil, errors.New("deferred")
		}
		if FromContext(ctx).Short {
			return nil, ErrLong
		}
		return req, nil
	}).Short()})
	c := NewClient(ClientConfig{})
	defer c.Close()
	target := ada
	target.Address = address
	req, resp := &blob{Value: bytes.Repeat([]byte("x"), lentField)}, &blob{}
	if err := c.Proxy(target).Call(t.Context(), "lent", req, resp); err != nil || !bytes.Equal(req.Value, resp.Value) {
		t.Errorf("%d bytes came back, %v", len(resp.Value), err)
	}
}
