package namenode

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// leases knows when writers were last heard of. That is soft state: after a
// start every lease counts as just renewed.
type leases struct {
	mu      sync.Mutex
	renewed map[string]renewal // by holder
	// unreported are files that wait for a report of their last block, by inode, since when.
	unreported map[uint64]time.Time
}

type renewal struct {
	at   time.Time
	host string // the holder's address, empty until it is heard of
}

func (l *leases) renew(holder, host string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed[holder] = renewal{now, host}
}

// host is where a holder was last heard from.
func (l *leases) host(holder string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewed[holder].host
}

// age returns how long ago holder was heard of.
func (l *leases) age(holder string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, ok := l.renewed[holder]
	if !ok {
		l.renewed[holder] = renewal{at: now}
		return 0
	}
	return now.Sub(last.at)
}

// waited tells for how long a file has waited for a report of its last block.
func (l *leases) waited(file uint64, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreported == nil {
		l.unreported = make(map[uint64]time.Time)
	}
	since, ok := l.unreported[file]
	if !ok {
		since = now
		l.unreported[file] = now
	}
	return now.Sub(since)
}

// reported ends that wait.
func (l *leases) reported(file uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unreported, file)
}

// keep forgets all holders but these.
func (l *leases) keep(holders []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.renewed {
		if _, ok := slices.BinarySearch(holders, h); !ok {
			delete(l.renewed, h)
		}
	}
}

func (nn *NameNode) renewLease(ctx context.Context, req *hdfspb.RenewLeaseRequestProto) (*hdfspb.RenewLeaseResponseProto, error) {
	held := false
	nn.read(func(ns *namespace.Namespace) { held = ns.Leased(req.GetClientName()) })
	if held {
		nn.leases.renew(req.GetClientName(), nn.callFrom(ctx).host, nn.cfg.now())
	}
	return &hdfspb.RenewLeaseResponseProto{}, nil
}

func (nn *NameNode) recoverLease(ctx context.Context, req *hdfspb.RecoverLeaseRequestProto) (*hdfspb.RecoverLeaseResponseProto, error) {
	if _, err := nn.refusal(); err != nil {
		return nil, err
	}
	c := nn.callFrom(ctx)
	var (
		f   namespace.FileBlocks
		err error
	)
	nn.read(func(ns *namespace.Namespace) { f, err = ns.Recoverable(c.who(), req.GetSrc()) })
	if err != nil {
		return nil, err
	}
	closed := !f.Status.Open
	if !closed {
		if closed, err = nn.recoverFile(ctx, f.Status.ID); err != nil {
			return nil, err
		}
	}
	return &hdfspb.RecoverLeaseResponseProto{Result: proto.Bool(closed)}, nil
}

// checkLeases takes the files of writers that have not been heard of for the
// hard limit.
func (nn *NameNode) checkLeases(ctx context.Context) {
	var holders []string
	nn.read(func(ns *namespace.Namespace) { holders = ns.Holders() })
	nn.leases.keep(holders)
	now := nn.cfg.now()
	for _, h := range holders {
		if h != namespace.RecoveryHolder() && nn.leases.age(h, now) <= nn.cfg.LeaseHardLimit {
			continue
		}
		var files []uint64
		nn.read(func(ns *namespace.Namespace) { files = ns.OpenFiles(h) })
		for _, id := range files {
			if ctx.Err() != nil {
				return
			}
			if h != namespace.RecoveryHolder() {
				nn.log.Warn("namenode: lease expired", "holder", h, "inode", id)
			}
			if _, err := nn.recoverFile(ctx, id); err != nil {
				nn.log.Warn("namenode: recover lease", "inode", id, "err", err)
			}
		}
	}
}

// recoverFile takes a file from its writer. It closes the file at once if all
// blocks are complete; else it begins a recovery of the last one.
func (nn *NameNode) recoverFile(ctx context.Context, id uint64) (closed bool, err error) {
	var (
		f     namespace.FileBlocks
		ok    bool
		found bool // somebody has, or should have, the last block
	)
	nn.read(func(ns *namespace.Namespace) {
		if f, ok = ns.FileByID(id); !ok || len(f.Blocks) == 0 {
			return
		}
		last := f.Blocks[len(f.Blocks)-1]
		nn.blocks.mu.Lock()
		defer nn.blocks.mu.Unlock()
		found = last.Construction == nil || len(last.Construction.Targets) > 0 || nn.blocks.replicas.any(last.ID, func(replica) bool { return true })
	})
	if !ok || !f.Status.Open {
		return true, nil
	}
	drop := false
	if len(f.Blocks) > 0 {
		last := f.Blocks[len(f.Blocks)-1]
		switch {
		case last.Construction == nil:
			changed, cancel := nn.blocks.finalized(last.ID, last.Generation, last.Length)
			if changed != nil {
				cancel()
				if nn.leases.waited(id, nn.cfg.now()) <= nn.cfg.LeaseHardLimit {
					return false, nil // until a DataNode reports it
				}
				// Its length is known, and so is its generation: a holder that comes later has it all the same.
				nn.log.Error("namenode: nobody has reported the last block of a file whose writer is gone; it is closed and the block counts as missing", "inode", id, "block", last.ID)
			}
			nn.leases.reported(id)
		case last.Construction.Recovery != 0:
			return false, nil
		case found || last.Length > 0:
			_, err := nn.startRecovery(ctx, id, last.ID)
			nn.wakeMonitor()
			return false, err
		default:
			drop = true
		}
	}
	_, err = nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_CloseFile{CloseFile: &nspb.CloseFile{File: &id, DropLast: &drop}}})
	return err == nil, err
}
