//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

const (
	// flushPatience is how long a failed queue pair waits for the driver's next
	// completion. After it this side flushes the rest: drivers forget some. It waits
	// for as long to be told that it has got its last shared receive.
	flushPatience = 100 * time.Millisecond
	// suspicion is how long a queue pair that flushes without a reason waits for one.
	suspicion = 200 * time.Millisecond
	// settleTries is for how many milliseconds a queue pair whose peer has left still
	// takes in answers.
	settleTries = 20
	// lingering, and twice AckTimeout beside it, is how long an identifier waits for
	// the peer to hear of the disconnect, which may be lost twice. The kernel repeats
	// it every 4.1 seconds and twice the path's life time (drivers/infiniband/core/cm.c,
	// timeout_ms); initiate sets that. The queue pair is gone by then.
	lingering = 9400 * time.Millisecond
	// closePatience is how long Close waits for a driver that holds on to an attempt
	// to connect. The domain's Close waits longer.
	closePatience = 50 * time.Millisecond
)

// errHere is the end that this side chose.
var errHere = fmt.Errorf("%w by this side", rdma.ErrDisconnected)

// errNoReason is the reason of a failure for which no other was told.
var errNoReason = errors.New("the device has flushed it and gives no reason")

// suspect fails the queue pair by why, but only after 200 ms: the device has flushed
// requests, and an event that tells a better reason is usually on its way.
func (p *queuePair) suspect(why error) {
	if rdma.State(p.state.Load()) >= rdma.StateError || p.suspected.Swap(true) {
		return
	}
	p.domain.background.Go(func() {
		timer := time.NewTimer(suspicion)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
			p.fail(why, rdma.EventQueuePairError, true)
		}
	})
}

// look fails a connected queue pair that the device says has failed.
func (p *queuePair) look() {
	p.mu.Lock()
	if p.State() != rdma.StateConnected {
		p.mu.Unlock()
		return
	}
	// The device's object lives at least as long as the queue pair is connected.
	a, err := p.hw.Query()
	p.mu.Unlock()
	if err != nil || a.State != verbs.QPError {
		return
	}
	// If a request has failed, its completion can be polled by now, and tells more.
	p.sendCQ.drain()
	p.recvCQ.drain()
	p.fail(errors.New("the device has refused a request of the peer"), rdma.EventQueuePairError, true)
}

// fail ends the queue pair, once, and returns whether it did. With tell it raises an
// event.
func (p *queuePair) fail(reason error, kind rdma.EventKind, tell bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failLocked(reason, kind, tell)
}

func (p *queuePair) failLocked(reason error, kind rdma.EventKind, tell bool) bool {
	if rdma.State(p.state.Load()) >= rdma.StateError {
		return false
	}
	towards := ""
	if p.peer != "" {
		towards = " to " + p.peer
	}
	p.err = fmt.Errorf("ibverbs: queue pair %d%s on %s: %w", p.number, towards, p.domain.device.attributes.Name, reason)
	p.state.Store(uint32(rdma.StateError))
	p.ended = make(chan struct{})
	close(p.done)
	if tell {
		c := &p.domain.device.provider.counters
		if kind == rdma.EventDisconnected {
			c.disconnects.Add(1)
		} else {
			c.queuePairErrors.Add(1)
		}
		p.domain.events.Add(rdma.Event{Kind: kind, QueuePair: p, Err: p.err})
	}
	p.domain.background.Go(p.end)
	return true
}

// end does what fail began, in a goroutine of its own: it may wait for the device.
func (p *queuePair) end() {
	defer close(p.ended)
	// A post that has seen the old state holds its lock until it is through.
	p.sendMu.Lock()
	p.sendMu.Unlock() //nolint:staticcheck // the passing through is the point
	p.recvMu.Lock()
	p.recvMu.Unlock() //nolint:staticcheck // as above
	p.mu.Lock()
	c, joined := p.conn, p.joined
	p.mu.Unlock()
	if joined && c.heardDisconnect() {
		p.settle()
	}
	failed := p.hw.ToError()
	if c != nil && joined {
		// Some drivers do not tell the peer of a failed queue pair. If the peer has
		// disconnected first, this answers it.
		_ = c.id.Disconnect()
	}
	if !p.silent.Load() {
		p.awaitFlush(failed == nil)
	}
	if p.shared != nil && joined && failed == nil {
		p.awaitShared()
	}
	if !p.silent.Load() {
		p.flush()
	}
}

// awaitShared tells of the shared receives that the device took for the queue pair
// and has not filled. It flushes them in the error state, and forgets them when the
// queue pair is reset or destroyed. Only the device knows how many there are. An
// event, "last work request reached" (InfiniBand volume 1, section 11.6.3), tells
// that it is through; drivers that lack it (among them the kernel's software devices
// before Linux 6.10) get flushPatience.
func (p *queuePair) awaitShared() {
	if p.shared.outstanding() > 0 {
		timer := time.NewTimer(flushPatience)
		defer timer.Stop()
		select {
		case <-p.lastReceive:
		case <-timer.C:
		}
	}
	p.recvCQ.drain()
}

// settle waits up to 20 ms for answers that the peer sent before it disconnected: a
// request that was answered must not be flushed.
func (p *queuePair) settle() {
	for range settleTries {
		if p.sends.outstanding() == 0 || p.silent.Load() {
			return
		}
		p.sendCQ.drain()
		time.Sleep(time.Millisecond)
	}
}

func (p *queuePair) outstanding() uint32 { return p.sends.outstanding() + p.recvs.outstanding() }

// awaitFlush polls until the device has flushed everything, or has flushed nothing for
// 100 ms.
func (p *queuePair) awaitFlush(comes bool) {
	left, since, pause := p.outstanding(), time.Now(), 50*time.Microsecond
	for comes && left > 0 && !p.silent.Load() {
		p.sendCQ.drain()
		if p.recvCQ != p.sendCQ {
			p.recvCQ.drain()
		}
		now := p.outstanding()
		if now == 0 {
			return
		}
		if now != left {
			left, since, pause = now, time.Now(), 50*time.Microsecond
			continue
		}
		if time.Since(since) > flushPatience {
			break
		}
		time.Sleep(pause)
		pause = min(2*pause, 5*time.Millisecond)
	}
}

// flush completes what the device has forgotten.
func (p *queuePair) flush() {
	if p.outstanding() > 0 {
		// After a reset the device touches no memory of the requests. Drivers that refuse
		// a reset have closed the connection's socket by now, which comes to the same.
		_ = p.hw.Reset()
	}
	lost := 0
	p.sendCQ.mu.Lock()
	p.sendCQ.pollDevice()
	before := p.sends.outstanding()
	lost += p.tellSends(p.sendCQ, true)
	if before > 0 {
		p.sendCQ.notify()
	}
	p.sendCQ.mu.Unlock()
	p.recvCQ.mu.Lock()
	p.recvCQ.pollDevice()
	for p.shared == nil {
		id, ok := p.recvs.next()
		if !ok {
			break
		}
		lost++
		p.tellRecv(p.recvCQ, id, nil, rdma.StatusFlushed)
		p.recvCQ.notify()
	}
	p.recvCQ.mu.Unlock()
	p.domain.device.provider.counters.lostCompletions.Add(uint64(lost))
}

// Disconnect implements [rdma.QueuePair].
func (p *queuePair) Disconnect() error {
	if p.State() == rdma.StateInit {
		return fmt.Errorf("ibverbs: disconnect queue pair %d: %w: it is not connected", p.number, rdma.ErrState)
	}
	p.fail(errHere, 0, false)
	return nil
}

// Close implements [rdma.QueuePair].
func (p *queuePair) Close() error {
	p.mu.Lock()
	if p.closed {
		destroyed := p.destroyed
		p.mu.Unlock()
		if destroyed != nil {
			p.awaitDestroyed(destroyed)
		}
		return nil
	}
	p.closed = true
	p.silent.Store(true)
	p.destroyed = make(chan struct{})
	p.failLocked(errHere, 0, false)
	ended, settled := p.ended, p.settled
	p.mu.Unlock()
	<-ended
	if settled != nil {
		<-settled
	}
	// From here on no completion of it is emitted.
	p.domain.dropPair(p)
	p.mu.Lock()
	p.state.Store(uint32(rdma.StateClosed))
	c := p.conn
	p.mu.Unlock()
	p.domain.background.Go(func() {
		defer close(p.destroyed)
		p.letGo(c)
	})
	p.awaitDestroyed(p.destroyed)
	return nil
}

// letGo frees what the driver has, once. A second caller waits for the first.
func (p *queuePair) letGo(c *connection) {
	p.freeing.Do(func() {
		m := p.domain
		p.mu.Lock()
		joined := p.joined
		p.mu.Unlock()
		if joined && m.device.attributes.Class == rdma.ClassInfiniBand && m.removedError() == nil {
			// While the identifier exists the kernel repeats a disconnect that is lost.
			m.freePair(p)
			m.background.Go(func() {
				c.linger(lingering + 2*m.device.provider.config.AckTimeout)
				c.close()
				<-c.gone
			})
			return
		}
		if c != nil {
			c.close()
			<-c.gone
		}
		m.freePair(p)
	})
}

// abandon frees what the driver has of a queue pair that has failed. The
// application still has to close it.
func (p *queuePair) abandon() {
	p.mu.Lock()
	ended, settled := p.ended, p.settled
	p.mu.Unlock()
	<-ended
	if settled != nil {
		<-settled
	}
	p.mu.Lock()
	c := p.conn
	p.mu.Unlock()
	p.letGo(c)
}

// awaitDestroyed waits until the driver has let go. Some drivers hold on to an attempt
// to connect that was given up until the peer answers. Such a queue pair touches no
// memory any more, so this waits 50 ms only, and the domain's Close waits for the rest.
func (p *queuePair) awaitDestroyed(destroyed chan struct{}) {
	p.mu.Lock()
	patient := p.joined || p.conn == nil
	p.mu.Unlock()
	if patient {
		<-destroyed
		return
	}
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case <-destroyed:
	case <-timer.C:
	}
}
