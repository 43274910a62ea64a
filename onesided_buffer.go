package verbena

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// An exposedBuffer is a buffer that peers may reach. On a device it has a registration
// of its own beside that of the pool which it lies in: its key opens these bytes and no
// others, and ends with the exposure.
type exposedBuffer struct {
	buffer *Buffer
	data   []byte
	user   *exposedUser // nil over TCP
}

func (n *domain) exposeBuffer(ctx context.Context, e *Endpoint, c *ExposeConfig, access rdma.Access, ways tokenWays) (exposable, error) {
	local := rdma.AccessLocalWrite
	if at := c.Buffer.owner.location(); at.pool == nil {
		var err error
		if local, err = n.user.accessToAny(c.Memory, c.Rights); err != nil {
			return nil, err
		}
	}
	if err := n.hold(); err != nil {
		return nil, err
	}
	c.Buffer.Retain()
	g, err := e.use(ctx, n.user, c.Memory, access|local, true)
	if err != nil {
		c.Buffer.Release()
		n.cameBack()
		if errors.Is(err, rdma.ErrUnsupported) {
			err = fmt.Errorf("%w; a Buffer of Wrap whose memory lies in a Mapping can be exposed on every transport", err)
		}
		return nil, err
	}
	return &exposedBuffer{buffer: c.Buffer, data: c.Memory, user: &exposedUser{n: n, g: g, ways: ways}}, nil
}

func (s *stream) exposeBuffer(c *ExposeConfig) (exposable, error) {
	if at := c.Buffer.owner.location(); at.user != nil { // it may be mapped for reading only
		if _, err := s.e.env.user.access(c.Memory, c.Rights); err != nil {
			return nil, err
		}
	}
	c.Buffer.Retain()
	return &exposedBuffer{buffer: c.Buffer, data: c.Memory}, nil
}

func (x *exposedBuffer) bytes() []byte { return x.data }

func (x *exposedBuffer) remote() (rdma.Remote, tokenWays) {
	if x.user == nil {
		return rdma.Remote{}, 0
	}
	return x.user.remote()
}

func (x *exposedBuffer) withdraw() error {
	if x.user == nil {
		return nil
	}
	return x.user.withdraw()
}

// free drops the reference, unless the device may still reach the memory.
func (x *exposedBuffer) free() error {
	if x.user != nil {
		if err := x.user.free(); err != nil {
			return err
		}
	}
	x.buffer.Release()
	return nil
}
