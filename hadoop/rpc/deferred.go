package rpc

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
)

// ErrDeferred is what a method answers after [Defer]: the answer comes by [Answers].
var ErrDeferred = errors.New("the answer comes later")

type deferKey struct{}

// Deferred is a call whose method returns before its answer is known. It has one answer.
type Deferred struct{ call *call }

// Defer lets the method of ctx return before its answer is known, so that no goroutine waits
// for it. It reports false if the call has to be answered by its method: unless [Call.Short] is set,
// where the call came by an endpoint, where the request refers to the memory that it came in
// (see [Method.Short]), and where a call that is not short would have to wait for a handler.
// A deferred call counts as one that a handler runs, and among those of its connection.
//
// The method returns [ErrDeferred] then; [Answers.Add] may be called before. If it returns another error, or an
// answer, that is the answer, and Answers must never get the call. The request belongs to the method for good.
func Defer(ctx context.Context) (Deferred, bool) {
	c, _ := ctx.Value(deferKey{}).(*call)
	if c == nil || !c.Short || c.deferred || !c.session.deferCall(c) {
		return Deferred{}, false
	}
	return Deferred{c}, true
}

// deferCall counts a call as under way, if there is room for it now.
func (s *session) deferCall(c *call) bool {
	if c.lent || s.slots == nil || len(s.slots) == cap(s.slots) || !s.bytes.TryAcquire(c.size) {
		return false
	}
	if !s.server.queue.Begin(c.User, c.method.urgent, c.began) {
		s.bytes.Release(c.size)
		return false
	}
	s.slots <- struct{}{} // only who reads the connection puts something in
	s.calls.Add(1)
	c.slot, c.deferred = true, true
	c.to.clientID = append(c.id[:0], c.to.clientID...) // the message's memory goes
	return true
}

// Late makes the answer of a deferred call.
type Late interface {
	Answer() (proto.Message, error)
}

// Answers sends the answers of deferred calls, those of a connection together: Add, for any number of
// calls, and then Flush. It is for one goroutine at a time. Neither waits for a client.
type Answers struct {
	lines []carrier.Line
}

// Add answers a call; a panic in Answer becomes an error of this call alone. The answer may go
// out with Flush.
func (a *Answers) Add(d Deferred, answer Late) {
	c := d.call
	line := c.session.line
	resp, err := c.late(answer)
	c.answer(resp, err, carrier.Later)
	if n := len(a.lines); n == 0 || a.lines[n-1] != line {
		a.lines = append(a.lines, line)
	}
}

// Flush has all answers sent.
func (a *Answers) Flush() {
	for i, line := range a.lines {
		line.Flush()
		a.lines[i] = nil
	}
	a.lines = a.lines[:0]
}

// late ends what invoke began.
func (c *call) late(answer Late) (resp proto.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.panicked(p)
		}
		c.method.running.Dec()
		c.over(err)
	}()
	return answer.Answer()
}
