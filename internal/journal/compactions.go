package journal

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// oneAtATime lets pebble run one compaction at a time. Pebble's default
// scheduler allows as many, but wakes up ten times a second to see whether the
// limit has changed. A log's limit never changes, and an idle process sleeps.
//
// It serves one database. Its lock comes after the database's: it calls the
// database only while it does not hold its own.
type oneAtATime struct {
	db pebble.DBForCompaction

	mu       sync.Mutex
	quiet    sync.Cond // granting has become 0
	running  bool      // a compaction runs, or Done is about to grant the next one
	refused  bool      // the database has asked while running was true
	granting int       // calls of Done that call the database
	closed   bool
}

var (
	_ pebble.CompactionScheduler   = (*oneAtATime)(nil)
	_ pebble.CompactionGrantHandle = (*oneAtATime)(nil)
)

func newOneAtATime() *oneAtATime {
	s := &oneAtATime{}
	s.quiet.L = &s.mu
	return s
}

// Register implements [pebble.CompactionScheduler].
func (s *oneAtATime) Register(_ int, db pebble.DBForCompaction) { s.db = db }

// Unregister implements [pebble.CompactionScheduler]. The database is not
// called any more once it has returned; its last compaction may still run.
func (s *oneAtATime) Unregister() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for s.granting > 0 {
		s.quiet.Wait()
	}
}

// TrySchedule implements [pebble.CompactionScheduler].
func (s *oneAtATime) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, nil
	}
	if s.running {
		s.refused = true
		return false, nil
	}
	s.running = true
	return true, s
}

// UpdateGetAllowedWithoutPermission implements [pebble.CompactionScheduler].
func (*oneAtATime) UpdateGetAllowedWithoutPermission() {}

// Done implements [pebble.CompactionGrantHandle]: the compaction has ended, and
// the next one that waits may run.
func (s *oneAtATime) Done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed {
		s.refused = false
		s.granting++ // a granted compaction may end, and call Done, before this call goes on
		s.mu.Unlock()
		waits, _ := s.db.GetWaitingCompaction()
		granted := waits && s.db.Schedule(s)
		s.mu.Lock()
		if s.granting--; s.granting == 0 {
			s.quiet.Broadcast()
		}
		if granted {
			return
		}
		// A compaction that was refused after the database had said that none
		// waits would wait for the next flush.
		if !s.refused {
			break
		}
	}
	s.running = false
}

// Started implements [pebble.CompactionGrantHandle].
func (*oneAtATime) Started() {}

// MeasureCPU implements [pebble.CompactionGrantHandle].
func (*oneAtATime) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements [pebble.CompactionGrantHandle].
func (*oneAtATime) CumulativeStats(pebble.CompactionGrantHandleStats) {}
