package datanode

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// disk remembers that the disk failed a write. For diskRest after that, this
// DataNode tells the NameNode that it has no room, so that blocks are placed
// elsewhere; what it holds can still be read. HDFS's DataNode gives up the
// volume for good.
type disk struct {
	mu     sync.Mutex
	failed time.Time
}

// diskRest is how long a DataNode takes no block after its disk has failed.
const diskRest = time.Minute

// noteDisk looks at the error of a write to the store: those of the operating
// system speak of the disk.
func (dn *DataNode) noteDisk(err error) {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return
	}
	d := &dn.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.failed) > diskRest {
		dn.log.Error("the disk is full or fails; the NameNode is told that there is no room", "dir", dn.cfg.Dir, "for", diskRest, "err", err)
	}
	d.failed = time.Now()
}

// rests tells whether the disk has failed lately.
func (d *disk) rests() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.failed.IsZero() && time.Since(d.failed) < diskRest
}

// usage fills in what a heartbeat tells of the room.
func (dn *DataNode) usage(req *clusterpb.HeartbeatRequest) {
	u, err := dn.store.Usage()
	if err != nil {
		dn.log.Warn("disk usage unknown; the NameNode is told that there is no room", "err", err)
	}
	if dn.disk.rests() {
		u.Remaining = 0
	}
	req.Capacity, req.Used, req.Remaining = &u.Capacity, &u.Used, &u.Remaining
}
