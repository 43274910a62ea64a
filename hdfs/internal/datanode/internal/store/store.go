package store

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Errors that callers tell apart.
var (
	ErrNotFound   = errors.New("no such replica here")
	ErrExists     = errors.New("the replica exists already")
	ErrGeneration = errors.New("wrong generation stamp")
	ErrState      = errors.New("the replica is not in a state for this")
	ErrLength     = errors.New("the replica's length does not fit")
	ErrCorrupt    = errors.New("the replica is corrupt")
	ErrChanged    = errors.New("the replica changed meanwhile")
)

// State is a replica's state.
type State int

// The states of a replica.
const (
	Finalized       State = iota // complete
	BeingWritten                 // has, or had in this process, a writer
	WaitingRecovery              // was being written when an earlier process died
	Temporary                    // a copy under way, which nobody may see
)

func (s State) String() string {
	return [...]string{"finalized", "being written", "waiting for recovery", "temporary"}[s]
}

// Config tells where a store is.
type Config struct {
	FS     vfs.FS // vfs.Default if nil
	Dirs   []Directory
	Logger *slog.Logger
	// Tolerated is how many of Dirs may fail before the store is of no use, negative: all but
	// one.
	Tolerated int
	// Choice is how a directory is chosen for a new replica.
	Choice Choice
	// BootID changes when the machine boots, and with it the page cache is
	// gone. Empty: what the kernel says.
	BootID string
	// TakeOver bounds the wait for a writer that is told to stop.
	TakeOver time.Duration
	// Changing, if it is set, is called before a replica of a block that others may have
	// open is written to, cut, given a new generation stamp or removed. It is called with
	// locks held and must not call the store.
	Changing func(id uint64)
	// Spare bounds the files of removed replicas that each directory in memory keeps for new ones,
	// in bytes; a sixteenth of its file system does, too. 0: none are kept.
	Spare int64
}

// Directory is one of the directories that replicas are in.
type Directory struct {
	Path string
	Type hdfspb.StorageTypeProto // default DISK
}

// Store is the replicas in some directories. Its methods may be called concurrently.
type Store struct {
	log       *slog.Logger
	takeOver  time.Duration
	changing  func(id uint64)
	volumes   []*volume
	tolerated int
	chooser   chooser
	cuts      sync.WaitGroup // of spares that are being cut or removed

	mu       sync.RWMutex
	identity Identity
	replicas map[uint64]*Replica
	promises map[uint64]promise // by block: see Promise
}

// Open opens or creates a store and looks through everything in it. Replicas
// that were being written are cut to what their checksums prove. Directories that fail
// are left out, as long as no more of them do than the configuration tolerates.
func Open(cfg Config) (*Store, error) {
	s := &Store{
		log: cfg.Logger, takeOver: cfg.TakeOver, changing: cfg.Changing, tolerated: cfg.Tolerated, chooser: chooser{choice: cfg.Choice},
		replicas: map[uint64]*Replica{}, promises: map[uint64]promise{},
	}
	if cfg.FS == nil {
		cfg.FS = vfs.Default
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.changing == nil {
		s.changing = func(uint64) {}
	}
	if s.takeOver == 0 {
		s.takeOver = 10 * time.Second
	}
	if cfg.BootID == "" {
		cfg.BootID = kernelBootID()
	}
	if len(cfg.Dirs) == 0 || cfg.Tolerated >= len(cfg.Dirs) {
		return nil, fmt.Errorf("a store in %d directories, of which %d may fail: at least one must be there and not fail", len(cfg.Dirs), cfg.Tolerated)
	}
	for i, d := range cfg.Dirs {
		if d.Type == 0 {
			d.Type = hdfspb.StorageTypeProto_DISK
		}
		s.volumes = append(s.volumes, &volume{
			store: s, index: i, fs: cfg.FS, dir: d.Path, kind: d.Type, log: s.log, loaded: map[uint64]*Replica{}, promises: map[uint64]uint64{},
		})
	}
	if err := s.open(&cfg); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func kernelBootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Identity returns whose blocks these are.
func (s *Store) Identity() Identity {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.identity
}

// SetIdentity changes it, durably.
func (s *Store) SetIdentity(id Identity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		if !v.good() {
			continue
		}
		if err := v.writeVersion(id); err != nil {
			return err
		}
	}
	s.identity = id
	return nil
}

// Close lets go of the directories. No writer or reader may be open.
func (s *Store) Close() error {
	s.PauseSpares(true)
	s.cuts.Wait()
	var errs []error
	for _, v := range s.volumes {
		if v.lock != nil {
			errs = append(errs, v.lock.Close())
			v.lock = nil
		}
	}
	return errors.Join(errs...)
}

// readFull reads len(p) bytes at off; a file that is shorter is io.ErrUnexpectedEOF.
func readFull(f vfs.File, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := f.ReadAt(p, off)
		p, off = p[n:], off+int64(n)
		if len(p) == 0 {
			return nil
		}
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Get returns the replica of a block.
func (s *Store) Get(id uint64) (*Replica, error) {
	s.mu.RLock()
	r := s.replicas[id]
	s.mu.RUnlock()
	if r == nil {
		return nil, fmt.Errorf("block %d: %w", id, ErrNotFound)
	}
	return r, nil
}

// Replicas returns all replicas that others may know of, in no order. Those that wait for a
// directory which hangs are left out.
func (s *Store) Replicas() []Info {
	infos, _ := s.List()
	return infos
}

// List is Replicas, and tells whether it has left none out.
func (s *Store) List() (infos []Info, all bool) {
	s.mu.RLock()
	replicas := make([]*Replica, 0, len(s.replicas))
	for _, r := range s.replicas {
		replicas = append(replicas, r)
	}
	s.mu.RUnlock()
	infos, all = make([]Info, 0, len(replicas)), true
	for _, r := range replicas {
		i, ok := r.infoUnlessLost()
		if ok && i.State != Temporary {
			infos = append(infos, i)
		}
		all = all && ok
	}
	return infos, all
}

// infoUnlessLost is Info. It returns false if whoever has the replica's lock waits for a disk that
// hangs.
func (r *Replica) infoUnlessLost() (Info, bool) {
	for wait := time.Millisecond; !r.mu.TryLock(); wait = min(2*wait, 100*time.Millisecond) {
		if r.vol.lost() {
			return Info{}, false
		}
		time.Sleep(wait)
	}
	defer r.mu.Unlock()
	return r.info(), true
}

// Delete drops the replica of a block if its generation is at most gen, and
// stops its writer. Readers that have it open read on.
func (s *Store) Delete(id, gen uint64) error {
	r, err := s.Get(id)
	if err != nil {
		return err
	}
	return r.Delete(gen)
}

// Delete is [Store.Delete] of this replica: if another one has come in its place, that stays, and the
// error wraps [ErrNotFound].
func (r *Replica) Delete(gen uint64) error {
	r.op.Lock()
	defer r.op.Unlock()
	if info := r.Info(); info.Generation > gen {
		return fmt.Errorf("delete block %d at generation %d: %w: here it has %d", r.id, gen, ErrGeneration, info.Generation)
	}
	if err := r.stopWriter(); err != nil {
		return fmt.Errorf("delete block %d: %w", r.id, err)
	}
	return r.store.drop(r)
}

// drop removes a replica without a writer; r.op is held.
func (s *Store) drop(r *Replica) error {
	s.mu.Lock()
	if s.replicas[r.id] != r {
		s.mu.Unlock()
		return fmt.Errorf("block %d: %w", r.id, ErrNotFound)
	}
	// The name stays taken until the files are gone.
	s.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.vol.watch.end(r.vol.watch.begin())
	r.gone = true
	s.changing(r.id)
	if err := r.removeFiles(); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.replicas, r.id)
	s.mu.Unlock()
	return nil
}

// removeFiles removes a replica's files, or makes its data file a spare; r.mu is held, or nobody else has it.
func (r *Replica) removeFiles() error {
	v := r.vol
	remove := func(name string) error {
		if err := v.fs.Remove(name); err != nil && !oserror.IsNotExist(err) {
			return v.at(fmt.Errorf("remove %s: %w", name, err))
		}
		return nil
	}
	// The meta file first: data without it is removed at the next start.
	if err := remove(v.metaPath(r.id, r.gen)); err != nil {
		return err
	}
	if !v.keepSpare(r.id) {
		if err := remove(v.dataPath(r.id)); err != nil {
			return err
		}
	}
	v.used.Add(-r.length)
	return nil
}
