package rdmatest

import (
	"runtime"
	"sync"

	"github.com/verbena-data/verbena/rdma"
)

// doorbellCases are about queue pairs whose doorbell is rung by a call of its own.
var doorbellCases = []testCase{
	{"HeldDoorbell", nil, testHeldDoorbell},
	{"HeldDoorbellOfTheClosed", nil, testHeldDoorbellOfTheClosed},
}

// doorbell is the conn's, or nil if the device rings while it posts.
func (c *conn) doorbell() rdma.DoorbellQueuePair {
	d, ok := c.QueuePair.(rdma.DoorbellQueuePair)
	if !ok {
		c.s.e.logf("%s: the device rings while it posts", c.s.name)
		return nil
	}
	return d
}

// awaitNext takes the next completion of a queue that nobody else polls, asleep until it
// has come.
func (c *conn) awaitNext(q *queue, what string) rdma.Completion {
	e := c.s.e
	var got [1]rdma.Completion
	for {
		e.check(q.Arm(false), "Arm")
		n, err := q.Poll(got[:])
		e.check(err, "Poll")
		if n == 1 {
			if got[0].Status != rdma.StatusSuccess {
				e.fatalf("%s: %s: %s", c.s.name, what, got[0].Status)
			}
			return got[0]
		}
		ctx, cancel := e.bound()
		err = q.Wait(ctx)
		cancel()
		e.check(err, "Wait for "+what)
	}
}

// testHeldDoorbell has several goroutines post under a lock and ring behind it, while
// those who wait at both ends sleep. Each message is carried out, and wakes them.
func testHeldDoorbell(e *env) {
	const posters, window = 4, 16
	a, b := e.connect(nil)
	bell := a.doorbell()
	if bell == nil {
		return
	}
	each := e.rounds(1000)
	// A message takes a receive of the peer and a place in the send queue.
	credits, places := make(chan struct{}, window), make(chan struct{}, window)
	for i := range window {
		b.recv(uint64(i), nil)
		credits <- struct{}{}
		places <- struct{}{}
	}
	post := func(mu *sync.Mutex, next *uint64) {
		for i := range each {
			for _, ready := range []chan struct{}{credits, places} {
				select {
				case <-ready:
				case <-e.ctx.Done():
					e.fatalf("message %d of a goroutine can't be posted", i)
				}
			}
			mu.Lock()
			n, ring, err := bell.PostSendHeld([]rdma.SendRequest{{ID: *next, Op: rdma.OpSend, Flags: rdma.Signaled}})
			*next++
			mu.Unlock()
			if n != 1 || err != nil {
				e.fatalf("PostSendHeld: %d, %v", n, err)
			}
			if i%3 == 0 {
				runtime.Gosched() // meanwhile others ring for this one
			}
			if ring {
				bell.Ring()
			}
		}
	}
	var mu sync.Mutex
	var next uint64
	works := []func(){
		func() {
			for i := range uint64(posters * each) {
				if c := a.awaitNext(a.sends, "a Send"); c.ID != i {
					e.fatalf("request %d completes, not %d", c.ID, i)
				}
				places <- struct{}{}
			}
		},
		func() {
			for i := range uint64(posters * each) {
				if c := b.awaitNext(b.recvs, "a message"); c.ID != i {
					e.fatalf("receive %d completes, not %d", c.ID, i)
				}
				b.recv(i+window, nil)
				credits <- struct{}{}
			}
		},
	}
	for range posters {
		works = append(works, func() { post(&mu, &next) })
	}
	e.together(works...)
}

// testHeldDoorbellOfTheClosed closes a queue pair before its doorbell is rung.
func testHeldDoorbellOfTheClosed(e *env) {
	for range e.rounds(20) {
		a, b := e.connect(nil)
		bell := a.doorbell()
		if bell == nil {
			return
		}
		b.recv(1, nil)
		n, _, err := bell.PostSendHeld([]rdma.SendRequest{{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled}})
		if n != 1 || err != nil {
			e.fatalf("PostSendHeld: %d, %v", n, err)
		}
		e.together(func() { e.check(a.Close(), "Close") }, bell.Ring)
		bell.Ring()
		b.ended()
		if n, _, err := bell.PostSendHeld([]rdma.SendRequest{{ID: 2, Op: rdma.OpSend}}); n != 0 {
			e.fatalf("PostSendHeld after Close: %d, %v", n, err)
		}
		bell.Ring()
	}
}
