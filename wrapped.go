package verbena

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/verbena-data/verbena/rdma"
)

// Wrap makes a buffer of memory of the application, which must not be the Go runtime's
// and must stay mapped until the buffer is released and [Endpoint.Settled] says that
// nothing uses it any more. It is sent, put and got from where it lies, as
// other buffers are; a long message is copied all the same, unless the endpoint is
// trusted, and over shared memory the memory lies in a [Mapping]. The caller has one
// reference.
//
// The memory is registered with the device, or has been by an earlier Wrap: what nobody
// uses stays registered until others need the room, or [Forget]. A group on a device, and a
// runtime over TCP, has up to SendMemory of it, beside other memory, in up to 1,024
// registrations. Wrap waits while what is in use fills either.
func (e *Endpoint) Wrap(ctx context.Context, memory []byte) (*Buffer, error) {
	err := e.Err()
	if err == nil && len(memory) == 0 {
		err = fmt.Errorf("%w: there is none", ErrMemory)
	}
	var b *Buffer
	if err == nil {
		b, err = e.carrier.wrap(ctx, memory)
	}
	if err != nil {
		return nil, e.failure("wrap memory for", err)
	}
	return checkedBuffer(e, b), nil
}

// wrapped is memory of the application as a buffer. It is used once, so that it can
// tell a second Release from the first.
type wrapped struct {
	Buffer
	e        *Endpoint
	n        *domain // nil over TCP
	g        *registration
	offset   int // of the buffer in g
	released atomic.Bool
}

func (e *Endpoint) newWrapped(n *domain, g *registration, memory []byte) *Buffer {
	at, _ := extent(memory)
	start, _ := extent(g.memory)
	w := &wrapped{e: e, n: n, g: g, offset: int(at - start)}
	w.data, w.owner = memory[:len(memory):len(memory)], w
	return &w.Buffer
}

func (w *wrapped) location() location { return location{user: w.g, offset: w.offset} }

func (w *wrapped) release() {
	if w.released.Swap(true) {
		w.e.env.log.Error("a buffer was released twice; the second Release did nothing", "service", w.e.service, "peer", w.e.remote)
		return
	}
	w.data = nil
	w.g.of.put(w.g)
	if w.n != nil {
		w.n.cameBack()
	}
}

// use takes memory of the application for an endpoint, whose end ends the wait.
func (e *Endpoint) use(ctx context.Context, from *registrations, memory []byte, access rdma.Access, alone bool) (*registration, error) {
	ctx, stop := untilOver(ctx, e)
	defer stop()
	return from.take(ctx, memory, access, alone)
}

// wrap makes a buffer of memory of the application for e. shown tells that its peer may
// have the key.
func (n *domain) wrap(ctx context.Context, e *Endpoint, memory []byte, shown bool) (*Buffer, error) {
	access, err := n.user.access(memory, 0)
	if err != nil {
		return nil, err
	}
	if err := n.hold(); err != nil {
		return nil, err
	}
	var g *registration
	if shown {
		// A key is good for as long as the region, so this one goes with its use.
		g, err = e.use(ctx, n.user, memory, access|rdma.AccessRemoteRead, true)
	}
	if g == nil && (err == nil || errors.Is(err, rdma.ErrUnsupported)) {
		g, err = e.use(ctx, n.user, memory, access, false)
	}
	if err != nil {
		n.cameBack()
		return nil, err
	}
	return e.newWrapped(n, g, memory), nil
}

func (s *stream) wrap(ctx context.Context, memory []byte) (*Buffer, error) {
	user := s.e.env.user
	access, err := user.access(memory, 0)
	if err != nil {
		return nil, err
	}
	g, err := s.e.use(ctx, user, memory, access, false)
	if err != nil {
		return nil, err
	}
	return s.e.newWrapped(nil, g, memory), nil
}

// exposedUser is memory of the application that peers may reach.
type exposedUser struct {
	n    *domain // nil over TCP
	g    *registration
	ways tokenWays
}

func (n *domain) exposeUser(ctx context.Context, e *Endpoint, c *ExposeConfig, access rdma.Access, ways tokenWays) (exposable, error) {
	local, err := n.user.access(c.Memory, c.Rights)
	if err != nil {
		return nil, err
	}
	if err := n.hold(); err != nil {
		return nil, err
	}
	g, err := e.use(ctx, n.user, c.Memory, access|local, true)
	if err != nil {
		n.cameBack()
		if errors.Is(err, rdma.ErrUnsupported) {
			err = fmt.Errorf("%w; memory of NewMapping or MapDescriptor can be exposed on every transport", err)
		}
		return nil, err
	}
	return &exposedUser{n: n, g: g, ways: ways}, nil
}

func (s *stream) exposeUser(ctx context.Context, c *ExposeConfig) (exposable, error) {
	user := s.e.env.user
	if _, err := user.access(c.Memory, c.Rights); err != nil {
		return nil, err
	}
	g, err := s.e.use(ctx, user, c.Memory, 0, true)
	if err != nil {
		return nil, err
	}
	return &exposedUser{g: g}, nil
}

func (x *exposedUser) bytes() []byte { return x.g.memory }

func (x *exposedUser) remote() (rdma.Remote, tokenWays) {
	if x.n == nil {
		return rdma.Remote{}, 0
	}
	return rdma.Remote{Address: x.g.region.Address(), Key: x.g.region.Key()}, x.ways
}

func (x *exposedUser) withdraw() error {
	if x.n == nil {
		return nil
	}
	return x.n.withdraw(x.g.region)
}

func (x *exposedUser) free() error {
	x.g.of.put(x.g)
	err := x.g.failure()
	if x.n != nil {
		x.n.cameBack()
	}
	return err
}
