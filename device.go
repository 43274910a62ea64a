package verbena

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/rdma"
)

// maxRequests bounds the connection requests that are answered at a time on a
// device's own port.
const maxRequests = 256

// Private data of rejections on a device's own port.
const (
	rejectNoResources = "no resources"
	rejectClosing     = "closing"
	rejectToken       = "unknown token"
	rejectNotPossible = "not possible"
)

// A device is one of a provider's in this process. All groups share it: each has
// a protection domain of its own on it.
type device struct {
	transport  string
	dev        rdma.Device
	attributes rdma.Attributes
	log        *slog.Logger

	count counters
	gone  atomic.Pointer[error] // set when the device has told that it is

	mu        sync.Mutex
	domains   map[*domain]struct{}
	listener  rdma.Listener
	listening sync.WaitGroup
}

func newDevice(transport string, dev rdma.Device, log *slog.Logger) *device {
	return &device{
		transport: transport, dev: dev, attributes: dev.Attributes(), log: log.With("device", dev.Attributes().Name),
		domains: map[*domain]struct{}{},
	}
}

// streams tells whether queue pairs run on the connection of the hello.
func (d *device) streams() bool {
	_, ok := d.dev.(rdma.StreamDevice)
	return ok && d.attributes.Has(rdma.CapStreams)
}

// lost tells why the device cannot be used any more, if so.
func (d *device) lost() error {
	if err := d.gone.Load(); err != nil {
		return *err
	}
	return nil
}

// event hears what no request tells. A queue pair's end is also told by its
// Done, which the endpoints watch.
func (d *device) event(ev rdma.Event) {
	d.count.event(ev.Kind)
	level := slog.LevelDebug
	if ev.Kind == rdma.EventDeviceError || ev.Kind == rdma.EventPortDown || ev.Kind == rdma.EventPortUp {
		level = slog.LevelWarn // the operator's business
	}
	d.log.Log(context.Background(), level, "device event", "event", ev.Kind.String(), "error", ev.Err)
	if ev.Kind != rdma.EventDeviceError {
		return
	}
	err := fmt.Errorf("device %s is gone: %w", d.attributes.Name, ev.Err)
	d.gone.CompareAndSwap(nil, &err)
	d.mu.Lock()
	domains := slices.Collect(maps.Keys(d.domains))
	d.mu.Unlock()
	for _, domain := range domains {
		domain.fail(fmt.Errorf("%w: %w", ErrPeerDied, err))
	}
}

// listen opens the device's own port, once, and returns its address. Requests go
// to serve, each on a goroutine of its own, until ctx ends.
func (d *device) listen(ctx context.Context, serve func(rdma.ConnectRequest)) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener == nil {
		l, err := d.dev.Listen(ctx, "")
		if err != nil {
			return "", fmt.Errorf("listen on %s: %w", d.attributes.Name, err)
		}
		d.listener = l
		d.listening.Go(func() { d.acceptRequests(ctx, l, serve) })
	}
	address := d.listener.Address()
	if len(address) > hello.MaxAddress {
		return "", fmt.Errorf("address of %s is %d bytes long, a hello has room for %d", d.attributes.Name, len(address), hello.MaxAddress)
	}
	return address, nil
}

func (d *device) acceptRequests(ctx context.Context, l rdma.Listener, serve func(rdma.ConnectRequest)) {
	requests := make(chan struct{}, maxRequests)
	for {
		request, err := l.Accept(ctx)
		switch {
		case ctx.Err() != nil || errors.Is(err, rdma.ErrClosed):
			if err == nil {
				_ = request.Reject([]byte(rejectClosing)) // too late
			}
			return
		case err != nil:
			// The next one may do better. The pause keeps a lasting failure from
			// using a processor.
			d.log.Warn("connection request lost", "error", err)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case requests <- struct{}{}:
			d.listening.Go(func() {
				serve(request)
				<-requests
			})
		default:
			_ = request.Reject([]byte(rdma.RejectBusy)) // the peer tries again
		}
	}
}

// close ends the device's port. Its domains are closed by their groups.
func (d *device) close() error {
	d.mu.Lock()
	l := d.listener
	d.mu.Unlock()
	var err error
	if l != nil {
		err = l.Close()
	}
	d.listening.Wait()
	return err
}
