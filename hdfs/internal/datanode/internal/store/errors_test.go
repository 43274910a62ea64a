package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// The disk fails at every point in turn. Nothing that was written before is
// lost, and the store opens again.
func TestFailingDisk(t *testing.T) {
	sum := transfer.CRC32C()
	failed := 0
	for at := int32(0); ; at++ {
		mem := vfs.NewMem()
		s := open(t, mem, "a")
		must(t, s.Close())
		index := errorfs.OnIndex(at)
		s, err := Open(Config{FS: errorfs.Wrap(mem, errorfs.ErrInjected.If(index)), Dirs: []Directory{{Path: "/dn"}}, BootID: "a"})
		if err != nil {
			failed++
			continue
		}
		data := random(rand.New(rand.NewPCG(1, 1)), 20_000)
		safe, gen := 0, uint64(10)
		story := func() error {
			w, err := s.Create(1, gen, sum, false, nil, Want{})
			if err != nil {
				return err
			}
			for _, n := range []int{700, 900, 5000, 5001} {
				off := safe / 512 * 512
				if _, err := w.Write(int64(off), data[off:n], packet(sum, data[off:n]), sum); err != nil {
					return errors.Join(err, w.Close(false))
				}
				safe = n
				if err := w.Sync(); err != nil {
					return errors.Join(err, w.Close(false))
				}
			}
			if err := w.Finalize(true); err != nil {
				return errors.Join(err, w.Close(false))
			}
			if err := w.Close(false); err != nil {
				return err
			}
			if w, err = s.Reopen(1, ReopenOptions{Mode: Append, Generation: gen, NewGeneration: gen + 1, Min: int64(safe)}); err != nil {
				return err
			}
			gen++
			if _, err := w.Write(int64(safe), data[safe:9000], packet(sum, data[safe:9000]), sum); err != nil {
				return errors.Join(err, w.Close(false))
			}
			safe = 9000
			if err := w.Close(false); err != nil {
				return err
			}
			r, err := s.Get(1)
			if err != nil {
				return err
			}
			if _, err := r.InitRecovery(gen, gen+1); err != nil {
				return err
			}
			safe = min(safe, 8000)
			if err := r.Settle(gen+1, 8000); err != nil {
				return err
			}
			gen++
			return nil
		}
		err = story()
		_ = s.Close()
		if err != nil {
			failed++
		}
		s = open(t, mem, "a")
		if safe > 0 {
			got := contents(t, s, 1)
			if len(got) < safe || !bytes.Equal(got, data[:len(got)]) {
				t.Fatalf("operation %d failed (%v): %d bytes are left of %d", at, err, len(got), safe)
			}
		}
		must(t, s.Close())
		if err == nil {
			break
		}
	}
	if failed < 40 {
		t.Fatalf("only %d operations failed", failed)
	}
}

// sectorFS can't read some files where they have the byte at.
type sectorFS struct {
	vfs.FS
	files  func(name string) bool // nil: it can read all
	at     int64
	broken bool // nothing can be made
	once   bool // after one read it can read all
	passes bool // all can be read again once the directory is checked
	fixed  bool // meta files can't be written
}

func (f *sectorFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.Open(name, opts...)
	if err == nil && f.files != nil && f.files(name) {
		file = &sectorFile{file, f}
	}
	return file, err
}

func (f *sectorFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if f.fixed && strings.HasSuffix(name, ".meta") {
		return nil, syscall.EIO
	}
	return f.FS.OpenReadWrite(name, c, opts...)
}

func (f *sectorFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if f.broken && strings.HasSuffix(name, tmpSuffix) {
		return nil, syscall.EIO
	}
	if f.passes {
		f.files = nil
	}
	return f.FS.Create(name, c)
}

// endsIn is a predicate of names.
func endsIn(suffix string) func(name string) bool {
	return func(name string) bool { return strings.HasSuffix(name, suffix) }
}

type sectorFile struct {
	vfs.File
	of *sectorFS
}

func (f *sectorFile) ReadAt(p []byte, off int64) (int, error) {
	if d := f.of; d.files != nil && off <= d.at && d.at < off+int64(len(p)) {
		if d.once {
			d.files = nil
		}
		return 0, syscall.EIO
	}
	return f.File.ReadAt(p, off)
}

// A disk that can't read a part of one replica costs that part, not all replicas in the directory.
func TestUnreadableSector(t *testing.T) {
	const length = 300_000 // more than is read at a time
	data := random(rand.New(rand.NewPCG(9, 9)), length)
	for _, c := range []struct {
		name, suffix string
		at           int64
		left         int // bytes of it; -1: it is kept aside
	}{
		{"data", "blk_7", 200_000, 200_000 / 512 * 512},
		{"data, at once", "blk_7", 0, 0},
		{"partial chunk", "blk_7", length - 1, length / 512 * 512},
		{"checksums", "blk_7_1001.meta", headerSize + 4*100, 100 * 512},
		{"header", "blk_7_1001.meta", 100, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := vfs.NewMem()
			s := open(t, mem, "a")
			for _, id := range []uint64{7, 8} { // in one directory
				w, err := s.Create(id, 1001, transfer.CRC32C(), false, nil, Want{})
				must(t, err)
				write(t, w, 0, data)
				must(t, w.Close(false)) // it was being written
			}
			must(t, s.Close())
			s = open(t, &sectorFS{FS: mem, files: endsIn(c.suffix), at: c.at}, "a")
			defer s.Close()
			if got := contents(t, s, 8); !bytes.Equal(got, data) {
				t.Errorf("%d bytes of the other replica", len(got))
			}
			r, err := s.Get(7)
			if c.left < 0 {
				if !errors.Is(err, ErrNotFound) {
					t.Errorf("a replica without a header is there: %v", err)
				}
				if _, err := mem.Stat(s.volumes[0].dataPath(7) + damagedSuffix); err != nil {
					t.Errorf("its bytes are not kept: %v", err)
				}
				return
			}
			must(t, err)
			if i := r.Info(); i.Length != int64(c.left) || !i.Torn {
				t.Errorf("%+v, want %d bytes of a torn replica", i, c.left)
			}
		})
	}
	// If more is wrong, the directory is of no use.
	mem := vfs.NewMem()
	s := open(t, mem, "a")
	w, err := s.Create(7, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, data)
	must(t, w.Close(false))
	must(t, s.Close())
	if _, err := Open(Config{FS: &sectorFS{FS: mem, files: endsIn("blk_7"), at: 0, broken: true}, Dirs: []Directory{{Path: "/dn"}}, BootID: "a"}); !errors.Is(err, ErrTooManyFailed) {
		t.Errorf("opened: %v", err)
	}
}

// Reads that fail for a while cost no replica, however many they hit. Those that fail for good in
// more than a few replicas cost the directory, and change nothing in it.
func TestUnreadableForAWhile(t *testing.T) {
	const replicas = 9
	data := random(rand.New(rand.NewPCG(9, 10)), 5000)
	for _, c := range []struct {
		name, boot string
		files      func(name string) bool
		at         int64
		synced     bool
	}{
		{"headers", "a", endsIn(".meta"), 100, true},
		{"checksums", "b", endsIn(".meta"), headerSize, false},
		{"data", "b", func(name string) bool { return strings.Contains(name, "/blk_") && !strings.HasSuffix(name, ".meta") }, 1000, false},
	} {
		for _, once := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, ", once: ", once), func(t *testing.T) {
				mem := vfs.NewMem()
				s := open(t, mem, "a")
				for id := range uint64(replicas) {
					w, err := s.Create(id, 1001, transfer.CRC32C(), false, nil, Want{})
					must(t, err)
					write(t, w, 0, data)
					must(t, w.Finalize(c.synced))
					must(t, w.Close(false))
				}
				must(t, s.Close())
				disk := &sectorFS{FS: mem, files: c.files, at: c.at}
				cfg := Config{FS: disk, Dirs: []Directory{{Path: "/dn"}}, BootID: c.boot}
				if _, err := Open(cfg); !errors.Is(err, ErrTooManyFailed) || !errors.Is(err, syscall.EIO) {
					t.Errorf("opened with %d unreadable replicas: %v", replicas, err)
				}
				disk.once, disk.passes = once, !once
				for range 2 { // the second time nothing of it is left
					s, err := Open(cfg)
					must(t, err)
					for id := range uint64(replicas) {
						r, err := s.Get(id)
						must(t, err)
						if i := r.Info(); i.State != Finalized || !bytes.Equal(contents(t, s, id), data) {
							t.Errorf("%+v", i)
						}
					}
					must(t, s.Close())
				}
			})
		}
	}
}

// A start that can't note that a replica may lack bytes fails: the next one in the same boot would
// not look at the replica.
func TestTornIsNoted(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := open(t, mem, "a")
	w, err := s.Create(7, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, make([]byte, 5000))
	must(t, w.Close(false))
	must(t, s.Close())
	if _, err := Open(Config{FS: &sectorFS{FS: mem, fixed: true}, Dirs: []Directory{{Path: "/dn"}}, BootID: "b"}); !errors.Is(err, ErrTooManyFailed) {
		t.Errorf("opened: %v", err)
	}
	s = open(t, mem, "b")
	defer s.Close()
	r, err := s.Get(7)
	must(t, err)
	if i := r.Info(); !i.Torn {
		t.Errorf("%+v", i)
	}
}
