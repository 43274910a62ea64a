package rdmanet

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestListenerBothWorlds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer r.close()
		near, far := net.Pipe()
		n.plain <- far
		got := must[net.Conn](t)(r.listener.Accept())
		if got != far {
			t.Errorf("a plain connection came as %T", got)
		}
		near.Close()
		got.Close()
		a, b := r.mustPair(t)
		exchange(t, a, b)
		a.Close()
		b.Close()
	})
}

// Close refuses what nobody has accepted and leaves alone what somebody has.
func TestListenerClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, n := memoryRig(t, Config{})
		defer r.dialer.Close()
		a, b := r.mustPair(t)
		pending := must[net.Conn](t)(r.dialer.Dial("tcp", "peer:1"))
		near, far := net.Pipe()
		n.plain <- far
		synctest.Wait()
		accepted := make(chan error)
		r.listener.Close()
		go func() {
			_, err := r.listener.Accept()
			accepted <- err
		}()
		wantError(t, <-accepted, net.ErrClosed)
		if _, err := near.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the plain connection: %v", err)
		}
		if _, err := pending.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("the connection that nobody accepted: %v", err)
		}
		pending.Close()
		exchange(t, a, b)
		a.Close()
		b.Close()
		synctest.Wait()
		if got := r.listener.count(); got != 0 {
			t.Errorf("%d sessions are left", got)
		}
	})
}

func TestDialErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNetwork(t) // nobody listens
		d := &Dialer{connect: n.dial}
		defer d.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 1)
		defer cancel()
		_, err := d.DialContext(ctx, "tcp", "peer:1")
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%v is no timeout", err)
		}
		wantError(t, err, context.DeadlineExceeded)
		_, err = d.DialContext(t.Context(), "unix", "peer:1")
		wantError(t, err, net.UnknownNetworkError("unix"))
		n.Close()
		_, err = d.DialContext(t.Context(), "tcp", "peer:1")
		var op *net.OpError
		if !errors.As(err, &op) || op.Op != "dial" || op.Addr.String() != "peer:1" {
			t.Errorf("%v", err)
		}
	})
}

// stillEndpoint takes everything and has always the same message to give.
type stillEndpoint struct {
	*memoryEndpoint
	tag  atomic.Uint32
	data [1024]byte
}

func (e *stillEndpoint) Send(context.Context, uint32, []byte) error { return nil }
func (e *stillEndpoint) receive(ctx context.Context) (uint32, message, error) {
	tag := e.tag.Load()
	if tag == 0 || ctx.Err() != nil {
		return e.memoryEndpoint.receive(ctx)
	}
	return tag, e, nil
}
func (e *stillEndpoint) Bytes() []byte { return e.data[:] }
func (e *stillEndpoint) Release()      {}

func TestNoAllocations(t *testing.T) {
	raw, peer := memoryPair(t)
	ep := &stillEndpoint{memoryEndpoint: raw}
	d := &Dialer{connect: func(context.Context, string) (endpoint, error) { return ep, nil }}
	conn := must[net.Conn](t)(d.Dial("tcp", "peer:1"))
	c := conn.(*Conn)
	// The first reader takes the endpoint from the session's goroutine.
	must[*gate](t)(c.lockRead())
	ep.tag.Store(c.dataTag)
	c.unlockRead()

	b := make([]byte, 512)
	big := make([]byte, 1<<20)
	for what, f := range map[string]func() error{
		"Read":  func() error { _, err := c.Read(b); return err },
		"Write": func() error { _, err := c.Write(big); return err },
		"Write and Read under deadlines": func() error {
			c.SetDeadline(timeSoon())
			if _, err := c.Write(b); err != nil {
				return err
			}
			_, err := c.Read(b)
			return err
		},
	} {
		if n := testing.AllocsPerRun(1000, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times", what, n)
		}
	}
	ep.tag.Store(0)
	c.Close()
	raw.kill()
	peer.Close()
	d.Close()
}

// What the package itself costs per message, without an endpoint.
func BenchmarkOverhead(b *testing.B) {
	raw, peer := memoryPair(b)
	ep := &stillEndpoint{memoryEndpoint: raw}
	d := &Dialer{connect: func(context.Context, string) (endpoint, error) { return ep, nil }}
	c := must[net.Conn](b)(d.Dial("tcp", "peer:1")).(*Conn)
	must[*gate](b)(c.lockRead())
	ep.tag.Store(c.dataTag)
	c.unlockRead()
	buf := make([]byte, 1024)
	b.ReportAllocs()
	for b.Loop() {
		c.Write(buf)
		c.Read(buf)
	}
	ep.tag.Store(0)
	c.Close()
	raw.kill()
	peer.Close()
	d.Close()
}
