package datanode

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
)

// diskRest is how long a directory takes no block after its disk has failed an operation.
const diskRest = time.Minute

// checkGap is the least time between two checks of a directory.
const checkGap = 10 * time.Second

// suspects are the directories that have failed an operation and are being checked, or were.
type suspects struct {
	mu    sync.Mutex
	of    []suspect // by directory
	ended bool      // the owner knows that too many have failed
}

type suspect struct {
	checking bool
	checked  time.Time
}

func (s *suspects) init(dirs int) { s.of = make([]suspect, dirs) }

// noteDisk looks at the error of an operation on the store: those of the operating system
// speak of a directory's disk. For diskRest the NameNode is told that there is no room, so
// that blocks are placed elsewhere; what the directory holds can still be read. If the error
// is not of a disk that is full, the directory is checked, and taken out of service if it
// fails that.
func (dn *DataNode) noteDisk(err error) {
	var in *store.DirError
	if !errors.As(err, &in) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return
	}
	if !dn.store.Rest(in.Index, diskRest) {
		dn.log.Error("a disk is full or fails; the NameNode is told that there is no room", "dir", dn.cfg.Dirs[in.Index].Path, "for", diskRest, "err", err)
	}
	if store.Broken(err) {
		dn.checkSoon(in.Index, err)
	}
}

// suspectDisk looks at the error of a read: what can't be read may still be written.
func (dn *DataNode) suspectDisk(err error) {
	var in *store.DirError
	if errors.As(err, &in) && store.Broken(err) {
		dn.checkSoon(in.Index, err)
	}
}

// checkSoon checks a directory, unless that is done already or was done just now.
func (dn *DataNode) checkSoon(index int, cause error) {
	s := &dn.suspects
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.of[index]
	if d.checking || !d.checked.IsZero() && time.Since(d.checked) < checkGap || dn.store.Failed(index) {
		return
	}
	d.checking = dn.goBackground(func() {
		err := dn.store.Check(index)
		s.mu.Lock()
		d.checking, d.checked = false, time.Now()
		s.mu.Unlock()
		if err != nil {
			dn.giveUp(index, errors.Join(err, cause))
		}
	})
}

// giveUp takes a directory out of service. The NameNode hears of it with the next heartbeat,
// which is sent at once, and has the blocks copied elsewhere.
func (dn *DataNode) giveUp(index int, cause error) {
	replicas, first := dn.store.Fail(index, cause)
	if !first {
		return
	}
	dn.log.Error("a data directory has failed and is out of service", "dir", dn.cfg.Dirs[index].Path, "replicas", replicas, "err", cause)
	dn.names.beatNow()
	err := dn.store.Enough()
	if err == nil || dn.cfg.Ended == nil {
		return
	}
	s := &dn.suspects
	s.mu.Lock()
	ended := s.ended
	s.ended = true
	s.mu.Unlock()
	if !ended {
		dn.cfg.Ended(err)
	}
}

const defaultDiskTimeout = 10 * time.Minute

// adjust takes what may change while the DataNode runs.
func (dn *DataNode) adjust(p *conf.Properties) error {
	if dn.cfg.Again == nil {
		return nil
	}
	a, err := dn.cfg.Again(p)
	if err != nil {
		return err
	}
	setDefault(&a.DiskTimeout, defaultDiskTimeout)
	dn.diskTimeout.Store(int64(a.DiskTimeout))
	dn.store.SetChoice(a.Choice)
	return nil
}

// watchDisks looks for operations on disks that do not return. The directory gets nothing new, and
// is taken out of service at the limit, if the disk has not answered by then.
func (dn *DataNode) watchDisks() {
	hung := make([]bool, len(dn.cfg.Dirs))
	for dn.sleep(max(dn.cfg.DiskPatience/4, time.Millisecond)) {
		limit, patience := dn.diskLimits()
		for i, d := range dn.cfg.Dirs {
			waited := dn.store.Look(i, patience)
			if dn.store.Failed(i) {
				if waited >= patience {
					dn.passBy(i)
				}
				continue
			}
			switch hangs := waited >= patience; {
			case waited >= limit:
				dn.giveUp(i, fmt.Errorf("%w: an operation has not returned for %v, the limit is %v", store.ErrHangs, waited.Round(time.Millisecond), limit))
				dn.passBy(i)
			case hangs:
				dn.store.Rest(i, patience)
				if !hung[i] {
					dn.log.Error("a disk hangs; the NameNode is told that there is no room", "dir", d.Path, "waited", waited, "out of service after", limit)
					dn.names.beatNow()
				}
				dn.passBy(i)
				hung[i] = true
			case hung[i]:
				dn.log.Info("a disk that hung goes on", "dir", d.Path)
				dn.reportAll() // the last report may lack what waited for the disk
				hung[i] = false
			}
		}
	}
}

// diskLimits are for how long an operation may not return before its directory is out of service, and
// before it hangs.
func (dn *DataNode) diskLimits() (limit, patience time.Duration) {
	limit = time.Duration(dn.diskTimeout.Load())
	if limit <= 0 {
		return math.MaxInt64, math.MaxInt64
	}
	return limit, min(dn.cfg.DiskPatience, limit/2)
}

// leastLate is the least time after which a set-up is given up.
const leastLate = time.Second

// whenLate has f called when the opening of a replica has taken as long as on a disk that hangs. Whoever
// opens it calls the result behind it, which tells whether f was called, and has returned.
func (dn *DataNode) whenLate(f func(err error)) (wasLate func() bool) {
	_, patience := dn.diskLimits()
	patience = max(patience, leastLate)
	done := make(chan struct{})
	t := time.AfterFunc(patience, func() {
		defer close(done)
		f(fmt.Errorf("%w: the replica's files have not been opened for %v", store.ErrHangs, patience))
	})
	return func() bool {
		if t.Stop() {
			return false
		}
		<-done
		return true
	}
}

// passBy has nothing that the NameNode has ordered wait for a directory.
func (dn *DataNode) passBy(dir int) {
	for _, q := range []*queue{&dn.deletions, &dn.copies, &dn.recovers} {
		q.passBy(dir)
	}
}

// DiskStats are the state of one of a DataNode's directories.
type DiskStats struct {
	Dir    string
	Failed error         // why it is out of service; nil: it is not
	Hangs  bool          // nothing new is put there until the disk goes on
	Waited time.Duration // for the oldest operation under way
}

// SpareStats tell of the files of removed replicas that a DataNode's directories keep for new ones.
type SpareStats = store.SpareStats

// Spares returns their numbers, of all directories together.
func (dn *DataNode) Spares() SpareStats { return dn.store.Spares() }

// Disks returns the state of the directories.
func (dn *DataNode) Disks() []DiskStats {
	out := make([]DiskStats, len(dn.cfg.Dirs))
	for i, s := range dn.store.Health() {
		out[i] = DiskStats{Dir: s.Dir, Failed: s.Failed, Hangs: s.Hangs, Waited: s.Waited}
	}
	return out
}

// storages are what the NameNode is told of the directories.
func (dn *DataNode) storages() []*clusterpb.Storage {
	all := dn.store.Storages()
	out := make([]*clusterpb.Storage, len(all))
	for i, s := range all {
		if s.Err != nil {
			dn.log.Warn("disk usage unknown; the NameNode is told that there is no room", "err", s.Err)
			dn.suspectDisk(s.Err)
		}
		out[i] = &clusterpb.Storage{
			Type: proto.Uint32(uint32(s.Type)), Failed: proto.Bool(s.Failed != nil), Capacity: &s.Capacity, Used: &s.Used, Remaining: &s.Remaining,
		}
		if s.ID != "" {
			out[i].Id = &s.ID
		}
	}
	return out
}
