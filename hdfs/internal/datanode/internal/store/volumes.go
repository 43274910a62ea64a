package store

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// errRefused is for directories that are in order, but not for this store.
var errRefused = errors.New("the directory is not this DataNode's to use")

// ErrTooManyFailed is returned when more directories have failed than are tolerated.
var ErrTooManyFailed = errors.New("too many data directories have failed")

// open opens all directories.
func (s *Store) open(cfg *Config) error {
	for _, v := range s.volumes {
		for _, o := range s.volumes[:v.index] {
			if o.dir == v.dir {
				return fmt.Errorf("%w: %s is there twice", errRefused, v.dir)
			}
		}
		if err := v.prepare(); errors.Is(err, errRefused) {
			return err
		} else if err != nil {
			s.leaveOut(v, err)
		}
	}
	if err := s.agree(); err != nil {
		return err
	}
	var g sync.WaitGroup
	for _, v := range s.volumes {
		if v.good() {
			g.Go(func() {
				if err := v.load(cfg); err != nil {
					s.leaveOut(v, fmt.Errorf("open the store %s: %w", v.dir, err))
				}
			})
		}
	}
	g.Wait()
	if err := s.Enough(); err != nil {
		return err
	}
	for _, v := range s.volumes {
		if v.good() {
			s.adopt(v)
		}
		v.loaded, v.promises = nil, nil
	}
	return nil
}

func (s *Store) leaveOut(v *volume, err error) {
	if v.failed.CompareAndSwap(nil, &err) {
		s.log.Error("a data directory has failed and is left out", "dir", v.dir, "err", err)
	}
}

// agree finds out whose directories these are: all must be one DataNode's, or new.
func (s *Store) agree() error {
	var id Identity
	var of *volume
	for _, v := range s.volumes {
		own := v.identity
		if own.DatanodeUUID == "" || !v.good() {
			continue
		}
		switch {
		case of == nil:
			id, of = own, v
		case own.DatanodeUUID != id.DatanodeUUID:
			return fmt.Errorf("%w: %s belongs to DataNode %s, %s to %s: give each DataNode its own directories", errRefused, of.dir, id.DatanodeUUID, v.dir, own.DatanodeUUID)
		case own.ClusterID != "" && id.ClusterID != "" && own != id:
			return fmt.Errorf("%w: %s is of cluster %q, block pool %q, %s of %q, %q: leave out or empty the one that is not this cluster's",
				errRefused, of.dir, id.ClusterID, id.BlockPoolID, v.dir, own.ClusterID, own.BlockPoolID)
		case id.ClusterID == "":
			id, of = own, v
		}
		for _, o := range s.volumes[:v.index] {
			if o.id == v.id {
				return fmt.Errorf("%w: %s and %s are both the storage %s: one is a copy of the other; leave it out", errRefused, o.dir, v.dir, v.id)
			}
		}
	}
	if of == nil {
		id.DatanodeUUID = newUUID()
	}
	s.identity = id
	for _, v := range s.volumes {
		if !v.good() {
			continue
		}
		fresh := v.id == ""
		if fresh {
			v.id = "DS-" + newUUID()
		}
		if fresh || v.identity != id {
			if err := v.writeVersion(id); err != nil {
				s.leaveOut(v, err)
			}
		}
	}
	return nil
}

// Enough returns an error that wraps [ErrTooManyFailed] if more directories have failed than
// are tolerated.
func (s *Store) Enough() error {
	var failed []error
	for _, v := range s.volumes {
		if err := v.failed.Load(); err != nil {
			failed = append(failed, *err)
		}
	}
	n, all := len(failed), len(s.volumes)
	if n < all && (s.tolerated < 0 || n <= s.tolerated) {
		return nil
	}
	tolerated := "all but one"
	if s.tolerated >= 0 {
		tolerated = fmt.Sprint(s.tolerated)
	}
	return fmt.Errorf("%w: %d of %d, tolerated are %s: replace their disks, or start without them: %w", ErrTooManyFailed, n, all, tolerated, errors.Join(failed...))
}

// adopt takes up what was found in a directory. Of two replicas of a block the better one
// stays: a directory that was away may come back with those that were replaced meanwhile.
func (s *Store) adopt(v *volume) {
	for id, gen := range v.promises {
		if gen > s.promises[id].recovery {
			s.promises[id] = promise{recovery: gen} // an earlier process may have died before it was durable
		}
	}
	for id, r := range v.loaded {
		o := s.replicas[id]
		if o == nil {
			s.replicas[id] = r
			continue
		}
		better, worse, sure := betterOf(o, r)
		s.replicas[id] = better
		if !sure {
			s.log.Error("a replica is in two directories, and the bytes of the one of more use can't be read, or do not match; none is removed", "block", id, "dir", better.vol.dir, "other", worse.vol.dir)
			continue
		}
		s.log.Warn("a replica is in two directories; the one of lesser use is removed", "block", id, "dir", worse.vol.dir, "generation", worse.gen, "length", worse.length)
		if err := worse.removeFiles(); err != nil {
			s.log.Warn("a replica of no use can't be removed", "block", id, "err", err)
		}
	}
}

// betterOf tells which of two replicas of a block is of more use. Two that should be equal are read: one of
// them may be damaged, and the other the last good one. sure is false if the bytes of the better one can't be read, or do not match:
// the other is to be kept then.
func betterOf(o, r *Replica) (better, worse *Replica, sure bool) {
	better, worse = o, r
	switch {
	case r.gen != o.gen:
		if r.gen > o.gen {
			better, worse = r, o
		}
	case (r.state == Finalized) != (o.state == Finalized):
		if r.state == Finalized {
			better, worse = r, o
		}
	case r.length != o.length:
		if r.length > o.length {
			better, worse = r, o
		}
	case o.Verify(nil) != nil:
		if r.Verify(nil) != nil {
			return o, r, false
		}
		better, worse = r, o
	}
	return better, worse, !better.unreadable
}

// Storage is what is known of one of the store's directories.
type Storage struct {
	ID   string // empty: it could not be read
	Dir  string
	Type hdfspb.StorageTypeProto
	// Failed is why the directory is out of service, nil if it is not.
	Failed error
	// Used, Capacity and Remaining are bytes; Used counts blocks' bytes alone. The others are 0 if
	// Err is not nil, and all are if Failed is not.
	Used, Capacity, Remaining uint64
	Err                       error
	Reserved                  uint64 // bytes for replicas that are being written
}

// Storages tells of all directories, in the order of [Config].Dirs.
func (s *Store) Storages() []Storage {
	out := make([]Storage, len(s.volumes))
	for i, v := range s.volumes {
		out[i] = Storage{ID: v.id, Dir: v.dir, Type: v.kind}
		if err := v.failed.Load(); err != nil {
			out[i].Failed = *err
			continue
		}
		out[i].Used, out[i].Reserved = uint64(max(0, v.used.Load())), uint64(max(0, v.reserved.Load()))
		d, err := v.usage()
		if err != nil {
			out[i].Err = v.at(fmt.Errorf("disk usage of %s: %w", v.dir, err))
			continue
		}
		out[i].Capacity, out[i].Remaining = d.TotalBytes, d.AvailBytes+v.spareBytes()
		if v.resting() {
			out[i].Remaining = 0
		}
	}
	return out
}

// Rest has a directory count as full for a while, or longer if it does already, and tells whether
// it does.
func (s *Store) Rest(index int, d time.Duration) bool {
	v := s.volumes[index]
	before, until := v.resting(), time.Now().Add(d).UnixNano()
	for old := v.rests.Load(); old < until && !v.rests.CompareAndSwap(old, until); old = v.rests.Load() {
	}
	return before
}

// Failed tells whether a directory is out of service.
func (s *Store) Failed(index int) bool { return !s.volumes[index].good() }

// Check tries a directory, by its index in [Config].Dirs. It writes to its disk and may take
// long. It changes nothing of the store.
func (s *Store) Check(index int) error { return s.volumes[index].check() }

// Fail takes a directory out of service because of cause: its replicas are gone, and their
// writers are told to stop. It tells how many there were, and false if the directory was out
// of service before.
func (s *Store) Fail(index int, cause error) (replicas int, first bool) {
	v := s.volumes[index]
	if !v.failed.CompareAndSwap(nil, &cause) {
		return 0, false
	}
	var lost []*Replica
	s.mu.Lock()
	for id, r := range s.replicas {
		if r.vol == v {
			lost = append(lost, r)
			delete(s.replicas, id)
		}
	}
	s.mu.Unlock()
	for _, r := range lost {
		if r.mu.TryLock() {
			r.end()
			continue
		}
		go func() { // whoever has the lock may wait for the disk, for ever
			r.mu.Lock()
			r.end()
		}()
	}
	return len(lost), true
}

// end takes a replica that is no longer known from its writer. The caller has r.mu, which end gives
// back.
func (r *Replica) end() {
	r.gone = true
	r.store.changing(r.id)
	w := r.writer
	r.mu.Unlock()
	if w != nil {
		w.interrupt()
	}
}
