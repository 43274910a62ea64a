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
	if v.unreadable.Load() { // of a replica or two, or of the whole disk?
		if err := v.check(); err != nil {
			return err
		}
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

type found struct {
	data  bool
	metas []uint64 // generations
}

func (v *volume) scanDirectory(dir string, index byte, sameBoot bool) error {
	names, err := v.fs.List(dir)
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
		r, err := v.loadReplica(id, f, sameBoot)
		if err != nil {
			return fmt.Errorf("block %d: %w", id, err)
		}
		if r != nil {
			v.loading.Lock()
			v.loaded[id] = r
			v.loading.Unlock()
			v.used.Add(r.length)
		}
	}
	return nil
}

// loadReplica decides which files of a block make a replica, and removes the rest.
func (v *volume) loadReplica(id uint64, f *found, sameBoot bool) (*Replica, error) {
	slices.SortFunc(f.metas, func(a, b uint64) int { return cmp.Compare(b, a) })
	var r *Replica
	damaged := false
	for _, gen := range f.metas {
		path := v.metaPath(id, gen)
		if r == nil && f.data {
			var err error
			r, err = v.loadGeneration(id, gen, sameBoot)
			if r != nil {
				continue
			}
			if errors.Is(err, errMeta) {
				v.log.Error("a replica's meta file is damaged; both files are kept aside", "path", path+damagedSuffix, "err", err)
				damaged = true
				if err := v.fs.Rename(path, path+damagedSuffix); err != nil {
					return nil, err
				}
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		if err := v.fs.Remove(path); err != nil {
			return nil, err
		}
	}
	if r != nil || !f.data {
		return r, nil
	}
	if damaged {
		return nil, v.fs.Rename(v.dataPath(id), v.dataPath(id)+damagedSuffix)
	}
	return nil, v.fs.Remove(v.dataPath(id))
}

// loadGeneration returns nil for a replica that is worth nothing: a temporary
// one, or one whose header never reached the disk.
func (v *volume) loadGeneration(id, gen uint64, sameBoot bool) (*Replica, error) {
	meta, err := v.fs.Open(v.metaPath(id, gen))
	if err != nil {
		return nil, err
	}
	defer meta.Close()
	var b [headerSize]byte
	switch err := readFull(meta, b[:], 0); {
	case v.cannotRead(id, err):
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
	dataInfo, err := v.fs.Stat(v.dataPath(id))
	if err != nil {
		return nil, err
	}
	r := &Replica{store: v.store, vol: v, id: id, gen: gen, sum: h.sum, durable: true}
	entries := (metaInfo.Size() - headerSize) / 4
	if final.valid && !h.torn && final.length <= dataInfo.Size() && final.length/int64(h.sum.BytesPerChunk) <= entries {
		r.state = Finalized
		r.length, r.tail, r.synced = final.length, final.tail, final.synced
		r.visible, r.visibleTail = r.length, r.tail
		r.excess = entries > r.length/int64(h.sum.BytesPerChunk)
		if final.synced || sameBoot {
			v.trim(id, r.length)
			return r, nil
		}
		err := r.Verify(nil)
		if err == nil {
			v.trim(id, r.length)
			return r, nil
		}
		if !errors.Is(err, ErrCorrupt) {
			return nil, err
		}
		v.log.Warn("a replica closed without hsync lost bytes with the machine; it waits for recovery", "block", id, "generation", gen, "err", err)
	}
	data, err := v.fs.Open(v.dataPath(id))
	if err != nil {
		return nil, err
	}
	defer data.Close()
	r.state = WaitingRecovery
	r.synced = false
	r.length, r.tail, err = v.provenLength(data, dataInfo.Size(), meta, entries, &h)
	if err != nil {
		return nil, err
	}
	r.visible, r.visibleTail = r.length, r.tail
	r.excess = entries > r.length/int64(h.sum.BytesPerChunk)
	r.torn = h.torn
	if !h.torn && (!sameBoot || r.length < claimed(entries, &h)) {
		return r, v.tear(r, h)
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
func (v *volume) tear(r *Replica, h metaHeader) error {
	meta, err := v.fs.OpenReadWrite(v.metaPath(r.id, r.gen), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer meta.Close()
	r.torn, h.torn = true, true
	h.slots[slotFinal] = slot{}
	_, err = v.writeAt(meta, appendHeader(nil, &h), 0)
	return err
}

// provenLength returns the longest length that checksums vouch for: full chunks
// by the array, a partial one at the end by a slot. It ends where the disk can't read.
func (v *volume) provenLength(data vfs.File, size int64, meta vfs.File, entries int64, h *metaHeader) (int64, uint32, error) {
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
		if err != nil && !v.cannotRead(h.id, err) {
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
		if err := readFull(data, d, start); v.cannotRead(h.id, err) {
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

// cannotRead tells whether an error says that the disk can't read some bytes of a replica. That is
// damage to this replica; whether the disk is of use is found out for all of them, later.
func (v *volume) cannotRead(id uint64, err error) bool {
	if !errors.Is(err, syscall.EIO) {
		return false
	}
	v.unreadable.Store(true)
	v.log.Error("the disk can't read a replica to its end; what can be read of it is kept", "dir", v.dir, "block", id, "err", err)
	return true
}
