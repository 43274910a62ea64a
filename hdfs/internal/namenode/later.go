package namenode

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/internal/journal"
)

// laterChange is a change of a call for which no goroutine waits: whoever carries out the journal's
// entries answers those of a group.
type laterChange struct {
	journal.Pending
	nn       *NameNode
	call     rpc.Deferred
	id       callID // zero: it is not remembered
	answer   func(namespace.Result) (proto.Message, error)
	answered atomic.Bool // or about to be

	millis int64 // the entry's time

	refused error // the answer, if the entry has not ended
}

// Answer implements [rpc.Late].
func (l *laterChange) Answer() (proto.Message, error) {
	if l.refused != nil {
		return nil, l.refused
	}
	res, err := outcome(l.Result())
	if err != nil {
		return nil, err
	}
	return l.answer(res)
}

// over ends the call's time among those under way.
func (l *laterChange) over() {
	if l.id.remembered() {
		l.nn.calls.end(l.id)
	}
}

// changeAnd is change for a method that then answers with what answer makes of the result. A short call is
// answered later if it has to be made durable, and must be run by a handler, which [rpc.ErrLong] says, if it has
// to wait before. Then answer is called by the goroutine that carries out entries, and must be short.
func changeAnd[P proto.Message](ctx context.Context, nn *NameNode, c *call, remember bool, e *nspb.Entry, answer func(namespace.Result) (proto.Message, error)) (resp P, err error) {
	var res namespace.Result
	if c.short {
		res, err = nn.changeLater(ctx, c, remember, e, answer)
	} else {
		res, err = nn.change(ctx, c, remember, e)
	}
	if err != nil {
		return resp, err
	}
	m, err := answer(res)
	if err != nil {
		return resp, err
	}
	return m.(P), nil
}

// answerOf answers with one of two messages, which nobody changes: whether there was something to do.
func answerOf(yes, no proto.Message) func(namespace.Result) (proto.Message, error) {
	return func(res namespace.Result) (proto.Message, error) {
		if res.OK {
			return yes, nil
		}
		return no, nil
	}
}

// changeLater is change for a short call. Its error is [rpc.ErrDeferred] if the call is answered later.
func (nn *NameNode) changeLater(ctx context.Context, c *call, remember bool, e *nspb.Entry, answer func(namespace.Result) (proto.Message, error)) (namespace.Result, error) {
	l := &laterChange{nn: nn, answer: answer}
	if remember && c.id.remembered() {
		if !nn.calls.beginNow(c.id) {
			return namespace.Result{}, rpc.ErrLong
		}
		l.id = c.id
	}
	res, changes, err := nn.checkChange(c, remember, e)
	switch {
	case errors.Is(err, namespace.ErrLarge):
		err = rpc.ErrLong
	case err == nil && changes:
		err = nn.queueEntry(ctx, l, e)
	}
	if err != rpc.ErrDeferred {
		l.over()
	}
	return res, err
}

// queueEntry has an entry made durable, and l answered when it has been applied.
func (nn *NameNode) queueEntry(ctx context.Context, l *laterChange, e *nspb.Entry) error {
	stuck, err := nn.refusal()
	if err != nil {
		return err
	}
	var ok bool
	if l.call, ok = rpc.Defer(ctx); !ok {
		return rpc.ErrLong
	}
	data, err := nn.encode(e, &l.millis)
	if err != nil {
		return err
	}
	if err := nn.journal.Queue(&l.Pending, data, e, l); err != nil {
		_, err = outcome(nil, err)
		return err
	}
	select {
	case <-stuck: // abandon may not have seen it
		if l.answered.CompareAndSwap(false, true) {
			return nn.noRoom()
		}
	default:
	}
	return rpc.ErrDeferred
}

// finished answers the calls whose entries have ended.
func (nn *NameNode) finished(entries []*journal.Pending) {
	for _, p := range entries {
		l := p.Waiter().(*laterChange)
		if !l.answered.CompareAndSwap(false, true) {
			continue
		}
		l.over()
		nn.answers.Add(l.call, l)
	}
	nn.answers.Flush()
}

// abandon answers the calls whose entries are on their way to a disk that has been full for long.
func (nn *NameNode) abandon() {
	var answers rpc.Answers
	nn.journal.Queued(func(waiter any) {
		l := waiter.(*laterChange)
		if !l.answered.CompareAndSwap(false, true) {
			return
		}
		l.refused = nn.noRoom()
		l.over()
		answers.Add(l.call, l)
	})
	answers.Flush()
}
