// Package namenode is HDFS's NameNode: it serves ClientProtocol to any HDFS
// client, and Verbena's own protocol to DataNodes.
//
// The namespace is a state machine in memory (internal/namespace) behind a log on
// disk (internal/journal); a change is acknowledged once it is synced. Where
// replicas are is soft state that DataNodes report. From the two come placement,
// repair and deletion of replicas, and the recovery of files whose writers
// have gone.
//
// After a start the NameNode serves at once, but neither copies nor deletes
// replicas, nor recovers leases, until every DataNode it knows has reported all
// its blocks or a timeout has passed; setSafeMode(GET) tells. Until a block has
// been reported its locations are empty.
//
// Access times are kept but reading a file does not change them.
//
// It imports hadoop/rpc for its client side and nothing of the DataNode.
package namenode

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/namenode/internal/journal"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/namenode/internal/namespace/nspb"
)

const bytesPerChecksum = 512

// NameNode is an open NameNode. Its methods may be called concurrently.
type NameNode struct {
	cfg     Config
	log     *slog.Logger
	journal *journal.Journal
	state   *state
	blocks  *blockMap
	leases  leases
	stamps  stamps
	calls   callsUnderWay

	recoveries map[uint64]recovery // by block; the monitor's own
	kick       chan struct{}
	cancel     context.CancelFunc
	wg         sync.WaitGroup
}

// Open opens the file system in cfg.Dir, or makes a new one there, and returns
// once it has everything that was ever acknowledged and can serve.
func Open(ctx context.Context, cfg Config) (*NameNode, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, fmt.Errorf("namenode: open: %w", err)
	}
	nn := &NameNode{
		cfg:        cfg,
		log:        cfg.Logger,
		recoveries: make(map[uint64]recovery),
		kick:       make(chan struct{}, 1),
	}
	nn.leases.renewed = make(map[string]time.Time)
	nn.calls.waiting = make(map[callID]chan struct{})
	nn.blocks = newBlockMap(&nn.cfg)
	nn.state = &state{ns: namespace.New(), blocks: nn.blocks}
	var err error
	nn.journal, err = journal.Open(ctx, journal.Config{
		Dir: cfg.Dir, FS: cfg.FS, Logger: cfg.Logger, SnapshotEntries: cfg.SnapshotEntries,
	}, nn.state)
	if err != nil {
		return nil, fmt.Errorf("namenode: %w", err)
	}
	if err := nn.prepare(ctx); err != nil {
		nn.journal.Close()
		return nil, fmt.Errorf("namenode: open %s: %w", cfg.Dir, err)
	}
	run, cancel := context.WithCancel(context.Background())
	nn.cancel = cancel
	if !cfg.manual {
		nn.wg.Go(func() { nn.monitor(run) })
	}
	return nn, nil
}

func (nn *NameNode) prepare(ctx context.Context) error {
	if err := nn.state.failure(); err != nil {
		return err
	}
	var clusterID string
	nn.read(func(ns *namespace.Namespace) { clusterID = ns.ClusterID() })
	if clusterID == "" {
		id := rand.Text()
		_, err := nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_Format{Format: &nspb.Format{
			ClusterId:   proto.String("CID-" + id),
			BlockPoolId: proto.String(fmt.Sprintf("BP-%s-%d", rand.Text()[:16], nn.cfg.now().UnixMilli())),
			Superuser:   proto.String(nn.cfg.Superuser),
			Supergroup:  proto.String(nn.cfg.Supergroup),
		}}})
		if err != nil {
			return fmt.Errorf("format: %w", err)
		}
	}
	nn.read(func(ns *namespace.Namespace) {
		nn.stamps.next, nn.stamps.limit = ns.Stamps(), ns.Stamps()
		nn.blocks.start(ns.Datanodes(), ns.ClusterID(), ns.BlockPoolID())
		files, dirs, blocks := ns.Counts()
		nn.log.Info("namenode: open", "dir", nn.cfg.Dir, "cluster", ns.ClusterID(), "files", files, "directories", dirs, "blocks", blocks)
	})
	return nil
}

// Close stops serving and waits for the goroutines. What was acknowledged is on disk
// already.
func (nn *NameNode) Close() error {
	nn.cancel()
	nn.wg.Wait()
	if err := nn.journal.Close(); err != nil {
		return fmt.Errorf("namenode: %w", err)
	}
	return nil
}

// ClusterID identifies the file system for ever.
func (nn *NameNode) ClusterID() (id string) {
	nn.read(func(ns *namespace.Namespace) { id = ns.ClusterID() })
	return id
}

// BlockPoolID is part of every block's name.
func (nn *NameNode) BlockPoolID() (id string) {
	nn.read(func(ns *namespace.Namespace) { id = ns.BlockPoolID() })
	return id
}

// InSafeMode tells whether the NameNode still waits for DataNodes' reports
// after its start.
func (nn *NameNode) InSafeMode() bool { return nn.blocks.inSafeMode() }

// read runs f while the namespace does not change. f must be short.
func (nn *NameNode) read(f func(*namespace.Namespace)) {
	nn.state.mu.RLock()
	defer nn.state.mu.RUnlock()
	f(nn.state.ns)
}

// propose makes an entry durable and applies it.
func (nn *NameNode) propose(ctx context.Context, e *nspb.Entry) (namespace.Result, error) {
	e.TimeMs = proto.Int64(nn.cfg.now().UnixMilli())
	data, err := proto.Marshal(e)
	if err != nil {
		return namespace.Result{}, fmt.Errorf("namenode: encode a log entry: %w", err)
	}
	out, err := nn.journal.Append(ctx, data)
	if err != nil {
		if errors.Is(err, journal.ErrNotLeader) {
			return namespace.Result{}, &namespace.Error{Class: standbyException, Message: "this NameNode is stopping or does not lead: " + err.Error()}
		}
		return namespace.Result{}, err
	}
	done := out.(applied)
	return done.res, done.err
}

// change runs one client's operation: refused or without effect it is
// answered from memory, else it is made durable first. If remember is set a
// repetition of the call gets the first one's answer.
func (nn *NameNode) change(ctx context.Context, c *call, remember bool, e *nspb.Entry) (namespace.Result, error) {
	e.Caller = c.caller
	if remember && c.id.client != [16]byte{} && c.id.call >= 0 {
		release, err := nn.calls.begin(ctx, c.id)
		if err != nil {
			return namespace.Result{}, err
		}
		defer release()
		var (
			res      namespace.Result
			answered bool
		)
		nn.read(func(ns *namespace.Namespace) { res, answered = ns.Answered(c.id.client, c.id.call) })
		if answered {
			return res, nil
		}
		e.ClientId, e.CallId = c.id.client[:], proto.Int32(c.id.call)
	}
	var (
		res     namespace.Result
		changes bool
		err     error
	)
	nn.read(func(ns *namespace.Namespace) { res, changes, err = ns.Check(e) })
	if err != nil || !changes {
		return res, err
	}
	return nn.propose(ctx, e)
}

// state is the namespace as the journal keeps it.
type state struct {
	mu     sync.RWMutex
	ns     *namespace.Namespace
	failed error
	blocks *blockMap
}

type applied struct {
	res namespace.Result
	err error
}

func (s *state) Apply(entries [][]byte) []any {
	out := make([]any, len(entries))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, data := range entries {
		res, err := s.applyOne(data)
		out[i] = applied{res, err}
	}
	return out
}

func (s *state) applyOne(data []byte) (namespace.Result, error) {
	if s.failed != nil {
		return namespace.Result{}, s.failed
	}
	var e nspb.Entry
	err := proto.Unmarshal(data, &e)
	if err != nil {
		s.failed = fmt.Errorf("namenode: decode a log entry of %d bytes: %w", len(data), err)
		return namespace.Result{}, s.failed
	}
	res, err := s.ns.Apply(&e)
	var refused *namespace.Error
	if err != nil && !errors.As(err, &refused) {
		s.failed = err
		return namespace.Result{}, err
	}
	s.blocks.changed(s.ns, res.Touched, res.Removed)
	return res, err
}

// failure tells why the log can't be followed any further.
func (s *state) failure() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.failed
}

func (s *state) Snapshot() ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.failed != nil {
		return nil, s.failed
	}
	files, directories, blocks := s.ns.Counts()
	return s.ns.AppendSnapshot(make([]byte, 0, 4096+64*(files+directories)+32*blocks))
}

func (s *state) Restore(r io.Reader) error {
	ns, err := namespace.Restore(r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ns, s.failed = ns, nil
	return nil
}

// stamps hands out generation stamps, each once, always rising, from ranges
// that the log has reserved. So a stamp costs no sync of its own.
type stamps struct {
	mu          sync.Mutex
	next, limit uint64
}

const stampRange = 4096

func (nn *NameNode) stamp(ctx context.Context) (uint64, error) {
	s := &nn.stamps
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == s.limit {
		limit := s.limit + stampRange
		_, err := nn.propose(ctx, &nspb.Entry{Op: &nspb.Entry_ReserveGenerations{ReserveGenerations: &nspb.ReserveGenerations{Limit: &limit}}})
		if err != nil {
			return 0, err
		}
		s.limit = limit
	}
	s.next++
	return s.next - 1, nil
}

// callID names a client's call.
type callID struct {
	client [16]byte
	call   int32
}

// callsUnderWay makes a repeated call wait for the first one.
type callsUnderWay struct {
	mu      sync.Mutex
	waiting map[callID]chan struct{}
}

func (u *callsUnderWay) begin(ctx context.Context, id callID) (release func(), err error) {
	for {
		u.mu.Lock()
		done, busy := u.waiting[id]
		if !busy {
			done = make(chan struct{})
			u.waiting[id] = done
			u.mu.Unlock()
			return func() {
				u.mu.Lock()
				delete(u.waiting, id)
				u.mu.Unlock()
				close(done)
			}, nil
		}
		u.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return nil, fmt.Errorf("namenode: wait for the first run of a repeated call: %w", context.Cause(ctx))
		}
	}
}

// callerFor says who a user is.
func (nn *NameNode) callerFor(user string) *nspb.Caller {
	groups := nn.cfg.Groups(user)
	super := user == nn.cfg.Superuser || slices.Contains(groups, nn.cfg.Supergroup)
	return &nspb.Caller{User: &user, Groups: groups, Superuser: &super}
}
