package stream

import (
	"sync"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
)

// A SharedReader reads frames by one goroutine, Run, which sleeps until they come. Others
// may look for them meanwhile, by Look: whoever waits for a frame and polls gets it without
// being woken by the one that reads.
type SharedReader struct {
	mu     sync.Mutex // held by who reads
	r      *Reader
	direct *directReader // of r, or nil: nobody can look
	came   func()
	take   func(carrier.Message) error
	failed error
}

// Share returns a reader by r, which nobody else uses from then on. came is called when
// something has come, take with each frame, in order, by one goroutine at a time; it
// releases the frame and must not wait for another one. Its error ends the reading.
func Share(r *Reader, came func(), take func(carrier.Message) error) *SharedReader {
	s := &SharedReader{r: r, came: came, take: take}
	if s.direct, _ = r.r.(*directReader); s.direct != nil {
		s.direct.mu = &s.mu
	}
	return s
}

// Looks tells whether Look can find anything: where r reads from a socket.
func (s *SharedReader) Looks() bool { return s.direct != nil }

// Run reads until that fails, and returns the reason. It is called once.
func (s *SharedReader) Run() error {
	for {
		if s.direct != nil {
			if err := s.direct.turns(s.r, s.turn); err != nil {
				return err
			}
		}
		if err := s.rest(); err != nil {
			return err
		}
	}
}

// rest reads frames of which the first bytes have come. Nobody can look meanwhile.
func (s *SharedReader) rest() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.failed == nil && (s.direct == nil || s.r.Pending()) {
		if s.failed = s.r.Wait(); s.failed == nil {
			s.came()
			s.next()
		}
	}
	return s.failed
}

// next reads a frame. mu is held.
func (s *SharedReader) next() {
	m, err := s.r.Next()
	if err == nil {
		err = s.take(m)
	}
	s.failed = err
}

// turn takes the whole frames that have come. It reports false if that failed. mu is held.
func (s *SharedReader) turn() bool {
	s.came()
	for s.failed == nil && s.r.Ready() {
		s.next()
	}
	return s.failed == nil
}

// Look takes frames that have come whole, if nobody else is about to, and does not wait. Any
// goroutine may call it. It tells whether something was there. An error is the reason why
// there will be no more; the caller sees to it that Run ends, too, by closing what r reads
// from. It does not allocate, but for frames.
func (s *SharedReader) Look() (came bool, err error) {
	if s.direct == nil || !s.mu.TryLock() {
		return false, nil
	}
	defer s.mu.Unlock()
	if s.failed != nil || s.r.Pending() {
		return false, s.failed
	}
	s.r.room()
	n, came, err := s.direct.look(s.r.buf)
	if !came || err != nil {
		s.failed = err
		return came, err
	}
	s.r.end, s.r.full = n, n == len(s.r.buf)
	s.turn()
	return true, s.failed
}
