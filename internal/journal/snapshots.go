package journal

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

const writeCategory = vfs.WriteCategoryUnspecified

var crcTable = crc64.MakeTable(crc64.ECMA)

// snapshotStore keeps the two newest snapshots, so that damage to one costs
// nothing: the log reaches back to the older one. A snapshot is a file ID.state with the state and a
// file ID.meta that describes it. The .meta gets its name by a rename after both
// are synced, and a snapshot exists if and only if its .meta does. So a .meta that
// can't be read is damaged, never the trace of a crash.
type snapshotStore struct {
	fs  vfs.FS
	dir string
	log *slog.Logger
	// floor is the index of the oldest snapshot that is kept, 0 while there is
	// only one: the log behind it must stay.
	floor atomic.Uint64
	// aside counts the snapshots set aside since the opening.
	aside atomic.Int32
}

// kept is how many snapshots stay.
const kept = 2

// errDamaged says that a snapshot is not what was written.
var errDamaged = errors.New("it is damaged")

type damagedSnapshot struct {
	id  string
	err error
}

var _ raft.SnapshotStore = (*snapshotStore)(nil)

const (
	stateSuffix = ".state"
	metaSuffix  = ".meta"
	tempSuffix  = ".tmp"
	// damagedSuffix is added to what is damaged, for whoever wants to look at it.
	damagedSuffix = ".damaged"
)

type snapshotMeta struct {
	Version            int                `json:"version"`
	ID                 string             `json:"id"`
	RaftVersion        int                `json:"raft_version"`
	Index              uint64             `json:"index"`
	Term               uint64             `json:"term"`
	Configuration      raft.Configuration `json:"configuration"`
	ConfigurationIndex uint64             `json:"configuration_index"`
	Size               int64              `json:"size"`
	CRC                uint64             `json:"crc64_ecma"`
}

func openSnapshots(fs vfs.FS, dir string, logger *slog.Logger) (*snapshotStore, error) {
	if err := makeDir(fs, dir); err != nil {
		return nil, err
	}
	s := &snapshotStore{fs: fs, dir: dir, log: logger}
	metas, err := s.good()
	if err != nil {
		return nil, err
	}
	// The newest must be whole, or an older one takes its place.
	for len(metas) > 0 {
		err := s.verify(metas[0].ID)
		if err == nil {
			break
		}
		if !errors.Is(err, errDamaged) {
			return nil, err
		}
		if err := s.setAside(metas[0].ID, err); err != nil {
			return nil, err
		}
		metas = metas[1:]
	}
	return s, s.prune(metas)
}

// good returns the snapshots that are there, newest first, and sets aside those
// whose description is damaged.
func (s *snapshotStore) good() ([]snapshotMeta, error) {
	metas, damaged, err := s.metas()
	if err != nil {
		return nil, err
	}
	for _, d := range damaged {
		if err := s.setAside(d.id, d.err); err != nil {
			return nil, err
		}
	}
	return metas, nil
}

// setAside takes a damaged snapshot out of use.
func (s *snapshotStore) setAside(id string, why error) error {
	s.aside.Add(1)
	s.log.Error("journal: a snapshot is damaged and set aside", "snapshot", id, "dir", s.dir, "err", why)
	for _, suffix := range []string{metaSuffix, stateSuffix} {
		name := s.fs.PathJoin(s.dir, id+suffix)
		if err := s.fs.Rename(name, name+damagedSuffix); err != nil && !oserror.IsNotExist(err) {
			return err
		}
	}
	return syncDir(s.fs, s.dir)
}

// wasDamaged tells whether a snapshot has been set aside.
func (s *snapshotStore) wasDamaged() (bool, error) {
	names, err := s.fs.List(s.dir)
	return slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, damagedSuffix) }), err
}

// metas returns what there is, newest first, and what is damaged.
func (s *snapshotStore) metas() (out []snapshotMeta, damaged []damagedSnapshot, err error) {
	names, err := s.fs.List(s.dir)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, metaSuffix) {
			continue
		}
		id := strings.TrimSuffix(name, metaSuffix)
		m, err := s.readMeta(id)
		if errors.Is(err, errDamaged) {
			damaged = append(damaged, damagedSnapshot{id, err})
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b snapshotMeta) int {
		return cmp.Or(cmp.Compare(b.Index, a.Index), cmp.Compare(b.Term, a.Term), cmp.Compare(b.ID, a.ID))
	})
	return out, damaged, nil
}

func (s *snapshotStore) readMeta(id string) (m snapshotMeta, err error) {
	path := s.fs.PathJoin(s.dir, id+metaSuffix)
	f, err := s.fs.Open(path)
	if err != nil {
		return m, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return m, fmt.Errorf("read %s: %w", path, err)
	}
	if err := decodeMeta(data, id, &m); err != nil {
		return m, fmt.Errorf("read %s: %w", path, err)
	}
	return m, nil
}

func decodeMeta(data []byte, id string, m *snapshotMeta) error {
	if err := json.Unmarshal(data, m); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	if m.Version != 1 || m.ID != id || m.Size < 0 {
		return fmt.Errorf("%w, or of another version: version %d, id %q, size %d", errDamaged, m.Version, m.ID, m.Size)
	}
	return nil
}

// prune removes everything but the newest snapshots.
func (s *snapshotStore) prune(metas []snapshotMeta) error {
	keep := make(map[string]bool)
	s.floor.Store(0)
	for i, m := range metas {
		if i < kept {
			keep[m.ID+stateSuffix], keep[m.ID+metaSuffix] = true, true
			if i == kept-1 {
				s.floor.Store(m.Index)
			}
			continue
		}
		if err := s.fs.Remove(s.fs.PathJoin(s.dir, m.ID+metaSuffix)); err != nil {
			return err
		}
	}
	if len(metas) > kept {
		// The .meta files must be gone for good before their states go.
		if err := syncDir(s.fs, s.dir); err != nil {
			return err
		}
	}
	names, err := s.fs.List(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if keep[name] {
			continue
		}
		if strings.HasSuffix(name, stateSuffix) || strings.HasSuffix(name, tempSuffix) {
			if err := s.fs.Remove(s.fs.PathJoin(s.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	metas, err := s.good()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	out := make([]*raft.SnapshotMeta, 0, len(metas))
	for _, m := range metas {
		out = append(out, raftMeta(m))
	}
	return out, nil
}

func raftMeta(m snapshotMeta) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: raft.SnapshotVersion(m.RaftVersion), ID: m.ID, Index: m.Index, Term: m.Term,
		Configuration:      m.Configuration,
		ConfigurationIndex: m.ConfigurationIndex, Size: m.Size,
	}
}

func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, err := s.readMeta(id)
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot: %w", err)
	}
	f, err := s.fs.Open(s.fs.PathJoin(s.dir, id+stateSuffix), vfs.SequentialReadsOption)
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot: %w", err)
	}
	return raftMeta(m), &checkedReader{f: f, meta: m}, nil
}

// checkedReader ends in an error instead of io.EOF if it read other bytes than
// were written.
type checkedReader struct {
	f    vfs.File
	meta snapshotMeta
	size int64
	crc  uint64
}

func (r *checkedReader) Read(p []byte) (int, error) {
	n, err := r.f.Read(p)
	r.size += int64(n)
	r.crc = crc64.Update(r.crc, crcTable, p[:n])
	if err == io.EOF && (r.size != r.meta.Size || r.crc != r.meta.CRC) {
		err = fmt.Errorf("snapshot %s: %w: %d bytes with checksum %016x, written were %d with %016x", r.meta.ID, errDamaged, r.size, r.crc, r.meta.Size, r.meta.CRC)
	}
	return n, err
}

// Close may be called again: both raft and its state machine do.
func (r *checkedReader) Close() error {
	if r.f == nil {
		return nil
	}
	f := r.f
	r.f = nil
	return f.Close()
}

// bytesPerSync is how much of a snapshot is written before the disk is told to begin with it.
const bytesPerSync = 1 << 20

func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	id := fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixNano())
	f, err := s.fs.Create(s.fs.PathJoin(s.dir, id+stateSuffix), writeCategory)
	if err != nil {
		return nil, fmt.Errorf("create snapshot: %w", err)
	}
	// The disk gets the state as it is written: all at the end would keep the log's syncs waiting.
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: bytesPerSync})
	sink := &snapshotSink{store: s, file: f, meta: snapshotMeta{
		Version: 1, ID: id, RaftVersion: int(version), Index: index, Term: term,
		Configuration:      configuration,
		ConfigurationIndex: configurationIndex,
	}}
	sink.buf = bufio.NewWriterSize(f, 1<<18)
	return sink, nil
}

type snapshotSink struct {
	store *snapshotStore
	file  vfs.File // nil once closed
	buf   *bufio.Writer
	meta  snapshotMeta
}

func (k *snapshotSink) ID() string { return k.meta.ID }

func (k *snapshotSink) Write(p []byte) (int, error) {
	n, err := k.buf.Write(p)
	k.meta.Size += int64(n)
	k.meta.CRC = crc64.Update(k.meta.CRC, crcTable, p[:n])
	return n, err
}

func (k *snapshotSink) Close() error {
	if k.file == nil {
		return nil
	}
	f := k.file
	k.file = nil
	if err := errors.Join(k.buf.Flush(), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write snapshot %s: %w", k.meta.ID, err)
	}
	if err := k.publish(); err != nil {
		return fmt.Errorf("write snapshot %s: %w", k.meta.ID, err)
	}
	metas, err := k.store.good()
	if err != nil {
		return err
	}
	return k.store.prune(metas)
}

func (k *snapshotSink) publish() error {
	fs, dir := k.store.fs, k.store.dir
	data, err := json.Marshal(k.meta)
	if err != nil {
		return err
	}
	temp := fs.PathJoin(dir, k.meta.ID+tempSuffix)
	f, err := fs.Create(temp, writeCategory)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	// The state's name must be on disk before the .meta says that it is there.
	if err := syncDir(fs, dir); err != nil {
		return err
	}
	if err := fs.Rename(temp, fs.PathJoin(dir, k.meta.ID+metaSuffix)); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

func (k *snapshotSink) Cancel() error {
	if k.file == nil {
		return nil
	}
	f := k.file
	k.file = nil
	return errors.Join(f.Close(), k.store.fs.Remove(k.store.fs.PathJoin(k.store.dir, k.meta.ID+stateSuffix)))
}
