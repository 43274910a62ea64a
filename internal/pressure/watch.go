package pressure

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	calmInterval  = 5 * time.Second
	tightInterval = time.Second
	// leastTake is how many bytes may always be taken between two looks.
	leastTake = 256 << 10
)

// A Reading is what a look has found.
type Reading struct {
	At    time.Time // zero: nothing is known
	Level Level
	Why   string // what is short, if the level is not Calm
	// Limit in bytes is the least of the machine's memory and the limits of the
	// cgroups, 0 if none is known; LimitOf names its scope. Used is the use there.
	Limit, Used int64
	LimitOf     string
	// Room in bytes is the least that is left of a limit when all that is registered has
	// been touched.
	Room   int64
	Stalls Stalls // of the cgroup, or of the machine
}

// A Watcher tells those who subscribe how short memory is. It may be used
// concurrently.
type Watcher struct {
	sample func() Sample
	open   func() waiter

	left atomic.Int64 // bytes that may be taken before the next look
	last atomic.Pointer[Reading]

	mu          sync.Mutex
	base        Sample // of at least a window ago
	newer       Sample // the next base
	lower       time.Time
	subscribers map[*subscriber]struct{}
	loop        *loop // while there are some
}

type subscriber struct {
	tell       func(Reading)
	registered func() int64
}

// A waiter waits for the next look.
type waiter interface {
	// wait returns when it is time, or woken, and tells whether stalls were reported.
	wait(time.Duration) (reported bool)
	// wake ends the wait, and all to come.
	wake()
	close()
}

type loop struct {
	waiter waiter
	done   chan struct{}
}

// NewWatcher makes a watcher of a system.
func NewWatcher(s *System) *Watcher {
	return newWatcher(s.Sample, func() waiter { return newWaiter(s) })
}

func newWatcher(sample func() Sample, open func() waiter) *Watcher {
	w := &Watcher{sample: sample, open: open, subscribers: map[*subscriber]struct{}{}}
	w.last.Store(&Reading{})
	return w
}

// Process is the watcher of this process's system and cgroup.
var Process = sync.OnceValue(func() *Watcher { return NewWatcher(At("/")) })

// Subscribe has tell called with each reading under pressure, at least once a
// second, and with the first one after it. registered, if it is not nil, is how many
// bytes the subscriber has registered, which the kernel may not count before they are
// touched. Both must not call the watcher, and must return soon: who takes memory waits
// for them. stop ends that; it waits for a call that is under way, and must not be
// called by tell.
func (w *Watcher) Subscribe(tell func(Reading), registered func() int64) (stop func()) {
	s := &subscriber{tell, registered}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subscribers[s] = struct{}{}
	if w.loop == nil {
		l := &loop{waiter: w.open(), done: make(chan struct{})}
		w.loop = l
		w.look(false)
		go w.run(l)
	} else if r := w.last.Load(); r.Level > Calm {
		tell(*r)
	}
	return sync.OnceFunc(func() { w.unsubscribe(s) })
}

func (w *Watcher) unsubscribe(s *subscriber) {
	w.mu.Lock()
	delete(w.subscribers, s)
	l := w.loop
	if len(w.subscribers) > 0 {
		l = nil
	} else {
		w.loop = nil
	}
	w.mu.Unlock()
	if l != nil {
		l.waiter.wake()
		<-l.done
	}
}

func (w *Watcher) run(l *loop) {
	defer close(l.done)
	defer l.waiter.close()
	for {
		interval := calmInterval
		if w.last.Load().Level > Calm {
			interval = tightInterval
		}
		reported := l.waiter.wait(interval)
		w.mu.Lock()
		if w.loop != l {
			w.mu.Unlock()
			return
		}
		w.look(reported)
		w.mu.Unlock()
	}
}

// Take says that the caller, who subscribes, is about to take n bytes. Subscribers
// hear of pressure before it returns.
func (w *Watcher) Take(n int64) {
	if w.left.Add(-n) >= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left.Load() < 0 { // nobody else has looked meanwhile
		w.look(false)
		w.left.Add(-n)
	}
}

// HasRoom tells whether n bytes more would leave what is left of a limit above what
// is critical, if between two looks no more is taken than may be. It takes no lock and
// does not look.
func (w *Watcher) HasRoom(n int64) bool {
	r := w.last.Load()
	return r.Limit == 0 || r.Room-r.Room/4-n >= r.Limit/critical
}

// Last is the latest reading, without a look.
func (w *Watcher) Last() Reading { return *w.last.Load() }

// Now looks, unless somebody has within the last second.
func (w *Watcher) Now() Reading {
	if r := w.Last(); !r.At.IsZero() && time.Since(r.At) < time.Second {
		return r
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look(false)
	return w.Last()
}

// look reads the files and tells subscribers. mu is held.
func (w *Watcher) look(reported bool) {
	now := w.sample()
	registered := int64(0)
	for s := range w.subscribers {
		if s.registered != nil {
			registered += s.registered()
		}
	}
	now.expect(registered)
	before := w.last.Load()
	r := now.reading()
	r.Level, r.Why = judge(w.base, now, reported)
	switch {
	case r.Level >= before.Level:
		w.lower = time.Time{}
	case w.lower.IsZero():
		w.lower = now.At
		fallthrough
	case now.At.Sub(w.lower) < patience:
		r.Level, r.Why = before.Level, before.Why
	default:
		w.lower = time.Time{}
	}
	if w.base.At.IsZero() {
		w.base, w.newer = now, now
	} else if now.At.Sub(w.newer.At) >= window {
		w.base, w.newer = w.newer, now
	}
	left := r.Room / 4
	if r.Limit == 0 {
		left = unlimited
	}
	w.left.Store(max(left, leastTake))
	w.last.Store(&r)
	if r.Level == Calm && before.Level == Calm {
		return
	}
	for s := range w.subscribers {
		s.tell(r)
	}
}

// reading is a Reading of no level yet.
func (s Sample) reading() Reading {
	r := Reading{At: s.At, Stalls: s.Stalls}
	for i, scope := range s.Scopes {
		if i == 0 || scope.least() < r.Limit {
			r.Limit, r.LimitOf, r.Used = scope.least(), scope.Name, scope.Used
		}
		if i == 0 || scope.room() < r.Room {
			r.Room = scope.room()
		}
	}
	return r
}

// A sleeper is a waiter without reports.
type sleeper struct {
	once  sync.Once
	woken chan struct{}
}

func newSleeper() *sleeper { return &sleeper{woken: make(chan struct{})} }

func (s *sleeper) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.woken:
	}
	return false
}

func (s *sleeper) wake()  { s.once.Do(func() { close(s.woken) }) }
func (s *sleeper) close() {}
