package simulate

import (
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is what a machine keeps over the death of its processes, and, as far as it was
// synced, over power cuts.
type disk struct {
	mu   sync.Mutex
	mem  *vfs.MemFS
	full bool
	// broken is a directory in which everything fails, as if it were on a disk of its own.
	broken string
	// slow bounds how long a write to a block takes, and hangs is when the disk goes on, if it
	// does not now.
	slow  time.Duration
	hangs time.Time
	rng   *rand.Rand // of how slow it is
	left  uint64     // bytes that it says to have room for, while it is not full
}

func newDisk(rng *rand.Rand) *disk {
	return &disk{mem: vfs.NewCrashableMem(), left: room, rng: rand.New(rand.NewPCG(rng.Uint64(), 0))}
}

// room of a disk that is not full, in bytes.
const room = 1 << 40

func (d *disk) setFull(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

// unfit tells whether the disk is full, or a directory on it broken.
func (d *disk) unfit() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.full || d.broken != ""
}

// setLeft sets how much room the disk tells of while it takes what is written.
func (d *disk) setLeft(bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = bytes
}

// available is how much room the disk tells of.
func (d *disk) available() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return 0
	}
	return d.left
}

// setBroken breaks a directory; an empty name mends all.
func (d *disk) setBroken(dir string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = dir
}

// setSlow has writes to blocks take up to so long, and those that come before now and hangs
// wait until then, too. Zeros end it, but not for who waits already.
func (d *disk) setSlow(slow, hangs time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow, d.hangs = slow, time.Now().Add(hangs)
}

// delay is how long a write takes.
func (d *disk) delay() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	delay := max(0, time.Until(d.hangs))
	if d.slow > 0 {
		delay += time.Duration(d.rng.Int64N(int64(d.slow)))
	}
	return delay
}

// fails is the error of an operation on a file, which needs room or not.
func (d *disk) fails(name string, grows bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.broken != "" && strings.HasPrefix(name+"/", d.broken+"/"):
		return syscall.EIO
	case d.full && grows:
		return syscall.ENOSPC
	}
	return nil
}

// mount gives a process the disk.
func (d *disk) mount() *mount {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &mount{disk: d, mem: d.mem}
}

// cutPower loses of what was not synced what chance has it: each block of 4 KiB, each
// name in a directory by itself, so that later writes may survive earlier ones.
func (d *disk) cutPower(rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mem = d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 20, 50, 80}[rng.IntN(4)], RNG: rng})
}

// image copies the disk as a machine would find it that was switched off in order.
func (d *disk) image(rng *rand.Rand) *vfs.MemFS {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
}

// mount is a disk in the hands of one process. When the process is killed the disk keeps
// what was written so far, and whatever the process does until its goroutines have ended
// goes nowhere.
type mount struct {
	disk *disk
	mem  *vfs.MemFS

	mu    sync.RWMutex // held by each change of the disk for reading
	ghost vfs.FS       // where a dead process makes its files
}

var _ vfs.FS = (*mount)(nil)

// kill takes the disk away.
func (m *mount) kill(rng *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ghost = m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
}

// fs returns what the process sees. The caller holds mu.
func (m *mount) fs() vfs.FS {
	if m.ghost != nil {
		return m.ghost
	}
	return m.mem
}

// change makes a change to a file, which needs room or not.
func (m *mount) change(name string, grows bool, f func(fs vfs.FS) error) error {
	if err := m.disk.fails(name, grows); err != nil {
		return &os.PathError{Op: "change", Path: name, Err: err}
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return f(m.fs())
}

func (m *mount) file(op, name string, open func(vfs.FS) (vfs.File, error)) (f vfs.File, err error) {
	err = m.change(name, op != "open", func(fs vfs.FS) error {
		inner, err := open(fs)
		if err == nil {
			f = &file{File: inner, m: m, name: name, ghost: m.ghost != nil}
		}
		return err
	})
	if err != nil {
		return nil, &os.PathError{Op: op, Path: name, Err: err}
	}
	return f, nil
}

func (m *mount) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := m.file("create", name, func(fs vfs.FS) (vfs.File, error) { return fs.Create(name, category) })
	if err != nil {
		return nil, err
	}
	// A new block's bytes are written and synced with no lock held but one for which time
	// passes, so they may take their time.
	f.(*file).waits = isBlock(name)
	return f, nil
}

// isBlock tells the bytes of a block from checksums and all else.
func isBlock(name string) bool {
	base := name[strings.LastIndexByte(name, '/')+1:]
	return strings.HasPrefix(base, "blk_") && !strings.ContainsRune(base, '.')
}

func (m *mount) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return m.file("open", name, func(fs vfs.FS) (vfs.File, error) { return fs.Open(name, opts...) })
}

func (m *mount) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return m.file("open", name, func(fs vfs.FS) (vfs.File, error) { return fs.OpenReadWrite(name, category, opts...) })
}

func (m *mount) OpenDir(name string) (vfs.File, error) {
	return m.file("open", name, func(fs vfs.FS) (vfs.File, error) { return fs.OpenDir(name) })
}

func (m *mount) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return m.file("open", newname, func(fs vfs.FS) (vfs.File, error) { return fs.ReuseForWrite(oldname, newname, category) })
}

func (m *mount) Link(oldname, newname string) error {
	return m.change(newname, false, func(fs vfs.FS) error { return fs.Link(oldname, newname) })
}

func (m *mount) Remove(name string) error {
	return m.change(name, false, func(fs vfs.FS) error { return fs.Remove(name) })
}

func (m *mount) RemoveAll(name string) error {
	return m.change(name, false, func(fs vfs.FS) error { return fs.RemoveAll(name) })
}

func (m *mount) Rename(oldname, newname string) error {
	return m.change(newname, false, func(fs vfs.FS) error { return fs.Rename(oldname, newname) })
}

func (m *mount) MkdirAll(dir string, perm os.FileMode) error {
	return m.change(dir, true, func(fs vfs.FS) error { return fs.MkdirAll(dir, perm) })
}

// Lock succeeds: the processes of a machine follow one another.
func (m *mount) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (m *mount) List(dir string) ([]string, error) {
	if err := m.disk.fails(dir, false); err != nil {
		return nil, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.fs().List(dir)
}

func (m *mount) Stat(name string) (vfs.FileInfo, error) {
	if err := m.disk.fails(name, false); err != nil {
		return nil, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.fs().Stat(name)
}

func (m *mount) PathBase(path string) string    { return m.mem.PathBase(path) }
func (m *mount) PathJoin(elem ...string) string { return m.mem.PathJoin(elem...) }
func (m *mount) PathDir(path string) string     { return m.mem.PathDir(path) }
func (m *mount) Unwrap() vfs.FS                 { return nil }

func (m *mount) GetDiskUsage(dir string) (vfs.DiskUsage, error) {
	if err := m.disk.fails(dir, false); err != nil {
		return vfs.DiskUsage{}, err
	}
	left := m.disk.available()
	return vfs.DiskUsage{AvailBytes: left, TotalBytes: room, UsedBytes: room - left}, nil
}

// file is an open file; what a dead process writes to it is gone.
type file struct {
	vfs.File
	m     *mount
	name  string
	ghost bool // made by a dead process
	waits bool // takes as long as its disk
}

// write writes, unless the process is dead.
func (f *file) write(p []byte, write func() (int, error)) (int, error) {
	if err := f.m.disk.fails(f.name, true); err != nil {
		return 0, err
	}
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	if f.m.ghost != nil && !f.ghost {
		return len(p), nil
	}
	return write()
}

func (f *file) Write(p []byte) (int, error) {
	return f.write(p, func() (int, error) { return f.File.Write(p) })
}

// wait has an operation take its time.
func (f *file) wait() {
	if f.waits {
		time.Sleep(f.m.disk.delay())
	}
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.wait()
	return f.write(p, func() (int, error) { return f.File.WriteAt(p, off) })
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := f.m.disk.fails(f.name, false); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *file) sync(sync func() error) error {
	if err := f.m.disk.fails(f.name, false); err != nil {
		return err
	}
	f.m.mu.RLock()
	defer f.m.mu.RUnlock()
	if f.m.ghost != nil && !f.ghost {
		return nil
	}
	return sync()
}

func (f *file) Sync() error { return f.sync(f.File.Sync) }

func (f *file) SyncData() error {
	f.wait()
	return f.sync(f.File.SyncData)
}

func (f *file) SyncTo(length int64) (fullSync bool, err error) {
	err = f.sync(func() error { fullSync, err = f.File.SyncTo(length); return err })
	return fullSync, err
}
