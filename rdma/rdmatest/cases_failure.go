package rdmatest

import (
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/verbena-data/verbena/rdma"
)

// failureCases close things while they are used.
var failureCases = []testCase{
	{"TargetClosesUnderLoad", nil, func(e *env) { testCloseUnderLoad(e, false) }},
	{"TargetDomainClosesUnderLoad", nil, func(e *env) { testCloseUnderLoad(e, true) }},
	{"CloseWhilePosting", nil, testCloseWhilePosting},
	{"DomainCloseWhilePosting", nil, testDomainCloseWhilePosting},
	{"DisconnectBothAtOnce", nil, testDisconnectBothAtOnce},
}

// testCloseUnderLoad closes the target's end while Writes stream in.
func testCloseUnderLoad(e *env, whole bool) {
	for range e.rounds(12) {
		target := e.newSide("short-lived", e.suite.target)
		a, b := e.a().newConn(nil), target.newConn(nil)
		e.join(a, b)
		source, sink := a.s.memory(16<<10), target.memory(16<<10)
		var landed atomic.Int64
		a.recv(1, nil)
		e.together(func() {
			a.streamWrites(rdma.SendRequest{Op: rdma.OpWrite, Remote: sink.at(0), SGEs: source.sge(0, 16<<10)}, &landed)
		}, func() {
			e.poll("Writes under way", func() bool { return landed.Load() > 10 || a.State() != rdma.StateConnected })
			if whole {
				e.check(target.domain.Close(), "Domain.Close")
			} else {
				e.check(b.Close(), "QueuePair.Close")
			}
		})
		a.ended()
		a.flushed(1)
		e.check(a.Close(), "Close")
		e.check(source.Close(), "Region.Close")
		e.check(target.domain.Close(), "Domain.Close")
	}
}

// testCloseWhilePosting closes a queue pair that others post to and poll for.
func testCloseWhilePosting(e *env) {
	for range e.rounds(12) {
		a, b := e.connect(nil)
		source, sink := a.s.memory(64), b.s.memory(64)
		var landed, ended atomic.Int64
		post := func() {
			request := []rdma.SendRequest{{Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, 64)}}
			for e.ctx.Err() == nil {
				if _, err := a.PostSend(request); err != nil && !errors.Is(err, rdma.ErrQueueFull) {
					e.wants(err, "PostSend over Close", rdma.ErrState, rdma.ErrClosed)
					break
				}
				runtime.Gosched()
			}
			ended.Add(1)
		}
		e.together(post, post, func() {
			into := make([]rdma.Completion, 8)
			for ended.Load() < 2 && e.ctx.Err() == nil {
				n, err := a.sends.Poll(into)
				e.check(err, "Poll")
				landed.Add(int64(n))
				runtime.Gosched()
			}
		}, func() {
			e.poll("Writes under way", func() bool { return landed.Load() > 50 })
			e.check(a.Close(), "Close")
			before, err := a.sends.Poll(make([]rdma.Completion, 256))
			e.check(err, "Poll after Close")
			_ = before // what was there may be dropped or not
			// The polling goroutine may hold some; no new ones come.
		})
		a.sends.pending = nil
		for len(a.sends.poll()) > 0 {
		}
		a.sends.quiet("no completion is added after Close")
		b.ended()
		e.check(b.Close(), "Close")
	}
}

// testDomainCloseWhilePosting closes all while goroutines post, poll and wait.
func testDomainCloseWhilePosting(e *env) {
	for range e.rounds(8) {
		s := e.newSide("short-lived", e.suite.initiator)
		a, b := s.newConn(nil), e.b().newConn(nil)
		e.join(a, b)
		source, sink := s.memory(64), b.s.memory(64)
		a.recv(1, nil)
		var landed atomic.Int64
		ends := func(what string, f func() error) func() {
			return func() {
				for e.ctx.Err() == nil {
					err := f()
					if err == nil || errors.Is(err, rdma.ErrQueueFull) {
						runtime.Gosched()
						continue
					}
					e.wants(err, what+" over Domain.Close", rdma.ErrState, rdma.ErrClosed)
					return
				}
				e.fatalf("%s does not fail after Domain.Close", what)
			}
		}
		request := []rdma.SendRequest{{Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: sink.at(0), SGEs: source.sge(0, 64)}}
		into := make([]rdma.Completion, 8)
		e.together(ends("PostSend", func() error {
			_, err := a.PostSend(request)
			return err
		}), ends("Poll", func() error {
			n, err := a.sends.Poll(into)
			landed.Add(int64(n))
			return err
		}), ends("Wait", func() error {
			if err := a.recvs.Arm(false); err != nil {
				return err
			}
			ctx, cancel := e.bound()
			defer cancel()
			return a.recvs.Wait(ctx)
		}), ends("PostRecv", func() error {
			_, err := a.PostRecv([]rdma.RecvRequest{{ID: 2}})
			return err
		}), func() {
			e.poll("Writes under way", func() bool { return landed.Load() > 50 })
			e.check(s.domain.Close(), "Domain.Close")
		})
		b.ended()
		e.check(b.Close(), "Close")
	}
}

func testDisconnectBothAtOnce(e *env) {
	for range e.rounds(40) {
		a, b := e.connect(nil)
		a.recv(1, nil)
		b.recv(1, nil)
		leave := func(c *conn) func() {
			return func() {
				if err := c.Disconnect(); err != nil {
					e.wants(err, "Disconnect", rdma.ErrState, rdma.ErrDisconnected)
				}
			}
		}
		e.together(leave(a), leave(b), leave(a))
		for _, c := range []*conn{a, b} {
			c.ended()
			c.flushed(1)
		}
		e.together(func() { e.check(a.Close(), "Close") }, func() { e.check(b.Close(), "Close") }, func() { a.Close() })
	}
}
