package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// Report is what [Check] found.
type Report struct {
	// Dir is the directory that the rest tells of. Of two it is the one that a
	// start takes the state from.
	Dir string
	// Other tells of the other one, nil if there is none; OtherErr what keeps it
	// from being of use.
	Other     *Report
	OtherErr  error
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
// is missing. A log that can't be opened at all is set aside. Of two directories
// the one that has the state counts from then on, and the next opening copies it.
func Recover(cfg Config, sm StateMachine) (*Report, error) {
	rep, err := inspect(cfg, sm, true)
	if err != nil {
		return rep, fmt.Errorf("journal: recover %s: %w", cfg.Dir, err)
	}
	return rep, nil
}

func inspect(cfg Config, sm StateMachine, mend bool) (_ *Report, err error) {
	cfg.setDefaults()
	none := true
	for _, dir := range cfg.dirs() {
		if _, err := cfg.FS.Stat(cfg.FS.PathJoin(dir, "log")); err == nil {
			none = false
		}
	}
	if none {
		return nil, fmt.Errorf("there is no journal in %s", strings.Join(cfg.dirs(), " or "))
	}
	locks, err := lockAll(cfg)
	defer func() {
		for _, l := range locks {
			l.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	if cfg.Second == "" {
		rep, err := examine(cfg, sm, mend)
		if m, _ := readMarker(cfg.FS, cfg.Dir); mend && err == nil && m != nil && m.ID != "" {
			m.Generation++
			err = m.write(cfg.FS, cfg.Dir)
		}
		return rep, err
	}
	return inspectPair(cfg, sm, mend)
}

// inspectPair examines both directories, and then, for sm, the one that counts.
func inspectPair(cfg Config, sm StateMachine, mend bool) (*Report, error) {
	halves := [2]half{look(cfg.FS, cfg.Dir), look(cfg.FS, cfg.Second)}
	candidates, err := order(halves)
	if err != nil && (!mend || !halves[0].behind() && !halves[1].behind()) {
		return nil, err
	}
	if err != nil { // what is behind is all that there is
		candidates = []int{0, 1}
	}
	var reps [2]*Report
	var errs [2]error
	for i, h := range halves {
		switch {
		case h.err != nil:
			errs[i] = h.err
		case h.empty:
			errs[i] = errors.New("it is empty: the next start copies the other one")
		default:
			reps[i], errs[i] = examine(Config{Dir: h.dir, FS: cfg.FS, Logger: cfg.Logger}, nil, false)
			if errs[i] == nil && !slices.Contains(candidates, i) {
				errs[i] = errors.New("it is older: the next start copies the other one")
			}
		}
		if reps[i] == nil {
			reps[i] = &Report{Dir: h.dir}
		}
	}
	chosen := candidates[0]
	better := func(i int) bool {
		c := reps[chosen]
		return errs[i] == nil && (errs[chosen] != nil || reps[i].Good > c.Good || !reps[i].Damaged() && c.Damaged() && reps[i].Good == c.Good)
	}
	if len(candidates) == 2 && better(candidates[1]) || mend && errs[chosen] != nil && reps[1-chosen].Last+reps[1-chosen].Base > 0 {
		chosen = 1 - chosen
	}
	rep, err := examine(Config{Dir: halves[chosen].dir, FS: cfg.FS, Logger: cfg.Logger}, sm, mend)
	if rep == nil {
		rep = &Report{Dir: halves[chosen].dir}
	}
	rep.Other, rep.OtherErr = reps[1-chosen], errs[1-chosen]
	if err != nil || !mend {
		return rep, err
	}
	mark := marker{Generation: 1}
	for _, h := range halves {
		if h.mark != nil {
			mark = marker{ID: cmp.Or(h.mark.ID, mark.ID), Generation: max(mark.Generation, h.mark.Generation+1)}
		}
	}
	if mark.ID == "" {
		return rep, nil // there never were two
	}
	return rep, mark.write(cfg.FS, rep.Dir)
}

// examine looks at one directory, which is locked.
func examine(cfg Config, sm StateMachine, mend bool) (_ *Report, err error) {
	cfg.setDefaults()
	fs := cfg.FS
	dir := fs.PathJoin(cfg.Dir, "log")
	rep := &Report{Dir: cfg.Dir}
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
	if base != nil && sm != nil {
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
		entries, err := entriesOf(nil, &l)
		if err != nil {
			return good, fmt.Errorf("read log entry %d: %w", i, err)
		}
		if len(entries) > 0 && sm != nil {
			sm.Apply(entries)
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
