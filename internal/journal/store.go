package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// Keys: 'l' and the index, 8 bytes big-endian, for log entries; 's' and raft's key
// for its few variables.
const (
	logPrefix    = 'l'
	stablePrefix = 's'
)

var currentTerm = []byte("CurrentTerm")

// errNotFound has the text by which raft recognises that a variable is not set.
var errNotFound = errors.New("not found")

// store is raft's log and its variables on pebble.
type store struct {
	db    *pebble.DB
	cache *pebble.Cache

	mu          sync.Mutex
	first, last uint64 // 0, 0: no entry
	buf         []byte // of StoreLogs

	// ahead holds entries read together with the one asked for: at a start raft
	// asks for all of them, one by one.
	ahead []raft.Log

	// floor, if set, returns the index of the last entry that may go.
	floor func() uint64
}

// flushPause is the time between two tries to write a file of the log.
const flushPause = 500 * time.Millisecond

// readAhead is how many entries are read at once.
const readAhead = 512

var (
	_ raft.LogStore    = (*store)(nil)
	_ raft.StableStore = (*store)(nil)
)

func openStore(fs vfs.FS, dir string, logger *slog.Logger) (*store, error) {
	if err := makeDir(fs, dir); err != nil {
		return nil, err
	}
	if err := whole(fs, dir); err != nil {
		return nil, fmt.Errorf("open the log in %s: %w", dir, err)
	}
	s := &store{cache: pebble.NewCache(4 << 20)}
	opts := &pebble.Options{
		FS:                 fs,
		Cache:              s.cache,
		Logger:             pebbleLogger{logger},
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       8 << 20,
		MaxOpenFiles:       64,
	}
	// Pebble repeats a flush that failed at once: a full disk would keep a
	// processor busy.
	opts.EventListener = &pebble.EventListener{BackgroundError: func(err error) {
		logger.Error("journal: the log's files can't be written, trying again", "dir", dir, "err", err)
		time.Sleep(flushPause)
	}}
	opts.Experimental.CompactionScheduler = newOneAtATime()
	db, err := pebble.Open(dir, opts)
	if err != nil {
		s.cache.Unref()
		return nil, fmt.Errorf("open the log in %s: %w", dir, err)
	}
	s.db = db
	if err := s.bounds(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// errNoManifest says that the file is gone that tells which others make up the log.
var errNoManifest = errors.New("files of the log are there, but not the manifest that names them: put a copy of the directory in place, or have the offline recovery set the log aside and go on with the newest snapshot")

// whole refuses a directory in which pebble would begin a new log, although it has entries
// of an old one: those would be lost without a word.
func whole(fs vfs.FS, dir string) error {
	desc, err := pebble.Peek(dir, fs)
	if err != nil || desc.Exists {
		return err
	}
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".log") && !strings.HasSuffix(name, ".sst") {
			continue
		}
		info, err := fs.Stat(fs.PathJoin(dir, name))
		if err != nil {
			return err
		}
		if info.Size() > 0 { // an empty one may be of a first start that was killed
			return errNoManifest
		}
	}
	return nil
}

func (s *store) bounds() error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{logPrefix}, UpperBound: []byte{logPrefix + 1}})
	if err != nil {
		return err
	}
	defer it.Close()
	if it.First() {
		if s.first, err = indexOf(it.Key()); err != nil {
			return err
		}
	}
	if it.Last() {
		if s.last, err = indexOf(it.Key()); err != nil {
			return err
		}
	}
	return it.Error()
}

func (s *store) Close() error {
	err := s.db.Close()
	s.cache.Unref()
	return err
}

func logKey(buf []byte, index uint64) []byte {
	return binary.BigEndian.AppendUint64(append(buf, logPrefix), index)
}

func indexOf(key []byte) (uint64, error) {
	if len(key) != 9 || key[0] != logPrefix {
		return 0, fmt.Errorf("the log has the key %x, which is none of its own", key)
	}
	return binary.BigEndian.Uint64(key[1:]), nil
}

func (s *store) FirstIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first, nil
}

func (s *store) LastIndex() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, nil
}

func (s *store) GetLog(index uint64, l *raft.Log) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.ahead); n == 0 || index < s.ahead[0].Index || index > s.ahead[n-1].Index {
		if err := s.fill(index); err != nil {
			return fmt.Errorf("read log entry %d: %w", index, err)
		}
	}
	if len(s.ahead) == 0 || s.ahead[0].Index > index {
		return raft.ErrLogNotFound
	}
	*l = s.ahead[index-s.ahead[0].Index]
	return nil
}

// fill reads index, if it is there, and what follows it.
func (s *store) fill(index uint64) error {
	clear(s.ahead)
	s.ahead = s.ahead[:0]
	var lower, upper [9]byte
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: logKey(lower[:0], index), UpperBound: logKey(upper[:0], index+readAhead)})
	if err != nil {
		return err
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		at, err := indexOf(it.Key())
		if err != nil {
			return err
		}
		if at != index+uint64(len(s.ahead)) {
			break
		}
		value, err := it.ValueAndErr()
		l := raft.Log{Index: at}
		if err == nil {
			err = decodeLog(value, &l)
		}
		if err != nil && at > index {
			return nil // for whoever asks for that one
		}
		if err != nil {
			return err
		}
		s.ahead = append(s.ahead, l)
	}
	return it.Error()
}

func (s *store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs writes all entries with one sync.
func (s *store) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.db.NewBatch()
	defer b.Close()
	var key [9]byte
	for _, l := range logs {
		s.buf = appendLog(s.buf[:0], l)
		if err := b.Set(logKey(key[:0], l.Index), s.buf, nil); err != nil {
			return fmt.Errorf("write log entry %d: %w", l.Index, err)
		}
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("write log entries %d to %d: %w", logs[0].Index, logs[len(logs)-1].Index, err)
	}
	s.ahead = nil
	if s.first == 0 {
		s.first = logs[0].Index
	}
	s.last = logs[len(logs)-1].Index
	return nil
}

// DeleteRange removes the entries from and to and those between. They are ones
// that a snapshot has made superfluous, or the end of the log that was never
// acknowledged. Of the former those stay that the older snapshot needs; raft
// asks for them again after the next one.
func (s *store) DeleteRange(from, to uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var a, b [9]byte
	sync := pebble.NoSync
	if to < s.last && s.floor != nil {
		if to = min(to, s.floor()); to < from {
			return nil
		}
	}
	if to >= s.last {
		sync = pebble.Sync // entries cut off at the end must not come back
	}
	if err := s.db.DeleteRange(logKey(a[:0], from), logKey(b[:0], to+1), sync); err != nil {
		return fmt.Errorf("delete log entries %d to %d: %w", from, to, err)
	}
	s.ahead = nil
	switch {
	case from <= s.first && to >= s.last:
		s.first, s.last = 0, 0
	case from <= s.first:
		s.first = max(s.first, to+1)
	case to >= s.last:
		s.last = from - 1
	}
	return nil
}

func stableKey(key []byte) []byte { return append([]byte{stablePrefix}, key...) }

func (s *store) Set(key, val []byte) error {
	if err := s.db.Set(stableKey(key), val, pebble.Sync); err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

func (s *store) Get(key []byte) ([]byte, error) {
	value, closer, err := s.db.Get(stableKey(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, errNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	defer closer.Close()
	return append([]byte{}, value...), nil
}

func (s *store) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

func (s *store) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("read %s: %d bytes, not 8", key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

// A log entry: the version, 2 if there are extensions and 1 if there are none, raft's type, term (8 bytes big-endian), time of appending
// (Unix nanoseconds, 8 bytes big-endian, 0 for none), the extensions with their length as a
// varint, the data. The index is the key.
const (
	logVersion   = 1
	groupVersion = 2
	logHeaderLen = 1 + 1 + 8 + 8
)

func appendLog(buf []byte, l *raft.Log) []byte {
	version := byte(logVersion)
	if len(l.Extensions) > 0 {
		version = groupVersion
	}
	buf = append(buf, version, byte(l.Type))
	buf = binary.BigEndian.AppendUint64(buf, l.Term)
	var at int64
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	buf = binary.BigEndian.AppendUint64(buf, uint64(at))
	buf = binary.AppendUvarint(buf, uint64(len(l.Extensions)))
	buf = append(buf, l.Extensions...)
	return append(buf, l.Data...)
}

// decodeLog copies what it needs out of buf. It does not set the index.
func decodeLog(buf []byte, l *raft.Log) error {
	if len(buf) < logHeaderLen {
		return fmt.Errorf("%d bytes are too few for an entry", len(buf))
	}
	if buf[0] != logVersion && buf[0] != groupVersion {
		return fmt.Errorf("entry of version %d, this program reads %d and %d: run a version at least as new as the one that wrote it", buf[0], logVersion, groupVersion)
	}
	l.Type = raft.LogType(buf[1])
	l.Term = binary.BigEndian.Uint64(buf[2:])
	l.AppendedAt = time.Time{}
	if at := int64(binary.BigEndian.Uint64(buf[10:])); at != 0 {
		l.AppendedAt = time.Unix(0, at)
	}
	size, n := binary.Uvarint(buf[logHeaderLen:])
	rest := buf[logHeaderLen:]
	if n <= 0 || size > uint64(len(rest)-n) {
		return fmt.Errorf("extensions reach beyond the entry of %d bytes", len(buf))
	}
	rest = append([]byte{}, rest[n:]...)
	l.Extensions, l.Data = nil, rest[size:]
	if size > 0 {
		l.Extensions = rest[:size:size]
	}
	return nil
}
