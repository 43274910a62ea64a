package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
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
	Dir    string
	Logger *slog.Logger
	// BootID changes when the machine boots, and with it the page cache is
	// gone. Empty: what the kernel says.
	BootID string
	// TakeOver bounds the wait for a writer that is told to stop.
	TakeOver time.Duration
	// Changing, if it is set, is called before a replica of a block that others may have
	// open is written to, cut, given a new generation stamp or removed. It is called with
	// locks held and must not call the store.
	Changing func(id uint64)
}

// Store is a directory of replicas. Its methods may be called concurrently.
type Store struct {
	fs       vfs.FS
	dir      string
	log      *slog.Logger
	lock     io.Closer
	takeOver time.Duration
	changing func(id uint64)

	mu       sync.RWMutex
	identity Identity
	replicas map[uint64]*Replica
	promises map[uint64]uint64 // by block: see Promise

	dirMu sync.Mutex
	dirs  [256]bool // subdirectories that exist, their entries on stable storage

	used atomic.Int64
}

// Open opens or creates a store and looks through everything in it. Replicas
// that were being written are cut to what their checksums prove.
func Open(cfg Config) (*Store, error) {
	s := &Store{fs: cfg.FS, dir: cfg.Dir, log: cfg.Logger, takeOver: cfg.TakeOver, changing: cfg.Changing, replicas: map[uint64]*Replica{}, promises: map[uint64]uint64{}}
	if s.fs == nil {
		s.fs = vfs.Default
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
	// The NameNode decides who may read, so the directory is closed to others.
	err := s.fs.MkdirAll(s.blocks(), 0o700)
	if err == nil && s.fs == vfs.Default {
		err = os.Chmod(s.blocks(), 0o700) // one that was there already
	}
	if err != nil {
		return nil, fmt.Errorf("create the store %s: %w", s.dir, err)
	}
	for _, d := range []string{s.dir, s.fs.PathDir(s.dir)} {
		if err := syncDir(s.fs, d); err != nil {
			return nil, fmt.Errorf("sync %s: %w", d, err)
		}
	}
	lock, err := s.fs.Lock(s.fs.PathJoin(s.dir, "in_use.lock"))
	if err != nil {
		return nil, fmt.Errorf("the store %s is in use by another process; stop it or choose another directory: %w", s.dir, err)
	}
	s.lock = lock
	if err := s.load(cfg.BootID); err != nil {
		s.lock.Close()
		return nil, fmt.Errorf("open the store %s: %w", s.dir, err)
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

func (s *Store) load(bootID string) error {
	version := s.fs.PathJoin(s.dir, "VERSION")
	b, ok, err := readSmall(s.fs, version, maxVersionFile)
	if err != nil {
		return err
	}
	if ok {
		if s.identity, err = decodeVersion(b); err != nil {
			return err
		}
	} else if err := s.SetIdentity(Identity{DatanodeUUID: newUUID()}); err != nil {
		return err
	}
	boot := s.fs.PathJoin(s.dir, "boot")
	last, _, err := readSmall(s.fs, boot, 256)
	if err != nil {
		return err
	}
	sameBoot := bootID != "" && bootID == string(last)
	if err := s.scanDirectories(sameBoot); err != nil {
		return err
	}
	// Last, because an interrupted look-through must be repeated.
	if !sameBoot && bootID != "" {
		return replaceFile(s.fs, boot, []byte(bootID))
	}
	return nil
}

// Identity returns whose blocks these are.
func (s *Store) Identity() Identity {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.identity
}

// SetIdentity changes it, durably.
func (s *Store) SetIdentity(id Identity) error {
	b, err := encodeVersion(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := replaceFile(s.fs, s.fs.PathJoin(s.dir, "VERSION"), b); err != nil {
		return fmt.Errorf("write VERSION: %w", err)
	}
	s.identity = id
	return nil
}

// Close lets go of the directory. No writer or reader may be open.
func (s *Store) Close() error { return s.lock.Close() }

func (s *Store) blocks() string { return s.fs.PathJoin(s.dir, "blocks") }

// subdirIndex keeps blocks with neighbouring ids, which are made at about the
// same time, in one directory: file systems then keep their inodes together.
func subdirIndex(id uint64) byte { return byte(id >> 8) }

func (s *Store) subdir(id uint64) string { return s.subdirPath(subdirIndex(id)) }

func (s *Store) subdirPath(index byte) string {
	return s.fs.PathJoin(s.blocks(), fmt.Sprintf("%02x", index))
}

func (s *Store) dataPath(id uint64) string { return s.fs.PathJoin(s.subdir(id), dataName(id)) }
func (s *Store) metaPath(id, gen uint64) string {
	return s.fs.PathJoin(s.subdir(id), metaName(id, gen))
}

// makeSubdir makes the directory of a block, durably: files in it may be synced
// long after. It makes those of the next blocks too, so that one sync does for
// all of them.
func (s *Store) makeSubdir(id uint64) error {
	const ahead = 16
	s.dirMu.Lock()
	defer s.dirMu.Unlock()
	first := subdirIndex(id)
	if s.dirs[first] {
		return nil
	}
	for i := range byte(ahead) {
		// The index wraps around, as the ids' byte does.
		if err := s.fs.MkdirAll(s.subdirPath(first+i), 0o755); err != nil {
			return err
		}
	}
	if err := syncDir(s.fs, s.blocks()); err != nil {
		return err
	}
	for i := range byte(ahead) {
		s.dirs[first+i] = true
	}
	return nil
}

func (s *Store) scanDirectories(sameBoot bool) error {
	names, err := s.fs.List(s.blocks())
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for _, name := range names {
		dir := s.fs.PathJoin(s.blocks(), name)
		var index byte
		if n, err := fmt.Sscanf(name, "%02x", &index); n != 1 || err != nil || name != fmt.Sprintf("%02x", index) {
			s.log.Warn("ignoring what is not a directory of blocks", "path", dir)
			continue
		}
		s.dirs[index] = true
		g.Go(func() error { return s.scanDirectory(dir, index, sameBoot) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// From now on this process relies on what an earlier one left unsynced here.
	return syncDir(s.fs, s.blocks())
}

type found struct {
	data  bool
	metas []uint64 // generations
}

func (s *Store) scanDirectory(dir string, index byte, sameBoot bool) error {
	names, err := s.fs.List(dir)
	if err != nil {
		return err
	}
	blocks := map[uint64]*found{}
	for _, name := range names {
		id, gen, meta, ok := parseName(name)
		if !ok || subdirIndex(id) != index {
			if strings.HasSuffix(name, damagedSuffix) {
				continue
			}
			if id, gen, ok := parsePromise(name); ok && subdirIndex(id) == index {
				if err := s.loadPromise(dir, name, id, gen); err != nil {
					return err
				}
				continue
			}
			if strings.HasSuffix(name, tmpSuffix) {
				if err := s.fs.Remove(s.fs.PathJoin(dir, name)); err != nil {
					return err
				}
				continue
			}
			s.log.Warn("ignoring what is not a block's file", "path", s.fs.PathJoin(dir, name))
			continue
		}
		f := blocks[id]
		if f == nil {
			f = &found{}
			blocks[id] = f
		}
		if meta {
			f.metas = append(f.metas, gen)
		} else {
			f.data = true
		}
	}
	for id, f := range blocks {
		r, err := s.loadReplica(id, f, sameBoot)
		if err != nil {
			return fmt.Errorf("block %d: %w", id, err)
		}
		if r != nil {
			s.mu.Lock()
			s.replicas[id] = r
			s.mu.Unlock()
			s.used.Add(r.length)
		}
	}
	return nil
}

// loadReplica decides which files of a block make a replica, and removes the rest.
func (s *Store) loadReplica(id uint64, f *found, sameBoot bool) (*Replica, error) {
	slices.SortFunc(f.metas, func(a, b uint64) int { return cmp.Compare(b, a) })
	var r *Replica
	damaged := false
	for _, gen := range f.metas {
		path := s.metaPath(id, gen)
		if r == nil && f.data {
			var err error
			r, err = s.loadGeneration(id, gen, sameBoot)
			if r != nil {
				continue
			}
			if errors.Is(err, errMeta) {
				s.log.Error("a replica's meta file is damaged; both files are kept aside", "path", path+damagedSuffix, "err", err)
				damaged = true
				if err := s.fs.Rename(path, path+damagedSuffix); err != nil {
					return nil, err
				}
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		if err := s.fs.Remove(path); err != nil {
			return nil, err
		}
	}
	if r != nil || !f.data {
		return r, nil
	}
	if damaged {
		return nil, s.fs.Rename(s.dataPath(id), s.dataPath(id)+damagedSuffix)
	}
	return nil, s.fs.Remove(s.dataPath(id))
}

// loadGeneration returns nil for a replica that is worth nothing: a temporary
// one, or one whose header never reached the disk.
func (s *Store) loadGeneration(id, gen uint64, sameBoot bool) (*Replica, error) {
	meta, err := s.fs.Open(s.metaPath(id, gen))
	if err != nil {
		return nil, err
	}
	defer meta.Close()
	var b [headerSize]byte
	if err := readFull(meta, b[:], 0); err != nil && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	if b == [headerSize]byte{} {
		return nil, nil
	}
	h, err := decodeHeader(b[:])
	if err != nil {
		return nil, err
	}
	if h.id != id {
		return nil, fmt.Errorf("%w: it belongs to block %d", errMeta, h.id)
	}
	final := h.slots[slotFinal]
	if h.temporary && !final.valid {
		return nil, nil
	}
	metaInfo, err := meta.Stat()
	if err != nil {
		return nil, err
	}
	dataInfo, err := s.fs.Stat(s.dataPath(id))
	if err != nil {
		return nil, err
	}
	r := &Replica{store: s, id: id, gen: gen, sum: h.sum, durable: true}
	entries := (metaInfo.Size() - headerSize) / 4
	if final.valid && !h.torn && final.length <= dataInfo.Size() && final.length/int64(h.sum.BytesPerChunk) <= entries {
		r.state = Finalized
		r.length, r.tail, r.synced = final.length, final.tail, final.synced
		r.visible, r.visibleTail = r.length, r.tail
		r.excess = entries > r.length/int64(h.sum.BytesPerChunk)
		if final.synced || sameBoot {
			s.trim(id, r.length)
			return r, nil
		}
		err := r.Verify(nil)
		if err == nil {
			return r, nil
		}
		if !errors.Is(err, ErrCorrupt) {
			return nil, err
		}
		s.log.Warn("a replica closed without hsync lost bytes with the machine; it waits for recovery", "block", id, "generation", gen, "err", err)
	}
	data, err := s.fs.Open(s.dataPath(id))
	if err != nil {
		return nil, err
	}
	defer data.Close()
	r.state = WaitingRecovery
	r.synced = false
	r.length, r.tail, err = provenLength(data, dataInfo.Size(), meta, entries, &h)
	if err != nil {
		return nil, err
	}
	r.visible, r.visibleTail = r.length, r.tail
	r.excess = entries > r.length/int64(h.sum.BytesPerChunk)
	r.torn = h.torn
	if !h.torn && (!sameBoot || r.length < claimed(entries, &h)) {
		return r, s.tear(r, h)
	}
	return r, nil
}

// claimed is how long a replica would be if all that its meta file tells were true. A
// process that dies leaves it so, since data comes before checksums; a machine that dies
// does not, nor does a disk that loses bits.
func claimed(entries int64, h *metaHeader) int64 {
	length := max(0, entries) * int64(h.sum.BytesPerChunk)
	for _, sl := range h.slots {
		if sl.valid {
			length = max(length, sl.length)
		}
	}
	return length
}

// tear notes in the meta file that bytes may be missing, because the machine has died since
// the replica was written, or is damaged: after the next start in the same boot that would
// be forgotten. That it was finalized is over.
func (s *Store) tear(r *Replica, h metaHeader) error {
	meta, err := s.fs.OpenReadWrite(s.metaPath(r.id, r.gen), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer meta.Close()
	r.torn, h.torn = true, true
	h.slots[slotFinal] = slot{}
	_, err = meta.WriteAt(appendHeader(nil, &h), 0)
	return err
}

// provenLength returns the longest length that checksums vouch for: full chunks
// by the array, a partial one at the end by a slot.
func provenLength(data vfs.File, size int64, meta vfs.File, entries int64, h *metaHeader) (int64, uint32, error) {
	bpc := int64(h.sum.BytesPerChunk)
	full := min(size/bpc, entries)
	batch := max(1, verifyBatch/bpc)
	buf := transfer.GetBuffer(int(batch * (bpc + 4)))
	defer transfer.PutBuffer(buf)
	var proven int64
	for proven < full {
		n := min(batch, full-proven)
		d, sums := (*buf)[:n*bpc], (*buf)[n*bpc:n*(bpc+4)]
		if err := readFull(meta, sums, headerSize+4*proven); err != nil {
			return 0, 0, err
		}
		if err := readFull(data, d, proven*bpc); err != nil {
			return 0, 0, err
		}
		if h.sum.Verify(sums, d) == nil {
			proven += n
			continue
		}
		for i := range n {
			if h.sum.Verify(sums[4*i:4*i+4], d[i*bpc:(i+1)*bpc]) != nil {
				break
			}
			proven++
		}
		break
	}
	length, tail := proven*bpc, uint32(0)
	for _, sl := range h.slots {
		start := sl.length / bpc * bpc
		if !sl.valid || sl.length <= length || sl.length > size || start > proven*bpc {
			continue
		}
		d := (*buf)[:sl.length-start]
		if err := readFull(data, d, start); err != nil {
			return 0, 0, err
		}
		if h.sum.Update(0, d) == sl.tail {
			length, tail = sl.length, sl.tail
		}
	}
	return length, tail, nil
}

const verifyBatch = 256 << 10

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

// Replicas returns all replicas that others may know of, in no order.
func (s *Store) Replicas() []Info {
	s.mu.RLock()
	all := make([]*Replica, 0, len(s.replicas))
	for _, r := range s.replicas {
		all = append(all, r)
	}
	s.mu.RUnlock()
	infos := make([]Info, 0, len(all))
	for _, r := range all {
		if i := r.Info(); i.State != Temporary {
			infos = append(infos, i)
		}
	}
	return infos
}

// Usage is the room of a store, in bytes.
type Usage struct{ Capacity, Used, Remaining uint64 }

// Usage tells how full the disk is. Used counts blocks' bytes alone.
func (s *Store) Usage() (Usage, error) {
	u := Usage{Used: uint64(max(0, s.used.Load()))}
	d, err := s.fs.GetDiskUsage(s.dir)
	if err != nil {
		return u, fmt.Errorf("disk usage of %s: %w", s.dir, err)
	}
	u.Capacity, u.Remaining = d.TotalBytes, d.AvailBytes
	return u, nil
}

// Delete drops the replica of a block if its generation is at most gen, and
// stops its writer. Readers that have it open read on.
func (s *Store) Delete(id, gen uint64) error {
	r, err := s.Get(id)
	if err != nil {
		return err
	}
	r.op.Lock()
	defer r.op.Unlock()
	if info := r.Info(); info.Generation > gen {
		return fmt.Errorf("delete block %d at generation %d: %w: here it has %d", id, gen, ErrGeneration, info.Generation)
	}
	if err := r.stopWriter(); err != nil {
		return fmt.Errorf("delete block %d: %w", id, err)
	}
	return s.drop(r)
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
	r.gone = true
	s.changing(r.id)
	// The meta file first: data without it is removed at the next start.
	for _, name := range []string{s.metaPath(r.id, r.gen), s.dataPath(r.id)} {
		if err := s.fs.Remove(name); err != nil && !oserror.IsNotExist(err) {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	s.used.Add(-r.length)
	s.mu.Lock()
	delete(s.replicas, r.id)
	s.mu.Unlock()
	return nil
}
