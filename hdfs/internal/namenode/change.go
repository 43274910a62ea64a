package namenode

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/internal/journal"
)

// propose makes an entry durable and applies it. The entry must not be changed afterwards.
func (nn *NameNode) propose(ctx context.Context, e *nspb.Entry) (namespace.Result, error) {
	data, err := nn.encode(e, new(int64))
	if err != nil {
		return namespace.Result{}, err
	}
	return outcome(nn.appendEntry(ctx, data, e))
}

// encode gives an entry its time, which millis has the memory for, and returns its bytes.
func (nn *NameNode) encode(e *nspb.Entry, millis *int64) ([]byte, error) {
	*millis = nn.time.millis(nn.cfg.Clock(), nn.log)
	e.TimeMs = millis
	data, err := namespace.Encode(e)
	if err != nil {
		return nil, fmt.Errorf("namenode: encode a log entry: %w", err)
	}
	return data, nil
}

// outcome is what came of an entry, from what the journal says.
func outcome(out any, err error) (namespace.Result, error) {
	if err != nil {
		if errors.Is(err, journal.ErrNotLeader) {
			return namespace.Result{}, exception.New(exception.Standby, "this NameNode is stopping or does not lead: %v", err)
		}
		return namespace.Result{}, err
	}
	done := out.(*applied)
	return done.res, done.err
}

// change runs one operation of a client. If it is refused or changes nothing, it
// is answered from memory; else it is made durable first. In safe mode what would change nothing
// is refused, too, as in HDFS. If remember is set, a
// repeated call gets the answer of the first.
func (nn *NameNode) change(ctx context.Context, c *call, remember bool, e *nspb.Entry) (namespace.Result, error) {
	if remember && c.id.remembered() {
		if err := nn.calls.begin(ctx, c.id); err != nil {
			return namespace.Result{}, err
		}
		defer nn.calls.end(c.id)
	}
	res, changes, err := nn.checkChange(c, remember, e)
	if errors.Is(err, namespace.ErrLarge) {
		defer nn.state.asked(e)
		res, changes, err = nn.checkInParts(ctx, e)
	}
	if err != nil || !changes {
		return res, err
	}
	return nn.propose(ctx, e)
}

// checkChange tells what e would do now, and completes it: changes says that it has to be logged, else the
// result or the error is the answer.
func (nn *NameNode) checkChange(c *call, remember bool, e *nspb.Entry) (res namespace.Result, changes bool, err error) {
	e.Caller, e.Limits = c.caller, nn.limitsOf(e)
	remember = remember && c.id.remembered()
	if remember {
		e.ClientId, e.CallId = c.id.client[:], &c.id.call
	}
	nn.state.mu.RLock()
	defer nn.state.mu.RUnlock()
	ns := nn.state.ns
	if remember {
		if res, answered := ns.Answered(c.id.client, c.id.call); answered {
			return res, false, nil
		}
	}
	if _, err := nn.refusal(); err != nil {
		return namespace.Result{}, false, err
	}
	return ns.Check(e)
}

// checkInParts checks what takes longer than one hold of the lock may be.
func (nn *NameNode) checkInParts(ctx context.Context, e *nspb.Entry) (res namespace.Result, changes bool, err error) {
	nn.state.ask(e)
	for err = namespace.ErrLarge; errors.Is(err, namespace.ErrLarge); giveWay() {
		if ctx.Err() != nil {
			return res, false, fmt.Errorf("namenode: look at all below a directory: %w", context.Cause(ctx))
		}
		nn.state.countOn(e)
		nn.read(func(ns *namespace.Namespace) { res, changes, err = ns.Check(e) })
	}
	return res, changes, err
}

// callID names a client's call.
type callID struct {
	client [16]byte
	call   int32
}

// remembered tells whether a repetition of the call can be told from another one.
func (id *callID) remembered() bool { return id.client != [16]byte{} && id.call >= 0 }

// callsUnderWay makes a repeated call wait for the first one.
type callsUnderWay struct {
	mu      sync.Mutex
	waiting map[callID]chan struct{} // nil as long as nobody waits
}

// beginNow is begin for who does not wait; it reports false if another one is under way.
func (u *callsUnderWay) beginNow(id callID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, busy := u.waiting[id]; busy {
		return false
	}
	u.waiting[id] = nil
	return true
}

// begin waits until no other one of the call is under way. After it has returned nil, end ends this one.
func (u *callsUnderWay) begin(ctx context.Context, id callID) error {
	for {
		u.mu.Lock()
		done, busy := u.waiting[id]
		if !busy {
			u.waiting[id] = nil
			u.mu.Unlock()
			return nil
		}
		if done == nil {
			done = make(chan struct{})
			u.waiting[id] = done
		}
		u.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("namenode: wait for the first run of a repeated call: %w", context.Cause(ctx))
		}
	}
}

func (u *callsUnderWay) end(id callID) {
	u.mu.Lock()
	done := u.waiting[id]
	delete(u.waiting, id)
	u.mu.Unlock()
	if done != nil {
		close(done)
	}
}

// limitsOf returns the configured limits that an entry's operation heeds.
func (nn *NameNode) limitsOf(e *nspb.Entry) *nspb.Limits {
	switch e.Op.(type) {
	case *nspb.Entry_Mkdirs, *nspb.Entry_Create, *nspb.Entry_Rename:
		return nn.nameLimits
	case *nspb.Entry_AddBlock:
		return nn.blockLimits
	}
	return nil
}

// setLimits makes what limitsOf returns. Entries say nothing of limits that are those of the
// namespace.
func (nn *NameNode) setLimits() {
	if nn.cfg.MaxComponentLength != namespace.MaxComponentLength || nn.cfg.MaxDirectoryItems != namespace.MaxDirectoryItems {
		nn.nameLimits = &nspb.Limits{
			ComponentLength: proto.Uint32(uint32(nn.cfg.MaxComponentLength)), DirectoryItems: proto.Uint32(uint32(nn.cfg.MaxDirectoryItems)),
		}
	}
	nn.blockLimits = &nspb.Limits{FileBlocks: proto.Uint32(uint32(nn.cfg.MaxFileBlocks))}
}
