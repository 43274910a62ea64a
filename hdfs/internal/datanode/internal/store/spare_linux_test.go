package store

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/tmpfs"
)

// roomyFS is the machine's file system with room to spare, however full its disk is: a store gives
// up its spares where room is scarce.
type roomyFS struct{ vfs.FS }

func (roomyFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{TotalBytes: 1 << 40, AvailBytes: 1 << 39, UsedBytes: 1 << 39}, nil
}

var roomy = roomyFS{vfs.Default}

// sparing opens a store that keeps spares although it is not in memory.
func sparing(t testing.TB, fs vfs.FS, dir string, most int64) *Store {
	t.Helper()
	s, err := Open(Config{FS: fs, Dirs: []Directory{{Path: dir}}, BootID: "a"})
	must(t, err)
	must(t, s.volumes[0].prepareSpares(most))
	return s
}

// put writes a finalized replica in pieces of 100 KiB.
func put(t testing.TB, s *Store, id uint64, data []byte) {
	t.Helper()
	w, err := s.Create(id, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	const piece = 200 * 512
	for off := 0; off < len(data); off += piece {
		write(t, w, int64(off), data[off:min(off+piece, len(data))])
	}
	must(t, w.Finalize(false))
	must(t, w.Close(false))
}

func dataFile(t testing.TB, s *Store, id uint64) os.FileInfo {
	t.Helper()
	info, err := os.Stat(s.volumes[0].dataPath(id))
	must(t, err)
	return info
}

func TestSpareIsWrittenOver(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for name, length := range map[string]int{"shorter": 1<<20 + 700, "as long": 2 << 20, "longer": 3<<20 + 5} {
		t.Run(name, func(t *testing.T) {
			s := sparing(t, roomy, t.TempDir(), 1<<30)
			defer s.Close()
			put(t, s, 1, random(rng, 2<<20))
			before := dataFile(t, s, 1)
			must(t, s.Delete(1, 1001))
			if n := s.Spares(); n != (SpareStats{Files: 1, Bytes: 2 << 20, Kept: 1}) {
				t.Fatalf("after the removal: %+v", n)
			}
			if used := s.Storages()[0].Used; used != 0 {
				t.Errorf("%d bytes count as used", used)
			}
			data := random(rng, length)
			put(t, s, 2, data)
			if n := s.Spares(); n != (SpareStats{Kept: 1, Reused: 1}) {
				t.Errorf("after the next one: %+v", n)
			}
			s.cuts.Wait()
			if after := dataFile(t, s, 2); !os.SameFile(before, after) || after.Size() != int64(length) {
				t.Errorf("%d bytes are in the file, want %d; the same file: %t", after.Size(), length, os.SameFile(before, after))
			}
			if !bytes.Equal(contents(t, s, 2), data) {
				t.Error("other bytes came back")
			}
			must(t, s.Delete(2, 1001))
			if n := s.Spares(); n.Kept != 2 {
				t.Errorf("the file that was a spare already is none again: %+v", n)
			}
		})
	}
}

// TestSpareIsNotHandedOver looks at what another process would read behind a replica's end.
func TestSpareIsNotHandedOver(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	s := sparing(t, roomy, t.TempDir(), 1<<30)
	defer s.Close()
	put(t, s, 1, random(rng, 2<<20))
	must(t, s.Delete(1, 1001))
	data := random(rng, 1<<20)
	w, err := s.Create(2, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, data)
	must(t, w.Finalize(false))
	if size := dataFile(t, s, 2).Size(); size != 2<<20 {
		t.Fatalf("the file has %d bytes: it was no spare, or was cut too early for this test", size)
	}
	r, err := s.Get(2)
	must(t, err)
	rd, err := r.Open()
	must(t, err)
	if _, ok := rd.HandOver(); ok {
		t.Error("handed over with the bytes of another replica, before its writer has ended")
	}
	r.op.Lock() // the cut waits
	must(t, w.Close(false))
	if size := dataFile(t, s, 2).Size(); size != 2<<20 {
		t.Fatalf("the file has %d bytes", size)
	}
	r.op.Unlock()
	l, ok := rd.HandOver()
	if !ok {
		t.Fatal("not handed over when its writer has ended")
	}
	var st syscall.Stat_t
	must(t, syscall.Fstat(int(l.Data), &st))
	if st.Size != 1<<20 {
		t.Errorf("handed over with %d bytes, %d are the replica's", st.Size, 1<<20)
	}
	theirs, err := syscall.Dup(int(l.Data))
	must(t, err)
	must(t, rd.Close())
	must(t, s.Delete(2, 1001))
	if n := s.Spares(); n.Kept != 1 {
		t.Errorf("%+v: another process has the file that is to be written over", n)
	}
	got := make([]byte, len(data))
	if _, err := syscall.Pread(theirs, got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("who has the descriptor reads other bytes, or %v", err)
	}
	must(t, syscall.Close(theirs))
}

// TestNoHandOverOfRemoved has a replica go between its opening and the hand-over.
func TestNoHandOverOfRemoved(t *testing.T) {
	s := sparing(t, roomy, t.TempDir(), 1<<30)
	defer s.Close()
	put(t, s, 1, make([]byte, 2<<20))
	r, err := s.Get(1)
	must(t, err)
	rd, err := r.Open()
	must(t, err)
	defer rd.Close()
	must(t, s.Delete(1, 1001))
	if _, ok := rd.HandOver(); ok {
		t.Error("a removed replica was handed over")
	}
}

// TestSparesOfSlowWriters has writers take spares and write little. What they do not use counts, and
// goes when memory is short.
func TestSparesOfSlowWriters(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 7))
	s := sparing(t, roomy, t.TempDir(), 3<<20)
	defer s.Close()
	put(t, s, 1, random(rng, 2<<20))
	put(t, s, 2, random(rng, 2<<20))
	must(t, s.Delete(1, 1001))
	w, err := s.Create(3, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	data := random(rng, 3<<20)
	const little = 64 << 10
	write(t, w, 0, data[:little])
	if n := s.Spares(); n != (SpareStats{Bytes: 2<<20 - little, Kept: 1, Reused: 1}) {
		t.Errorf("%+v", n)
	}
	if n := s.volumes[0].spareBytes(); n != 2<<20-little {
		t.Errorf("%d bytes count as room", n)
	}
	must(t, s.Delete(2, 1001))
	if n := s.Spares(); n.Kept != 1 {
		t.Errorf("%+v: more are kept than may be", n)
	}
	size := func(want int64) {
		t.Helper()
		if got := dataFile(t, s, 3).Size(); got != want {
			t.Errorf("the file has %d bytes, want %d", got, want)
		}
	}
	size(2 << 20)
	w.over.Lock() // as if it were writing
	s.PauseSpares(true)
	s.cuts.Wait()
	size(2 << 20)
	w.over.Unlock()
	s.PauseSpares(true)
	s.cuts.Wait()
	size(little)
	if n := s.Spares(); n.Bytes != 0 {
		t.Errorf("%+v", n)
	}
	write(t, w, little, data[little:])
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	if !bytes.Equal(contents(t, s, 3), data) {
		t.Error("other bytes came back")
	}
}

// TestSparesOfWritersThatLeave has a writer that took a spare leave an unfinished replica.
func TestSparesOfWritersThatLeave(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 8))
	dir := t.TempDir()
	s := sparing(t, roomy, dir, 1<<30)
	for id := range uint64(3) {
		put(t, s, id, random(rng, 2<<20))
	}
	for id := range uint64(3) {
		must(t, s.Delete(id, 1001))
	}
	const length = 128 << 10
	data := random(rng, length)
	var writers []*Writer
	for id := range uint64(3) {
		w, err := s.Create(10+id, 1001, transfer.CRC32C(), false, nil, Want{})
		must(t, err)
		write(t, w, 0, data)
		writers = append(writers, w)
	}
	must(t, writers[0].Close(false))
	if size := dataFile(t, s, 10).Size(); size != length {
		t.Errorf("the file of an unfinished replica has %d bytes without its writer", size)
	}
	must(t, writers[1].Close(true))
	if n := s.Spares(); n != (SpareStats{Files: 1, Bytes: 2*(2<<20) - length, Kept: 4, Reused: 3}) {
		t.Errorf("%+v", n)
	}
	// The process dies, and the next one's writer finishes the third.
	must(t, s.volumes[0].lock.Close())
	s, err := Open(Config{Dirs: []Directory{{Path: dir}}, BootID: "a"})
	must(t, err)
	w, err := s.Reopen(12, ReopenOptions{Mode: RecoverClose, Generation: 1001, NewGeneration: 1002, Min: length})
	must(t, err)
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	s.cuts.Wait()
	if size := dataFile(t, s, 12).Size(); size != length {
		t.Errorf("the file of a replica of %d bytes that another process has begun has %d", length, size)
	}
	if !bytes.Equal(contents(t, s, 12), data) {
		t.Error("other bytes came back")
	}
	must(t, s.Close())
}

// TestNoSpare has files that must not become spares, or need not.
func TestNoSpare(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 3))
	for name, test := range map[string]struct {
		length int
		most   int64
		before func(t *testing.T, s *Store) (after func())
	}{
		"short":     {length: leastSpare - 1, most: 1 << 30},
		"too long":  {length: 2 << 20, most: 2<<20 - 1},
		"none":      {length: 2 << 20},
		"paused":    {length: 2 << 20, most: 1 << 30, before: func(_ *testing.T, s *Store) func() { s.PauseSpares(true); return nil }},
		"a reader":  {length: 2 << 20, most: 1 << 30, before: reading},
		"two names": {length: 2 << 20, most: 1 << 30, before: linked},
	} {
		t.Run(name, func(t *testing.T) {
			s := sparing(t, roomy, t.TempDir(), test.most)
			defer s.Close()
			put(t, s, 1, random(rng, test.length))
			if test.before != nil {
				if after := test.before(t, s); after != nil {
					defer after()
				}
			}
			must(t, s.Delete(1, 1001))
			if n := s.Spares(); n.Kept != 0 {
				t.Errorf("%+v", n)
			}
			if _, err := os.Stat(s.volumes[0].dataPath(1)); !os.IsNotExist(err) {
				t.Errorf("the file is still there: %v", err)
			}
			s.PauseSpares(false)
			put(t, s, 2, random(rng, 2<<20))
			if n := s.Spares(); n.Reused != 0 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// reading has a reader that was there before the removal read afterwards.
func reading(t *testing.T, s *Store) func() {
	want := contents(t, s, 1)
	r, err := s.Get(1)
	must(t, err)
	rd, err := r.Open()
	must(t, err)
	return func() {
		got := make([]byte, len(want))
		must(t, readFull(rd.data, got, 0))
		if !bytes.Equal(got, want) {
			t.Error("a reader got bytes of another replica")
		}
		must(t, rd.Close())
	}
}

// linked has a second name for the file, as backups make some.
func linked(t *testing.T, s *Store) func() {
	want, copied := contents(t, s, 1), filepath.Join(t.TempDir(), "copy")
	must(t, os.Link(s.volumes[0].dataPath(1), copied))
	return func() {
		got, err := os.ReadFile(copied)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Error("the other name has bytes of another replica")
		}
	}
}

// TestSpareAfterShortBeginning begins replicas with less than a write that is worth a spare. They
// get one with the first long write, unless somebody would lose by it.
func TestSpareAfterShortBeginning(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 4))
	for name, test := range map[string]struct {
		lengths []int // of the writes
		after   func(t *testing.T, w *Writer, written []byte) (end func())
		reused  uint64
	}{
		"a chunk":            {lengths: []int{512, 100 << 10, 1 << 20}, reused: 1},
		"part of a chunk":    {lengths: []int{3, 70_000, 5}, reused: 1},
		"some short ones":    {lengths: []int{700, 4096, 30_000, 1 << 20}, reused: 1},
		"short ones":         {lengths: []int{30_000, 30_000, 30_000, 1 << 20}},
		"hsync":              {lengths: []int{512, 1 << 20}, after: func(t *testing.T, w *Writer, _ []byte) func() { must(t, w.Sync()); return nil }},
		"a reader":           {lengths: []int{512, 1 << 20}, after: beginning},
		"a reader that left": {lengths: []int{512, 1 << 20}, after: func(t *testing.T, w *Writer, b []byte) func() { beginning(t, w, b)(); return nil }, reused: 1},
		"the same again":     {lengths: []int{700, 0, 1 << 20}, reused: 1},
		"a second name":      {lengths: []int{512, 1 << 20}, after: named},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := sparing(t, roomy, dir, 1<<30)
			put(t, s, 1, random(rng, 2<<20))
			must(t, s.Delete(1, 1001))
			w, err := s.Create(2, 1001, transfer.CRC32C(), false, nil, Want{})
			must(t, err)
			var data []byte
			for i, n := range test.lengths {
				from := len(data)
				if n == 0 {
					from = 0 // what has been written already
				}
				data = append(data, random(rng, n)...)
				write(t, w, int64(from), data[from:])
				if i == 0 && test.after != nil {
					if end := test.after(t, w, data); end != nil {
						defer end()
					}
				}
			}
			if n := s.Spares(); n.Reused != test.reused {
				t.Errorf("%+v, want %d reused", n, test.reused)
			}
			if got := contents(t, s, 2); !bytes.Equal(got, data) {
				t.Error("before it is finalized the replica has other bytes than were written")
			}
			must(t, w.Finalize(false))
			must(t, w.Close(false))
			must(t, s.Close())
			s = sparing(t, roomy, dir, 1<<30)
			defer s.Close()
			if got := contents(t, s, 2); !bytes.Equal(got, data) {
				t.Error("in the next process the replica has other bytes than were written")
			}
		})
	}
}

// named gives the file of a replica that is being written a second name, as backups do.
func named(t *testing.T, w *Writer, _ []byte) func() {
	must(t, os.Link(w.r.vol.dataPath(w.r.id), filepath.Join(t.TempDir(), "copy")))
	return nil
}

// beginning has a reader of what has been written so far, which reads again at the end.
func beginning(t *testing.T, w *Writer, written []byte) func() {
	want := bytes.Clone(written)
	rd, err := w.Replica().Open()
	must(t, err)
	return func() {
		got := make([]byte, len(want))
		must(t, readFull(rd.data, got, 0))
		if rd.Length != int64(len(want)) || !bytes.Equal(got, want) {
			t.Error("a reader lost what it had opened")
		}
		must(t, rd.Close())
	}
}

// TestSparesOfEarlierProcess has a process die with a spare, and with a replica that is longer on
// disk than it is.
func TestSparesOfEarlierProcess(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 4))
	dir := t.TempDir()
	s := sparing(t, roomy, dir, 1<<30)
	put(t, s, 1, random(rng, 2<<20))
	put(t, s, 2, random(rng, 2<<20))
	must(t, s.Delete(1, 1001))
	must(t, s.Delete(2, 1001))
	data := random(rng, 1<<20)
	w, err := s.Create(3, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, data)
	must(t, w.Finalize(false))
	must(t, w.closeFiles()) // it dies
	must(t, s.volumes[0].lock.Close())
	for _, boot := range []string{"a", "b"} {
		again, err := Open(Config{FS: roomy, Dirs: []Directory{{Path: dir}}, BootID: boot})
		must(t, err)
		names, err := os.ReadDir(again.volumes[0].sparePath())
		if err != nil || len(names) != 0 {
			t.Errorf("boot %s: %d files, %v", boot, len(names), err)
		}
		if size := dataFile(t, again, 3).Size(); size != 1<<20 {
			t.Errorf("boot %s: the file has %d bytes", boot, size)
		}
		if !bytes.Equal(contents(t, again, 3), data) {
			t.Errorf("boot %s: other bytes came back", boot)
		}
		must(t, again.volumes[0].prepareSpares(1<<30))
		if boot == "b" {
			must(t, again.Delete(3, 1001))
			if n := again.Spares(); n.Kept != 1 {
				t.Errorf("%+v: want the file that nobody has open", n)
			}
		} else {
			w, err := os.OpenFile(again.volumes[0].dataPath(3), os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			_, err = w.Write(make([]byte, 1<<20))
			must(t, err)
			must(t, w.Close())
		}
		must(t, again.Close())
	}
}

// fullFS has no room for some files while there are spares.
type fullFS struct {
	vfs.FS
	store *Store
	avail atomic.Uint64 // of fullTotal bytes
	full  string        // ends the names of files for which there is none
}

const fullTotal = 64 << 20

func (fs *fullFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{TotalBytes: fullTotal, AvailBytes: fs.avail.Load()}, nil
}

func newFullFS() *fullFS {
	fs := &fullFS{FS: vfs.NewMem(), full: "nothing"}
	fs.avail.Store(60 << 20)
	return fs
}

func (fs *fullFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return &fullFile{f, fs, strings.HasSuffix(name, fs.full)}, err
}

type fullFile struct {
	vfs.File
	fs   *fullFS
	full bool
}

func (fs *fullFS) spares() bool {
	names, err := fs.List(fs.store.volumes[0].sparePath())
	return err == nil && len(names) > 0
}

func (f *fullFile) Write(b []byte) (int, error) {
	if f.full && f.fs.spares() {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(b)
}

func (f *fullFile) WriteAt(b []byte, off int64) (int, error) {
	if f.full && f.fs.spares() && len(b) > 10 {
		n, err := f.File.WriteAt(b[:10], off)
		if err == nil {
			err = syscall.ENOSPC
		}
		return n, err
	}
	return f.File.WriteAt(b, off)
}

// TestSparesMakeRoom has a replica find no room, which the spares have.
func TestSparesMakeRoom(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 5))
	fs := newFullFS()
	s := sparing(t, fs, "/d", 1<<30)
	fs.store = s
	defer s.Close()
	if most := s.volumes[0].spares.most; most != 4<<20 {
		t.Errorf("%d bytes may be kept of a file system of %d", most, fullTotal)
	}
	// The first write of a new replica's data is too short for a spare.
	kept := uint64(0)
	for id, full := range map[uint64]string{1: dataName(101), 2: metaName(102, 1001), 3: "nothing"} {
		put(t, s, id, random(rng, 2<<20))
		must(t, s.Delete(id, 1001))
		if n := s.Spares(); n.Files != 1 {
			t.Fatalf("%+v", n)
		}
		if i := s.Storages()[0]; i.Remaining != 62<<20 {
			t.Errorf("%d bytes remain", i.Remaining)
		}
		fs.full = full
		data := random(rng, leastFirst-1)
		put(t, s, 100+id, data)
		if !bytes.Equal(contents(t, s, 100+id), data) {
			t.Error("other bytes came back")
		}
		kept++
		files := uint64(0)
		if full == "nothing" {
			files = 1
		}
		if n := s.Spares(); n != (SpareStats{Files: files, Bytes: files * 2 << 20, Kept: kept}) {
			t.Errorf("no room for %s: %+v", full, n)
		}
		s.volumes[0].removeSpares(0)
	}
	// A recovery that cuts a replica writes a new meta file.
	data := random(rng, 20_000)
	put(t, s, 5, data)
	put(t, s, 6, random(rng, 2<<20))
	must(t, s.Delete(6, 1001))
	kept++
	r, err := s.Get(5)
	must(t, err)
	_, err = r.InitRecovery(1001, 1002)
	must(t, err)
	fs.full = tmpSuffix
	must(t, r.Settle(1002, 10_000))
	if !bytes.Equal(contents(t, s, 5), data[:10_000]) {
		t.Error("other bytes came back")
	}
	if n := s.Spares(); n != (SpareStats{Kept: kept}) {
		t.Errorf("no room for a cut: %+v", n)
	}
	fs.full = "nothing"
	fs.avail.Store(7 << 20)
	put(t, s, 4, random(rng, 2<<20))
	must(t, s.Delete(4, 1001))
	if n := s.Spares(); n.Kept != kept {
		t.Errorf("%+v, where others may need the room", n)
	}
}

// TestSparesEnd waits for the end of spares that nobody wants, and of those that are kept when
// room becomes scarce.
func TestSparesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(2, 6))
		fs := newFullFS()
		s := sparing(t, fs, "/d", 1<<30)
		fs.store = s
		for id := range uint64(2) {
			put(t, s, id, random(rng, 2<<20))
		}
		remove := func(id uint64, files uint64) {
			t.Helper()
			must(t, s.Delete(id, 1001))
			if n := s.Spares(); n.Files != files {
				t.Fatalf("%+v, want %d", n, files)
			}
		}
		remove(0, 1)
		time.Sleep(spareAge / 2)
		remove(1, 2)
		time.Sleep(spareAge/2 + 2*spareLook)
		if n := s.Spares(); n.Files != 1 || n.Bytes != 2<<20 {
			t.Errorf("%+v, when one is old", n)
		}
		time.Sleep(spareAge / 2)
		if n := s.Spares(); n.Files != 0 || n.Bytes != 0 {
			t.Errorf("%+v, when all are old", n)
		}
		put(t, s, 2, random(rng, 2<<20))
		remove(2, 1)
		fs.avail.Store(7 << 20)
		time.Sleep(2 * spareLook)
		if n := s.Spares(); n.Files != 0 {
			t.Errorf("%+v, when room is scarce", n)
		}
		if names, err := fs.List(s.volumes[0].sparePath()); err != nil || len(names) > 0 {
			t.Errorf("%q, %v", names, err)
		}
		must(t, s.Close())
	})
}

// TestSparesAtOnce has replicas written, read, and removed by many goroutines.
func TestSparesAtOnce(t *testing.T) {
	s := sparing(t, roomy, t.TempDir(), 8<<20)
	v := s.volumes[0]
	v.spares.least, v.spares.first = 1, 1
	var g sync.WaitGroup
	for n := range uint64(8) {
		g.Go(func() {
			rng := rand.New(rand.NewPCG(2, n))
			var before []byte
			for i := range uint64(60) {
				id := n<<32 | i
				data := random(rng, 1+rng.IntN(100_000))
				put(t, s, id, data)
				if !bytes.Equal(contents(t, s, id), data) {
					t.Errorf("block %x: other bytes came back", id)
				}
				if i > 0 {
					if !bytes.Equal(contents(t, s, id-1), before) {
						t.Errorf("block %x: other bytes came back later", id-1)
					}
					must(t, s.Delete(id-1, 1001))
				}
				before = data
			}
		})
	}
	g.Wait()
	n := s.Spares()
	if n.Reused < 100 || n.Kept-n.Reused < n.Files {
		t.Errorf("%+v", n)
	}
	must(t, s.Close())
	if n := s.Spares(); n.Files != 0 || n.Bytes != 0 {
		t.Errorf("after Close: %+v", n)
	}
}

// TestSparesInLargePages keeps the file of a removed replica in memory, where the kernel is asked to
// put it into large pages.
func TestSparesInLargePages(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "verbena-test-*")
	if err != nil || !tmpfs.Holds(dir) {
		t.Skip("/dev/shm does not lie in memory")
	}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	s, err := Open(Config{Dirs: []Directory{{Path: dir}}, BootID: "a", Spare: 1 << 30})
	must(t, err)
	defer s.Close()
	if s.volumes[0].scarce() {
		t.Skip("less than an eighth of /dev/shm is left")
	}
	rng := rand.New(rand.NewPCG(2, 9))
	for round := range uint64(3) {
		data := random(rng, 4<<20)
		put(t, s, round, data)
		if !bytes.Equal(contents(t, s, round), data) {
			t.Fatalf("round %d: other bytes came back", round)
		}
		s.cuts.Wait()
		must(t, s.Delete(round, 1001))
	}
	n := s.Spares()
	if n.Kept != 3 || n.Reused != 2 || n.Files != 1 || n.Bytes != 4<<20 {
		t.Errorf("%+v", n)
	}
	small := s.volumes[0].spares.small.Load() != 0 // asked in vain
	if !small && n.Enlarged != 3 || small && n.Enlarged == 3 {
		t.Errorf("%d of 3 were put into large pages; asked in vain: %t", n.Enlarged, small)
	}
}
