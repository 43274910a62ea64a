package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/tmpfs"
)

// load looks through everything in a directory. Replicas that were being written are cut to
// what their checksums prove.
func (v *volume) load(cfg *Config) error {
	bootID, spare := cfg.BootID, int64(0)
	if v.memory = v.fs == vfs.Default && tmpfs.Holds(v.dir); v.memory {
		spare = cfg.Spare
		if mount, small := tmpfs.SmallPages(v.dir); small {
			v.log.Info("a data directory lies in memory in pages of 4 KiB; in large ones reads and writes take much less processor time", "dir", v.dir, "do", "mount -o remount,huge=within_size "+mount)
		}
	}
	if err := v.prepareSpares(spare); err != nil {
		return err
	}
	boot := v.fs.PathJoin(v.dir, "boot")
	last, _, err := readSmall(v.fs, boot, 256)
	if err != nil {
		return err
	}
	sameBoot := bootID != "" && bootID == string(last)
	if err := v.scanDirectories(sameBoot); err != nil {
		return err
	}
	if err := v.readAgain(); err != nil {
		return err
	}
	// Last, because an interrupted look-through must be repeated.
	if !sameBoot && bootID != "" {
		return replaceFile(v.fs, boot, []byte(bootID))
	}
	return nil
}

func (v *volume) scanDirectories(sameBoot bool) error {
	names, err := v.fs.List(v.blocks())
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for _, name := range names {
		dir := v.fs.PathJoin(v.blocks(), name)
		var index byte
		if n, err := fmt.Sscanf(name, "%02x", &index); n != 1 || err != nil || name != fmt.Sprintf("%02x", index) {
			v.log.Warn("ignoring what is not a directory of blocks", "path", dir)
			continue
		}
		v.dirs[index] = true
		g.Go(func() error { return v.scanDirectory(dir, index, sameBoot) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// From now on this process relies on what an earlier one left unsynced here.
	return syncDir(v.fs, v.blocks())
}

func (v *volume) scanDirectory(dir string, index byte, sameBoot bool) error {
	names, err := v.fs.List(dir)
	if err != nil {
		return err
	}
	blocks := map[uint64]*blockFiles{}
	for _, name := range names {
		id, gen, meta, ok := parseName(name)
		if !ok || subdirIndex(id) != index {
			if strings.HasSuffix(name, damagedSuffix) {
				continue
			}
			if id, gen, ok := parsePromise(name); ok && subdirIndex(id) == index {
				if err := v.loadPromise(dir, name, id, gen); err != nil {
					return err
				}
				continue
			}
			if strings.HasSuffix(name, tmpSuffix) {
				if err := v.fs.Remove(v.fs.PathJoin(dir, name)); err != nil {
					return err
				}
				continue
			}
			v.log.Warn("ignoring what is not a block's file", "path", v.fs.PathJoin(dir, name))
			continue
		}
		f := blocks[id]
		if f == nil {
			f = &blockFiles{volume: v, block: id, sameBoot: sameBoot}
			blocks[id] = f
		}
		if meta {
			f.metas = append(f.metas, gen)
		} else {
			f.data = true
		}
	}
	for _, f := range blocks {
		err := f.decide()
		if err != nil && f.unreadable {
			v.loading.Lock()
			v.unread = append(v.unread, f)
			v.loading.Unlock()
			continue
		}
		if err == nil {
			err = f.carryOut()
		}
		if err != nil {
			return fmt.Errorf("block %d: %w", f.block, err)
		}
	}
	return nil
}

// readAgain looks once more at the replicas that the disk could not read. What fails again is damage
// to them, if the disk is of use and they are few: up to 8, or one in 100. The files of the others
// stay as they are: reads that fail for a while, because the path to the disk is lost, say, cost no replica.
func (v *volume) readAgain() error {
	unread := v.unread
	v.unread = nil
	if len(unread) == 0 {
		return nil
	}
	v.log.Warn("the disk could not read some replicas; they are read again", "dir", v.dir, "replicas", len(unread))
	if err := v.check(); err != nil {
		return err
	}
	all := len(v.loaded) + len(unread)
	var damaged []*blockFiles
	for _, f := range unread {
		f.lasting = true
		err := f.decide()
		switch {
		case err == nil && f.unreadable:
			if damaged = append(damaged, f); len(damaged) > max(8, all/100) {
				return fmt.Errorf("the disk can't read more than %d of %d replicas; none is changed: %w", len(damaged)-1, all, syscall.EIO)
			}
		case err == nil:
			err = f.carryOut()
		}
		if err != nil {
			return fmt.Errorf("block %d: %w", f.block, err)
		}
	}
	for _, f := range damaged {
		v.log.Error("the disk can't read a replica to its end; what can be read of it is kept", "dir", v.dir, "block", f.block)
		if err := f.carryOut(); err != nil {
			return fmt.Errorf("block %d: %w", f.block, err)
		}
	}
	return nil
}

// blockFiles are those of a block in a directory. A start finds out what they are worth.
type blockFiles struct {
	*volume
	block    uint64
	sameBoot bool
	data     bool     // there is a data file
	metas    []uint64 // generations that there are meta files of
	lasting  bool     // the disk was asked before: what it can't read now is damaged

	unreadable bool     // the disk could not read something
	replica    *Replica // nil: none
	changes    []func() error
}

// decide decides which files of a block make a replica, and what is to be done with the others. It
// takes no byte away that a replica could have.
func (f *blockFiles) decide() error {
	f.unreadable, f.replica, f.changes = false, nil, nil
	slices.SortFunc(f.metas, func(a, b uint64) int { return cmp.Compare(b, a) })
	damaged := false
	for _, gen := range f.metas {
		path := f.metaPath(f.block, gen)
		if f.replica == nil && f.data {
			r, err := f.generation(gen)
			if errors.Is(err, errMeta) {
				damaged = true
				f.change(func() error {
					f.log.Error("a replica's meta file is damaged; both files are kept aside", "path", path+damagedSuffix, "err", err)
					return f.fs.Rename(path, path+damagedSuffix)
				})
				continue
			}
			if err != nil {
				return err
			}
			if f.replica = r; r != nil {
				continue
			}
		}
		f.change(func() error { return f.fs.Remove(path) })
	}
	if path := f.dataPath(f.block); f.replica == nil && f.data {
		f.change(func() error {
			if damaged {
				return f.fs.Rename(path, path+damagedSuffix)
			}
			return f.fs.Remove(path)
		})
	}
	return nil
}

func (f *blockFiles) change(c func() error) { f.changes = append(f.changes, c) }

// carryOut does what was decided.
func (f *blockFiles) carryOut() error {
	for _, c := range f.changes {
		if err := c(); err != nil {
			return err
		}
	}
	if r := f.replica; r != nil {
		f.loading.Lock()
		f.loaded[f.block] = r
		f.loading.Unlock()
		f.used.Add(r.length)
	}
	return nil
}

// generation returns nil for a replica that is worth nothing: a temporary
// one, or one whose header never reached the disk.
func (f *blockFiles) generation(gen uint64) (*Replica, error) {
	meta, err := f.fs.Open(f.metaPath(f.block, gen))
	if err != nil {
		return nil, err
	}
	defer meta.Close()
	var b [headerSize]byte
	switch err := readFull(meta, b[:], 0); {
	case f.cannotRead(err):
		return nil, fmt.Errorf("%w: read its header: %w", errMeta, err)
	case err != nil && err != io.ErrUnexpectedEOF:
		return nil, err
	}
	if b == [headerSize]byte{} {
		return nil, nil
	}
	h, err := decodeHeader(b[:])
	if err != nil {
		return nil, err
	}
	if h.id != f.block {
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
	dataInfo, err := f.fs.Stat(f.dataPath(f.block))
	if err != nil {
		return nil, err
	}
	r := &Replica{store: f.store, vol: f.volume, id: f.block, gen: gen, sum: h.sum, durable: true}
	entries := (metaInfo.Size() - headerSize) / 4
	if final.valid && !h.torn && final.length <= dataInfo.Size() && final.length/int64(h.sum.BytesPerChunk) <= entries {
		r.state = Finalized
		r.length, r.tail, r.synced = final.length, final.tail, final.synced
		r.visible, r.visibleTail = r.length, r.tail
		r.excess = entries > r.length/int64(h.sum.BytesPerChunk)
		if final.synced || f.sameBoot {
			f.trim(f.block, r.length)
			return r, nil
		}
		err := r.Verify(nil)
		if err == nil {
			f.trim(f.block, r.length)
			return r, nil
		}
		if errors.Is(err, syscall.EIO) && !f.cannotRead(err) || !errors.Is(err, ErrCorrupt) {
			return nil, err
		}
		f.log.Warn("a replica closed without hsync lost bytes with the machine; it waits for recovery", "block", f.block, "generation", gen, "err", err)
	}
	data, err := f.fs.Open(f.dataPath(f.block))
	if err != nil {
		return nil, err
	}
	defer data.Close()
	r.state = WaitingRecovery
	r.synced = false
	r.length, r.tail, err = f.provenLength(data, dataInfo.Size(), meta, entries, &h)
	if err != nil {
		return nil, err
	}
	r.visible, r.visibleTail = r.length, r.tail
	r.excess = entries > r.length/int64(h.sum.BytesPerChunk)
	r.torn, r.unreadable = h.torn, f.unreadable
	if !h.torn && (!f.sameBoot || r.length < claimed(entries, &h)) {
		r.torn = true
		f.change(func() error { return f.tear(f.block, gen, h) })
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
func (v *volume) tear(id, gen uint64, h metaHeader) error {
	meta, err := v.fs.OpenReadWrite(v.metaPath(id, gen), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer meta.Close()
	h.torn = true
	h.slots[slotFinal] = slot{}
	_, err = v.writeAt(meta, appendHeader(nil, &h), 0)
	return err
}

// provenLength returns the longest length that checksums vouch for: full chunks
// by the array, a partial one at the end by a slot. It ends where the disk can't read.
func (f *blockFiles) provenLength(data vfs.File, size int64, meta vfs.File, entries int64, h *metaHeader) (int64, uint32, error) {
	bpc := int64(h.sum.BytesPerChunk)
	full := min(size/bpc, entries)
	batch := max(1, verifyBatch/bpc)
	buf := transfer.GetBuffer(int(batch * (bpc + 4)))
	defer transfer.PutBuffer(buf)
	var proven int64
	for step := batch; proven < full; {
		n := min(step, full-proven)
		good, err := provenChunks(data, meta, proven, n, *buf, h)
		if errors.Is(err, syscall.EIO) && n > 1 {
			step = 1 // the chunks before the one that can't be read count
			continue
		}
		if err != nil && !f.cannotRead(err) {
			return 0, 0, err
		}
		if proven += good; good < n {
			break
		}
	}
	length, tail := proven*bpc, uint32(0)
	for _, sl := range h.slots {
		start := sl.length / bpc * bpc
		if !sl.valid || sl.length <= length || sl.length > size || start > proven*bpc {
			continue
		}
		d := (*buf)[:sl.length-start]
		if err := readFull(data, d, start); f.cannotRead(err) {
			continue
		} else if err != nil {
			return 0, 0, err
		}
		if h.sum.Update(0, d) == sl.tail {
			length, tail = sl.length, sl.tail
		}
	}
	return length, tail, nil
}

const verifyBatch = 256 << 10

// provenChunks reads n chunks into buf and tells how many of them, from the first on, match their
// checksums: none with an error.
func provenChunks(data, meta vfs.File, first, n int64, buf []byte, h *metaHeader) (good int64, err error) {
	bpc := int64(h.sum.BytesPerChunk)
	d, sums := buf[:n*bpc], buf[n*bpc:n*(bpc+4)]
	if err := readFull(meta, sums, headerSize+4*first); err != nil {
		return 0, err
	}
	if err := readFull(data, d, first*bpc); err != nil {
		return 0, err
	}
	if h.sum.Verify(sums, d) == nil {
		return n, nil
	}
	for good < n && h.sum.Verify(sums[4*good:4*good+4], d[good*bpc:(good+1)*bpc]) == nil {
		good++
	}
	return good, nil
}

// cannotRead notes an error that says that the disk can't read some bytes. It tells whether that is
// damage to this replica: not as long as the disk was not asked again.
func (f *blockFiles) cannotRead(err error) bool {
	unreadable := errors.Is(err, syscall.EIO)
	f.unreadable = f.unreadable || unreadable
	return unreadable && f.lasting
}
