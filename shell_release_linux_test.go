package verbena

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// consistent fails unless all receives of the domain's shared queues that have memory are
// posted, and counted as such, once the endpoints have posted what they had yet to.
func consistent(t *testing.T, n *domain) {
	t.Helper()
	n.tidy()
	n.mu.Lock()
	workers := n.workers
	n.mu.Unlock()
	for _, w := range workers { // messages of the runtime may still come
		w.mu.Lock()
		defer w.mu.Unlock()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.queues {
		r.mu.Lock()
		posted, lost := 0, 0
		for _, b := range *r.slots.Load() {
			if b.posted {
				posted++
			} else if b.memory != nil {
				lost++
			}
		}
		if counted := int(r.posted.Load()); counted != posted || lost > 0 {
			t.Errorf("%d receives are posted and %d counted; %d more have memory", posted, counted, lost)
		}
		r.mu.Unlock()
	}
}

// The receive of a released message waits until its endpoint waits for the next, or
// until as many wait as go together.
func TestReleasedReceivesGoTogether(t *testing.T) {
	every := recallEvery
	t.Cleanup(func() { recallEvery = every })
	recallEvery = time.Hour // a round would post what waits
	w := worldOf(t, "shm")
	const messages = 2 * mostUnposted
	p := w.pair(t, Config{IgnorePressure: true, Tuning: TuningTable{w.transport: {Window: 2 * messages}}}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	s := b.carrier.(*shell)
	waiting := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.unposted.n
	}
	send := func(n int) {
		for range n {
			if err := a.Send(p.ctx, 1, []byte("message")); err != nil {
				t.Fatal(err)
			}
		}
	}
	receive := func() *Message {
		m, err := b.Receive(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	send(1)
	receive().Release()
	if n := waiting(); n != 1 {
		t.Errorf("%d receives wait after one message", n)
	}
	send(messages)
	for ready := 0; ready < messages; { // all of them lie in the inbox
		s.w.poll()
		ready = 0
		s.mu.Lock()
		for _, b := range *s.window.recv.slots.Load() {
			if b.holder == &s.inbound && !b.message.held {
				ready++
			}
		}
		s.mu.Unlock()
	}
	most := 0
	for range messages {
		receive().Release()
		most = max(most, waiting())
	}
	if most != mostUnposted-1 {
		t.Errorf("%d receives waited at most while messages were ready", most)
	}
	var all sync.WaitGroup
	all.Go(func() { receive().Release() })
	for waiting() > 0 && p.ctx.Err() == nil { // until Receive waits
		s.w.poll()
	}
	send(1)
	all.Wait()
	consistent(t, s.n)
}

// Whatever is sent, held, released and closed, in whichever order, no receive is lost,
// and none is counted twice.
func TestReceivesAreCountedThroughReleases(t *testing.T) {
	for seed := range uint64(20) {
		w := worldOf(t, "shm")
		p := w.pair(t, Config{Tuning: TuningTable{w.transport: {Window: 16}}}, ListenConfig{})
		random := rand.New(rand.NewPCG(seed, 1))
		var ends [][2]*Endpoint
		for range 4 {
			a, b := p.connect(t, w.transport)
			ends = append(ends, [2]*Endpoint{a, b})
		}
		var held []*Message
		for range 200 {
			e := ends[random.IntN(len(ends))]
			if random.IntN(2) == 0 {
				e[0], e[1] = e[1], e[0]
			}
			n := 1 + random.IntN(4)
			for range n {
				if err := e[0].Send(p.ctx, 1, make([]byte, random.IntN(2000))); err != nil {
					t.Fatal(err)
				}
			}
			for range n {
				m, err := e[1].Receive(p.ctx)
				if err != nil {
					t.Fatal(err)
				}
				if held = append(held, m); random.IntN(3) > 0 {
					m.Release()
					held = held[:len(held)-1]
				}
			}
			if len(held) > 2 {
				for _, m := range held {
					m.Release()
				}
				held = held[:0]
			}
		}
		closed := ends[0]
		if seed%2 == 0 { // no message of the goodbye counts what was taken before
			if err := closed[0].Send(p.ctx, 1, []byte("the last one")); err != nil {
				t.Fatal(err)
			}
			m, err := closed[1].Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, m)
			closed[1].carrier.(*shell).fail(ErrPeerDied)
		}
		_, _ = closed[1].Close(), closed[0].Close()
		for _, m := range held {
			m.Release()
		}
		for _, e := range ends[1:] {
			consistent(t, e[0].carrier.(*shell).n)
			consistent(t, e[1].carrier.(*shell).n)
		}
	}
}
