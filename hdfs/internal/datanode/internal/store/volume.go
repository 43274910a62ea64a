package store

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// A volume is one of a store's directories.
type volume struct {
	store *Store
	index int
	fs    vfs.FS
	dir   string
	kind  hdfspb.StorageTypeProto
	log   *slog.Logger
	lock  io.Closer

	id       string   // of the storage; empty: it could not be read
	identity Identity // as it was when the store was opened

	dirMu sync.Mutex
	dirs  [256]bool // subdirectories that exist, their entries on stable storage

	used     atomic.Int64
	reserved atomic.Int64 // bytes that writers may still bring
	failed   atomic.Pointer[error]
	rests    atomic.Int64 // Unix nanoseconds until which it counts as full
	watch    watch
	hangs    atomic.Bool
	room     room
	memory   bool // it lies in memory, not on a disk
	spares   spares

	loading  sync.Mutex
	loaded   map[uint64]*Replica // until all directories have been looked through
	promises map[uint64]uint64
	unread   []*blockFiles // of replicas of which the disk could not read something
}

// DirError is an error of a directory's files.
type DirError struct {
	Index int // in [Config].Dirs
	err   error
}

func (e *DirError) Error() string { return e.err.Error() }
func (e *DirError) Unwrap() error { return e.err }

// at has an error tell in which directory it happened.
func (v *volume) at(err error) error {
	var errno syscall.Errno
	var known *DirError
	if err == nil || !errors.As(err, &errno) || errors.As(err, &known) {
		return err
	}
	return &DirError{v.index, err}
}

// prepare makes the directory, locks it and reads whose it is.
func (v *volume) prepare() error {
	// The NameNode decides who may read, so the directory is closed to others.
	err := v.fs.MkdirAll(v.blocks(), 0o700)
	if err == nil && v.fs == vfs.Default {
		err = os.Chmod(v.blocks(), 0o700) // one that was there already
	}
	if err != nil {
		return fmt.Errorf("create the store %s: %w", v.dir, err)
	}
	for _, d := range []string{v.dir, v.fs.PathDir(v.dir)} {
		if err := syncDir(v.fs, d); err != nil {
			return fmt.Errorf("sync %s: %w", d, err)
		}
	}
	lock, err := v.fs.Lock(v.fs.PathJoin(v.dir, "in_use.lock"))
	if err != nil && Broken(err) {
		return fmt.Errorf("lock the store %s: %w", v.dir, err)
	}
	if err != nil {
		return fmt.Errorf("%w: the store %s is in use by another process; stop it or choose another directory: %w", errRefused, v.dir, err)
	}
	v.lock = lock
	b, ok, err := readSmall(v.fs, v.versionPath(), maxVersionFile)
	if err != nil {
		return fmt.Errorf("open the store %s: %w", v.dir, err)
	}
	if !ok {
		return nil
	}
	if v.identity, v.id, err = decodeVersion(b); err != nil {
		return fmt.Errorf("%w: open the store %s: %w", errRefused, v.dir, err)
	}
	if v.id == "" {
		v.id = "DS-" + v.identity.DatanodeUUID // as NameNodes called it before directories had names
	}
	return nil
}

// Broken tells whether an error of the operating system speaks of a directory that can't be
// used, not of one that is full or of this process.
func Broken(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR:
		return false
	}
	return true
}

// writeVersion notes durably whose directory this is.
func (v *volume) writeVersion(id Identity) error {
	b, err := encodeVersion(id, v.id)
	if err != nil {
		return err
	}
	if err := replaceFile(v.fs, v.versionPath(), b); err != nil {
		return v.at(fmt.Errorf("write VERSION in %s: %w", v.dir, err))
	}
	return nil
}

// check tries the directory: to make a file, to sync it, to list what is there.
func (v *volume) check() error {
	defer v.watch.end(v.watch.begin())
	name := v.fs.PathJoin(v.blocks(), "check"+tmpSuffix)
	f, err := v.fs.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write([]byte("check"))
		if err == nil {
			err = f.Sync()
		}
		err = errors.Join(err, f.Close(), v.fs.Remove(name))
	}
	if err != nil && !Broken(err) {
		err = nil // it is full, or this process has too many files open
	}
	if err == nil {
		_, err = v.fs.List(v.blocks())
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", v.dir, err)
	}
	return nil
}

func (v *volume) good() bool { return v.failed.Load() == nil }

// resting tells whether the directory counts as full.
func (v *volume) resting() bool {
	until := v.rests.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// available is how many bytes new replicas may take.
func (v *volume) available() (uint64, error) {
	if v.resting() || v.hangs.Load() {
		return 0, nil
	}
	d, err := v.usage()
	if errors.Is(err, vfs.ErrUnsupported) {
		return math.MaxUint64, nil
	}
	if err != nil {
		return 0, v.at(fmt.Errorf("disk usage of %s: %w", v.dir, err))
	}
	room := d.AvailBytes + v.spareBytes()
	return room - min(room, uint64(max(0, v.reserved.Load()))), nil
}

func (v *volume) versionPath() string { return v.fs.PathJoin(v.dir, "VERSION") }

func (v *volume) blocks() string { return v.fs.PathJoin(v.dir, "blocks") }

// subdirIndex keeps blocks with neighbouring ids, which are made at about the
// same time, in one directory: file systems then keep their inodes together.
func subdirIndex(id uint64) byte { return byte(id >> 8) }

func (v *volume) subdir(id uint64) string { return v.subdirPath(subdirIndex(id)) }

func (v *volume) subdirPath(index byte) string {
	return v.fs.PathJoin(v.blocks(), fmt.Sprintf("%02x", index))
}

func (v *volume) dataPath(id uint64) string { return v.fs.PathJoin(v.subdir(id), dataName(id)) }
func (v *volume) metaPath(id, gen uint64) string {
	return v.fs.PathJoin(v.subdir(id), metaName(id, gen))
}

// makeSubdir makes the directory of a block, durably: files in it may be synced
// long after. It makes those of the next blocks too, so that one sync does for
// all of them.
func (v *volume) makeSubdir(id uint64) error {
	const ahead = 16
	v.dirMu.Lock()
	defer v.dirMu.Unlock()
	first := subdirIndex(id)
	if v.dirs[first] {
		return nil
	}
	for i := range byte(ahead) {
		// The index wraps around, as the ids' byte does.
		if err := v.fs.MkdirAll(v.subdirPath(first+i), 0o755); err != nil {
			return err
		}
	}
	if err := syncDir(v.fs, v.blocks()); err != nil {
		return err
	}
	for i := range byte(ahead) {
		v.dirs[first+i] = true
	}
	return nil
}
