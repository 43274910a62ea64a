package datanode

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
)

// settling are the replicas of a directory that were closed without hsync and have yet to be
// put on stable storage, oldest first.
type settling struct {
	mu   sync.Mutex
	due  []dueReplica
	wake chan struct{}
}

type dueReplica struct {
	id uint64
	at time.Time
}

func newSettling(dirs int) []settling {
	all := make([]settling, dirs)
	for i := range all {
		all[i].wake = make(chan struct{}, 1)
	}
	return all
}

func (s *settling) add(id uint64, at time.Time) {
	s.mu.Lock()
	s.due = append(s.due, dueReplica{id, at})
	first := len(s.due) == 1
	s.mu.Unlock()
	if first {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

func (s *settling) first() (d dueReplica, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.due) == 0 {
		return d, false
	}
	return s.due[0], true
}

func (s *settling) pop() {
	s.mu.Lock()
	s.due = s.due[1:]
	if len(s.due) == 0 {
		s.due = nil
	}
	s.mu.Unlock()
}

// settlePause is the time between two fsyncs, in which others get at the disk.
const settlePause = 10 * time.Millisecond

// settle fsyncs replicas of a directory some time after they were closed, when the operating
// system has written most of them anyway. A crash of the machine then leaves
// little to verify.
func (dn *DataNode) settle(dir int) {
	s := &dn.settling[dir]
	for {
		d, ok := s.first()
		if !ok {
			select {
			case <-s.wake:
				continue
			case <-dn.ctx.Done():
				return
			}
		}
		if wait := time.Until(d.at); wait > 0 && !dn.sleep(wait) || dn.ctx.Err() != nil {
			return
		}
		if !dn.sleep(settlePause) {
			return
		}
		s.pop()
		r, err := dn.store.Get(d.id)
		if err == nil {
			err = r.SyncFinalized()
		}
		dn.noteDisk(err)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			dn.log.Warn("a closed replica could not be fsynced", "block", d.id, "err", err)
		}
	}
}

// scan reads all replicas of a directory now and then at a bounded rate, so that damage is
// noticed while other replicas are good.
func (dn *DataNode) scan(dir int) {
	pause := dn.cfg.ScanDelay
	for dn.sleep(pause/2+rand.N(pause/2+1)) && !dn.store.Failed(dir) {
		infos := slices.DeleteFunc(dn.store.Replicas(), func(i store.Info) bool { return i.Storage != dir })
		slices.SortFunc(infos, func(a, b store.Info) int {
			if a.ID < b.ID {
				return -1
			}
			return 1
		})
		for _, i := range infos {
			if i.State != store.Finalized {
				continue
			}
			if !dn.scanReplica(i.ID) {
				return
			}
		}
		pause = dn.cfg.ScanInterval
	}
}

// scanReplica returns false if the DataNode was closed.
func (dn *DataNode) scanReplica(id uint64) bool {
	r, err := dn.store.Get(id)
	if err != nil {
		return dn.ctx.Err() == nil
	}
	info := r.Info()
	err = r.Verify(func(n int) bool {
		return dn.sleep(time.Duration(float64(n) / float64(dn.cfg.ScanRate) * float64(time.Second)))
	})
	dn.suspectDisk(err)
	switch {
	case errors.Is(err, store.ErrCorrupt):
		dn.reportCorrupt(info, err)
	case err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrChanged):
		dn.log.Warn("a replica could not be verified", "block", id, "err", err)
	}
	return dn.ctx.Err() == nil
}
