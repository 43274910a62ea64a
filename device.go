package verbena

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A device is what a provider has to offer in this process.
type device struct {
	r           *Runtime
	name        string
	dev         rdma.Device
	attributes  rdma.Attributes
	unavailable error // why it cannot be used
}

func newDevice(r *Runtime, p rdma.Provider) *device {
	d := &device{r: r, name: p.Name()}
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	found, err := p.Devices(ctx)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: provider %s has no device", rdma.ErrUnavailable, d.name)
	}
	if err != nil {
		d.unavailable = err
		return d
	}
	d.dev = found[0]
	d.attributes = d.dev.Attributes()
	d.unavailable = errors.New("endpoints over queue pairs are not there yet")
	return d
}

// device returns the device of a provider, or nil.
func (r *Runtime) device(name string) *device {
	for _, d := range r.devices {
		if d.name == name {
			return d
		}
	}
	return nil
}

func (d *device) streams() bool {
	_, ok := d.dev.(rdma.StreamDevice)
	return ok && d.attributes.Has(rdma.CapStreams)
}

func (d *device) listen() (string, error) { return "", d.unavailable }

func (d *device) connectStream(ctx context.Context, e *Endpoint, conn net.Conn) error {
	return d.unavailable
}

func (d *device) acceptStream(ctx context.Context, e *Endpoint, conn net.Conn) error {
	return d.unavailable
}

func (d *device) connectAddress(ctx context.Context, e *Endpoint, address string, token []byte) error {
	return d.unavailable
}

func (d *device) close() error { return nil }
