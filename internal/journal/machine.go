package journal

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// machine is the state machine as raft sees it.
type machine struct {
	sm StateMachine
	// expected are the entries on their way, with the memory of raft's entry.
	expected atomic.Pointer[expectation]
	// applied counts the state machine's entries since its last Restore, covered those of them
	// that the newest snapshot has.
	applied, covered atomic.Uint64
}

type expectation struct {
	data  []byte
	group []*Pending
}

var _ raft.BatchingFSM = (*machine)(nil)

func (m *machine) expect(data []byte, group []*Pending) {
	if len(data) == 0 {
		m.expected.Store(nil)
		return
	}
	m.expected.Store(&expectation{data, group})
}

// known returns the entries that raft hands back if they are those on their way: raft keeps the
// memory of what it was given. Else they are read from their bytes.
func (m *machine) known(entries []Entry, l *raft.Log) ([]Entry, bool) {
	e := m.expected.Load()
	if e == nil || l.Type != raft.LogCommand || len(l.Data) != len(e.data) || &l.Data[0] != &e.data[0] {
		return entries, false
	}
	for _, p := range e.group {
		entries = append(entries, p.entry)
	}
	return entries, true
}

func (m *machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch answers each of raft's entries with a list of what the state machine said of its own.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	counts := make([]int, len(logs))
	var entries []Entry
	for i, l := range logs {
		before := len(entries)
		var ok bool
		if entries, ok = m.known(entries, l); !ok {
			var err error
			// An opening reads all groups before raft does.
			if entries, err = entriesOf(entries, l); err != nil {
				panic(err)
			}
		}
		counts[i] = len(entries) - before
	}
	if len(entries) == 0 {
		return out
	}
	results := m.sm.Apply(entries)
	m.applied.Add(uint64(len(entries)))
	for i, n := range counts {
		out[i], results = results[:n:n], results[n:]
	}
	return out
}

func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	state, err := m.sm.Snapshot()
	if err != nil {
		return nil, err
	}
	return frozen{state, m, m.applied.Load()}, nil
}

func (m *machine) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	m.applied.Store(0)
	m.covered.Store(0)
	return m.sm.Restore(rc)
}

type frozen struct {
	state io.WriterTo
	m     *machine
	has   uint64 // entries
}

func (f frozen) Persist(sink raft.SnapshotSink) error {
	if _, err := f.state.WriteTo(considerate{sink}); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	f.m.covered.Store(f.has)
	return nil
}

func (f frozen) Release() {}

// considerate lets goroutines run after each piece of a snapshot. Whoever writes one without a pause
// keeps a processor for 10 ms at a time, and an append changes goroutines five times.
type considerate struct{ w io.Writer }

func (c considerate) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	runtime.Gosched()
	return n, err
}

// takeSnapshots takes a snapshot whenever enough entries have come. Raft would count its own, of
// which each may have many.
func (j *Journal) takeSnapshots(ctx context.Context, cfg *Config) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(cfg.SnapshotInterval + rand.N(cfg.SnapshotInterval))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if j.machine.applied.Load()-j.machine.covered.Load() < cfg.SnapshotEntries {
			continue
		}
		if err := j.Snapshot(); err != nil && !errors.Is(err, ErrNotLeader) {
			cfg.Logger.Error("journal: a snapshot failed, trying again", "dir", cfg.Dir, "err", err)
		}
	}
}
