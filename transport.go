package verbena

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A transport is a provider with the devices that it has in this process.
type transport struct {
	name        string
	provider    rdma.Provider
	devices     []*device
	unavailable error // why there are none
}

func newTransport(ctx context.Context, p rdma.Provider, log *slog.Logger) *transport {
	t := &transport{name: p.Name(), provider: p}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	found, err := p.Devices(ctx)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: provider %s has no device", rdma.ErrUnavailable, t.name)
	}
	if err != nil {
		t.unavailable = err
		return t
	}
	for _, dev := range found {
		t.devices = append(t.devices, newDevice(t.name, dev, log))
	}
	return t
}

// usable tells why no peer can be reached now, if so.
func (t *transport) usable() error {
	if t.unavailable != nil {
		return t.unavailable
	}
	_, err := t.reaching()
	return err
}

// addresses are those at which peers reach the devices.
func (t *transport) addresses() []string {
	var list []string
	for _, d := range t.devices {
		if routed, ok := d.dev.(rdma.RoutedDevice); ok {
			list = append(list, routed.Addresses()...)
		}
	}
	return list
}

// reaching returns the first device that reaches one of a peer's addresses. A
// peer without addresses is taken to be where every device is.
func (t *transport) reaching(addresses ...string) (*device, error) {
	if t.unavailable != nil {
		return nil, t.unavailable
	}
	var errs []error
	for _, d := range t.devices {
		routed, ok := d.dev.(rdma.RoutedDevice)
		switch err := d.lost(); {
		case err != nil:
			errs = append(errs, err)
			continue
		case !ok:
			return d, nil
		case len(routed.Addresses()) == 0:
			errs = append(errs, fmt.Errorf("%s: no port is up with an address", d.attributes.Name))
			continue
		case len(addresses) == 0:
			return d, nil
		}
		for _, address := range addresses {
			err := routed.Reaches(address)
			if err == nil {
				return d, nil
			}
			errs = append(errs, fmt.Errorf("%s to %s: %w", d.attributes.Name, address, err))
		}
	}
	return nil, fmt.Errorf("%w: %w", rdma.ErrUnavailable, errors.Join(errs...))
}

// streams tells whether queue pairs run on the connection of the hello.
func (t *transport) streams() bool { return len(t.devices) > 0 && t.devices[0].streams() }

// crossesHosts tells whether a device reaches peers on other hosts.
func (t *transport) crossesHosts() bool {
	for _, d := range t.devices {
		if d.attributes.CrossesHosts {
			return true
		}
	}
	return false
}
