package store

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// A Replica is one block as it is here. Its methods may be called concurrently.
type Replica struct {
	store *Store
	vol   *volume // where its files are
	id    uint64
	sum   transfer.Checksum

	hidden atomic.Bool // it is Temporary, for whoever can't wait for mu

	// op is held by whoever changes what the replica is: a new writer, a
	// recovery, a deletion.
	op opLock

	mu          sync.Mutex
	gen         uint64
	state       State
	length      int64  // bytes received
	tail        uint32 // checksum of the partial chunk at length
	visible     int64  // bytes that every DataNode behind has acknowledged
	visibleTail uint32
	durable     bool   // the directory entries are on stable storage
	synced      bool   // finalized, and all of it on stable storage
	excess      bool   // the meta file has checksums beyond length
	torn        bool   // acknowledged bytes may be missing
	damaged     bool   // a recovery could not cut it, or bring its bytes to others
	unproven    bool   // bytes that are not visible may not be what their checksums say
	recovery    uint64 // the highest recovery promised to
	epoch       uint64 // counts the times bytes may have been taken back
	gone        bool
	unreadable  bool // the disk could not read all of it at the start
	writer      *Writer
}

// Info is what a replica is at one moment.
type Info struct {
	ID, Generation  uint64
	State           State
	Length, Visible int64 // bytes
	Storage         int   // index in [Config].Dirs
	Recovery        uint64
	Synced          bool
	HasWriter       bool
	// Torn says that the machine has died since the replica was written and before it was
	// finalized: what was acknowledged without hsync may be missing.
	Torn bool
}

// Hidden tells whether the replica is [Temporary]. It waits for nobody.
func (r *Replica) Hidden() bool { return r.hidden.Load() }

// Storage is the index of the replica's directory in [Config].Dirs.
func (r *Replica) Storage() int { return r.vol.index }

// Info returns what the replica is now. It waits for whoever changes the replica, and so for the
// disk.
func (r *Replica) Info() Info {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.info()
}

func (r *Replica) info() Info {
	return Info{ID: r.id, Generation: r.gen, State: r.state, Length: r.length, Visible: r.visible, Storage: r.vol.index,
		Recovery: r.recovery, Synced: r.synced, HasWriter: r.writer != nil, Torn: r.torn}
}

// stopWriter tells the writer to stop and waits for it; r.op is held, so that
// none follows.
func (r *Replica) stopWriter() error {
	r.mu.Lock()
	w := r.writer
	r.mu.Unlock()
	if w == nil {
		return nil
	}
	w.interrupt()
	t := time.NewTimer(r.store.takeOver)
	defer t.Stop()
	select {
	case <-w.done:
		return nil
	case <-t.C:
		return fmt.Errorf("block %d: its writer did not stop within %v", r.id, r.store.takeOver)
	}
}

// Verify compares every byte that is visible with the checksums; the error wraps
// [ErrCorrupt] if they don't match. After each portion pace is called, if it is
// not nil, with the number of bytes that were read; false ends the verification.
func (r *Replica) Verify(pace func(n int) bool) error {
	rd, err := r.Open()
	if err != nil {
		return err
	}
	defer rd.Close()
	batch := max(1, verifyBatch/rd.Sum.BytesPerChunk)
	buf := transfer.GetBuffer(batch * (rd.Sum.BytesPerChunk + 4))
	defer transfer.PutBuffer(buf)
	for off := int64(0); off < rd.Length; {
		n := int(min(int64(batch*rd.Sum.BytesPerChunk), rd.Length-off))
		sums := 4 * int(rd.Sum.Chunks(int64(n)))
		if err := rd.ReadVerified((*buf)[:n], (*buf)[n:n+sums], off); err != nil {
			return err
		}
		off += int64(n)
		if pace != nil && !pace(n) {
			return nil
		}
	}
	return nil
}

// A Reader reads a replica as it was when the reader was opened. One goroutine
// at a time.
type Reader struct {
	Info   Info
	Sum    transfer.Checksum
	Length int64 // bytes that may be read
	Bare   error // why there are no checksums; they can't be read then. nil: there are

	r     *Replica
	tail  uint32
	epoch uint64
	data  vfs.File
	meta  vfs.File
}

// Open opens the replica for reading what is visible of it.
func (r *Replica) Open() (*Reader, error) { return r.open(false) }

// OpenBare is Open for who compares nothing. A replica without its meta file is opened, too: see
// [Reader.Bare].
func (r *Replica) OpenBare() (*Reader, error) { return r.open(true) }

func (r *Replica) open(bare bool) (*Reader, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone || r.state == Temporary {
		return nil, fmt.Errorf("block %d: %w", r.id, ErrNotFound)
	}
	defer r.vol.watch.end(r.vol.watch.begin())
	// With the lock held, because a new generation renames the meta file.
	data, err := r.vol.fs.Open(r.vol.dataPath(r.id))
	if err != nil {
		return nil, r.openError(err)
	}
	meta, err := r.vol.fs.Open(r.vol.metaPath(r.id, r.gen))
	var missing error
	if bare && oserror.IsNotExist(err) {
		meta, missing, err = noFile{}, r.openError(err), nil
	}
	if err != nil {
		data.Close()
		return nil, r.openError(err)
	}
	return &Reader{Info: r.info(), Sum: r.sum, Length: r.visible, Bare: missing, r: r, tail: r.visibleTail, epoch: r.epoch, data: data, meta: meta}, nil
}

// noFile is in place of a meta file that is missing.
type noFile struct{ vfs.File }

func (noFile) ReadAt([]byte, int64) (int, error) { return 0, oserror.ErrNotExist }
func (noFile) Fd() uintptr                       { return vfs.InvalidFd }
func (noFile) Close() error                      { return nil }

// A missing file is damage; anything else, such as too many open files, is not.
func (r *Replica) openError(err error) error {
	if oserror.IsNotExist(err) {
		return fmt.Errorf("open block %d: %w: %w", r.id, ErrCorrupt, err)
	}
	return r.vol.at(fmt.Errorf("open block %d: %w", r.id, err))
}

// Close closes the reader.
func (rd *Reader) Close() error {
	return errors.Join(rd.data.Close(), rd.meta.Close())
}

// ReadVerified fills data from off, a multiple of the chunk, and sums with its
// checksums (four bytes a chunk, big-endian), and compares the two. data ends
// at a chunk's end or at Length. An error that wraps [ErrCorrupt] says that the
// replica is damaged, [ErrChanged] that it was cut or removed meanwhile.
func (rd *Reader) ReadVerified(data, sums []byte, off int64) error {
	err := rd.readVerified(data, sums, off)
	if err == nil {
		return nil
	}
	rd.r.mu.Lock()
	changed := rd.r.gone || rd.r.epoch != rd.epoch
	rd.r.mu.Unlock()
	if changed {
		return fmt.Errorf("read block %d at %d: %w: %w", rd.Info.ID, off, ErrChanged, err)
	}
	return rd.r.vol.at(fmt.Errorf("read block %d at %d: %w: %w", rd.Info.ID, off, ErrCorrupt, err))
}

func (rd *Reader) readVerified(data, sums []byte, off int64) error {
	defer rd.r.vol.watch.end(rd.r.vol.watch.begin())
	if err := readFull(rd.data, data, off); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if err := rd.Sums(sums, off/int64(rd.Sum.BytesPerChunk)); err != nil {
		return err
	}
	return rd.Sum.Verify(sums, data)
}

// Read is [Reader.ReadVerified] without the comparison, for who sends both to a client
// that makes it. With empty sums it reads data alone, for a client that makes none. Bytes that
// were cut or removed meanwhile are an error all the same.
func (rd *Reader) Read(data, sums []byte, off int64) error {
	defer rd.r.vol.watch.end(rd.r.vol.watch.begin())
	err := readFull(rd.data, data, off)
	if err == nil && len(sums) > 0 {
		err = rd.Sums(sums, off/int64(rd.Sum.BytesPerChunk))
	}
	rd.r.mu.Lock()
	changed := rd.r.gone || rd.r.epoch != rd.epoch
	rd.r.mu.Unlock()
	switch {
	case changed:
		return fmt.Errorf("read block %d at %d: %w", rd.Info.ID, off, errors.Join(ErrChanged, err))
	case err != nil:
		return rd.r.vol.at(fmt.Errorf("read block %d at %d: %w: %w", rd.Info.ID, off, ErrCorrupt, err))
	}
	return nil
}

// Sums fills sums with the checksums of the chunks from chunk on.
func (rd *Reader) Sums(sums []byte, chunk int64) error {
	full := min(int64(len(sums)/4), rd.Length/int64(rd.Sum.BytesPerChunk)-chunk)
	if err := readFull(rd.meta, sums[:4*full], headerSize+4*chunk); err != nil {
		return fmt.Errorf("checksums: %w", err)
	}
	if rest := sums[4*full:]; len(rest) > 0 {
		rest[0], rest[1], rest[2], rest[3] = byte(rd.tail>>24), byte(rd.tail>>16), byte(rd.tail>>8), byte(rd.tail)
	}
	return nil
}

// InitRecovery stops the writer and promises to the recovery with the given
// generation stamp that no older one will succeed. It returns what is here: no byte, if an
// earlier recovery found that the replica is damaged.
func (r *Replica) InitRecovery(blockGen, recovery uint64) (Info, error) {
	r.op.Lock()
	defer r.op.Unlock()
	if err := r.stopWriter(); err != nil {
		return Info{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.gone || r.state == Temporary:
		return Info{}, fmt.Errorf("recover block %d: %w", r.id, ErrNotFound)
	case r.gen < blockGen:
		return Info{}, fmt.Errorf("recover block %d: %w: here it has %d, the block %d", r.id, ErrGeneration, r.gen, blockGen)
	case r.gen >= recovery:
		return Info{}, fmt.Errorf("recover block %d: %w: here it has %d already, the recovery %d", r.id, ErrGeneration, r.gen, recovery)
	case r.recovery > recovery:
		return Info{}, fmt.Errorf("recover block %d: %w: recovery %d is under way, this one is %d", r.id, ErrGeneration, r.recovery, recovery)
	}
	r.recovery = recovery
	r.forgetUnproven()
	info := r.info()
	if r.damaged {
		info.Length, info.Torn = 0, true
	}
	return info, nil
}

// NoteDamaged notes that a recovery could not read the replica's bytes, which others need: as if it
// had none, it has no say in later recoveries.
func (r *Replica) NoteDamaged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.damaged = true
}

// forgetUnproven gives up the bytes that nobody has compared and that are not visible, and so
// not acknowledged. r.mu is held, and there is no writer.
func (r *Replica) forgetUnproven() {
	if r.unproven && r.visible < r.length {
		r.vol.used.Add(r.visible - r.length)
		r.length, r.tail, r.excess = r.visible, r.visibleTail, true
	}
	r.unproven = false
}

// Extend adds bytes at off to a replica that takes part in a recovery and lacks them. Bytes
// that it has already are dealt with as [Writer.Write] does. The replica stays what it is
// until Settle puts it on stable storage: torn, if it was.
func (r *Replica) Extend(recovery uint64, off int64, data, sums []byte, sum transfer.Checksum) (err error) {
	defer func() { err = r.vol.at(err) }()
	if n := len(sums); n == 0 || int64(n) != 4*sum.Chunks(int64(len(data))) {
		return fmt.Errorf("extend block %d: %w: %d bytes of checksums for %d bytes of data in chunks of %d", r.id, transfer.ErrChecksum, n, len(data), sum.BytesPerChunk)
	}
	r.op.Lock()
	defer r.op.Unlock()
	r.mu.Lock()
	switch {
	case r.gone:
		err = ErrNotFound
	case r.recovery != recovery || r.gen >= recovery:
		err = fmt.Errorf("%w: recovery %d is not under way, the last is %d", ErrGeneration, recovery, r.recovery)
	case r.state != BeingWritten && r.state != WaitingRecovery || r.writer != nil:
		err = fmt.Errorf("%w: %v", ErrState, r.state)
	case r.excess:
		err = r.forgetExcess()
	}
	gen, w := r.gen, &Writer{r: r, syncedTo: -1, length: r.length, tail: r.tail}
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("extend block %d: %w", r.id, err)
	}
	// r.op keeps the generation, and so the names, as they are, and writers away.
	defer r.vol.watch.end(r.vol.watch.begin())
	defer func() { _ = w.closeFiles() }()
	if w.data, err = r.vol.fs.OpenReadWrite(r.vol.dataPath(r.id), vfs.WriteCategoryUnspecified); err == nil {
		w.meta, err = r.vol.fs.OpenReadWrite(r.vol.metaPath(r.id, gen), vfs.WriteCategoryUnspecified)
	}
	if err != nil {
		return fmt.Errorf("extend block %d: %w", r.id, err)
	}
	_, err = w.Write(off, data, sums, sum)
	return err
}

// forgetExcess takes the checksums behind the replica's end away: bytes that come there
// may be found without theirs after a crash. r.op and r.mu are held, and there is no
// writer.
func (r *Replica) forgetExcess() error {
	v := r.vol
	data, err := v.fs.Open(v.dataPath(r.id))
	if err != nil {
		return err
	}
	defer data.Close()
	if err := data.Sync(); err != nil {
		return err
	}
	meta, err := v.fs.Open(v.metaPath(r.id, r.gen))
	if err != nil {
		return err
	}
	defer meta.Close()
	h := metaHeader{id: r.id, sum: r.sum, torn: r.torn}
	h.slots[slotDurableA] = slot{length: r.length, tail: r.tail, valid: true, synced: true}
	if err := v.withRoom(func() error { return r.rewriteMeta(meta, r.gen, r.length/int64(r.sum.BytesPerChunk), &h) }); err != nil {
		return err
	}
	r.durable, r.excess = true, false
	return nil
}

// Settle ends a recovery: the replica is cut to length, gets the recovery's
// generation stamp and is finalized, durably. Repeating it is harmless.
func (r *Replica) Settle(recovery uint64, length int64) (err error) {
	defer func() { err = r.vol.at(err) }()
	r.op.Lock()
	defer r.op.Unlock()
	info := r.Info()
	switch {
	case info.Generation == recovery && info.State == Finalized && info.Length == length:
		return nil
	case info.Recovery != recovery:
		return fmt.Errorf("settle block %d: %w: recovery %d was not begun here, the last is %d", r.id, ErrGeneration, recovery, info.Recovery)
	case info.Generation >= recovery:
		return fmt.Errorf("settle block %d: %w: here it has %d already, the recovery %d", r.id, ErrGeneration, info.Generation, recovery)
	case length < 0 || length > info.Length:
		return fmt.Errorf("settle block %d at %d bytes: %w: here it has %d", r.id, length, ErrLength, info.Length)
	}
	if err := r.stopWriter(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return fmt.Errorf("settle block %d: %w", r.id, ErrNotFound)
	}
	defer r.vol.watch.end(r.vol.watch.begin())
	r.store.changing(r.id)
	if err := r.cut(recovery, length, true); err != nil {
		r.damaged = errors.Is(err, ErrCorrupt)
		return fmt.Errorf("settle block %d at %d bytes: %w", r.id, length, err)
	}
	return nil
}

// cut gives the replica a new generation and a length of at most what it has,
// durably, and finalizes it or leaves it being written. Without a writer; r.mu
// is held. The data file may keep bytes beyond the length after a crash: without
// checksums they count for nothing, and an append writes over them.
func (r *Replica) cut(gen uint64, length int64, finalize bool) error {
	v := r.vol
	bpc := int64(r.sum.BytesPerChunk)
	data, err := v.fs.Open(v.dataPath(r.id))
	if err != nil {
		return err
	}
	defer data.Close()
	meta, err := v.fs.OpenReadWrite(v.metaPath(r.id, r.gen), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer meta.Close()
	tail := r.tail
	if length < r.length {
		if tail, err = r.sumBefore(data, meta, length); err != nil {
			return err
		}
	}
	if err := data.Sync(); err != nil {
		return err
	}
	last := slot{length: length, tail: tail, valid: true, synced: true}
	h := metaHeader{id: r.id, sum: r.sum}
	h.slots[slotDurableA] = last
	if finalize {
		h.slots[slotFinal] = last
	}
	if r.excess || length/bpc < r.length/bpc || r.state == Temporary {
		// A new file, because old checksums behind the end would vouch for old bytes.
		if err := v.withRoom(func() error { return r.rewriteMeta(meta, gen, length/bpc, &h) }); err != nil {
			return err
		}
	} else {
		if _, err := v.writeAt(meta, appendHeader(nil, &h), 0); err != nil {
			return err
		}
		if err := meta.Sync(); err != nil {
			return err
		}
		if err := v.renameMeta(r.id, r.gen, gen); err != nil {
			return err
		}
	}
	v.trim(r.id, length)
	v.used.Add(length - r.length)
	if length < r.length {
		r.epoch++
	}
	r.gen, r.length, r.tail = gen, length, tail
	r.durable, r.excess, r.torn = true, false, false
	if finalize {
		r.state, r.synced = Finalized, true
		r.visible, r.visibleTail = length, tail
	} else {
		r.state, r.synced = BeingWritten, false
		if r.visible > length {
			r.visible, r.visibleTail = length, tail
		}
	}
	return nil
}

// trim gives the room back that bytes of a data file behind the replica's end take, and tells
// whether there are none. It is tried again when the store is opened.
func (v *volume) trim(id uint64, length int64) bool {
	info, err := v.fs.Stat(v.dataPath(id))
	if err != nil || info.Size() <= length {
		return err == nil
	}
	f, err := v.fs.OpenReadWrite(v.dataPath(id), vfs.WriteCategoryUnspecified)
	if err == nil {
		t, ok := f.(interface{ Truncate(size int64) error })
		if !ok { // of a file system of tests
			_ = f.Close()
			return false
		}
		err = errors.Join(t.Truncate(length), f.Close())
	}
	if err != nil {
		v.log.Warn("the room of bytes behind a replica's end can't be given back", "block", id, "err", err)
	}
	return err == nil
}

func (v *volume) renameMeta(id, from, to uint64) error {
	if from != to {
		if err := v.fs.Rename(v.metaPath(id, from), v.metaPath(id, to)); err != nil {
			return err
		}
	}
	return syncDir(v.fs, v.subdir(id))
}

// rewriteMeta puts a new meta file with the first chunks checksums of old in
// the place of the present one.
func (r *Replica) rewriteMeta(old vfs.File, gen uint64, chunks int64, h *metaHeader) error {
	v := r.vol
	name := v.metaPath(r.id, gen)
	f, err := v.fs.Create(name+tmpSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(appendHeader(nil, h))
	if err == nil {
		_, err = io.Copy(onlyWriter{f}, io.NewSectionReader(old, headerSize, 4*chunks))
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := v.fs.Rename(name+tmpSuffix, name); err != nil {
		return err
	}
	if err := syncDir(v.fs, v.subdir(r.id)); err != nil {
		return err
	}
	if gen == r.gen {
		return nil
	}
	return v.fs.Remove(v.metaPath(r.id, r.gen))
}

type onlyWriter struct{ io.Writer }

// sumBefore returns the checksum of the partial chunk that ends at off, at most
// the replica's length, from bytes that it verifies. r.mu is held, or the
// caller is the writer.
func (r *Replica) sumBefore(data, meta vfs.File, off int64) (uint32, error) {
	bpc := int64(r.sum.BytesPerChunk)
	start := off / bpc * bpc
	if off == start {
		return 0, nil
	}
	if off == r.length {
		return r.tail, nil
	}
	chunk := make([]byte, min(bpc, r.length-start))
	if err := readFull(data, chunk, start); err != nil {
		return 0, err
	}
	want := r.tail
	if int64(len(chunk)) == bpc {
		var b [4]byte
		if err := readFull(meta, b[:], headerSize+4*(start/bpc)); err != nil {
			return 0, err
		}
		want = uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	}
	if got := r.sum.Update(0, chunk); got != want {
		return 0, fmt.Errorf("%w: chunk at %d: %w", ErrCorrupt, start, transfer.ErrChecksum)
	}
	return r.sum.Update(0, chunk[:off-start]), nil
}

// SyncFinalized puts a replica that was finalized without hsync on stable
// storage and notes that, so that it need not be verified after a crash of the
// machine. It promises nothing to anybody: the note itself is left to the
// operating system, which makes this cheap for a replica that has been written
// back already.
func (r *Replica) SyncFinalized() (err error) {
	defer func() { err = r.vol.at(err) }()
	r.op.Lock()
	defer r.op.Unlock()
	r.mu.Lock()
	needed := r.state == Finalized && !r.synced && !r.gone
	final := slot{length: r.length, tail: r.tail, valid: true, synced: true}
	gen, durable := r.gen, r.durable
	r.mu.Unlock()
	if !needed {
		return nil
	}
	v := r.vol
	defer v.watch.end(v.watch.begin())
	// r.op keeps the generation, and so the names, as they are.
	data, err := v.fs.Open(v.dataPath(r.id))
	if err != nil {
		return err
	}
	defer data.Close()
	meta, err := v.fs.OpenReadWrite(v.metaPath(r.id, gen), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer meta.Close()
	if err := errors.Join(data.Sync(), meta.Sync()); err != nil {
		return err
	}
	if !durable {
		// Or the names of what was synced could be lost.
		if err := syncDir(v.fs, v.subdir(r.id)); err != nil {
			return err
		}
	}
	if _, err := v.writeAt(meta, appendSlot(nil, slotFinal, final), slotOffset(slotFinal)); err != nil {
		return err
	}
	r.mu.Lock()
	r.synced, r.durable = true, true
	r.mu.Unlock()
	return nil
}
