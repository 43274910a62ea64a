// Package journal makes a service's state machine durable: entries go through
// one hashicorp/raft group into a log on pebble, and are applied once they are
// synced to disk. Snapshots of the state bound the log. All files go through a
// pebble vfs.FS, so that a test can take away what was not synced.
//
// The group has one voter today. Nothing above this package knows that; three
// need a transport and their addresses in [Config], and no other change.
//
// Many callers of [Journal.Append] at once share a sync and one way through raft: what comes
// while entries are on their way goes into the log together, as one entry of raft's.
//
// It belongs to the service kit: services import it, it knows none of them and
// imports nothing of the project.
package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// StateMachine is what the journal keeps. Its methods are called one at a
// time; what Snapshot returned is written while they are.
type StateMachine interface {
	// Apply runs entries in order and returns, for each, what its Append
	// returns. It must not keep the memory of their bytes.
	Apply(entries []Entry) []any
	// Snapshot returns the state of this moment, which writes itself in a form that
	// Restore understands. No entry is applied before it returns; then they are, while
	// the snapshot is written, once and by another goroutine.
	Snapshot() (io.WriterTo, error)
	// Restore replaces the state.
	Restore(io.Reader) error
}

// ErrNotLeader says that an entry could not be, or may not have been, appended:
// this journal is closing, or another voter leads.
var ErrNotLeader = errors.New("journal: not the leader")

// Config says where a journal is.
type Config struct {
	Dir string // made if missing
	// Second, if set, is another directory, best on another disk, that gets every
	// file of Dir. An opening takes the state from it when Dir is empty, damaged
	// or older, and makes both equal. When one of them fails, the other one goes on alone.
	Second string
	FS     vfs.FS // default vfs.Default
	Logger *slog.Logger

	// The journal takes a snapshot once SnapshotEntries entries have come since
	// the last one. It looks after a random time between SnapshotInterval and
	// twice that. Defaults: 262,144 entries and 10 s.
	SnapshotEntries  uint64
	SnapshotInterval time.Duration
	// TrailingEntries stay in the log behind a snapshot. Default 1,024. The
	// entries behind the older of the two snapshots that are kept stay anyway.
	TrailingEntries uint64

	// Finished hears of the ends of entries that were given to [Journal.Queue], in the order in which
	// they were applied. It is called by one goroutine; while it runs, no other entry is applied. The slice is its
	// own only until it returns.
	Finished func([]*Pending)
}

func (c *Config) setDefaults() {
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.SnapshotEntries == 0 {
		c.SnapshotEntries = 1 << 18
	}
	if c.SnapshotInterval == 0 {
		c.SnapshotInterval = 10 * time.Second
	}
	if c.TrailingEntries == 0 {
		c.TrailingEntries = 1024
	}
}

// Journal is an open journal. Its methods may be called concurrently.
type Journal struct {
	dir     string
	raft    *raft.Raft
	machine *machine
	store   *store
	locks   []io.Closer
	pair    *mirror // nil: one directory
	commits *committer
	cancel  context.CancelFunc // of takeSnapshots
	wg      sync.WaitGroup

	// Raft does not answer what still waits in its queue when it shuts down.
	// So snapshots hold gate for reading, and Close takes it first; it waits for the appends, too.
	gate   sync.RWMutex
	closed bool
	close  sync.Once
	err    error
}

// Open opens the journal or makes a new one, brings sm to the state of the last
// acknowledged entry, and is ready for Append when it returns. The directory
// is locked against other processes.
func Open(ctx context.Context, cfg Config, sm StateMachine) (*Journal, error) {
	cfg.setDefaults()
	j, err := open(ctx, cfg, sm)
	if err != nil {
		return nil, fmt.Errorf("journal: open %s: %w", cfg.Dir, err)
	}
	return j, nil
}

func open(ctx context.Context, cfg Config, sm StateMachine) (_ *Journal, err error) {
	j := &Journal{dir: cfg.Dir}
	defer func() {
		if err != nil {
			j.Close()
		}
	}()
	if j.locks, err = lockAll(cfg); err != nil {
		return nil, err
	}
	if cfg.Second == "" {
		err = alone(cfg.FS, cfg.Dir)
	} else if j.pair, err = openPair(cfg); err == nil {
		cfg.FS = j.pair
	}
	if err != nil {
		return nil, err
	}
	snapshots, err := openSnapshots(cfg.FS, cfg.FS.PathJoin(cfg.Dir, "snapshots"), cfg.Logger)
	if err != nil {
		return nil, err
	}
	if j.store, err = openStore(cfg.FS, cfg.FS.PathJoin(cfg.Dir, "log"), cfg.Logger); err != nil {
		return nil, err
	}
	j.store.floor = snapshots.floor.Load
	if err := j.sound(snapshots, cfg.Logger); err != nil {
		return nil, err
	}

	const id = "1"
	addr, transport := raft.NewInmemTransport(id)
	transport.Connect(addr, transport)
	rc := raft.DefaultConfig()
	rc.LocalID = id
	rc.Logger = raftLogger(cfg.Logger)
	// These times matter only between voters. A single voter is elected at once,
	// below; long times keep it from waking up to see that it still leads itself.
	rc.HeartbeatTimeout = 5 * time.Second
	rc.ElectionTimeout = 5 * time.Second
	rc.LeaderLeaseTimeout = 5 * time.Second
	rc.MaxAppendEntries = 64 // the committer makes one of many; raft allocates room for as many each time
	rc.BatchApplyCh = true
	rc.SnapshotThreshold = math.MaxUint64 // takeSnapshots does that
	rc.SnapshotInterval = 24 * time.Hour
	rc.TrailingLogs = cfg.TrailingEntries

	first, err := neverStarted(j.store, snapshots)
	if err != nil {
		return nil, err
	}
	if first {
		// A process that died in its first start may have left a term behind, and
		// raft refuses to start over where there is one. With one voter and no
		// entry nobody has relied on that term.
		if err := j.store.SetUint64(currentTerm, 0); err != nil {
			return nil, err
		}
		voters := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: id, Address: addr}}}
		if err := raft.BootstrapCluster(rc, j.store, j.store, snapshots, transport, voters); err != nil {
			return nil, fmt.Errorf("first start: %w", err)
		}
	}
	j.machine = &machine{sm: sm}
	if j.raft, err = raft.NewRaft(rc, j.machine, j.store, j.store, snapshots, transport); err != nil {
		return nil, err
	}
	// The only voter need not wait for the silence of another leader.
	if err := transport.TimeoutNow(id, addr, &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: rc.ProtocolVersion}}, &raft.TimeoutNowResponse{}); err != nil {
		return nil, fmt.Errorf("start the election: %w", err)
	}
	select {
	case <-j.raft.LeaderCh():
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the election: %w", context.Cause(ctx))
	}
	if err := j.raft.Barrier(0).Error(); err != nil {
		return nil, fmt.Errorf("replay the log: %w", err)
	}
	j.commits = newCommitter(cfg.Finished)
	go j.commits.run(j.raft, j.machine)
	run, cancel := context.WithCancel(context.Background())
	j.cancel = cancel
	j.wg.Go(func() { j.takeSnapshots(run, &cfg) })
	return j, nil
}

// lockAll makes and locks the directories. One of two that can't be made is left
// to openPair.
func lockAll(cfg Config) (locks []io.Closer, err error) {
	for _, dir := range cfg.dirs() {
		if err := makeDir(cfg.FS, dir); err != nil {
			if cfg.Second == "" {
				return locks, err
			}
			continue
		}
		lock, err := cfg.FS.Lock(cfg.FS.PathJoin(dir, "LOCK"))
		if err != nil {
			return locks, fmt.Errorf("the directory %s is in use by another process: stop that one or choose another directory: %w", dir, err)
		}
		locks = append(locks, lock)
	}
	return locks, nil
}

func (c *Config) dirs() []string {
	if c.Second == "" {
		return []string{c.Dir}
	}
	return []string{c.Dir, c.Second}
}

// Alone returns why one of two directories is out of service, nil if none is.
func (j *Journal) Alone() error {
	if j.pair == nil {
		return nil
	}
	j.pair.mu.Lock()
	defer j.pair.mu.Unlock()
	return j.pair.failed
}

// Dirs returns the directories in service.
func (j *Journal) Dirs() []string {
	if j.pair == nil {
		return []string{j.dir}
	}
	live, _ := j.pair.state()
	var out []string
	for i, dir := range j.pair.dirs {
		if live[i] {
			out = append(out, dir)
		}
	}
	return out
}

// sound refuses a log that does not follow the newest snapshot, or that has a
// damaged entry behind it, before raft relies on either.
func (j *Journal) sound(snapshots *snapshotStore, logger *slog.Logger) error {
	list, err := snapshots.List()
	if err != nil {
		return err
	}
	damaged, err := snapshots.wasDamaged()
	if err != nil {
		return err
	}
	var base uint64
	if len(list) > 0 {
		base = list[0].Index
	}
	if err := follows(j.store, base, damaged); err != nil {
		return err
	}
	good, err := replay(j.store, base, nil)
	if err != nil {
		return fmt.Errorf("the log is damaged behind entry %d; to give up what follows, run the offline recovery: %w", good, err)
	}
	if n := snapshots.aside.Load(); n > 0 {
		logger.Warn("journal: the state comes from an older snapshot and the log", "damaged snapshots", n, "snapshot at", base, "log entries", j.store.last-base)
	}
	return nil
}

// neverStarted tells that there is neither an entry nor a snapshot, so that
// nothing was ever acknowledged.
func neverStarted(s *store, snapshots *snapshotStore) (bool, error) {
	last, err := s.LastIndex()
	if err != nil || last > 0 {
		return false, err
	}
	list, err := snapshots.List()
	return len(list) == 0, err
}

// Snapshot takes a snapshot now and cuts the log.
func (j *Journal) Snapshot() error {
	j.gate.RLock()
	defer j.gate.RUnlock()
	if j.closed {
		return fmt.Errorf("%w: snapshot: it is closed", ErrNotLeader)
	}
	if err := j.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("journal: snapshot: %w", err)
	}
	return nil
}

// LastIndex returns the index of the last entry applied.
func (j *Journal) LastIndex() uint64 { return j.raft.AppliedIndex() }

// Close lets the appends under way finish, refuses others, stops the journal,
// waits for its goroutines and unlocks the directory.
func (j *Journal) Close() error {
	j.close.Do(func() {
		j.gate.Lock()
		j.closed = true
		j.gate.Unlock()
		if j.commits != nil {
			j.cancel()
			j.wg.Wait()
			j.commits.close()
		}
		var errs []error
		if j.raft != nil {
			errs = append(errs, j.raft.Shutdown().Error())
		}
		if j.store != nil {
			errs = append(errs, j.store.Close())
		}
		for _, l := range j.locks {
			errs = append(errs, l.Close())
		}
		if err := errors.Join(errs...); err != nil {
			j.err = fmt.Errorf("journal: close: %w", err)
		}
	})
	return j.err
}
