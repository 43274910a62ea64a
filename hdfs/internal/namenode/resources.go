package namenode

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// resources tells whether the disk has room for the log. When it has less than
// ReservedSpace, changes are refused as HDFS's safe mode refuses them, instead of
// waiting for a log that can't be written; they are taken again once there is
// room. (HDFS enters safe mode at the same point, by default 100 MiB, and since
// the operator ends it there, its message asks for that.)
type resources struct {
	mu    sync.Mutex
	low   string // why changes are refused; empty: they are not
	since time.Time
	// stuck is closed while there has been no room for RoomWait: what has been on
	// its way since then waits no longer.
	stuck  chan struct{}
	closed bool
	// byHand says that an operator has turned safe mode on.
	byHand bool
}

// watchResources looks at the disk at every CheckInterval. The monitor can't: what
// it changes may be what waits for room.
func (nn *NameNode) watchResources(ctx context.Context) {
	tick := time.NewTicker(nn.cfg.CheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			nn.checkResources()
		}
	}
}

// checkResources looks at the disk. A file system that can't tell has room.
func (nn *NameNode) checkResources() {
	dirs := nn.journal.Dirs()
	var available uint64
	for _, dir := range dirs {
		usage, err := nn.cfg.FS.GetDiskUsage(dir)
		if err != nil {
			return
		}
		available = max(available, usage.AvailBytes)
	}
	if nn.note(available, strings.Join(dirs, " and ")) {
		nn.abandon()
	}
}

// note takes over how many bytes are available in the directories that in names. It tells whether nobody
// waits any more from now on.
func (nn *NameNode) note(available uint64, in string) (stuck bool) {
	r := &nn.resources
	r.mu.Lock()
	defer r.mu.Unlock()
	low := available < nn.cfg.ReservedSpace
	switch {
	case low && r.low == "":
		nn.log.Error("namenode: low on available disk space, entering safe mode: changes are refused until there is room", "dir", in, "available", available, "reserved", nn.cfg.ReservedSpace)
		r.low = "Resources are low on NN. Please add or free up more resources in " + in + ": safe mode ends by itself when there is room."
		r.since = nn.cfg.now()
		nn.blocks.freeze(true)
	case low && !r.closed && nn.cfg.now().Sub(r.since) >= nn.cfg.RoomWait:
		close(r.stuck)
		r.closed, stuck = true, true
	case !low && r.low != "":
		nn.log.Info("namenode: the disk has room again, leaving safe mode", "dir", in, "available", available)
		r.low = ""
		nn.blocks.freeze(r.byHand)
		if r.closed {
			r.stuck, r.closed = make(chan struct{}), false
		}
	}
	return stuck
}

// refusal is the error for changes while the disk is full, else nil, and a channel
// that closes when a change that has begun need not be waited for any more.
func (nn *NameNode) refusal() (stuck <-chan struct{}, err error) {
	r := &nn.resources
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byHand {
		return nil, exception.New(exception.SafeMode, "Cannot change the namespace. Name node is in safe mode.\nIt was turned on manually. Use \"hdfs dfsadmin -safemode leave\" to turn safe mode off.")
	}
	if r.low == "" {
		return r.stuck, nil
	}
	return nil, exception.New(exception.SafeMode, "Cannot change the namespace. Name node is in safe mode.\n%s", r.low)
}

// refusalOf is the error of refusal for a call, but nil if it is a repetition: that gets its answer again.
func (nn *NameNode) refusalOf(c *call) error {
	_, err := nn.refusal()
	if err == nil || !c.id.remembered() {
		return err
	}
	answered := false
	nn.read(func(ns *namespace.Namespace) { _, answered = ns.Answered(c.id.client, c.id.call) })
	if answered {
		return nil
	}
	return err
}

// appendEntry makes an entry durable; data are its bytes. If the disk has become full
// meanwhile and there is no room in time, it returns an error, though the entry will be
// carried out if there is room later.
func (nn *NameNode) appendEntry(ctx context.Context, data []byte, e *nspb.Entry) (any, error) {
	stuck, err := nn.refusal()
	if err != nil {
		return nil, err
	}
	p, err := nn.journal.Start(ctx, data, e)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.Done():
		return p.Result()
	case <-stuck:
	}
	select { // both may have come
	case <-p.Done():
		return p.Result()
	default:
	}
	return nil, nn.noRoom()
}

// noRoom is the error for changes that were on their way when the disk became full.
func (nn *NameNode) noRoom() error {
	return exception.New(exception.SafeMode, "Cannot change the namespace. Name node is in safe mode: the disk has become full while this change was on its way to it. It may be carried out when there is room; the same call, made again, tells. Resources are low on NN. Please add or free up more resources in %s.", strings.Join(nn.journal.Dirs(), " and "))
}

// setByHand turns the safe mode of operators on or off.
func (nn *NameNode) setByHand(on bool) {
	r := &nn.resources
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byHand = on
	nn.blocks.freeze(on || r.low != "")
}

// refuses tells whether changes are refused now.
func (nn *NameNode) refuses() bool {
	_, err := nn.refusal()
	return err != nil
}
