//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// rejectedByConsumer is the status of a rejection by the peer's program on
// InfiniBand and RoCE ("consumer reject", InfiniBand volume 1, table "REJ
// reason codes"); noListener is that of a port where nobody listens.
const (
	rejectedByConsumer = 28
	noListener         = 8
)

// A connection is an identifier of the connection manager, with the queue pair that
// it carries once it is set up. During the set-up its events go to an inbox that the
// set-up reads; afterwards they go to the queue pair.
type connection struct {
	manager *manager
	id      verbs.CMID
	cookie  uint64
	gone    chan struct{} // closed when the identifier has been destroyed
	closing sync.Once
	// connecting is the rdma_connect under way, which may wait for the peer.
	connecting sync.WaitGroup
	// disconnected is closed when the peer has disconnected or has heard of it.
	disconnected chan struct{}
	heard        sync.Once

	mu    sync.Mutex
	inbox []verbs.CMEvent
	wake  chan struct{}
	pair  *queuePair // once it is connected
}

func newConnection(m *manager) *connection {
	return &connection{manager: m, gone: make(chan struct{}), disconnected: make(chan struct{}), wake: make(chan struct{}, 1)}
}

func (c *connection) heardDisconnect() bool {
	select {
	case <-c.disconnected:
		return true
	default:
		return false
	}
}

// linger waits until the peer has heard of the disconnect, or for so long.
func (c *connection) linger(limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.disconnected:
	case <-timer.C:
	}
}

// handle implements [handler].
func (c *connection) handle(event verbs.CMEvent) {
	switch event.Type {
	case verbs.CMDisconnected, verbs.CMTimewaitExit, verbs.CMDeviceRemoval:
		c.heard.Do(func() { close(c.disconnected) })
	}
	c.mu.Lock()
	p := c.pair
	if p == nil {
		c.inbox = append(c.inbox, event)
	}
	c.mu.Unlock()
	if p != nil {
		p.happened(event)
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// join gives all events to p from here on.
func (c *connection) join(p *queuePair) {
	for {
		c.mu.Lock()
		if len(c.inbox) == 0 {
			c.pair = p
			c.mu.Unlock()
			return
		}
		event := c.inbox[0]
		c.inbox = c.inbox[1:]
		c.mu.Unlock()
		p.happened(event)
	}
}

// happened acts on an event of a connection.
func (p *queuePair) happened(event verbs.CMEvent) {
	switch event.Type {
	case verbs.CMDisconnected:
		why := fmt.Errorf("%w by the peer", rdma.ErrDisconnected)
		if p.suspected.Load() && p.domain.device.attributes.Class == rdma.ClassIWARP {
			why = fmt.Errorf("%w by the peer, perhaps because it refused an access: the driver does not tell", rdma.ErrDisconnected)
		}
		p.fail(why, rdma.EventDisconnected, true)
	case verbs.CMDeviceRemoval:
		p.domain.remove(errors.New("it is being removed"))
	case verbs.CMConnectError, verbs.CMUnreachable, verbs.CMRejected:
		p.fail(fmt.Errorf("%w: the connection manager reports: %s", rdma.ErrDisconnected, event.Type), rdma.EventDisconnected, true)
	}
}

// close destroys the identifier in a goroutine, because some drivers wait for the peer
// before they give up an attempt to connect. The manager runs until it is destroyed.
func (c *connection) close() {
	c.closing.Do(func() {
		go func() {
			defer close(c.gone)
			c.connecting.Wait()
			_ = c.manager.destroy(c.id, c.cookie)
		}()
	})
}

// A setupEvent is a step of a set-up that has come.
type setupEvent struct {
	verbs.CMEvent
	private []byte
}

// await waits for one of the events in want. Any other event ends the attempt. failed,
// if it is not nil, gets the result of a call that is under way.
func (c *connection) await(ctx context.Context, p *queuePair, peer string, failed <-chan error, want ...verbs.CMEventType) (setupEvent, error) {
	event, err := c.awaitEvent(ctx, p, peer, failed, want)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("waiting for %q: %w", want[0], err)
	}
	return event, err
}

func (c *connection) awaitEvent(ctx context.Context, p *queuePair, peer string, failed <-chan error, want []verbs.CMEventType) (setupEvent, error) {
	for {
		c.mu.Lock()
		if len(c.inbox) > 0 {
			event := c.inbox[0]
			c.inbox = c.inbox[1:]
			c.mu.Unlock()
			if slices.Contains(want, event.Type) {
				private, _ := unpackPrivate(p.domain.device.attributes.Class, event.PrivateData)
				return setupEvent{event, private}, nil
			}
			if event.Type == verbs.CMAddrChange || event.Type == verbs.CMTimewaitExit {
				continue
			}
			return setupEvent{}, c.explain(p, peer, event)
		}
		c.mu.Unlock()
		select {
		case <-c.wake:
		case err := <-failed:
			if err == nil {
				failed = nil // the call is through, its outcome is an event
				continue
			}
			return setupEvent{}, explainErrno(err, peer)
		case <-p.done:
			return setupEvent{}, fmt.Errorf("queue pair %d was closed meanwhile: %w", p.number, rdma.ErrClosed)
		case <-ctx.Done():
			return setupEvent{}, deadline(ctx)
		}
	}
}

// explain words an event that ends an attempt.
func (c *connection) explain(p *queuePair, peer string, event verbs.CMEvent) error {
	errno := func() error {
		if event.Status < 0 {
			return syscall.Errno(-event.Status)
		}
		return fmt.Errorf("status %d", event.Status)
	}
	switch event.Type {
	case verbs.CMAddrError:
		return fmt.Errorf("no way to the address, or nobody answers for it there (%w): look at ip route get and ip neigh", errno())
	case verbs.CMRouteError:
		return fmt.Errorf("the fabric has no path to it (%w)", errno())
	case verbs.CMRejected:
		private, framed := unpackPrivate(p.domain.device.attributes.Class, event.PrivateData)
		if framed || event.Status == rejectedByConsumer || event.Status == -int32(syscall.ECONNRESET) {
			p.domain.device.provider.counters.rejected.Add(1)
			return &rdma.RejectedError{Peer: peer, PrivateData: private}
		}
		if event.Status == noListener || event.Status == -int32(syscall.ECONNREFUSED) {
			return fmt.Errorf("nobody listens there: %w", syscall.ECONNREFUSED)
		}
		return fmt.Errorf("the peer's host refused (%w)", errno())
	case verbs.CMUnreachable:
		return fmt.Errorf("%w: the peer's host does not answer (%w)", rdma.ErrTimeout, errno())
	case verbs.CMDisconnected:
		return fmt.Errorf("%w by the peer during the set-up", rdma.ErrDisconnected)
	case verbs.CMDeviceRemoval:
		p.domain.remove(errors.New("it is being removed"))
		return fmt.Errorf("%w: device %s is being removed", rdma.ErrUnavailable, p.domain.device.attributes.Name)
	case verbs.CMConnectError:
		return fmt.Errorf("the connection was not established (%w)", errno())
	}
	return fmt.Errorf("unexpected during the set-up: %s (%w)", event.Type, errno())
}

// explainErrno words what a call of the connection manager said.
func explainErrno(err error, peer string) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens there: %w", err)
	case errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("%w: %s does not answer: %w", rdma.ErrTimeout, peer, err)
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return fmt.Errorf("there is no route: %w", err)
	}
	return err
}
