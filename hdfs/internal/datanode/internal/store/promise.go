package store

import (
	"fmt"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// promiseLife is how long a promise is kept over restarts: longer than a writer could
// still come with a block that it was given before.
const promiseLife = 24 * time.Hour

const promiseSuffix = ".promised"

func (s *Store) promisePath(id, gen uint64) string {
	return s.fs.PathJoin(s.subdir(id), strings.TrimSuffix(metaName(id, gen), ".meta")+promiseSuffix)
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
	if err := s.makeSubdir(id); err != nil {
		return false, fmt.Errorf("promise that block %d is not here: %w", id, err)
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
	f, err := s.fs.Create(s.promisePath(id, recovery), vfs.WriteCategoryUnspecified)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = syncDir(s.fs, s.subdir(id))
	}
	if err == nil && before != 0 {
		err = s.fs.Remove(s.promisePath(id, before))
	}
	if err != nil {
		return false, fmt.Errorf("promise that block %d is not here: %w", id, err)
	}
	return true, nil
}

// loadPromise takes up one of an earlier process, or removes it if it is old.
func (s *Store) loadPromise(dir, name string, id, gen uint64) error {
	path := s.fs.PathJoin(dir, name)
	info, err := s.fs.Stat(path)
	if err != nil {
		return err
	}
	if at := info.ModTime(); !at.IsZero() && time.Since(at) > promiseLife { // zero: the file system does not tell
		return s.fs.Remove(path)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promises[id] = max(s.promises[id], gen)
	return nil
}
