package journal

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// Report is what [Check] found.
type Report struct {
	Snapshots []SnapshotReport // newest first
	// First and Last are the indexes of the log's first and last entry, 0 for none.
	First, Last uint64
	// Base is the index of the snapshot that the state was restored from, 0 if it
	// was made from the log alone.
	Base uint64
	// Good is the index of the last entry that the state has; LogErr tells what
	// is wrong with the log behind it, nil if nothing is.
	Good   uint64
	LogErr error
}

// SnapshotReport tells of one snapshot.
type SnapshotReport struct {
	ID    string
	Index uint64
	Size  int64 // bytes
	Err   error // nil: it is whole
}

// Damaged tells whether something in the journal can't be used.
func (r *Report) Damaged() bool {
	for _, s := range r.Snapshots {
		if s.Err != nil {
			return true
		}
	}
	return r.LogErr != nil
}

// Check reads all of a journal that no process has open, changes nothing but
// what any opening of its log does, and brings sm to the newest state that can
// be had. Its error says that there is none.
func Check(cfg Config, sm StateMachine) (*Report, error) {
	rep, err := inspect(cfg, sm, false)
	if err != nil {
		return rep, fmt.Errorf("journal: check %s: %w", cfg.Dir, err)
	}
	return rep, nil
}

// Recover is Check, and makes the journal one that opens with that state:
// damaged snapshots are set aside, and the log is cut before its first damaged
// entry. Entries behind it that can be read are lost, too: they follow from what
// is missing. A log that can't be opened at all is set aside.
func Recover(cfg Config, sm StateMachine) (*Report, error) {
	rep, err := inspect(cfg, sm, true)
	if err != nil {
		return rep, fmt.Errorf("journal: recover %s: %w", cfg.Dir, err)
	}
	return rep, nil
}

func inspect(cfg Config, sm StateMachine, mend bool) (_ *Report, err error) {
	cfg.setDefaults()
	fs := cfg.FS
	dir := fs.PathJoin(cfg.Dir, "log")
	if _, err := fs.Stat(dir); err != nil {
		return nil, fmt.Errorf("there is no journal: %w", err)
	}
	lock, err := fs.Lock(fs.PathJoin(cfg.Dir, "LOCK"))
	if err != nil {
		return nil, fmt.Errorf("the directory is in use by another process: stop that one first: %w", err)
	}
	defer lock.Close()
	rep := &Report{}
	snapshots := &snapshotStore{fs: fs, dir: fs.PathJoin(cfg.Dir, "snapshots"), log: cfg.Logger}
	metas, damaged, err := snapshots.metas()
	if err != nil {
		return rep, err
	}
	for _, d := range damaged {
		rep.Snapshots = append(rep.Snapshots, SnapshotReport{ID: d.id, Err: d.err})
	}
	var base *snapshotMeta
	for i := range metas {
		m := &metas[i]
		err := snapshots.verify(m.ID)
		if err != nil && !errors.Is(err, errDamaged) {
			return rep, err
		}
		rep.Snapshots = append(rep.Snapshots, SnapshotReport{ID: m.ID, Index: m.Index, Size: m.Size, Err: err})
		if err != nil {
			damaged = append(damaged, damagedSnapshot{m.ID, err})
		} else if base == nil {
			base = m
		}
	}
	log, err := openStore(fs, dir, cfg.Logger)
	if err != nil {
		rep.LogErr = err
		if base == nil {
			return rep, fmt.Errorf("no snapshot is whole, and the log does not open: %w", err)
		}
		if mend {
			if err := fs.Rename(dir, dir+damagedSuffix); err != nil {
				return rep, err
			}
			if err := syncDir(fs, cfg.Dir); err != nil {
				return rep, err
			}
		}
	} else {
		defer func() { err = errors.Join(err, log.Close()) }()
		rep.First, rep.Last = log.first, log.last
	}
	if base != nil {
		rep.Base = base.Index
	}
	if log != nil {
		if err := follows(log, rep.Base, len(rep.Snapshots) > 0); err != nil {
			return rep, err
		}
	}
	if base != nil {
		if err := restoreFrom(snapshots, base.ID, sm); err != nil {
			return rep, err
		}
	}
	rep.Good = rep.Base
	if log != nil {
		rep.Good, rep.LogErr = replay(log, rep.Base, sm)
	}
	if !mend {
		return rep, nil
	}
	for _, d := range damaged {
		if err := snapshots.setAside(d.id, d.err); err != nil {
			return rep, err
		}
	}
	if log != nil && rep.LogErr != nil {
		return rep, log.DeleteRange(rep.Good+1, log.last)
	}
	return rep, nil
}

func restoreFrom(s *snapshotStore, id string, sm StateMachine) error {
	_, rc, err := s.Open(id)
	if err != nil {
		return err
	}
	defer rc.Close()
	return sm.Restore(rc)
}

// replay applies the entries behind base and returns the index of the last one
// that is good, and what is wrong with the next.
func replay(s *store, base uint64, sm StateMachine) (good uint64, err error) {
	good = base
	for i := max(base+1, s.first); i <= s.last && i > 0; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil {
			return good, err
		}
		if l.Type == raft.LogCommand && sm != nil {
			sm.Apply([][]byte{l.Data})
		}
		good = i
	}
	return good, nil
}

// follows tells whether the log goes on where the snapshot of index base ends;
// without a snapshot it must have everything.
func follows(s *store, base uint64, hadSnapshots bool) error {
	switch {
	case s.last == 0 && base == 0 && hadSnapshots:
		return errors.New("every snapshot is damaged, and the log is empty: put a copy of the directory in place")
	case s.last > 0 && s.first > base+1:
		return fmt.Errorf("the newest snapshot that is whole ends with entry %d, and the log begins with entry %d: what is between is lost; put a copy of the directory in place", base, s.first)
	}
	return nil
}

// verify reads a snapshot's state; an error that wraps errDamaged says that it
// is not what was written.
func (s *snapshotStore) verify(id string) error {
	m, err := s.readMeta(id)
	if err != nil {
		return err
	}
	f, err := s.fs.Open(s.fs.PathJoin(s.dir, id+stateSuffix), vfs.SequentialReadsOption)
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	defer f.Close()
	_, err = io.Copy(io.Discard, &checkedReader{f: f, meta: m})
	return err
}
