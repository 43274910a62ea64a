package store

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrHangs says that a disk has not answered for long.
var ErrHangs = errors.New("the disk hangs")

// A watch knows since when a disk has been busy with each operation. An operation that never
// returns can't be ended, and whoever waits for it neither: those who watch decide what else is
// left to the disk.
type watch struct {
	mu    sync.Mutex
	since []time.Time // by place; zero: nothing is under way there
	free  []int       // places
}

// begin notes that an operation begins. The result is for end. It allocates only when more are
// under way than ever before.
func (w *watch) begin() (place int) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.free); n > 0 {
		place, w.free = w.free[n-1], w.free[:n-1]
		w.since[place] = now
		return place
	}
	w.since = append(w.since, now)
	w.free = slices.Grow(w.free, len(w.since))
	return len(w.since) - 1
}

func (w *watch) end(place int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since[place] = time.Time{}
	w.free = append(w.free, place)
}

// longest is for how long the oldest operation has been under way, 0: there is none.
func (w *watch) longest() (d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.since {
		if !at.IsZero() {
			d = max(d, time.Since(at))
		}
	}
	return d
}

// Look tells for how long the oldest operation on a directory's disk has been under way. From
// patience on the directory hangs, until the next look: it gets no new replicas, and nothing
// waits for it that concerns others, too.
func (s *Store) Look(index int, patience time.Duration) (oldest time.Duration) {
	v := s.volumes[index]
	oldest = v.watch.longest()
	v.hangs.Store(oldest >= patience)
	return oldest
}

// Hangs tells whether the last look has found that a directory hangs.
func (s *Store) Hangs(index int) bool { return s.volumes[index].hangs.Load() }

// Health is the state of one of the store's directories.
type Health struct {
	Dir    string
	Failed error // why it is out of service, nil if it is not
	Hangs  bool  // the last look has found so
	Waited time.Duration
}

// Health tells of all directories, in the order of [Config].Dirs, without asking their disks.
func (s *Store) Health() []Health {
	out := make([]Health, len(s.volumes))
	for i, v := range s.volumes {
		out[i] = Health{Dir: v.dir, Hangs: v.hangs.Load(), Waited: v.watch.longest()}
		if err := v.failed.Load(); err != nil {
			out[i].Failed = *err
		}
	}
	return out
}

// lost tells that nobody should wait for the directory.
func (v *volume) lost() bool { return !v.good() || v.hangs.Load() }

// usagePatience is how long a question for a disk's room may take; then the last answer counts.
const usagePatience = time.Second

// room is what a disk has said of its room.
type room struct {
	mu    sync.Mutex
	asked time.Time     // of the question under way
	done  chan struct{} // closed with its answer; nil: none is under way
	last  vfs.DiskUsage
	err   error
}

var errNoAnswer = errors.New("the disk has not answered yet")

// usage tells the room on the directory's disk, without waiting for one that hangs.
func (v *volume) usage() (vfs.DiskUsage, error) {
	r := &v.room
	r.mu.Lock()
	if r.done == nil {
		if r.asked.IsZero() {
			r.err = errNoAnswer
		}
		r.done, r.asked = make(chan struct{}), time.Now()
		go v.askUsage(r.done) // for as long as the disk takes
	}
	done, patience := r.done, usagePatience-time.Since(r.asked)
	r.mu.Unlock()
	if patience > 0 {
		t := time.NewTimer(patience)
		select {
		case <-done:
		case <-t.C:
		}
		t.Stop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.err
}

func (v *volume) askUsage(done chan struct{}) {
	place := v.watch.begin()
	d, err := v.fs.GetDiskUsage(v.dir)
	v.watch.end(place)
	r := &v.room
	r.mu.Lock()
	r.last, r.err, r.done = d, err, nil
	r.mu.Unlock()
	close(done)
}
