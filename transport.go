package verbena

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

const (
	// listing is how long a provider may take to list its devices.
	listing = 5 * time.Second
	// A provider whose list failed for a reason that may pass is asked again when
	// somebody wants it, after firstListing, and then after twice as long each time, up
	// to longestListing.
	firstListing, longestListing = time.Second, time.Minute
)

// A transport is a provider with the devices that it has in this process.
type transport struct {
	name     string
	provider rdma.Provider
	log      *slog.Logger
	listed   atomic.Pointer[listed]

	asking atomic.Bool   // somebody lists
	pause  time.Duration // before the next time; of whoever lists
}

// listed is what a provider has last said. It does not change.
type listed struct {
	devices     []*device
	unavailable error     // why there are none
	next        time.Time // when the provider may be asked again, if that may pass
}

func newTransport(ctx context.Context, p rdma.Provider, log *slog.Logger) *transport {
	t := &transport{name: p.Name(), provider: p, log: log}
	t.asking.Store(true)
	t.list(ctx)
	return t
}

// list asks the provider for its devices. Nobody else does meanwhile: see asking.
func (t *transport) list(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listing)
	defer cancel()
	found, err := t.provider.Devices(ctx)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: provider %s has no device", rdma.ErrUnavailable, t.name)
	}
	l := &listed{unavailable: err}
	switch {
	case err == nil:
		for _, dev := range found {
			l.devices = append(l.devices, newDevice(t.name, dev, t.log))
		}
	case rdma.Temporary(err) || errors.Is(err, context.DeadlineExceeded):
		t.pause = min(max(2*t.pause, firstListing), longestListing)
		l.next = time.Now().Add(t.pause)
		l.unavailable = fmt.Errorf("%w (looked for again after %s)", err, l.next.Format(time.TimeOnly))
	}
	t.listed.Store(l)
	t.asking.Store(false)
}

// due tells whether the provider is to be asked again, because the last failure may have
// passed. Whoever is told so calls list.
func (t *transport) due() bool {
	next := t.listed.Load().next
	return !next.IsZero() && !time.Now().Before(next) && t.asking.CompareAndSwap(false, true)
}

func (t *transport) devices() []*device { return t.listed.Load().devices }

// unavailable tells why there are no devices, if so.
func (t *transport) unavailable() error { return t.listed.Load().unavailable }

// usable tells why no peer can be reached now, if so.
func (t *transport) usable() error {
	_, err := t.reaching()
	return err
}

// addresses are those at which peers reach the devices.
func (t *transport) addresses() []string {
	var list []string
	for _, d := range t.devices() {
		if routed, ok := d.dev.(rdma.RoutedDevice); ok {
			list = append(list, routed.Addresses()...)
		}
	}
	return list
}

// reaching returns the first device that reaches one of a peer's addresses. A
// peer without addresses is taken to be where every device is.
func (t *transport) reaching(addresses ...string) (*device, error) {
	if err := t.unavailable(); err != nil {
		return nil, err
	}
	var errs []error
	for _, d := range t.devices() {
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
func (t *transport) streams() bool {
	devices := t.devices()
	return len(devices) > 0 && devices[0].streams()
}

// crossesHosts tells whether a device reaches peers on other hosts.
func (t *transport) crossesHosts() bool {
	for _, d := range t.devices() {
		if d.attributes.CrossesHosts {
			return true
		}
	}
	return false
}
