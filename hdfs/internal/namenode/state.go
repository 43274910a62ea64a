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

func (s *state) Apply(entries [][]byte) []any {
	out := make([]any, len(entries))
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.held.since(holdEntries, time.Now())
	for i, data := range entries {
		res, err := s.applyOne(data)
		out[i] = applied{res, err}
	}
	if s.ns.Reaping() && s.deleted != nil {
		s.deleted()
	}
	return out
}

func (s *state) applyOne(data []byte) (namespace.Result, error) {
	if s.failed != nil {
		return namespace.Result{}, s.failed
	}
	var e nspb.Entry
	err := proto.Unmarshal(data, &e)
	if err != nil {
		s.failed = fmt.Errorf("namenode: decode a log entry of %d bytes: %w", len(data), err)
		return namespace.Result{}, s.failed
	}
	res, err := s.ns.Apply(&e)
	var refused *exception.Error
	if err != nil && !errors.As(err, &refused) {
		s.failed = err
		return namespace.Result{}, err
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
	defer s.held.since(holdFreeze, time.Now())
	if s.failed != nil {
		return nil, s.failed
	}
	return s.ns.Freeze(), nil
}

// reapBatch is how many inodes of deleted trees go with one hold of the lock, some
// milliseconds.
const reapBatch = 2000

// reap takes a part of what was deleted apart and tells whether there is more.
func (s *state) reap() (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.held.since(holdReap, time.Now())
	if !s.ns.Reaping() {
		return false
	}
	s.blocks.changed(s.ns, nil, s.ns.Reap(reapBatch))
	return s.ns.Reaping()
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
