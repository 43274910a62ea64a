package journal

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"
)

// machine is the state machine as raft sees it.
type machine struct {
	sm StateMachine
}

var _ raft.BatchingFSM = (*machine)(nil)

func (m *machine) Apply(l *raft.Log) any { return m.ApplyBatch([]*raft.Log{l})[0] }

func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	entries := make([][]byte, 0, len(logs))
	for _, l := range logs {
		if l.Type == raft.LogCommand {
			entries = append(entries, l.Data)
		}
	}
	if len(entries) == 0 {
		return out
	}
	results := m.sm.Apply(entries)
	for i, l := range logs {
		if l.Type == raft.LogCommand {
			out[i], results = results[0], results[1:]
		}
	}
	return out
}

func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	state, err := m.sm.Snapshot()
	if err != nil {
		return nil, err
	}
	return frozen{state}, nil
}

func (m *machine) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	return m.sm.Restore(rc)
}

type frozen struct{ state io.WriterTo }

func (f frozen) Persist(sink raft.SnapshotSink) error {
	if _, err := f.state.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (f frozen) Release() {}
