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
	s.promises[id] = max(before, recovery)
	s.mu.Unlock()
	if before >= recovery {
		return true, nil
	}
	f, err := v.fs.Create(v.promisePath(id, recovery), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = syncDir(v.fs, v.subdir(id))
	}
	if err == nil && before != 0 {
		err = v.fs.Remove(v.promisePath(id, before))
		if oserror.IsNotExist(err) {
			err = nil // in a directory that is out of service, or was
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
