package datanode

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/internal/backoff"
)

const (
	reportPart     = 10_000  // replicas in one message of a full report
	maxChanges     = 100_000 // kept for a NameNode that is away; a full report replaces more
	changesPerCall = 5_000
	callTimeout    = 30 * time.Second
	defaultBeat    = 3 * time.Second
	corruptAgain   = time.Minute // until the same replica is reported corrupt once more
)

// registerPauses are those before a DataNode registers again.
var registerPauses = backoff.Policy{First: 100 * time.Millisecond, Most: 2 * time.Second}

// session is what ties a DataNode to its NameNode, and the changes that the
// NameNode has not been told of.
type session struct {
	mu         sync.Mutex
	registered bool // false while the NameNode is away
	changes    []change
	overflow   bool
	full       bool // a full report is due
	corrupt    map[uint64]time.Time
	// copied are the blocks of which a copy has come since the last heartbeat was sent.
	copied map[uint64]struct{}
	wake   chan struct{}
	beat   chan struct{} // a heartbeat is due
}

type change struct {
	msg  *clusterpb.ReplicaChange
	told chan struct{} // closed when the NameNode knows, or can't be told soon; may be nil
}

func (s *session) init() {
	s.wake, s.beat = make(chan struct{}, 1), make(chan struct{}, 1)
	s.corrupt, s.copied = map[uint64]time.Time{}, map[uint64]struct{}{}
}

func (s *session) poke() { signal(s.wake) }

func (s *session) beatNow() { signal(s.beat) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

var replicaStates = map[store.State]clusterpb.ReplicaState{
	store.Finalized:       clusterpb.ReplicaState_FINALIZED,
	store.BeingWritten:    clusterpb.ReplicaState_BEING_WRITTEN,
	store.WaitingRecovery: clusterpb.ReplicaState_WAITING_RECOVERY,
}

func replicaOf(i store.Info) *clusterpb.Replica {
	n, in := uint64(i.Length), uint32(i.Storage)
	return &clusterpb.Replica{Block: &clusterpb.Block{Id: &i.ID, Generation: &i.Generation, Length: &n}, State: replicaStates[i.State].Enum(), Storage: &in}
}

// changed tells the NameNode of a replica. If wait is set it returns when the
// NameNode knows, or ReportTimeout has passed, or the NameNode is away.
func (dn *DataNode) changed(kind clusterpb.ReplicaChange_Kind, i store.Info, wait bool) {
	s := &dn.names
	c := change{msg: &clusterpb.ReplicaChange{Kind: kind.Enum(), Replica: replicaOf(i)}}
	s.mu.Lock()
	if wait && s.registered {
		c.told = make(chan struct{})
	}
	if len(s.changes) >= maxChanges {
		s.release(s.changes)
		s.changes, s.overflow = nil, true
	}
	s.changes = append(s.changes, c)
	s.mu.Unlock()
	// News of a block that has begun can wait for the next heartbeat: most blocks
	// have ended by then, and one call tells both.
	if kind != clusterpb.ReplicaChange_RECEIVING {
		s.poke()
	}
	if c.told == nil {
		return
	}
	t := time.NewTimer(dn.cfg.ReportTimeout)
	defer t.Stop()
	select {
	case <-c.told:
	case <-t.C:
	case <-dn.ctx.Done():
	}
}

// release ends the waits for changes to be told.
func (s *session) release(changes []change) {
	for i := range changes {
		if changes[i].told != nil {
			close(changes[i].told)
			changes[i].told = nil
		}
	}
}

func (dn *DataNode) reportCorrupt(i store.Info, cause error) {
	s := &dn.names
	s.mu.Lock()
	if last, ok := s.corrupt[i.ID]; ok && time.Since(last) < corruptAgain {
		s.mu.Unlock()
		return
	}
	if len(s.corrupt) > maxChanges {
		clear(s.corrupt)
	}
	s.corrupt[i.ID] = time.Now()
	s.mu.Unlock()
	dn.log.Error("corrupt replica, reported to the NameNode", "block", i.ID, "generation", i.Generation, "err", cause)
	dn.changed(clusterpb.ReplicaChange_CORRUPT, i, false)
}

var errRegisterAgain = errors.New("the NameNode asks to register again")

// followNameNode keeps a session with the NameNode, for as long as the DataNode
// is open. Transfers go on without one.
func (dn *DataNode) followNameNode() {
	for failures := 1; dn.ctx.Err() == nil; failures++ {
		began := time.Now()
		err := dn.registered()
		if dn.ctx.Err() != nil {
			return
		}
		if time.Since(began) > registerPauses.Most {
			failures = 1
		}
		// All DataNodes lose the NameNode at once. Jitter keeps them from coming
		// back at once.
		pause := registerPauses.Pause(failures)
		switch {
		case errors.Is(err, errRegisterAgain), errors.Is(err, cluster.ErrNotRegistered):
			dn.log.Info("registering again", "after", pause, "reason", err)
		case errors.Is(err, cluster.ErrForeign):
			dn.log.Error("the NameNode refuses this DataNode; is DIR of another cluster?", "dir", dn.cfg.Dirs[0].Path, "err", err)
			pause = registerPauses.Most
		case errors.Is(err, cluster.ErrUnproven):
			dn.log.Error("the NameNode and this DataNode do not know the same secret", "trying again after", registerPauses.Most, "err", err)
			pause = registerPauses.Most
		default:
			if errors.Is(err, verbena.ErrNotSent) {
				pause = registerPauses.Pause(1) // the calls have paused before they gave up
			}
			dn.log.Warn("no NameNode, trying again", "after", pause, "err", err)
		}
		if !dn.sleep(pause) {
			return
		}
	}
}

func call[Req, Resp any](ctx context.Context, f func(context.Context, Req) (Resp, error), req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f(ctx, req)
}

// registered registers and then reports until something fails.
func (dn *DataNode) registered() error {
	id := dn.store.Identity()
	resp, err := call(dn.ctx, dn.cfg.NameNode.Register, &clusterpb.RegisterRequest{
		Datanode: dn.self(), ClusterId: &id.ClusterID, BlockPoolId: &id.BlockPoolID, Version: &dn.cfg.Version, Storages: dn.storages(),
	})
	if err != nil {
		return fmt.Errorf("register with the NameNode: %w", err)
	}
	if id.ClusterID == "" {
		id.ClusterID, id.BlockPoolID = resp.GetClusterId(), resp.GetBlockPoolId()
		if err := dn.store.SetIdentity(id); err != nil {
			dn.noteDisk(err)
			return err
		}
	} else if id.ClusterID != resp.GetClusterId() || id.BlockPoolID != resp.GetBlockPoolId() {
		return fmt.Errorf("the NameNode is of cluster %q, block pool %q; %s holds blocks of %q, %q: %w",
			resp.GetClusterId(), resp.GetBlockPoolId(), dn.cfg.Dirs[0].Path, id.ClusterID, id.BlockPoolID, cluster.ErrForeign)
	}
	if err := dn.takeKeys(resp.BlockKeys); err != nil {
		return err
	}
	beat := time.Duration(resp.GetHeartbeatIntervalMs()) * time.Millisecond
	if beat <= 0 || beat > time.Minute {
		beat = defaultBeat
	}
	s := &dn.names
	s.mu.Lock()
	s.registered, s.full = true, true
	s.mu.Unlock()
	dn.log.Info("registered with the NameNode", "uuid", id.DatanodeUUID, "cluster", id.ClusterID)
	ctx, cancel := context.WithCancelCause(dn.ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, f := range []func() error{
		func() error { return dn.heartbeats(ctx, resp.GetSession(), beat) },
		func() error { return dn.reports(ctx, &reportOrder{session: resp.GetSession()}) },
	} {
		wg.Go(func() { cancel(f()) })
	}
	wg.Wait()
	s.mu.Lock()
	s.registered = false
	s.release(s.changes)
	s.mu.Unlock()
	return context.Cause(ctx)
}

func (dn *DataNode) heartbeats(ctx context.Context, session uint64, every time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		dn.names.poke() // changes that could wait
		dn.names.forgetCopies()
		uuid, transfers := dn.UUID(), uint32(max(0, dn.transfers.Load()))
		req := &clusterpb.HeartbeatRequest{Uuid: &uuid, Session: &session, Transfers: &transfers, BlockKey: proto.Int32(dn.keys.Current()), Storages: dn.storages()}
		resp, err := call(ctx, dn.cfg.NameNode.Heartbeat, req)
		if err != nil {
			return fmt.Errorf("heartbeat: %w", err)
		}
		if resp.BlockKeys != nil {
			if err := dn.takeKeys(resp.BlockKeys); err != nil {
				return err
			}
		}
		if err := dn.obey(dn.names.meant(resp.GetCommands())); err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-dn.names.beat:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reportOrder numbers the reports of a session. A NameNode carries each number out
// once, so a report of which nobody knows whether it came may be sent again.
type reportOrder struct{ session, last uint64 }

func (o *reportOrder) next() *uint64 {
	o.last++
	return proto.Uint64(o.last)
}

// reports tells the NameNode of changes, and of everything now and then. One
// goroutine does both: a full report must not be overtaken by a change that it
// lacks.
func (dn *DataNode) reports(ctx context.Context, order *reportOrder) error {
	s := &dn.names
	next := time.NewTimer(dn.cfg.ReportInterval)
	defer next.Stop()
	for {
		s.mu.Lock()
		full := s.full || s.overflow
		s.full, s.overflow = false, false
		changes := s.changes
		s.changes = nil
		s.mu.Unlock()
		err := dn.sendChanges(ctx, order, changes)
		if err == nil && full {
			if err = dn.sendFull(ctx, order); err == nil {
				next.Reset(dn.cfg.ReportInterval*3/4 + rand.N(dn.cfg.ReportInterval/2+1))
			}
		}
		if err != nil {
			s.mu.Lock()
			s.full = s.full || full
			s.mu.Unlock()
			return err
		}
		select {
		case <-s.wake:
		case <-next.C:
			s.mu.Lock()
			s.full = true
			s.mu.Unlock()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (dn *DataNode) sendChanges(ctx context.Context, order *reportOrder, changes []change) error {
	uuid := dn.UUID()
	for len(changes) > 0 {
		n := min(len(changes), changesPerCall)
		req := &clusterpb.BlocksChangedRequest{Uuid: &uuid, Session: &order.session, Sequence: order.next(), Changes: make([]*clusterpb.ReplicaChange, n)}
		for i := range n {
			req.Changes[i] = changes[i].msg
		}
		_, err := call(ctx, dn.cfg.NameNode.BlocksChanged, req)
		s := &dn.names
		s.mu.Lock()
		s.release(changes[:n])
		if err != nil {
			s.release(changes)
			s.changes = append(changes, s.changes...)
		}
		s.mu.Unlock()
		if err != nil {
			return fmt.Errorf("report %d changed blocks: %w", n, err)
		}
		changes = changes[n:]
	}
	return nil
}

func (dn *DataNode) sendFull(ctx context.Context, order *reportOrder) error {
	uuid, id := dn.UUID(), rand.Uint64()
	replicas, all := dn.store.List()
	if !all {
		dn.log.Warn("a full report lacks replicas that wait for a disk which hangs")
	}
	parts := uint32(max(1, (len(replicas)+reportPart-1)/reportPart))
	for part := range parts {
		n := min(len(replicas), reportPart)
		req := &clusterpb.BlockReportRequest{
			Uuid: &uuid, Session: &order.session, Sequence: order.next(),
			ReportId: &id, Part: &part, Parts: &parts, Replicas: make([]*clusterpb.Replica, n),
		}
		for i := range n {
			req.Replicas[i] = replicaOf(replicas[i])
		}
		replicas = replicas[n:]
		resp, err := call(ctx, dn.cfg.NameNode.BlockReport, req)
		if err != nil {
			return fmt.Errorf("block report, part %d of %d: %w", part+1, parts, err)
		}
		if err := dn.obey(resp.GetCommands()); err != nil {
			return err
		}
	}
	select {
	case <-dn.reported:
	default:
		close(dn.reported) // full reports are sent by one goroutine at a time
	}
	return nil
}

// obey starts what the NameNode asks for. It repeats commands until they are
// done: what is under way is not started again.
func (dn *DataNode) obey(commands []*clusterpb.Command) error {
	for _, cmd := range commands {
		b := cmd.GetBlock()
		switch cmd.GetKind() {
		case clusterpb.Command_REGISTER:
			return errRegisterAgain
		case clusterpb.Command_REPORT:
			dn.reportAll()
		case clusterpb.Command_DELETE:
			dn.deleteSoon(b)
		case clusterpb.Command_REPLICATE:
			dn.copies.add(b.GetId(), b.GetGeneration(), dn.directoryOf(b), func() {
				if err := dn.replicate(cmd); err != nil {
					dn.log.Warn("copy ordered by the NameNode failed", "block", b.GetId(), "err", err)
				}
			})
		case clusterpb.Command_RECOVER:
			dn.recovers.add(b.GetId(), cmd.GetNewGeneration(), dn.directoryOf(b), func() {
				if err := dn.recover(dn.ctx, cmd); err != nil {
					dn.log.Warn("block recovery failed", "block", b.GetId(), "recovery", cmd.GetNewGeneration(), "err", err)
				}
			})
		default:
			dn.log.Warn("unknown command of the NameNode", "kind", cmd.GetKind())
		}
	}
	return nil
}

// copiedNow notes that a copy of a block comes now. Without a session no answer is on its way that could be late.
func (s *session) copiedNow(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.registered {
		s.copied[id] = struct{}{}
	}
}

func (s *session) forgetCopies() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.copied)
}

// meant leaves those commands of a heartbeat's answer out that delete a block of which a copy has come since
// the heartbeat was sent. The answer may have been on its way for as long as a call may take: the order
// then repeats one that was carried out before the copy was made. The NameNode repeats what it means.
func (s *session) meant(commands []*clusterpb.Command) []*clusterpb.Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(commands, func(cmd *clusterpb.Command) bool {
		_, copied := s.copied[cmd.GetBlock().GetId()]
		return copied && cmd.GetKind() == clusterpb.Command_DELETE
	})
}

// reportAll has the NameNode told of all replicas.
func (dn *DataNode) reportAll() {
	dn.names.mu.Lock()
	dn.names.full = true
	dn.names.mu.Unlock()
	dn.names.poke()
}

// directoryOf is the index of the directory that a block is in, nowhere if it is not here.
func (dn *DataNode) directoryOf(b *clusterpb.Block) int {
	r, err := dn.store.Get(b.GetId())
	if err != nil {
		return nowhere
	}
	return r.Storage()
}

// deleteSoon has the replica deleted that is here now. The order may be the repetition of one that is
// done: a copy that comes after it is not meant, nor one that is under way, of which the NameNode does
// not know.
func (dn *DataNode) deleteSoon(b *clusterpb.Block) {
	r, err := dn.store.Get(b.GetId())
	switch {
	case err != nil:
		dn.deleted(b)
	case !r.Hidden():
		dn.deletions.add(b.GetId(), b.GetGeneration(), r.Storage(), func() { dn.delete(r, b) })
	}
}

func (dn *DataNode) delete(r *store.Replica, b *clusterpb.Block) {
	err := r.Delete(b.GetGeneration())
	dn.noteDisk(err)
	if errors.Is(err, store.ErrNotFound) {
		if _, err := dn.store.Get(b.GetId()); err == nil {
			return // another one has come
		}
	} else if err != nil {
		dn.log.Warn("deletion ordered by the NameNode failed", "block", b.GetId(), "err", err)
		if errors.Is(err, store.ErrGeneration) {
			dn.tellNewer(b.GetId())
		}
		return
	}
	dn.deleted(b)
}

// deleted tells the NameNode that a block is not here.
func (dn *DataNode) deleted(b *clusterpb.Block) {
	dn.names.mu.Lock()
	delete(dn.names.corrupt, b.GetId())
	dn.names.mu.Unlock()
	dn.changed(clusterpb.ReplicaChange_DELETED, store.Info{ID: b.GetId(), Generation: b.GetGeneration()}, false)
}

// tellNewer tells the NameNode of a replica that is newer than the one it wants deleted:
// it would repeat the order otherwise, and put no good replica here.
func (dn *DataNode) tellNewer(id uint64) {
	r, err := dn.store.Get(id)
	if err != nil {
		return // gone meanwhile, and that is told
	}
	info := r.Info()
	kind := clusterpb.ReplicaChange_RECEIVING
	if info.State == store.Finalized {
		kind = clusterpb.ReplicaChange_RECEIVED
	}
	dn.changed(kind, info, false)
}
