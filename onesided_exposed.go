package verbena

import (
	"context"
	"fmt"

	"github.com/verbena-data/verbena/internal/usermem"
	"github.com/verbena-data/verbena/rdma"
)

// An exposedRegion is memory of a device that peers may be given the key of.
type exposedRegion struct {
	n      *domain
	region rdma.Region
	size   int
	ways   tokenWays
}

// expose makes memory that the peer of e may reach.
func (n *domain) expose(ctx context.Context, e *Endpoint, c *ExposeConfig) (exposable, error) {
	size := c.Size
	if m := n.attributes.MaxRegion; m > 0 && int64(size) > m {
		return nil, fmt.Errorf("%w: %d bytes, a region of the device has %d at most", ErrTooLong, size, m)
	}
	access, ways := n.opens(c.Rights)
	if c.Buffer != nil {
		return n.exposeBuffer(ctx, e, c, access, ways)
	}
	if c.Memory != nil {
		return n.exposeUser(ctx, e, c, access, ways)
	}
	access |= rdma.AccessLocalWrite
	if err := e.borrow(ctx, n.exposed, int64(size)); err != nil {
		return nil, err
	}
	if err := n.hold(); err != nil {
		n.exposed.give(int64(size))
		return nil, err
	}
	region, err := n.domain.Allocate(size, access)
	if err != nil {
		n.exposed.give(int64(size))
		n.cameBack()
		return nil, fmt.Errorf("register %d bytes: %w", size, err)
	}
	usermem.Own(region.Bytes())
	return &exposedRegion{n: n, region: region, size: size, ways: ways}, nil
}

// opens tells what a region must let peers do that have rights, and how they reach it.
func (n *domain) opens(rights Rights) (access rdma.Access, ways tokenWays) {
	ways = byDevice
	if rights&MayRead != 0 {
		access |= rdma.AccessRemoteRead
	}
	if rights&MayWrite != 0 {
		access |= rdma.AccessRemoteWrite
	}
	if n.attributes.Has(rdma.CapAtomics) {
		ways |= atomicsByDevice
		if rights&MayAtomic != 0 {
			access |= rdma.AccessRemoteAtomic
		}
	}
	return access, ways
}

func (r *exposedRegion) bytes() []byte { return r.region.Bytes() }

func (r *exposedRegion) remote() (rdma.Remote, tokenWays) {
	return rdma.Remote{Address: r.region.Address(), Key: r.region.Key()}, r.ways
}

func (r *exposedRegion) withdraw() error { return r.n.withdraw(r.region) }

func (n *domain) withdraw(region rdma.Region) error {
	if w, ok := region.(rdma.WithdrawableRegion); ok {
		return w.Withdraw()
	}
	return fmt.Errorf("%w: provider %s cannot end access to a region and keep it", rdma.ErrUnsupported, n.attributes.Provider)
}

func (r *exposedRegion) free() error {
	usermem.Disown(r.region.Bytes())
	err := r.region.Close()
	if err == nil { // otherwise the device may still reach it
		r.n.exposed.give(int64(r.size))
	}
	r.n.cameBack()
	return err
}
