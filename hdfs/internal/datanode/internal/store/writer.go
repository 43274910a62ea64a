package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// A Writer adds bytes to a replica; a replica has at most one. One goroutine at
// a time, except for [Writer.Acked].
type Writer struct {
	r         *Replica
	data      vfs.File
	meta      vfs.File
	interrupt func()
	done      chan struct{}
	turn      slotIndex // the durable slot to write next
	scratch   []byte
	length    int64  // with what has been taken and is not told to r yet
	tail      uint32 // checksum of the partial chunk at length
	sums      []byte // of the full chunks between r.length and length, to be written
	syncedTo  int64  // length at the last sync, -1 if never
	young     bool   // its data file is a new one, with less than spares.first bytes or none
	keeps     bool   // some of the replica was put on stable storage: its end has to be, too
	reserved  int64  // of its directory's bytes
	slotBuf   [slotSize]byte
	over      sync.Mutex    // held while bytes are written, and while a spare is cut
	unused    int64         // bytes of a spare that lie behind what has been written
	io        time.Duration // spent on files since it began
}

// IO is how long the writer has been at its files: writing, syncing and finalizing. It
// may be called when Write may.
func (w *Writer) IO() time.Duration { return w.io }

// lap counts the time since began as spent on files.
func (w *Writer) lap(began time.Time) { w.io += time.Since(began) }

// Mode tells how a writer comes to a replica that exists.
type Mode int

// The modes, after the stages of WRITE_BLOCK.
const (
	Append         Mode = iota // a finalized replica of exactly Min bytes
	RecoverAppend              // finalized or being written, cut to Min bytes
	RecoverWriting             // being written, with at least Min visible and at most Max bytes
	RecoverClose               // as RecoverAppend; the caller finalizes it
)

// ReopenOptions tell what the writer of a replica that exists expects of it.
type ReopenOptions struct {
	Mode          Mode
	Generation    uint64 // of the block as the client knows it
	NewGeneration uint64 // at least Generation
	Min, Max      int64  // bytes; see Mode
	// Interrupt is called, once or more, when another writer or a recovery
	// takes the replica over: the writer's owner must call Close soon.
	Interrupt func()
}

// Create begins a new replica. A temporary one is invisible until it is
// finalized, and gone if it never is. A replica of an older generation, which is
// of no use to anybody, makes room, unless a recovery of gen or above has begun
// with it; its writer is stopped. sum of the NULL type is replaced by
// CRC32C: nothing is stored without checksums.
func (s *Store) Create(id, gen uint64, sum transfer.Checksum, temporary bool, interrupt func(), want Want) (*Writer, error) {
	if sum.Type == hdfspb.ChecksumTypeProto_CHECKSUM_NULL {
		sum = transfer.CRC32C()
	}
	v, err := s.choose(want)
	if err != nil {
		return nil, fmt.Errorf("create block %d: %w", id, err)
	}
	r := &Replica{store: s, vol: v, id: id, gen: gen, sum: sum, state: BeingWritten}
	if temporary {
		r.state = Temporary
		r.hidden.Store(true)
	}
	w := &Writer{r: r, interrupt: interrupt, done: make(chan struct{}), syncedTo: -1, young: true}
	r.writer = w
	if w.interrupt == nil {
		w.interrupt = func() {}
	}
	if err := s.removeOlder(id, gen); err != nil {
		return nil, fmt.Errorf("create block %d at generation %d: %w", id, gen, err)
	}
	r.op.Lock()
	defer r.op.Unlock()
	// Held until the files are there: others that find the replica wait.
	r.mu.Lock()
	s.mu.Lock()
	if old := s.replicas[id]; old != nil {
		s.mu.Unlock()
		r.mu.Unlock()
		i := old.Info()
		return nil, fmt.Errorf("create block %d at generation %d: %w: %v at generation %d with %d bytes", id, gen, ErrExists, i.State, i.Generation, i.Length)
	}
	if promised := s.promises[id].recovery; promised > gen {
		s.mu.Unlock()
		r.mu.Unlock()
		return nil, fmt.Errorf("create block %d at generation %d: %w: recovery %d was told that it is not here", id, gen, ErrGeneration, promised)
	}
	if !v.good() { // Fail would not find r any more
		s.mu.Unlock()
		r.mu.Unlock()
		return nil, fmt.Errorf("create block %d: the data directory %s has just failed", id, v.dir)
	}
	s.replicas[id] = r
	s.mu.Unlock()
	err = w.create(temporary)
	if err != nil {
		r.writer = nil
	}
	r.mu.Unlock()
	if err != nil {
		close(w.done)
		_ = w.closeFiles()
		if derr := s.drop(r); derr != nil {
			s.log.Warn("remains of a replica", "block", id, "err", derr)
		}
		return nil, v.at(fmt.Errorf("create block %d: %w", id, err))
	}
	w.reserved = max(0, want.Size)
	v.reserved.Add(w.reserved)
	return w, nil
}

// removeOlder removes the replica of a block if its generation is below gen.
func (s *Store) removeOlder(id, gen uint64) error {
	old, err := s.Get(id)
	if err != nil {
		return nil // nothing to remove
	}
	if i := old.Info(); i.Generation >= gen || i.Recovery >= gen {
		return nil // Create tells what is there
	}
	old.op.Lock()
	defer old.op.Unlock()
	if i := old.Info(); i.Generation >= gen || i.Recovery >= gen {
		return nil
	}
	if err := old.stopWriter(); err != nil {
		return err
	}
	if err := s.drop(old); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

func (w *Writer) create(temporary bool) error {
	r, v := w.r, w.r.vol
	defer v.watch.end(v.watch.begin())
	if err := v.makeSubdir(r.id); err != nil {
		return err
	}
	var err error
	if w.data, err = v.fs.Create(v.dataPath(r.id), vfs.WriteCategoryUnspecified); err != nil {
		return err
	}
	if w.meta, err = v.fs.Create(v.metaPath(r.id, r.gen), vfs.WriteCategoryUnspecified); err != nil {
		return err
	}
	h := metaHeader{id: r.id, sum: r.sum, temporary: temporary}
	_, err = v.writeAt(w.meta, appendHeader(make([]byte, 0, headerSize), &h), 0)
	return err
}

// Reopen begins to write to a replica that exists, under a new generation
// stamp, which is on stable storage when Reopen returns. A writer that it still
// has is stopped.
func (s *Store) Reopen(id uint64, o ReopenOptions) (*Writer, error) {
	r, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	w, err := r.reopen(o)
	if err != nil {
		return nil, r.vol.at(fmt.Errorf("reopen block %d: %w", id, err))
	}
	return w, nil
}

func (r *Replica) reopen(o ReopenOptions) (*Writer, error) {
	if o.NewGeneration < o.Generation {
		return nil, fmt.Errorf("%w: the new one, %d, is below the block's %d", ErrGeneration, o.NewGeneration, o.Generation)
	}
	r.op.Lock()
	defer r.op.Unlock()
	if err := r.admit(o); err != nil {
		return nil, err
	}
	if err := r.stopWriter(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.vol.watch.end(r.vol.watch.begin())
	// Checked again: the stopped writer may have written until then.
	if err := r.admitLocked(o); err != nil {
		return nil, err
	}
	r.store.changing(r.id)
	if r.visible >= o.Min {
		r.forgetUnproven()
	}
	length := r.length
	if o.Mode == RecoverAppend || o.Mode == RecoverClose {
		length = min(length, o.Min)
	}
	if r.excess || length < r.length {
		if err := r.cut(o.NewGeneration, length, false); err != nil {
			return nil, err
		}
	}
	r.unproven = false
	w := &Writer{r: r, interrupt: o.Interrupt, done: make(chan struct{}), syncedTo: -1, length: r.length, tail: r.tail}
	if w.interrupt == nil {
		w.interrupt = func() {}
	}
	if err := w.openFiles(); err != nil {
		w.endLoan(false)
		_ = w.closeFiles()
		return nil, err
	}
	if r.gen != o.NewGeneration {
		if err := r.vol.renameMeta(r.id, r.gen, o.NewGeneration); err != nil {
			w.endLoan(false)
			_ = w.closeFiles()
			return nil, err
		}
		r.gen = o.NewGeneration
	}
	r.state, r.synced, r.torn = BeingWritten, false, false
	r.writer = w
	return w, nil
}

func (r *Replica) admit(o ReopenOptions) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.admitLocked(o)
}

func (r *Replica) admitLocked(o ReopenOptions) error {
	if r.gone || r.state == Temporary {
		return ErrNotFound
	}
	if r.gen < o.Generation || r.gen > o.NewGeneration || o.Mode == Append && r.gen != o.Generation {
		return fmt.Errorf("%w: here it has %d, the block %d and then %d", ErrGeneration, r.gen, o.Generation, o.NewGeneration)
	}
	if r.recovery > o.NewGeneration {
		return fmt.Errorf("%w: recovery %d is under way", ErrGeneration, r.recovery)
	}
	switch o.Mode {
	case Append:
		if r.state != Finalized {
			return fmt.Errorf("%w: %v, not finalized", ErrState, r.state)
		}
		if r.length != o.Min {
			return fmt.Errorf("%w: here it has %d bytes, expected are %d", ErrLength, r.length, o.Min)
		}
	case RecoverAppend, RecoverClose:
		if r.length < o.Min {
			return fmt.Errorf("%w: here it has %d bytes, expected are %d", ErrLength, r.length, o.Min)
		}
		if r.state == Finalized && r.length != o.Min {
			return fmt.Errorf("%w: finalized with %d bytes, expected are %d", ErrLength, r.length, o.Min)
		}
	case RecoverWriting:
		if r.state == Finalized {
			return fmt.Errorf("%w: it is finalized", ErrState)
		}
		if r.visible < o.Min || r.length > o.Max {
			return fmt.Errorf("%w: here it has %d bytes, %d of them visible; expected are %d to %d", ErrLength, r.length, r.visible, o.Min, o.Max)
		}
	}
	return nil
}

// openFiles opens the files of a replica and takes back its being finalized;
// r.mu is held.
func (w *Writer) openFiles() error {
	r, v := w.r, w.r.vol
	var err error
	if w.data, err = v.fs.OpenReadWrite(v.dataPath(r.id), vfs.WriteCategoryUnspecified); err != nil {
		return err
	}
	if info, err := w.data.Stat(); err != nil {
		return err
	} else if info.Size() > r.length {
		w.lend(info.Size())
	}
	if w.meta, err = v.fs.OpenReadWrite(v.metaPath(r.id, r.gen), vfs.WriteCategoryUnspecified); err != nil {
		return err
	}
	var b [headerSize]byte
	if err := readFull(w.meta, b[:], 0); err != nil {
		return fmt.Errorf("%w: header: %w", ErrCorrupt, err)
	}
	h, err := decodeHeader(b[:])
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if h.id != r.id || h.sum.Type != r.sum.Type || h.sum.BytesPerChunk != r.sum.BytesPerChunk {
		return fmt.Errorf("%w: the header is not the one that was read at the start", ErrCorrupt)
	}
	w.keeps = h.slots[slotDurableA].valid || h.slots[slotDurableB].valid || r.synced
	if d := h.slots; d[slotDurableB].length < d[slotDurableA].length || !d[slotDurableB].valid {
		w.turn = slotDurableB
	}
	now := slot{length: r.length, tail: r.tail, valid: true}
	if r.state == Finalized && r.synced {
		// From now on a durable slot must vouch, across crashes, for what the
		// final slot vouched for.
		h.slots[w.turn] = now
		w.turn ^= 1
	}
	final := h.slots[slotFinal].valid
	h.slots[slotFlushed] = now
	h.slots[slotFinal] = slot{}
	h.torn = false      // or it would not have had what its writer expects
	h.temporary = false // a copy, which its being finalized has kept until now
	if _, err = v.writeAt(w.meta, appendHeader(b[:0], &h), 0); err != nil || !final {
		return err
	}
	// Before the rename becomes durable: or a power cut would leave a finalized
	// replica of the old length under the new generation.
	return w.meta.SyncData()
}

// Info returns what the replica is now.
func (w *Writer) Info() Info { return w.r.Info() }

// Replica returns the replica that w writes.
func (w *Writer) Replica() *Replica { return w.r }

// Write adds a packet's data at offset off in the block. sums are its checksums
// as sum tells, one for each chunk of data from its start; they are compared
// first. Bytes that the replica has already are not written again, as in HDFS. They have
// matched their checksums: what nobody has compared is given up when a replica is
// reopened. Those of the partial chunk at its end must be the same if the chunk goes on. It
// returns the checksum of the partial chunk at the packet's end (0 if there is none),
// for [Writer.Acked].
//
// When Write returns the bytes are the operating system's: they survive the
// death of the process.
func (w *Writer) Write(off int64, data, sums []byte, sum transfer.Checksum) (tail uint32, err error) {
	return w.write(off, data, sums, sum, true)
}

// WriteUnproven is [Writer.Write] without the comparison of data and checksums, for bytes
// that another DataNode compares before they are acknowledged. What has not become
// visible is cut off when another pipeline goes on with the replica: it may be what the
// other one has refused.
func (w *Writer) WriteUnproven(off int64, data, sums []byte, sum transfer.Checksum) (tail uint32, err error) {
	return w.write(off, data, sums, sum, false)
}

func (w *Writer) write(off int64, data, sums []byte, sum transfer.Checksum, prove bool) (tail uint32, err error) {
	defer w.r.vol.watch.end(w.r.vol.watch.begin())
	p := Piece{Off: off, Data: data, Sums: sums}
	err = w.take(&p, sum, prove)
	if err == nil {
		err = w.commit(prove)
	}
	if err != nil {
		return 0, w.failed(off, err)
	}
	return p.Tail, nil
}

// A Piece is a packet's part of a block, as [Writer.Write] describes it.
type Piece struct {
	Off        int64
	Data, Sums []byte
	Tail       uint32 // what Write returns
}

// WriteAll is [Writer.Write], or without prove [Writer.WriteUnproven], of pieces that
// follow each other; their checksums are written together. It returns how many were
// written, and their checksums with them; the error is that of the next one, or of all that follow. With
// an error there is a next one.
func (w *Writer) WriteAll(pieces []Piece, sum transfer.Checksum, prove bool) (done int, err error) {
	defer w.r.vol.watch.end(w.r.vol.watch.begin())
	for done < len(pieces) && err == nil {
		if err = w.take(&pieces[done], sum, prove); err == nil {
			done++
		}
	}
	if cerr := w.commit(prove); cerr != nil {
		err = cerr
	}
	// A commit that has failed has given up what was taken since the last, also one that came before
	// a piece that begins inside a chunk. Pieces may go back, so that one behind the first that is lost need not be.
	for i := range pieces[:done] {
		if pieces[i].Off+int64(len(pieces[i].Data)) > w.r.length {
			done = i
			break
		}
	}
	if err != nil {
		done = min(done, len(pieces)-1)
		return done, w.failed(pieces[done].Off, err)
	}
	return done, nil
}

func (w *Writer) failed(off int64, err error) error {
	return w.r.vol.at(fmt.Errorf("write block %d, packet at %d: %w", w.r.id, off, err))
}

// take writes the data of a piece, and keeps its checksums for commit.
func (w *Writer) take(p *Piece, sum transfer.Checksum, prove bool) error {
	r, off, data := w.r, p.Off, p.Data
	if off < 0 || off > MaxBlock-int64(len(data)) {
		return fmt.Errorf("%w: offset %d", ErrLength, off)
	}
	if off > w.length {
		return fmt.Errorf("%w: only %d bytes have come", ErrLength, w.length)
	}
	bpc := int64(r.sum.BytesPerChunk)
	end := off + int64(len(data))
	own := p.Sums
	none := len(p.Sums) == 0 && sum.Size() > 0 // nothing vouches for the data
	others := none || sum.Type != r.sum.Type || sum.BytesPerChunk != r.sum.BytesPerChunk || off%bpc != 0
	if !none && (prove || others) { // checksums that are made here must not be of bytes that are wrong
		if err := sum.Verify(p.Sums, data); err != nil {
			return err
		}
	}
	if others {
		var err error
		if own, err = w.ownSums(off, data, prove); err != nil {
			return err
		}
	}
	if end%bpc != 0 {
		p.Tail = binary.BigEndian.Uint32(own[len(own)-4:])
	}
	if end <= w.length {
		return nil
	}
	first, from, to := off/bpc, w.length/bpc, end/bpc // chunks
	if off < w.length && w.length%bpc != 0 {
		chunkEnd := min((from+1)*bpc, end)
		if got := r.sum.Update(w.tail, data[w.length-off:chunkEnd-off]); got != binary.BigEndian.Uint32(own[4*(from-first):]) {
			return fmt.Errorf("%w: bytes that were sent again differ from those sent before", transfer.ErrChecksum)
		}
	}
	defer w.lap(time.Now())
	if w.young && len(data) >= r.vol.spares.first {
		w.useSpare()
	}
	if err := w.put(data[w.length-off:]); err != nil {
		return err
	}
	w.young = w.young && w.length < int64(r.vol.spares.first)
	w.sums = append(w.sums, own[4*(from-first):4*(to-first)]...)
	w.tail = p.Tail
	return nil
}

// commit writes the checksums that take has kept: the bytes they cover are the
// replica's from then on. After an error they are not.
func (w *Writer) commit(proven bool) (err error) {
	r := w.r
	if w.length == r.length {
		return nil
	}
	defer func() {
		w.sums = w.sums[:0]
		if err != nil {
			w.over.Lock()
			w.length, w.tail = r.length, r.tail
			w.over.Unlock()
			err = fmt.Errorf("checksums: %w", err)
		}
	}()
	defer w.lap(time.Now())
	bpc := int64(r.sum.BytesPerChunk)
	if len(w.sums) > 0 {
		if _, err := r.vol.writeAt(w.meta, w.sums, headerSize+4*(r.length/bpc)); err != nil {
			return err
		}
	}
	if w.length%bpc != 0 {
		if err := w.writeSlot(slotFlushed, slot{length: w.length, tail: w.tail, valid: true}); err != nil {
			return err
		}
	}
	r.vol.used.Add(w.length - r.length)
	w.release(min(w.reserved, w.length-r.length))
	r.mu.Lock()
	r.length, r.tail = w.length, w.tail
	r.unproven = r.unproven || !proven
	r.mu.Unlock()
	return nil
}

// release gives room back that was reserved.
func (w *Writer) release(n int64) {
	if n > 0 {
		w.reserved -= n
		w.r.vol.reserved.Add(-n)
	}
}

// ownSums computes the replica's kind of checksums for the chunks that data at
// off touches; the first covers its chunk from the start.
func (w *Writer) ownSums(off int64, data []byte, prove bool) ([]byte, error) {
	r := w.r
	bpc := int64(r.sum.BytesPerChunk)
	n := 4 * int((off%bpc+int64(len(data))+bpc-1)/bpc)
	if cap(w.scratch) < n {
		w.scratch = make([]byte, n)
	}
	own := w.scratch[:n]
	if off%bpc == 0 {
		r.sum.Sum(own, data)
		return own, nil
	}
	if err := w.commit(prove); err != nil { // sumBefore knows only the replica's bytes
		return nil, err
	}
	before, err := r.sumBefore(w.data, w.meta, off)
	if err != nil {
		return nil, err
	}
	rest := min(bpc-off%bpc, int64(len(data)))
	binary.BigEndian.PutUint32(own, r.sum.Update(before, data[:rest]))
	r.sum.Sum(own[4:], data[rest:])
	return own, nil
}

func (w *Writer) writeSlot(i slotIndex, s slot) error {
	_, err := w.r.vol.writeAt(w.meta, appendSlot(w.slotBuf[:0], i, s), slotOffset(i))
	return err
}

// Acked makes the bytes before end visible to readers. tail is what Write
// returned for the packet that ended there. It may be called while another
// goroutine writes. After Close it does nothing.
func (w *Writer) Acked(end int64, tail uint32) {
	w.r.mu.Lock()
	w.acked(end, tail)
}

// TryAcked is Acked, or false if that would wait for who changes or opens the
// replica, and so for the disk.
func (w *Writer) TryAcked(end int64, tail uint32) bool {
	if !w.r.mu.TryLock() {
		return false
	}
	w.acked(end, tail)
	return true
}

// acked is Acked with r.mu held, which it gives back.
func (w *Writer) acked(end int64, tail uint32) {
	r := w.r
	if r.writer == w && end > r.visible && end <= r.length {
		r.visible, r.visibleTail = end, tail
	}
	r.mu.Unlock()
}

// Sync returns when everything written so far is on stable storage.
func (w *Writer) Sync() (err error) {
	r := w.r
	defer func() { err = r.vol.at(err) }()
	if w.syncedTo == r.length {
		return nil
	}
	defer r.vol.watch.end(r.vol.watch.begin())
	defer w.lap(time.Now())
	if err := w.writeSlot(w.turn, slot{length: r.length, tail: r.tail, valid: true}); err != nil {
		return fmt.Errorf("sync block %d: %w", r.id, err)
	}
	if err := w.data.SyncData(); err != nil {
		return fmt.Errorf("sync block %d: %w", r.id, err)
	}
	if err := w.meta.SyncData(); err != nil {
		return fmt.Errorf("sync checksums of block %d: %w", r.id, err)
	}
	if !r.durable {
		if err := syncDir(r.vol.fs, r.vol.subdir(r.id)); err != nil {
			return fmt.Errorf("sync the directory of block %d: %w", r.id, err)
		}
		r.mu.Lock()
		r.durable = true
		r.mu.Unlock()
	}
	w.turn ^= 1
	w.syncedTo, w.keeps = r.length, true
	return nil
}

// Finalize makes the replica complete. Like its bytes, that survives the death
// of the process; and that of the machine, if sync, or if bytes of the replica
// were ever synced: were the replica shorter than the NameNode knows the block
// to be, nobody could read even those.
func (w *Writer) Finalize(sync bool) (err error) {
	r := w.r
	defer func() { err = r.vol.at(err) }()
	defer r.vol.watch.end(r.vol.watch.begin())
	sync = sync || w.keeps
	if sync {
		if err := w.Sync(); err != nil {
			return err
		}
	}
	defer w.lap(time.Now())
	final := slot{length: r.length, tail: r.tail, valid: true, synced: w.syncedTo == r.length}
	if err := w.writeSlot(slotFinal, final); err != nil {
		return fmt.Errorf("finalize block %d: %w", r.id, err)
	}
	if sync {
		if err := w.meta.SyncData(); err != nil {
			return fmt.Errorf("finalize block %d: %w", r.id, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return fmt.Errorf("finalize block %d: %w", r.id, ErrNotFound)
	}
	r.state = Finalized
	r.hidden.Store(false)
	r.synced = sync // the slot too, not only what it tells of
	r.visible, r.visibleTail = r.length, r.tail
	return nil
}

// Publish makes a temporary replica one that is being written, all of it
// visible: what a client transfers to a new member of its pipeline. It is on stable
// storage then, since its bytes may have been hsynced where they came from.
func (w *Writer) Publish() (err error) {
	r := w.r
	defer func() { err = r.vol.at(err) }()
	defer r.vol.watch.end(r.vol.watch.begin())
	var b [headerSize]byte
	if err := readFull(w.meta, b[:], 0); err != nil {
		return fmt.Errorf("publish block %d: %w", r.id, err)
	}
	h, err := decodeHeader(b[:])
	if err != nil {
		return fmt.Errorf("publish block %d: %w", r.id, err)
	}
	h.temporary = false
	if _, err := r.vol.writeAt(w.meta, appendHeader(b[:0], &h), 0); err != nil {
		return fmt.Errorf("publish block %d: %w", r.id, err)
	}
	if err := w.Sync(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = BeingWritten
	r.hidden.Store(false)
	r.visible, r.visibleTail = r.length, r.tail
	return nil
}

// Close ends the writing. A replica that was not finalized stays for another
// writer or a recovery; a temporary one, or any if drop, is removed.
func (w *Writer) Close(drop bool) error {
	r := w.r
	final := r.Info().State == Finalized
	rest := w.endLoan(!final && !drop)
	err := w.closeFiles()
	w.release(w.reserved)
	r.mu.Lock()
	r.writer = nil
	drop = (drop && r.state != Finalized || r.state == Temporary) && !r.gone
	r.mu.Unlock()
	if rest && final { // it has tens of thousands of pages, for which no client should wait
		r.store.cuts.Go(func() { r.cutSpare() })
	}
	if drop {
		// Before done: whoever takes over finds it gone.
		if derr := r.store.drop(r); err == nil {
			err = derr
		}
	}
	close(w.done)
	if err != nil {
		return fmt.Errorf("close block %d: %w", r.id, err)
	}
	return nil
}

func (w *Writer) closeFiles() error {
	var err error
	for _, f := range []vfs.File{w.data, w.meta} {
		if f != nil {
			if cerr := f.Close(); err == nil {
				err = cerr
			}
		}
	}
	w.data, w.meta = nil, nil
	return err
}
