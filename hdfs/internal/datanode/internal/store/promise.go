package store

import (
	"fmt"
	"strings"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// promiseLife is how long a promise is kept over restarts: longer than a writer could
// still come with a block that it was given before.
const promiseLife = 24 * time.Hour

const promiseSuffix = ".promised"

// promise is what has been promised of a block.
type promise struct {
	recovery uint64 // none with a lower generation is created
	durable  uint64 // the one that is known to be on stable storage, 0: none
}

func (v *volume) promisePath(id, gen uint64) string {
	return v.fs.PathJoin(v.subdir(id), strings.TrimSuffix(metaName(id, gen), ".meta")+promiseSuffix)
}

func parsePromise(name string) (id, gen uint64, ok bool) {
	name, ok = strings.CutSuffix(name, promiseSuffix)
	if !ok {
		return 0, 0, false
	}
	id, gen, _, ok = parseName(name + ".meta")
	return id, gen, ok
}

// Promise promises to a recovery with a generation stamp that there is no replica of the
// block here, and that none with a lower one will be created: a writer that was given the
// block before, and comes only now, would have bytes acknowledged that the recovery has
// given up. The promise is on stable storage when it returns. It returns false if there
// is a replica.
func (s *Store) Promise(id, recovery uint64) (bool, error) {
	v := s.volumeOf(id)
	if v == nil {
		return false, s.Enough()
	}
	defer v.watch.end(v.watch.begin())
	if err := v.makeSubdir(id); err != nil {
		return false, v.at(fmt.Errorf("promise that block %d is not here: %w", id, err))
	}
	s.mu.Lock()
	if s.replicas[id] != nil {
		s.mu.Unlock()
		return false, nil
	}
	before := s.promises[id]
	now := before
	now.recovery = max(before.recovery, recovery)
	s.promises[id] = now
	s.mu.Unlock()
	if before.durable >= recovery {
		return true, nil
	}
	f, err := v.fs.Create(v.promisePath(id, now.recovery), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = syncDir(v.fs, v.subdir(id))
	}
	if err == nil {
		s.mu.Lock()
		now = s.promises[id]
		now.durable = max(now.durable, before.recovery, recovery)
		s.promises[id] = now
		s.mu.Unlock()
	}
	if err == nil && before.recovery != 0 && before.recovery < recovery {
		err = v.fs.Remove(v.promisePath(id, before.recovery))
		if oserror.IsNotExist(err) {
			err = nil // in a directory that is out of service, or was; or it could not be written
		}
	}
	if err != nil {
		return false, v.at(fmt.Errorf("promise that block %d is not here: %w", id, err))
	}
	return true, nil
}

// volumeOf returns the directory that has the promises for a block, nil if all are out of
// service. One that hangs is taken if there is no other.
func (s *Store) volumeOf(id uint64) (hangs *volume) {
	n := uint64(len(s.volumes))
	for i := range n {
		switch v := s.volumes[(id+i)%n]; {
		case !v.lost():
			return v
		case v.good() && hangs == nil:
			hangs = v
		}
	}
	return hangs
}

// loadPromise takes up one of an earlier process, or removes it if it is old.
func (v *volume) loadPromise(dir, name string, id, gen uint64) error {
	path := v.fs.PathJoin(dir, name)
	info, err := v.fs.Stat(path)
	if err != nil {
		return err
	}
	if at := info.ModTime(); !at.IsZero() && time.Since(at) > promiseLife { // zero: the file system does not tell
		return v.fs.Remove(path)
	}
	v.loading.Lock()
	defer v.loading.Unlock()
	v.promises[id] = max(v.promises[id], gen)
	return nil
}
