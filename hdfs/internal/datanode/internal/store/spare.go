package store

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/internal/tmpfs"
)

// Spares are the data files of removed replicas that a directory in memory keeps, for new
// replicas to write over. There the kernel finds, counts and links each new page of a file, which
// costs more than the bytes that are copied to it. Pages that are there already cost the copy alone.
// Large pages cost less of it than small ones, so that a file is put into large pages when it becomes a spare.
// Databases recycle the segments of their logs for the same reason.
//
// What a spare holds is nobody's any more, and must reach nobody. Only a file that nobody has open
// becomes one, neither a reader here nor a process that got its descriptor; the kernel tells. A
// replica's length tells how much of its file counts, and no reader reads behind that. The file is
// cut to that length soon after the replica is finalized, and before its descriptor is handed over
// ([Reader.HandOver]).
//
// A crash finds what it finds without them: the meta file, which is always a new one, has checksums
// for the replica's own bytes alone.
type spares struct {
	mu     sync.Mutex
	most   int64 // bytes of all; 0: none are kept
	least  int64 // bytes of one
	first  int   // bytes of a write that is worth one
	paused bool  // none are kept now
	files  []spare
	bytes  int64                 // of files
	lent   map[*Writer]time.Time // writers that write over one, since when
	unused int64                 // bytes that they have not written over yet
	number uint64                // of the next one
	timer  *time.Timer           // of the next look, while there are files or writers that write over one
	kept   uint64                // files, ever
	reused uint64

	small    atomic.Int64  // Unix nanoseconds until which spares stay in small pages
	enlarged atomic.Uint64 // files that were put into large pages, ever

	removing sync.Mutex // held while files are removed that are not in files any more
}

type spare struct {
	path  string
	size  int64
	since time.Time
}

const (
	// SpareMemory is how many bytes of spares a directory keeps unless it is told otherwise, and
	// spareShare what part of its file system at most.
	SpareMemory = 1 << 30
	spareShare  = 16
	// leastSpare is how long a file has to be to be worth two renames. A replica whose writes are
	// shorter than leastFirst is likely to be short, and has a file of its own. One long write is
	// enough as long as the replica has less than leastFirst: Java's client begins all blocks of a
	// file but the first with a packet of one chunk.
	leastSpare = 1 << 20
	leastFirst = 60 << 10
	// A spare goes when nobody has wanted it for spareAge, and all do when less than an eighth of
	// the file system is left: others may write to it. spareLook is how often that is looked at.
	spareAge  = 10 * time.Minute
	spareLook = time.Second
	spareRoom = 8
	// Where the kernel found no large page it is not asked again for spareSmall: it may have moved
	// others' pages to make one, in vain.
	spareSmall = time.Minute
)

func (v *volume) sparePath() string { return v.fs.PathJoin(v.dir, "spare") }

// prepareSpares removes what an earlier process has left, and makes the directory if this one
// keeps any: at most most bytes.
func (v *volume) prepareSpares(most int64) error {
	dir := v.sparePath()
	names, err := v.fs.List(dir)
	if err != nil && !oserror.IsNotExist(err) {
		return err
	}
	for _, name := range names {
		if err := v.fs.Remove(v.fs.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	if most <= 0 {
		return nil
	}
	d, err := v.fs.GetDiskUsage(v.dir)
	if err == nil {
		most = min(most, int64(d.TotalBytes/spareShare))
	} else if !errors.Is(err, vfs.ErrUnsupported) {
		return err
	}
	if err := v.fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	v.spares.most, v.spares.least, v.spares.first = most, leastSpare, leastFirst
	return nil
}

// keepSpare makes the data file of a replica that is being removed a spare. It is false if the
// file is to be removed.
func (v *volume) keepSpare(id uint64) bool {
	path := v.dataPath(id)
	info, err := v.fs.Stat(path)
	if err != nil || !v.spares.reserve(info.Size()) {
		return false
	}
	kept := !v.scarce() && v.ready(path, info)
	s := &v.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept {
		to := v.fs.PathJoin(v.sparePath(), strconv.FormatUint(s.number, 10))
		s.number++
		if kept = v.fs.Rename(path, to) == nil; kept {
			s.files = append(s.files, spare{to, info.Size(), time.Now()})
			s.kept++
			v.lookLater()
		}
	}
	if !kept {
		s.bytes -= info.Size()
	}
	return kept
}

// reserve counts a file of size bytes among the spares, if there is room for it.
func (s *spares) reserve(size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most == 0 || s.paused || size < s.least || s.bytes+s.unused+size > s.most {
		return false
	}
	s.bytes += size
	return true
}

// ready tells whether a file can become a spare. If so it has the kernel put it into large pages.
func (v *volume) ready(path string, info vfs.FileInfo) bool {
	f, err := v.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return false
	}
	defer f.Close()
	if !ours(f, info) {
		return false
	}
	v.enlarge(f.Fd(), info.Size())
	return true
}

// ours tells whether a file has one name, and nobody else has it open, in whatever process.
func ours(f vfs.File, info vfs.FileInfo) bool {
	return links(info) == 1 && (f.Fd() == vfs.InvalidFd || openOnce(f.Fd())) // invalid: of a file system of tests
}

// enlarge has the kernel put a file into large pages, if it has any to spare. Bytes that are
// written over are in the memory that their file has, and after days of others' work that is in
// pieces of 4 KiB anywhere: to reach each costs as much again as the copy of its bytes, or more.
func (v *volume) enlarge(fd uintptr, size int64) {
	s := &v.spares
	if !v.memory || fd == vfs.InvalidFd || time.Now().UnixNano() < s.small.Load() {
		return
	}
	if err := tmpfs.Enlarge(int(fd), size); err != nil {
		s.small.Store(time.Now().Add(spareSmall).UnixNano())
		return
	}
	s.enlarged.Add(1)
}

// scarce tells whether others may need the room of the spares.
func (v *volume) scarce() bool {
	d, err := v.fs.GetDiskUsage(v.dir)
	return err == nil && d.AvailBytes < d.TotalBytes/spareRoom
}

// any tells whether there are spares.
func (s *spares) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.files) > 0
}

// takeSpare returns the file that was kept last, of which the processors' caches know most.
func (v *volume) takeSpare() (f spare, ok bool) {
	s := &v.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.files)
	if n == 0 {
		return f, false
	}
	f, s.files = s.files[n-1], s.files[:n-1]
	s.bytes -= f.size
	return f, true
}

// lookLater has the next look at the spares. The lock is held.
func (v *volume) lookLater() {
	if v.spares.timer == nil {
		v.spares.timer = time.AfterFunc(spareLook, v.lookAtSpares)
	}
}

// lookAtSpares removes those that are old, and all if room is scarce or memory is short.
func (v *volume) lookAtSpares() {
	defer v.watch.end(v.watch.begin())
	s := &v.spares
	age := spareAge
	if v.scarce() {
		age = 0
	}
	s.mu.Lock()
	if s.paused {
		age = 0
	}
	s.mu.Unlock()
	v.removeSpares(age)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = nil
	if len(s.files)+len(s.lent) > 0 {
		v.lookLater()
	}
}

// removeSpares removes those that are of an age or older, and cuts what writers have not yet written over of theirs. When
// it returns their room is free, but for those to which something is being written now.
func (v *volume) removeSpares(age time.Duration) {
	s := &v.spares
	s.removing.Lock()
	defer s.removing.Unlock()
	s.mu.Lock()
	n := 0
	for n < len(s.files) && time.Since(s.files[n].since) >= age {
		s.bytes -= s.files[n].size
		n++
	}
	old := s.files[:n]
	s.files = slices.Clone(s.files[n:])
	var lent []*Writer
	for w, since := range s.lent {
		if time.Since(since) >= age {
			lent = append(lent, w)
		}
	}
	s.mu.Unlock()
	for _, f := range old {
		v.removeSpare(f)
	}
	for _, w := range lent {
		if w.over.TryLock() {
			w.cutUnused()
			w.over.Unlock()
		}
	}
}

func (v *volume) removeSpare(f spare) {
	if err := v.fs.Remove(f.path); err != nil && !oserror.IsNotExist(err) {
		v.log.Warn("the file of a removed replica can't be removed", "path", f.path, "err", err)
	}
}

// PauseSpares has all directories give up the files of removed replicas that they keep, and keep
// none until it is called with false: whoever sees that memory is short calls it. It does not wait
// until their memory is free.
func (s *Store) PauseSpares(pause bool) {
	for _, v := range s.volumes {
		v.spares.mu.Lock()
		v.spares.paused = pause
		any := len(v.spares.files)+len(v.spares.lent) > 0
		v.spares.mu.Unlock()
		if pause && any {
			s.cuts.Go(func() { v.removeSpares(0) })
		}
	}
}

// KeepsSpares tells whether any directory keeps the files of removed replicas.
func (s *Store) KeepsSpares() bool {
	return slices.ContainsFunc(s.volumes, func(v *volume) bool { return v.spares.most > 0 })
}

// spareBytes is how many bytes of the file system's room the spares have, and those that are being
// written over still.
func (v *volume) spareBytes() uint64 {
	v.spares.mu.Lock()
	defer v.spares.mu.Unlock()
	return uint64(v.spares.bytes + v.spares.unused)
}

// SpareStats tell of the files of removed replicas that a store's directories keep for new ones.
type SpareStats struct {
	Files, Bytes uint64 // now; Bytes counts those, too, that are being written over, as far as they are not yet
	// Kept and Reused are how many have been kept, and written over, since the store was opened.
	Kept, Reused uint64
	// Enlarged is how many of those kept the kernel has put into large pages.
	Enlarged uint64
}

// Spares returns the numbers of all directories together.
func (s *Store) Spares() (n SpareStats) {
	for _, v := range s.volumes {
		v.spares.mu.Lock()
		n.Files += uint64(len(v.spares.files))
		n.Bytes += uint64(v.spares.bytes + v.spares.unused)
		n.Kept += v.spares.kept
		n.Reused += v.spares.reused
		v.spares.mu.Unlock()
		n.Enlarged += v.spares.enlarged.Load()
	}
	return n
}

// useSpare gives a replica that has but few bytes the file of a removed one, if there is any, in
// place of its own. If that can't be done the replica keeps its own file. It also does if others
// have that open, or a name of it: they would see nothing of what is written from now on.
func (w *Writer) useSpare() {
	r, v := w.r, w.r.vol
	if r.durable { // its names are on stable storage, and would have to be again
		return
	}
	r.mu.Lock() // nobody opens the file meanwhile
	defer r.mu.Unlock()
	if !v.spares.any() {
		return
	}
	if w.length > 0 {
		if info, err := w.data.Stat(); err != nil || !ours(w.data, info) {
			return
		}
	}
	s, ok := v.takeSpare()
	if !ok {
		return
	}
	f, err := v.fs.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
	if err == nil {
		if err = w.copyTo(f); err == nil {
			err = v.fs.Rename(s.path, v.dataPath(r.id))
		}
		if err != nil {
			_ = f.Close() // what was written there is nobody's
		}
	}
	if err != nil {
		v.log.Warn("the file of a removed replica can't be written over", "path", s.path, "err", err)
		v.removeSpare(s)
		return
	}
	_ = w.data.Close() // what was written there has been copied
	w.data, w.young = f, false
	w.lend(s.size)
	v.spares.mu.Lock()
	v.spares.reused++
	v.spares.mu.Unlock()
}

// copyTo copies the few bytes that the writer has written.
func (w *Writer) copyTo(f vfs.File) error {
	if w.length == 0 {
		return nil
	}
	b := make([]byte, w.length)
	if err := readFull(w.data, b, 0); err != nil {
		return err
	}
	_, err := w.r.vol.writeAt(f, b, 0)
	return err
}

// lend notes that the writer's data file has size bytes, which is more than the replica.
func (w *Writer) lend(size int64) {
	v := w.r.vol
	s := &v.spares
	w.unused = size - w.length
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lent == nil {
		s.lent = map[*Writer]time.Time{}
	}
	s.lent[w] = time.Now()
	s.unused += w.unused
	v.lookLater()
}

// put writes behind what the replica has.
func (w *Writer) put(b []byte) error {
	w.over.Lock()
	defer w.over.Unlock()
	if _, err := w.r.vol.writeAt(w.data, b, w.length); err != nil {
		return err
	}
	w.length += int64(len(b))
	if n := min(w.unused, int64(len(b))); n > 0 {
		w.use(n)
	}
	return nil
}

// use notes that n bytes more of a spare are no longer unused. over is held.
func (w *Writer) use(n int64) {
	s := &w.r.vol.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	w.unused -= n
	s.unused -= n
	if w.unused == 0 {
		delete(s.lent, w)
	}
}

// cutUnused takes what has not been written over off a spare, if it can. over is held.
func (w *Writer) cutUnused() {
	t, ok := w.data.(interface{ Truncate(size int64) error })
	if !ok || w.unused == 0 { // not ok: of a file system of tests
		return
	}
	if err := t.Truncate(w.length); err != nil {
		w.r.vol.log.Warn("the rest of a removed replica's file can't be cut off", "block", w.r.id, "err", err)
		return
	}
	w.use(w.unused)
}

// endLoan ends the writing over of a spare, of which it cuts the rest off or not. It tells whether
// there is one.
func (w *Writer) endLoan(cut bool) (rest bool) {
	w.over.Lock()
	defer w.over.Unlock()
	if cut {
		w.cutUnused()
	}
	if rest = w.unused > 0; rest {
		w.use(w.unused)
	}
	return rest
}

// cutSpare cuts the file of a finalized replica to the replica's length, and tells whether it has
// no other bytes now.
func (r *Replica) cutSpare() bool {
	r.op.Lock() // keeps writers away
	defer r.op.Unlock()
	r.mu.Lock()
	length, as := r.length, r.state == Finalized && r.writer == nil && !r.gone
	r.mu.Unlock()
	if !as {
		return false
	}
	defer r.vol.watch.end(r.vol.watch.begin())
	return r.vol.trim(r.id, length)
}

// withRoom does something that can be done again. Where there is no room it gives up the spares,
// and does it again.
func (v *volume) withRoom(do func() error) error {
	err := do()
	if v.madeRoom(err) {
		err = do()
	}
	return err
}

// madeRoom tells whether what has failed for want of room may be tried again.
func (v *volume) madeRoom(err error) bool {
	if err == nil || v.spares.most == 0 || !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return false
	}
	v.removeSpares(0) // or another writer has just done it
	return true
}

// writeAt writes to a file of the directory, as withRoom does.
func (v *volume) writeAt(f vfs.File, b []byte, off int64) (n int, err error) {
	n, err = f.WriteAt(b, off)
	if v.madeRoom(err) {
		var more int
		more, err = f.WriteAt(b[n:], off+int64(n))
		n += more
	}
	return n, err
}
