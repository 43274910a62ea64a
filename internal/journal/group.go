package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// Entry is an entry as the state machine gets it.
type Entry struct {
	Data []byte
	// Value is what [Journal.Start] was given with the bytes: their decoded form, which need
	// not be decoded again. It is nil if the entry comes from the log.
	Value any
}

// Bounds on the entries that go into the log as one. An entry that is longer goes alone.
const (
	groupEntries = 512
	groupBytes   = 1 << 20
)

// grouped is what a log entry of raft has in its extensions if its data are several entries of
// the state machine: each with its length before it, as a varint. With no extensions the
// data are one entry.
const grouped = 1

// Pending is an entry on its way.
type Pending struct {
	entry  Entry
	done   chan struct{} // nil if Config.Finished hears of the end
	waiter any
	value  any
	err    error
}

// Waiter is what was given to [Journal.Queue] with the entry.
func (p *Pending) Waiter() any { return p.waiter }

// Done is closed when the entry has been applied, or can't be.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Result returns what the state machine said, after Done, or in [Config].Finished. An error wraps [ErrNotLeader];
// the entry may have been appended all the same.
func (p *Pending) Result() (any, error) {
	if p.err != nil {
		return nil, fmt.Errorf("%w: append: %w", ErrNotLeader, p.err)
	}
	return p.value, nil
}

// committer hands entries to raft. Those that come while others are on their way wait, and
// then go together: as one entry of raft's, which costs its goroutines and the disk as much
// as a single one.
type committer struct {
	finished func([]*Pending)
	queued   []*Pending // for finished
	data     []byte     // of a group

	mu       sync.Mutex
	waiting  []*Pending
	underWay []*Pending
	spare    []*Pending // empty, the memory of groups that are over
	closed   bool
	wake     chan struct{} // has room for one
	ended    chan struct{}
}

func newCommitter(finished func([]*Pending)) *committer {
	return &committer{finished: finished, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// add queues an entry, and returns false if the committer has been closed.
func (c *committer) add(p *Pending) bool {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	c.waiting = append(c.waiting, p)
	first := len(c.waiting) == 1
	c.mu.Unlock()
	if first {
		c.rouse()
	}
	return true
}

func (c *committer) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns the entries that go next; none if there are none.
func (c *committer) take() (group []*Pending, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size, n := 0, 0
	for n < len(c.waiting) && n < groupEntries {
		if size += len(c.waiting[n].entry.Data); n > 0 && size > groupBytes {
			break
		}
		n++
	}
	if n == 0 {
		return nil, c.closed
	}
	group = c.waiting[:n:n]
	if c.waiting = c.waiting[n:]; len(c.waiting) == 0 {
		c.waiting, c.spare = c.spare, nil
	}
	c.underWay = group
	return group, c.closed
}

// run carries out what is added until the committer is closed and empty.
func (c *committer) run(r *raft.Raft, m *machine) {
	defer close(c.ended)
	for {
		// Callers that can run add theirs first: with what is under way they may be many, and
		// the scheduler prefers whoever was woken last.
		runtime.Gosched()
		group, closed := c.take()
		switch {
		case len(group) > 0:
			c.commit(r, m, group)
			c.finish(group)
		case closed:
			return
		default:
			<-c.wake
		}
	}
}

// close lets what was added finish, and waits for that.
func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.rouse()
	<-c.ended
}

// finish tells those who wait for entries.
func (c *committer) finish(group []*Pending) {
	for _, p := range group {
		if p.done != nil {
			close(p.done)
		} else {
			c.queued = append(c.queued, p)
		}
	}
	if len(c.queued) > 0 {
		c.finished(c.queued)
		clear(c.queued)
		c.queued = c.queued[:0]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay = nil
	clear(group)
	c.spare = group[:0] // of groupEntries at most
}

// commit makes entries durable and applies them.
func (c *committer) commit(r *raft.Raft, m *machine, group []*Pending) {
	l := raft.Log{Data: group[0].entry.Data}
	if len(group) > 1 {
		c.data = appendGroup(c.data[:0], group)
		l = raft.Log{Data: c.data, Extensions: groupedExtensions}
	}
	m.expect(l.Data, group)
	f := r.ApplyLog(l, 0)
	err := f.Error()
	m.expect(nil, nil)
	var values []any
	if err == nil {
		values = f.Response().([]any)
	}
	if err != nil || cap(c.data) > mostSpare {
		c.data = nil // raft may have it still
	}
	for i, p := range group {
		if p.err = err; err == nil {
			p.value = values[i]
		}
	}
}

// mostSpare is the largest memory of a group that is kept for the next one, in bytes.
const mostSpare = 64 << 10

var groupedExtensions = []byte{grouped}

func appendGroup(data []byte, group []*Pending) []byte {
	for _, p := range group {
		data = binary.AppendUvarint(data, uint64(len(p.entry.Data)))
		data = append(data, p.entry.Data...)
	}
	return data
}

var errGroup = errors.New("a group of entries that does not hold what it says")

// entriesOf returns the state machine's entries in one of raft's. They share its memory.
func entriesOf(entries []Entry, l *raft.Log) ([]Entry, error) {
	switch {
	case l.Type != raft.LogCommand:
		return entries, nil
	case len(l.Extensions) == 0:
		return append(entries, Entry{Data: l.Data}), nil
	case len(l.Extensions) != 1 || l.Extensions[0] != grouped || len(l.Data) == 0:
		return nil, fmt.Errorf("%w: extensions %x, %d bytes", errGroup, l.Extensions, len(l.Data))
	}
	for data := l.Data; len(data) > 0; {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			return nil, fmt.Errorf("%w: %d of its %d bytes are left", errGroup, len(data), len(l.Data))
		}
		end := n + int(size)
		entries = append(entries, Entry{Data: data[n:end:end]})
		data = data[end:]
	}
	return entries, nil
}

// Start begins an [Journal.Append] without waiting for its end. The state machine gets value
// with the entry while this process has it; value must say what the entry says, and neither may be
// changed any more.
func (j *Journal) Start(ctx context.Context, entry []byte, value any) (*Pending, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("journal: append: %w", context.Cause(ctx))
	}
	p := &Pending{entry: Entry{entry, value}, done: make(chan struct{})}
	if !j.commits.add(p) {
		return nil, errClosed
	}
	return p, nil
}

var errClosed = fmt.Errorf("%w: append: it is closed", ErrNotLeader)

// Queue is Start for an entry of whose end [Config].Finished hears, together with that of
// others, so that nobody waits for it. It may hear of it before Queue returns. p is memory of the caller's, which
// belongs to the journal until then.
func (j *Journal) Queue(p *Pending, entry []byte, value, waiter any) error {
	*p = Pending{entry: Entry{entry, value}, waiter: waiter}
	if !j.commits.add(p) {
		return errClosed
	}
	return nil
}

// Queued calls f with the waiter of each entry of [Journal.Queue] that is on its way. Finished may
// have heard of some of them, or hear of them meanwhile.
func (j *Journal) Queued(f func(waiter any)) {
	c := j.commits
	c.mu.Lock()
	all := slices.Concat(c.underWay, c.waiting)
	c.mu.Unlock()
	for _, p := range all {
		if p.done == nil {
			f(p.waiter)
		}
	}
}

// Append makes entry durable, applies it, and returns what the state machine
// said. The entry must not be changed afterwards. If ctx is done already,
// nothing is appended. A ctx that ends later does not interrupt: an entry on its
// way to disk can't be called back. After an error that is [ErrNotLeader] the
// entry may have been appended all the same.
func (j *Journal) Append(ctx context.Context, entry []byte) (any, error) {
	p, err := j.Start(ctx, entry, nil)
	if err != nil {
		return nil, err
	}
	<-p.Done()
	return p.Result()
}
