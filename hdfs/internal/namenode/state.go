package namenode

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/internal/journal"
)

// state is the namespace as the journal keeps it.
type state struct {
	mu     sync.RWMutex
	ns     *namespace.Namespace
	failed error
	blocks *blockMap
	// deleted is called when something was deleted that is more than one entry
	// takes apart.
	deleted func()
	held    holds
}

type applied struct {
	res namespace.Result
	err error
}

// applyTime is about how long entries hold the lock at a time; the rest of a batch follows once
// others have had it.
const applyTime = 2 * time.Millisecond

func (s *state) Apply(entries []journal.Entry) []any {
	decoded := decodeEntries(entries)
	done := make([]applied, len(entries))
	for n := 0; n < len(entries); {
		n += s.applySome(decoded[n:], done[n:])
	}
	out := make([]any, len(entries))
	for i := range done {
		out[i] = &done[i]
	}
	return out
}

// logEntry is an entry of the log, or why it is none.
type logEntry struct {
	*nspb.Entry
	err error
}

// decodeEntries reads what comes from the log. Entries of this process's own come with what they say.
func decodeEntries(entries []journal.Entry) []logEntry {
	out := make([]logEntry, len(entries))
	for i, e := range entries {
		if known, ok := e.Value.(*nspb.Entry); ok {
			out[i].Entry = known
			continue
		}
		out[i].Entry = new(nspb.Entry)
		if err := proto.Unmarshal(e.Data, out[i].Entry); err != nil {
			out[i].err = fmt.Errorf("namenode: decode a log entry of %d bytes: %w", len(e.Data), err)
		}
	}
	return out
}

// applySome applies entries for applyTime, at least one. It puts what they did into out, and returns their
// number.
func (s *state) applySome(entries []logEntry, out []applied) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held.begin()
	defer s.held.end(holdEntries, held)
	n := 0
	for ; n < len(entries); n++ {
		if n > 0 && n%8 == 0 && time.Since(held.begun) > applyTime {
			break
		}
		out[n].res, out[n].err = s.applyOne(entries[n])
	}
	if s.ns.Reaping() && s.deleted != nil {
		s.deleted()
	}
	return n
}

func (s *state) applyOne(e logEntry) (namespace.Result, error) {
	if s.failed == nil {
		s.failed = e.err
	}
	if s.failed != nil {
		return namespace.Result{}, s.failed
	}
	previous := e.GetAddBlock().GetPrevious().GetId()
	before, _ := s.ns.Block(previous)
	res, err := s.ns.Apply(e.Entry)
	var refused *exception.Error
	if err != nil && !errors.As(err, &refused) {
		s.failed = err
		return namespace.Result{}, err
	}
	if b, ok := s.ns.Block(previous); ok && before.Writing && !b.Writing {
		s.blocks.followed(b)
	}
	s.blocks.changed(s.ns, res.Touched, res.Removed)
	return res, err
}

// failure tells why this state can't follow the log any further.
func (s *state) failure() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.failed
}

func (s *state) Snapshot() (io.WriterTo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.held.end(holdFreeze, s.held.begin())
	if s.failed != nil {
		return nil, s.failed
	}
	return s.ns.Freeze(), nil
}

// reapBatch is how many inodes of deleted trees go with one hold of the lock, about a
// millisecond.
const reapBatch = 500

// reap takes a part of what was deleted apart and tells whether there is more.
func (s *state) reap() (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.held.end(holdReap, s.held.begin())
	if !s.ns.Reaping() {
		return false
	}
	s.blocks.changed(s.ns, nil, s.ns.Reap(reapBatch))
	return s.ns.Reaping()
}

// ask and asked begin and end a check in parts.
func (s *state) ask(e *nspb.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ns.Ask(e)
}

func (s *state) asked(e *nspb.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ns.Asked(e)
}

// countOn counts a part of what the check has to know.
func (s *state) countOn(e *nspb.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ns.CountOn(e)
}

func (s *state) Restore(r io.Reader) error {
	ns, err := namespace.Restore(r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ns, s.failed = ns, nil
	return nil
}
