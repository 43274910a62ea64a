package namenode

import (
	"context"
	"runtime"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// wakeMonitor has the monitor look now instead of at its next turn.
func (nn *NameNode) wakeMonitor() {
	select {
	case nn.kick <- struct{}{}:
	default:
	}
}

// giveWay lets goroutines run that have waited for the lock, or for a processor. Whoever works
// through many blocks calls it between two holds: it would keep its processor for 10 ms, and an
// operation of a client changes goroutines five times.
func giveWay() { runtime.Gosched() }

func (nn *NameNode) monitor(ctx context.Context) {
	tick := time.NewTicker(nn.cfg.CheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-nn.kick:
		}
		nn.check(ctx)
	}
}

// check is one turn of the monitor.
func (nn *NameNode) check(ctx context.Context) {
	for more := true; more && ctx.Err() == nil; {
		more = nn.state.reap()
		giveWay()
	}
	for more := true; more && ctx.Err() == nil; {
		nn.read(func(ns *namespace.Namespace) { more = nn.blocks.check(ns) })
		giveWay()
	}
	if nn.blocks.inSafeMode() || nn.refuses() {
		return // what follows is changes
	}
	nn.noteGone(ctx)
	nn.checkLeases(ctx)
	nn.checkTrash(ctx)
	nn.driveRecoveries(ctx)
}
