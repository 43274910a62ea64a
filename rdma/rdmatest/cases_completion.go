package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

func errorIs(err, target error) bool { return errors.Is(err, target) }

func testingShort() bool { return testing.Short() }

// completionCases are about completion queues and the space of send queues.
var completionCases = []testCase{
	{"SelectiveSignalling", nil, testSelectiveSignalling},
	{"SendQueueFull", nil, testSendQueueFull},
	{"ReceiveQueueFull", nil, testReceiveQueueFull},
	{"PollBatches", nil, testPollBatches},
	{"ConcurrentPolls", nil, testConcurrentPolls},
	{"WaitRounds", nil, testWaitRounds},
	{"WaitStream", nil, testWaitStream},
	{"WaitContext", nil, testWaitContext},
	{"Solicited", nil, testSolicited},
	{"Overrun", nil, testOverrun},
	{"AllocationFree", []Feature{FeatureAllocationFree, FeatureMemory}, testAllocationFree},
}

func testSelectiveSignalling(e *env) {
	a, b := e.connectEach(func(c *rdma.QueuePairConfig) { c.SendDepth = 16 }, nil)
	source, sink := a.s.memory(8), b.s.memory(8)
	write := func(id uint64, flags rdma.Flags) rdma.SendRequest {
		return rdma.SendRequest{ID: id, Op: rdma.OpWrite, Flags: flags, Remote: sink.at(0), SGEs: source.sge(0, 8)}
	}
	// The space of unsignalled requests comes back with a later completion, for
	// any distance between the signalled ones.
	id, times := uint64(0), e.rounds(20)
	for gap := 1; gap <= 16; gap++ {
		for range times {
			for range gap - 1 {
				id++
				a.send(write(id, 0))
			}
			id++
			a.send(write(id, rdma.Signaled))
			a.sends.success(id)
		}
	}
	a.sends.quiet("unsignalled requests do not complete")
}

// fillUp posts unsignalled Writes until the queue is full and returns how many
// it took.
func (c *conn) fillUp(request rdma.SendRequest) int {
	e := c.s.e
	e.t.Helper()
	most := 16*c.s.attributes.MaxQueueDepth + 1024
	for n := range most {
		taken, err := c.PostSend([]rdma.SendRequest{request})
		switch {
		case taken == 1 && err == nil:
		case taken == 0 && errors.Is(err, rdma.ErrQueueFull):
			return n
		default:
			e.fatalf("PostSend %d: %d, %v", n, taken, err)
		}
	}
	e.fatalf("send queue of depth %d takes %d requests without a completion", c.config.SendDepth, most)
	return 0
}

func testSendQueueFull(e *env) {
	// The queue may be deeper than asked for, the completion queue must not be
	// what is too small then.
	large := e.a().queue(min(4096, e.a().attributes.MaxCompletions))
	a, b := e.connectEach(func(c *rdma.QueuePairConfig) {
		c.SendDepth, c.SendCompletions = 8, large.CompletionQueue
	}, nil)
	a.sends = large
	source, sink := a.s.memory(8), b.s.memory(8)
	write := rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, 8)}

	// A batch that does not fit is taken in part. Nothing is polled meanwhile.
	depth := a.fillUp(write)
	if depth < 8 {
		e.errorf("send queue of depth 8 takes %d requests", depth)
	}
	if state := a.State(); state != rdma.StateConnected {
		e.fatalf("queue pair is %s after ErrQueueFull: %v", state, a.Err())
	}
	for range depth {
		a.sends.success(1)
	}
	batch := make([]rdma.SendRequest, depth+5)
	for i := range batch {
		batch[i] = write
		batch[i].ID = uint64(i)
	}
	n, err := a.PostSend(batch)
	if n < 8 || n >= len(batch) || !errors.Is(err, rdma.ErrQueueFull) {
		e.fatalf("PostSend of %d requests to an empty queue: %d, %v; want at least 8 and ErrQueueFull", len(batch), n, err)
	}
	for i := range n {
		a.sends.success(uint64(i))
	}
	a.sends.quiet("only what was taken completes")
	a.signal(b)

	// Without a signalled request there is never space again, though all have
	// been done soon.
	write.Flags = 0
	a.fillUp(write)
	ctx, cancel := e.soon()
	defer cancel()
	for ctx.Err() == nil {
		b.signal(a)
		if n, err := a.PostSend([]rdma.SendRequest{write}); n != 0 || !errors.Is(err, rdma.ErrQueueFull) {
			e.fatalf("PostSend to a queue full of unsignalled requests: %d, %v; want ErrQueueFull", n, err)
		}
	}
	if state := a.State(); state != rdma.StateConnected {
		e.errorf("queue pair is %s after ErrQueueFull: %v", state, a.Err())
	}
	e.check(a.Disconnect(), "Disconnect")
	a.ended()
}

func testReceiveQueueFull(e *env) {
	a, b := e.connectEach(nil, func(c *rdma.QueuePairConfig) { c.RecvDepth = 8 })
	most := 16*b.s.attributes.MaxQueueDepth + 1024
	taken := 0
	for ; ; taken++ {
		n, err := b.PostRecv([]rdma.RecvRequest{{ID: uint64(taken)}})
		if n == 0 && errors.Is(err, rdma.ErrQueueFull) {
			break
		}
		if n != 1 || err != nil || taken > most {
			e.fatalf("PostRecv %d: %d, %v", taken, n, err)
		}
	}
	if taken < 8 {
		e.errorf("receive queue of depth 8 takes %d receives", taken)
	}
	if state := b.State(); state != rdma.StateConnected {
		e.fatalf("queue pair is %s after ErrQueueFull: %v", state, b.Err())
	}
	// Each completion makes room for one.
	for i := range 3 * taken {
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
		a.sends.success(1)
		b.recvs.success(uint64(i))
		b.recv(uint64(taken+i), nil)
	}
}

// testPollBatches polls with little room.
func testPollBatches(e *env) {
	a, b := e.connect(nil)
	if n, err := a.sends.Poll(nil); n != 0 || err != nil {
		e.errorf("Poll into nothing: %d, %v", n, err)
	}
	for batch := 1; batch <= 5; batch++ {
		const n = 23
		for i := range n {
			b.recv(uint64(i), nil)
		}
		for i := range n {
			a.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled})
		}
		for _, q := range []*queue{a.sends, b.recvs} {
			into := make([]rdma.Completion, batch+1)
			next := uint64(0)
			e.eventually(fmt.Sprintf("completions polled %d at a time", batch), func() bool {
				into[batch] = rdma.Completion{ID: 1 << 40}
				got, err := q.Poll(into[:batch])
				e.check(err, "Poll")
				for _, c := range into[:got] {
					if c.ID != next || c.Status != rdma.StatusSuccess {
						e.fatalf("completion %d: %s; want success of %d", c.ID, c.Status, next)
					}
					next++
				}
				if into[batch].ID != 1<<40 {
					e.fatalf("Poll writes past its slice")
				}
				return next == n
			})
		}
	}
}

// testConcurrentPolls polls one queue from several goroutines: each completion
// is taken by one of them.
func testConcurrentPolls(e *env) {
	const pollers = 3
	a, b := e.connect(nil)
	source, sink := a.s.memory(8), b.s.memory(8)
	n := e.rounds(2000)
	seen := make([]atomic.Int32, n)
	var taken atomic.Int64
	work := []func(){func() {
		for i := range n {
			request := []rdma.SendRequest{{ID: uint64(i), Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, 8)}}
			e.poll("room in the send queue", func() bool {
				n, err := a.PostSend(request)
				if err != nil && !errors.Is(err, rdma.ErrQueueFull) {
					e.fatalf("PostSend: %d, %v", n, err)
				}
				return n == 1
			})
		}
	}}
	for i := range pollers {
		work = append(work, func() {
			into := make([]rdma.Completion, i+1)
			e.poll("all completions", func() bool {
				got, err := a.sends.Poll(into)
				e.check(err, "Poll")
				for _, c := range into[:got] {
					if c.ID >= uint64(n) || c.Status != rdma.StatusSuccess || seen[c.ID].Add(1) != 1 {
						e.fatalf("completion %+v: wrong, or polled twice", c)
					}
				}
				return taken.Add(int64(got)) == int64(n)
			})
		})
	}
	e.together(work...)
}

// testWaitRounds plays ping-pong, arming, polling and waiting each time, with
// random delays between them: a lost wake-up hangs.
func testWaitRounds(e *env) {
	a, b := e.connect(nil)
	n := e.rounds(4000)
	play := func(c *conn, first bool, seed uint64) {
		random := rand.New(rand.NewPCG(e.suite.Seed, seed))
		dawdle := func() {
			for range random.IntN(4) {
				runtime.Gosched()
			}
		}
		var got [4]rdma.Completion
		await := func(q *queue, what string, round int) {
			ctx, cancel := e.bound()
			defer cancel()
			for {
				e.check(q.Arm(random.IntN(2) == 0 && q == c.recvs), "Arm")
				dawdle()
				n, err := q.Poll(got[:1])
				e.check(err, "Poll")
				if n == 1 {
					if got[0].Status != rdma.StatusSuccess {
						e.fatalf("%s: round %d: %s: %s", c.s.name, round, what, got[0].Status)
					}
					return
				}
				dawdle()
				if err := q.Wait(ctx); err != nil {
					n, _ := q.Poll(got[:1])
					e.fatalf("%s: round %d: wait for %s: %v; then %d completions are there", c.s.name, round, what, err, n)
				}
			}
		}
		c.recv(0, nil)
		for round := range n {
			if first || round > 0 {
				c.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Solicited})
				await(c.sends, "a Send", round)
			}
			if round < n-1 || !first {
				await(c.recvs, "a message", round)
				c.recv(0, nil)
			}
		}
		if !first {
			c.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled | rdma.Solicited})
			await(c.sends, "a Send", n)
		} else {
			await(c.recvs, "a message", n)
		}
	}
	// Both post their first receive before either sends.
	ready := make(chan struct{})
	e.together(func() {
		<-ready
		play(a, true, 1)
	}, func() {
		b.recv(0, nil)
		close(ready)
		play(b, false, 2)
	})
}

// testWaitStream has a receiver that sleeps between bursts.
func testWaitStream(e *env) {
	a, b := e.connect(nil)
	n := e.rounds(3000)
	credits := make(chan struct{}, n+64)
	for i := range 64 {
		b.recv(uint64(i), nil)
		credits <- struct{}{}
	}
	e.together(func() {
		random := rand.New(rand.NewPCG(e.suite.Seed, 3))
		for i := range n {
			select {
			case <-credits:
			case <-e.ctx.Done():
				e.fatalf("no credit for message %d", i)
			}
			a.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpSend, Flags: rdma.Signaled})
			if random.IntN(8) == 0 || len(credits) == 0 {
				for range random.IntN(50) {
					runtime.Gosched()
				}
			}
			a.sends.success(uint64(i))
		}
	}, func() {
		for i := range n {
			b.recvs.success(uint64(i))
			b.recv(uint64(i+64), nil)
			credits <- struct{}{}
		}
	})
}

func testWaitContext(e *env) {
	a, b := e.connect(nil)
	q := b.recvs
	e.check(q.Arm(false), "Arm")
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	err := q.Wait(ctx)
	e.wants(err, "Wait with a cancelled context", context.Canceled)
	ctx, cancel = e.soon()
	e.wants(q.Wait(ctx), "Wait with a deadline", context.DeadlineExceeded)
	cancel()
	ctx, cancel = context.WithCancel(e.ctx)
	waits := make(chan error)
	go func() { waits <- q.Wait(ctx) }()
	for range 100 {
		runtime.Gosched()
	}
	cancel()
	bounded, cancel := e.bound()
	defer cancel()
	select {
	case err := <-waits:
		e.wants(err, "Wait over a cancellation", context.Canceled)
	case <-bounded.Done():
		e.fatalf("Wait does not end when its context is cancelled")
	}
	// The queue still works, and an event that has happened is there at once.
	e.check(q.Arm(false), "Arm")
	b.recv(1, nil)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled})
	a.sends.success(1)
	e.check(q.Wait(bounded), "Wait for a message")
	q.success(1)
	// Completions that are there when Arm is called raise no event. The first
	// time it may still be on its way.
	b.recv(2, nil)
	a.send(rdma.SendRequest{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled})
	a.sends.success(2)
	for range 3 {
		e.check(q.Arm(false), "Arm")
		ctx, cancel := e.soon()
		err = q.Wait(ctx)
		cancel()
		if err != nil {
			break
		}
	}
	e.wants(err, "Wait without a new completion", context.DeadlineExceeded)
	q.success(2)
}

// signalled takes the completions of these requests.
func (c *conn) signalled(ids ...uint64) {
	c.s.e.t.Helper()
	for _, id := range ids {
		c.sends.success(id)
	}
}

func testSolicited(e *env) {
	a, b := e.connect(nil)
	ops := []rdma.Opcode{rdma.OpSend}
	if e.suite.has(FeatureSendImmediate) {
		ops = append(ops, rdma.OpSendImmediate)
	}
	if e.suite.has(FeatureWriteImmediate) {
		ops = append(ops, rdma.OpWriteImmediate)
	}
	sink := b.s.memory(8)
	q := b.recvs
	for i, op := range ops {
		id := uint64(i)
		b.recv(2*id, nil)
		b.recv(2*id+1, nil)
		e.check(q.Arm(true), "Arm")
		request := rdma.SendRequest{ID: id, Op: op, Flags: rdma.Signaled, Remote: sink.at(0)}
		a.send(request)
		a.sends.success(id)
		var c [1]rdma.Completion
		e.eventually("an unsolicited "+op.String(), func() bool {
			n, err := q.Poll(c[:])
			e.check(err, "Poll")
			return n == 1
		})
		ctx, cancel := e.soon()
		if err := q.Wait(ctx); err == nil {
			if e.suite.has(FeatureSolicitedOnly) {
				e.errorf("an unsolicited %s wakes one who armed for solicited events", op)
			}
			e.check(q.Arm(true), "Arm")
		}
		cancel()
		request.Flags |= rdma.Solicited
		a.send(request)
		ctx, cancel = e.bound()
		e.check(q.Wait(ctx), "Wait for a solicited "+op.String())
		cancel()
		q.success(2*id + 1)
		a.sends.success(id)
	}
	// An error is an event for them, too.
	b.recv(99, nil)
	e.check(q.Arm(true), "Arm")
	e.check(a.Disconnect(), "Disconnect")
	ctx, cancel := e.bound()
	defer cancel()
	e.check(q.Wait(ctx), "Wait for solicited events over a failure")
	if c := q.next(); c.ID != 99 || c.Status != rdma.StatusFlushed {
		e.errorf("after the failure: completion of %d: %s", c.ID, c.Status)
	}
}

// testOverrun leaves a completion queue unpolled.
func testOverrun(e *env) {
	s := e.a()
	small := s.queue(2)
	depth := min(1024, s.attributes.MaxQueueDepth)
	// Queue pairs enough that even a generous queue is too small.
	var conns []*conn
	for range 4 {
		a, b := e.connectEach(func(c *rdma.QueuePairConfig) {
			c.SendDepth = depth
			c.SendCompletions = small.CompletionQueue
		}, nil)
		a.sends = small
		sink := b.s.memory(8)
		for range depth {
			n, err := a.PostSend([]rdma.SendRequest{{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0)}})
			if n != 1 {
				e.wants(err, "PostSend while the queue overruns", rdma.ErrState, rdma.ErrQueueFull)
				break
			}
		}
		conns = append(conns, a)
		ctx, cancel := e.soon()
		select {
		case <-a.Done():
		case <-ctx.Done():
		}
		cancel()
		if a.State() != rdma.StateConnected {
			break
		}
	}
	event := s.event("completion queue overrun", overrun)
	if event.Completions == nil || !sameQueue(event.Completions, small.CompletionQueue) {
		e.errorf("the event of the overrun names another queue: %v", event.Completions)
	}
	into := make([]rdma.Completion, 64)
	e.eventually("ErrOverrun from Poll", func() bool {
		_, err := small.Poll(into)
		if err != nil && !errors.Is(err, rdma.ErrOverrun) {
			e.fatalf("Poll of an overrun queue: %v", err)
		}
		return err != nil
	})
	for _, a := range conns {
		a.ended()
		e.check(a.Close(), "Close")
	}
	e.check(small.Close(), "Close of an overrun queue")
	// Other queues of the domain are unharmed.
	c, d := e.connect(nil)
	c.signal(d)
}

func overrun(event rdma.Event) bool { return event.Kind == rdma.EventCompletionOverrun }

func sameQueue(a, b rdma.CompletionQueue) bool { return a == b }

func testAllocationFree(e *env) {
	if race.Enabled {
		e.logf("not measured: the race detector allocates")
		return
	}
	a, b := e.connect(nil)
	source, sink := a.s.memory(4096), b.s.memory(4096)
	write := []rdma.SendRequest{{Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, 4096)}}
	send := []rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: source.sge(0, 64)}}
	read := []rdma.SendRequest{{Op: rdma.OpRead, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, 4096)}}
	inline := []rdma.SendRequest{{Op: rdma.OpWrite, Flags: rdma.Signaled | rdma.Inline, Remote: sink.at(0), SGEs: source.sge(0, a.config.MaxInline)}}
	receive := []rdma.RecvRequest{{SGEs: sink.sge(0, 64)}}
	into := make([]rdma.Completion, 8)
	one := func(q *queue) {
		for {
			n, err := q.Poll(into)
			if err != nil || n > 1 {
				e.fatalf("Poll: %d, %v", n, err)
			}
			if n == 1 {
				if into[0].Status != rdma.StatusSuccess {
					e.fatalf("%s", into[0].Status)
				}
				return
			}
			runtime.Gosched()
		}
	}
	post := func(requests []rdma.SendRequest) {
		if n, err := a.PostSend(requests); n != 1 {
			e.fatalf("PostSend: %v", err)
		}
		one(a.sends)
	}
	works := map[string]func(){
		"Write": func() { post(write) },
		"Read":  func() { post(read) },
		"Send and receive": func() {
			if n, err := b.PostRecv(receive); n != 1 {
				e.fatalf("PostRecv: %v", err)
			}
			post(send)
			one(b.recvs)
		},
	}
	if a.config.MaxInline > 0 {
		works["inline Write"] = func() { post(inline) }
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for what, work := range works {
		// The whole process is measured, other goroutines too: the least of some
		// runs is what the operations themselves allocate.
		least := uint64(math.MaxUint64)
		for range 5 {
			if least = min(least, allocations(200, work)); least == 0 {
				break
			}
		}
		if least != 0 {
			e.errorf("%s allocates %v times from post to poll", what, least)
		}
	}
}

// allocations is testing.AllocsPerRun on all processors: on one, a goroutine
// that polls keeps the network's readiness from being noticed.
func allocations(runs int, f func()) uint64 {
	f()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return (after.Mallocs - before.Mallocs) / uint64(runs)
}
