//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

// maxSleepers is how many waiters of a domain sleep on a thread of their own. Such a
// waiter goes on as soon as the kernel wakes its thread. The other waiters share the
// network poller, whose thread first wakes another one to look for more work.
const maxSleepers = 4

// A bed is where Wait's goroutine sleeps until a queue's channel is readable.
type bed interface {
	// ready comes before the last look at what else may end the wait.
	ready() error
	// sleep returns when the channel had an event, with true, or after wake.
	sleep(q *completionQueue) (bool, error)
	// wake ends a sleep that comes after ready. Anybody may call it at any time.
	wake()
}

// tick is how often a goroutine that sleeps with its thread calls the scheduler. After
// 10 ms without that the scheduler takes it for one that hogs its processor, however
// long it has slept in between (package runtime, retake). It interrupts the thread,
// gives the processor away, and looks for more such goroutines every 20 us.
const tick = 5 * time.Millisecond

// A sleeper sleeps with its thread.
type sleeper struct {
	polled [2]unix.PollFd // the channel, and event
	seen   time.Time      // by the scheduler

	mu    sync.Mutex
	event int // an eventfd; -1 once it is closed
}

func newSleeper() (*sleeper, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: eventfd: %w", err)
	}
	return &sleeper{event: fd}, nil
}

func (s *sleeper) ready() error { return nil }

func (s *sleeper) sleep(q *completionQueue) (bool, error) {
	if now := time.Now(); now.Sub(s.seen) > tick {
		s.seen = now
		runtime.Gosched()
	}
	s.polled = [2]unix.PollFd{{Fd: int32(q.channel.Descriptor()), Events: unix.POLLIN}, {Fd: int32(s.event), Events: unix.POLLIN}}
	if _, err := unix.Poll(s.polled[:], -1); err != nil {
		if err == unix.EINTR {
			return false, nil
		}
		return false, err
	}
	if s.polled[1].Revents != 0 {
		var count [8]byte
		if _, err := unix.Read(s.event, count[:]); err != nil && err != unix.EAGAIN {
			return false, err
		}
	}
	if s.polled[0].Revents == 0 {
		return false, nil
	}
	return q.awaited()
}

func (s *sleeper) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.event >= 0 {
		_, _ = unix.Write(s.event, one[:]) // full means that it is readable
	}
}

func (s *sleeper) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = unix.Close(s.event)
	s.event = -1
}

// sleepers are a domain's.
type sleepers struct {
	mu     sync.Mutex
	idle   []*sleeper
	made   int
	closed bool
}

// take returns nil if all are asleep.
func (s *sleepers) take() *sleeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		one := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return one
	}
	if s.made == maxSleepers || s.closed {
		return nil
	}
	one, err := newSleeper()
	if err != nil {
		return nil // for want of descriptors; the poller may still have some
	}
	s.made++
	return one
}

func (s *sleepers) put(one *sleeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		one.close()
		return
	}
	s.idle = append(s.idle, one)
}

func (s *sleepers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, one := range s.idle {
		one.close()
	}
	s.idle = nil
}

// A pollerBed sleeps in the runtime's network poller.
type pollerBed struct {
	file *os.File
	raw  syscall.RawConn
	take func(fd uintptr) bool

	taken bool
	err   error
}

func newPollerBed(q *completionQueue) (*pollerBed, error) {
	file, err := q.channel.File()
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	p := &pollerBed{file: file, raw: raw}
	p.take = func(uintptr) bool {
		p.taken, p.err = q.awaited()
		return p.taken || p.err != nil
	}
	return p, nil
}

// ready clears the deadline, by which wake works.
func (p *pollerBed) ready() error { return p.file.SetReadDeadline(time.Time{}) }

func (p *pollerBed) sleep(*completionQueue) (bool, error) {
	switch err := p.raw.Read(p.take); {
	case err == nil:
		return p.taken, p.err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return false, nil
	default:
		return false, err
	}
}

func (p *pollerBed) wake() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) }

// goToBed chooses where the goroutine that holds waiting sleeps. From then on wake
// finds it there.
func (q *completionQueue) goToBed() (bed, error) {
	if s := q.domain.sleepers.take(); s != nil {
		q.sleeper.Store(s)
		return s, nil
	}
	// A channel that has been in the network poller once wakes it at each event, so it
	// is put there only when no thread is left to sleep on.
	p := q.poller.Load()
	if p == nil {
		var err error
		if p, err = newPollerBed(q); err != nil {
			return nil, err
		}
		q.poller.Store(p)
	}
	return p, nil
}

// getUp ends the use of a bed.
func (q *completionQueue) getUp(b bed) {
	if s, ok := b.(*sleeper); ok {
		q.sleeper.Store(nil)
		q.domain.sleepers.put(s)
	}
}

// Wait implements [rdma.CompletionQueue]. Up to four goroutines of a domain sleep on
// a thread each, the others in the network poller.
func (q *completionQueue) Wait(ctx context.Context) error {
	q.waiting.Lock()
	defer q.waiting.Unlock()
	if q.destroyed {
		// Something that was armed for may have happened before.
		q.mu.Lock()
		defer q.mu.Unlock()
		if !errors.Is(q.err, rdma.ErrClosed) && q.event.Swap(false) {
			return nil
		}
		return q.err
	}
	b, err := q.goToBed()
	if err != nil {
		return fmt.Errorf("ibverbs: wait on %s: %w", q.domain.device.attributes.Name, err)
	}
	defer q.getUp(b)
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, q.wake)()
	}
	for {
		if err := b.ready(); err != nil {
			return fmt.Errorf("ibverbs: wait on %s: %w", q.domain.device.attributes.Name, err)
		}
		q.mu.Lock()
		failed := q.err
		q.mu.Unlock()
		switch {
		case errors.Is(failed, rdma.ErrClosed):
			return rdma.ErrClosed
		case q.event.Swap(false):
			return nil
		case failed != nil:
			return failed
		case ctx.Err() != nil:
			return ctx.Err()
		}
		taken, err := b.sleep(q)
		if err != nil {
			return fmt.Errorf("ibverbs: wait on %s: %w", q.domain.device.attributes.Name, err)
		}
		if taken {
			return nil
		}
	}
}

// wake makes Wait's goroutine look again at what has been set before.
func (q *completionQueue) wake() {
	if s := q.sleeper.Load(); s != nil {
		s.wake()
	}
	if p := q.poller.Load(); p != nil {
		p.wake()
	}
}
