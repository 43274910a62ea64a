//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// An idle connection over InfiniBand or RoCE says nothing: a device learns that the
// peer's host is gone by repeating a request in vain. So a queue pair that has posted
// nothing for a while posts a Write of nothing, which the peer's device acknowledges
// by itself. iWARP has the timers of its TCP instead.

const (
	// probesAtOnce is how many probes may be under way on a completion queue, which has
	// as many entries beside those of the application.
	probesAtOnce = 64
	// probePause and probeTries bound the wait for an entry: 10 ms, then the next round.
	probePause = time.Millisecond
	probeTries = 10
)

// probes tells whether queue pairs of the device have to ask for signs of life. Each
// has a place in the device's send queue for that.
func (d *Device) probes() bool {
	return d.attributes.Class == rdma.ClassInfiniBand && d.provider.config.KeepAlive > 0
}

// keepAlive probes idle queue pairs until the domain is closed.
func (m *domain) keepAlive() {
	tick := time.NewTicker(m.device.provider.config.KeepAlive)
	defer tick.Stop()
	for {
		select {
		case <-m.closing:
			return
		case <-tick.C:
		}
		for _, p := range m.allPairs() {
			select {
			case <-m.closing:
				return
			default:
				p.probeIfIdle()
			}
		}
	}
}

// probeIfIdle posts a probe if nothing has been posted since the last call. What has
// been is repeated by the device, and fails by itself. One goroutine calls it.
func (p *queuePair) probeIfIdle() {
	posted := p.sends.tail.Load()
	idle := posted == p.postedBefore
	p.postedBefore = posted
	if !idle || p.State() != rdma.StateConnected {
		return
	}
	if p.probing.Load() {
		p.sendCQ.drain() // the application may not poll
		return
	}
	for try := 0; !p.sendCQ.takeProbe(); try++ {
		if try == probeTries {
			return
		}
		p.sendCQ.drain()
		time.Sleep(probePause)
	}
	p.probing.Store(true)
	if !p.probe() {
		p.endProbe()
	}
}

// probe posts a Write of nothing. Its completion is not the application's.
func (p *queuePair) probe() bool {
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	if p.State() != rdma.StateConnected {
		return false
	}
	wr := p.sendList.At(0)
	wr.ID, wr.Opcode, wr.Flags, wr.NumSGE = kindProbe|p.tag, verbs.WRWrite, verbs.SendSignaled, 0
	wr.SetRemote(0, 1) // peers do not check the key of an access of 0 bytes
	wr.SetImmediate(0)
	n, _ := p.hw.PostSend(p.sendList, 1)
	if n == 1 {
		p.domain.device.provider.counters.probes.Add(1)
	}
	return n == 1
}

// probed takes the completion of a probe. The completion queue's lock is held.
func (p *queuePair) probed(wc *verbs.WC) {
	if !p.endProbe() {
		return
	}
	if status := p.outcome(wc); status != rdma.StatusSuccess {
		p.bad(wc, status)
	}
}

// endProbe gives the probe's entry of the completion queue back, once.
func (p *queuePair) endProbe() bool {
	if !p.probing.Swap(false) {
		return false
	}
	p.sendCQ.probes.Add(-1)
	return true
}

// takeProbe takes an entry of the queue for a probe, if there is one.
func (q *completionQueue) takeProbe() bool {
	if q.probes.Add(1) <= q.mostProbes {
		return true
	}
	q.probes.Add(-1)
	return false
}
