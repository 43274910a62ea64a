package shuffle

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/unnamed"
)

// patience is how long a stream is full before its receiver's blocks are written to disk,
// and shortPatience when some have just been written.
const (
	patience      = 10 * time.Millisecond
	shortPatience = 100 * time.Microsecond
)

// A spiller writes blocks that receivers do not take to disk, so that their room is
// free again. It has a goroutine while there is something to write.
type spiller struct {
	x   *Exchange
	dir string

	mu      sync.Mutex
	wanting []*Receiver
	running bool

	bytes atomic.Uint64
}

// A spillFile has blocks of one receiver. It has no name, so that it goes with the
// process.
type spillFile struct {
	f     *os.File
	end   int64
	items int // that have not been read
}

func newSpiller(x *Exchange, dir string) (*spiller, error) {
	f, err := spillFileIn(dir) // so that a directory that will not do shows now
	if err != nil {
		return nil, err
	}
	return &spiller{x: x, dir: dir}, f.Close()
}

// spillFileIn makes a file without a name in a directory.
var spillFileIn = func(dir string) (*os.File, error) {
	f, err := unnamed.File(dir, "verbena-shuffle")
	if err != nil {
		return nil, fmt.Errorf("the spill directory: %w", err)
	}
	return f, nil
}

// wants says that a stream to a receiver is full.
func (s *spiller) wants(r *Receiver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.wanting {
		if other == r {
			return
		}
	}
	s.wanting = append(s.wanting, r)
	if !s.running {
		s.running = true
		s.x.loops.Go(s.run)
	}
}

func (s *spiller) run() {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for wait := patience; ; {
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-s.x.ctx.Done():
		}
		s.mu.Lock()
		wanting := s.wanting
		s.wanting = nil
		if len(wanting) == 0 && wait < patience { // once more
			wait = patience
			s.mu.Unlock()
			continue
		}
		if len(wanting) == 0 || s.x.ctx.Err() != nil {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		before := s.bytes.Load()
		for _, r := range wanting {
			if err := s.spill(r); err != nil {
				_ = s.x.fail(&ProcessError{Rank: s.x.c.Rank, Err: fmt.Errorf("%w: spill to %s: %w", ErrAborted, s.dir, err)})
			}
		}
		if wait = patience; s.bytes.Load() != before {
			wait = shortPatience
		}
	}
}

// spill writes what is in a receiver's queue, if a stream is still full. What has been spilt before it leaves alone.
func (s *spiller) spill(r *Receiver) error {
	r.spilling.Lock()
	defer r.spilling.Unlock()
	r.mu.Lock()
	items := slices.Clone(r.queue.Values())
	r.mu.Unlock()
	if !slices.ContainsFunc(items, func(it item) bool { return it.from.pressing(r.thread, &it) }) {
		return nil
	}
	if r.file == nil {
		f, err := spillFileIn(s.dir)
		if err != nil {
			return err
		}
		r.file = &spillFile{f: f}
	}
	if r.file.items == 0 {
		r.file.end = 0
	}
	end := r.file.end
	for i := range items {
		if _, err := r.file.f.WriteAt(items[i].data, end); err != nil {
			return err // and all are in the queue, and in no other
		}
		end += int64(len(items[i].data))
	}
	r.mu.Lock()
	for range items {
		it := r.queue.Pop() // none was taken meanwhile
		it.spilt, it.at, it.length = true, r.file.end, len(it.data)
		it.data, it.block = nil, nil
		r.file.end += int64(it.length)
		r.spilt.Push(it)
	}
	r.mu.Unlock()
	r.file.items += len(items)
	for i := range items {
		s.bytes.Add(uint64(len(items[i].data)))
		items[i].from.freed(r.thread, &items[i])
	}
	return nil
}

// takeOne takes an item for the receiver's goroutine, and leaves the others where they can
// be spilt.
func (r *Receiver) takeOne() (it item, ok bool) {
	r.spilling.Lock()
	defer r.spilling.Unlock()
	if r.spilt.Len() > 0 {
		return r.spilt.Pop(), true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue.Len() == 0 {
		return it, false
	}
	return r.queue.Pop(), true
}

// detach copies an item, so that its place is free although the receiver's goroutine may
// do nothing for long.
func (r *Receiver) detach(it *item) {
	if cap(r.fetched) < len(it.data) {
		r.fetched = make([]byte, max(len(it.data), r.x.c.part))
	}
	b := r.fetched[:copy(r.fetched[:len(it.data)], it.data)]
	it.from.freed(r.thread, it)
	if it.block == nil {
		r.x.mapped.release()
	}
	it.data, it.block, it.spilt = b, nil, true
}

// fetch reads an item that was spilt. Its bytes are valid until the next call.
func (r *Receiver) fetch(it *item) ([]byte, error) {
	if cap(r.fetched) < it.length {
		r.fetched = make([]byte, max(it.length, r.x.c.part))
	}
	b := r.fetched[:it.length]
	r.spilling.Lock()
	defer r.spilling.Unlock()
	if _, err := r.file.f.ReadAt(b, it.at); err != nil {
		return nil, err
	}
	r.file.items--
	return b, nil
}

// close closes the files. Nothing runs any more.
func (s *spiller) close() error {
	var errs []error
	for _, r := range s.x.receivers {
		if r.file != nil {
			errs = append(errs, r.file.f.Close())
		}
	}
	return errors.Join(errs...)
}
