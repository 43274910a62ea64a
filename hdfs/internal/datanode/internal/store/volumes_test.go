package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// disksFS has a disk for each directory at the root. Those of broken fail everything.
type disksFS struct {
	vfs.FS
	room   map[string]uint64 // default 1 TiB
	broken map[string]bool
}

func newDisks() *disksFS {
	return &disksFS{FS: vfs.NewMem(), room: map[string]uint64{}, broken: map[string]bool{}}
}

func diskOf(name string) string { return "/" + strings.SplitN(name, "/", 3)[1] }

func (f *disksFS) err(name string) error {
	if f.broken[diskOf(name)] {
		return &os.PathError{Op: "test", Path: name, Err: syscall.EIO}
	}
	return nil
}

func (f *disksFS) GetDiskUsage(name string) (vfs.DiskUsage, error) {
	room, ok := f.room[diskOf(name)]
	if !ok {
		room = 1 << 40
	}
	return vfs.DiskUsage{AvailBytes: room, TotalBytes: 1 << 41}, f.err(name)
}

func (f *disksFS) MkdirAll(dir string, perm os.FileMode) error {
	if err := f.err(dir); err != nil {
		return err
	}
	return f.FS.MkdirAll(dir, perm)
}

func (f *disksFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.err(name); err != nil {
		return nil, err
	}
	return f.FS.Create(name, c)
}

func (f *disksFS) List(dir string) ([]string, error) {
	if err := f.err(dir); err != nil {
		return nil, err
	}
	return f.FS.List(dir)
}

func dirs(paths ...string) []Directory {
	var out []Directory
	for _, p := range paths {
		out = append(out, Directory{Path: p})
	}
	return out
}

func openDirs(t testing.TB, fs vfs.FS, cfg Config) *Store {
	t.Helper()
	cfg.FS, cfg.BootID = fs, "a"
	s, err := Open(cfg)
	must(t, err)
	return s
}

// add makes a finalized replica of n bytes and returns in which directory.
func add(t testing.TB, s *Store, id uint64, n int, want Want) int {
	t.Helper()
	w, err := s.Create(id, 10, transfer.CRC32C(), false, nil, want)
	must(t, err)
	write(t, w, 0, random(rand.New(rand.NewPCG(id, 0)), n))
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	return w.Info().Storage
}

// Directories take turns, whatever has no room is passed over, and a start finds all.
func TestDirectoriesTakeTurns(t *testing.T) {
	fs := newDisks()
	cfg := Config{Dirs: dirs("/a", "/b", "/c")}
	s := openDirs(t, fs, cfg)
	for id := range uint64(6) {
		if at := add(t, s, id, 100, Want{Size: 1000}); at != int(id%3) {
			t.Errorf("replica %d is in directory %d", id, at)
		}
	}
	fs.room["/a"] = 1000 // HDFS wants more than the block
	for id := uint64(6); id < 10; id++ {
		if at := add(t, s, id, 100, Want{Size: 1000}); at != 1+int(id%2) {
			t.Errorf("replica %d is in directory %d", id, at)
		}
	}
	if at := add(t, s, 10, 100, Want{Size: 999}); at != 0 {
		t.Errorf("a small replica is in directory %d", at)
	}
	before := s.Storages()
	if before[0].Used != 300 || before[1].Used != 400 || before[2].Used != 400 || before[0].ID == before[1].ID {
		t.Errorf("%+v", before)
	}
	must(t, s.Close())
	cfg.Dirs = dirs("/c", "/a", "/b") // the order does not matter
	s = openDirs(t, fs, cfg)
	after := s.Storages()
	if len(s.Replicas()) != 11 || after[0] != before[2] || after[1] != before[0] || after[2] != before[1] {
		t.Errorf("%d replicas in %+v", len(s.Replicas()), after)
	}
	for id := range uint64(11) {
		contents(t, s, id)
	}
	must(t, s.Close())
}

// Room that blocks being written may take is not given to others.
func TestDirectoriesReserve(t *testing.T) {
	fs := newDisks()
	fs.room["/a"], fs.room["/b"] = 2500, 2500
	s := openDirs(t, fs, Config{Dirs: dirs("/a", "/b")})
	var open []*Writer
	for id := range uint64(4) {
		w, err := s.Create(id, 10, transfer.CRC32C(), false, nil, Want{Size: 1000})
		must(t, err)
		open = append(open, w)
	}
	_, err := s.Create(4, 10, transfer.CRC32C(), false, nil, Want{Size: 1000})
	if !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "500 bytes") {
		t.Fatalf("a fifth block: %v", err)
	}
	write(t, open[0], 0, make([]byte, 400)) // are in the disk's numbers from now on
	if r := s.Storages()[0].Reserved; r != 1600 {
		t.Errorf("%d bytes reserved", r)
	}
	for _, w := range open {
		must(t, w.Close(true))
	}
	if all := s.Storages(); all[0].Reserved != 0 || all[1].Reserved != 0 {
		t.Errorf("%+v", all)
	}
	must(t, s.Close())
}

// Replicas that want a kind of storage get it, if there is any.
func TestKindsOfStorage(t *testing.T) {
	cfg := Config{Dirs: dirs("/a", "/b", "/c")}
	cfg.Dirs[1].Type, cfg.Dirs[2].Type = hdfspb.StorageTypeProto_SSD, hdfspb.StorageTypeProto_SSD
	s := openDirs(t, newDisks(), cfg)
	got := map[int]int{}
	for id := range uint64(4) {
		got[add(t, s, id, 1, Want{Type: hdfspb.StorageTypeProto_SSD})]++
	}
	for id := uint64(4); id < 7; id++ {
		got[add(t, s, id, 1, Want{Type: hdfspb.StorageTypeProto_DISK})]++
		got[add(t, s, id+10, 1, Want{Type: hdfspb.StorageTypeProto_ARCHIVE})]++ // there is none: any
	}
	if want := map[int]int{0: 4, 1: 3, 2: 3}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	must(t, s.Close())
}

// By space, three of four replicas go where there is more room, and all that would not fit
// elsewhere.
func TestDirectoriesBySpace(t *testing.T) {
	fs := newDisks()
	fs.room["/a"], fs.room["/b"], fs.room["/c"] = 1<<20, 1<<20+100, 1<<30
	s := openDirs(t, fs, Config{Dirs: dirs("/a", "/b", "/c"), Choice: Choice{BySpace: true, Threshold: 1 << 20, Preference: 0.75}})
	got := map[int]int{}
	const all = 700
	for id := range uint64(all) {
		got[add(t, s, id, 1, Want{Size: 1000})]++
	}
	// 0.75 of 1 beside 0.25 of 2: three of five. 6 standard deviations are 78.
	if n := got[2]; n < all*3/5-78 || n > all*3/5+78 || got[0]-got[1] > 1 || got[1]-got[0] > 1 {
		t.Errorf("%v", got)
	}
	for id := uint64(all); id < all+20; id++ {
		if at := add(t, s, id, 1, Want{Size: 2 << 20}); at != 2 {
			t.Errorf("a large block is in directory %d", at)
		}
	}
	fs.room["/c"] = 1<<20 + 50 // as good as equal: in turn
	clear(got)
	for id := uint64(1000); id < 1030; id++ {
		got[add(t, s, id, 1, Want{Size: 1000})]++
	}
	if want := map[int]int{0: 10, 1: 10, 2: 10}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	must(t, s.Close())
}

// Directories may come and go; those of others are refused.
func TestWhoseDirectories(t *testing.T) {
	fs := newDisks()
	s := openDirs(t, fs, Config{Dirs: dirs("/a", "/b")})
	id := s.Identity()
	id.ClusterID, id.BlockPoolID = "CID-1", "BP-1"
	must(t, s.SetIdentity(id))
	ids := []string{s.Storages()[0].ID, s.Storages()[1].ID}
	add(t, s, 1, 100, Want{}) // in /a
	must(t, s.Close())

	s = openDirs(t, fs, Config{Dirs: dirs("/new", "/b")})
	now := s.Storages()
	if s.Identity() != id || now[1].ID != ids[1] || slices.Contains(ids, now[0].ID) || len(s.Replicas()) != 0 {
		t.Fatalf("%+v %+v", s.Identity(), now)
	}
	must(t, s.Close())
	s = openDirs(t, fs, Config{Dirs: dirs("/new", "/a", "/b")})
	if len(s.Replicas()) != 1 {
		t.Fatal("the replica did not come back with its directory")
	}
	must(t, s.Close())

	s = openDirs(t, fs, Config{Dirs: dirs("/other")})
	must(t, s.Close())
	s = openDirs(t, fs, Config{Dirs: dirs("/foreign")})
	far := id
	far.ClusterID, far.BlockPoolID = "CID-2", "BP-2"
	must(t, s.SetIdentity(far))
	must(t, s.Close())
	must(t, fs.MkdirAll("/copy", 0o755))
	must(t, vfs.Copy(fs.FS, "/a/VERSION", "/copy/VERSION"))
	for _, c := range []struct {
		path, text string
	}{
		{"/other", "belongs to DataNode"},
		{"/foreign", `"CID-2"`},
		{"/copy", "one is a copy of the other"},
		{"/a", "twice"},
	} {
		s, err := Open(Config{FS: fs, Dirs: dirs("/a", c.path), BootID: "a", Tolerated: 1})
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("with %s: %v", c.path, err)
		}
		if err == nil {
			must(t, s.Close())
		}
	}
	for _, cfg := range []Config{{}, {Dirs: dirs("/a"), Tolerated: 1}} {
		if _, err := Open(cfg); err == nil {
			t.Errorf("opened %+v", cfg)
		}
	}
}

// Each directory is locked: by itself another process can't take one.
func TestDirectoriesAreLocked(t *testing.T) {
	base := t.TempDir()
	a, b := filepath.Join(base, "a"), filepath.Join(base, "b")
	s, err := Open(Config{Dirs: dirs(a, b), BootID: "a"})
	must(t, err)
	for _, d := range []string{a, b} {
		_, err := Open(Config{Dirs: dirs(filepath.Join(base, "c"), d), BootID: "a", Tolerated: 1})
		if err == nil || !strings.Contains(err.Error(), d+" is in use") {
			t.Errorf("%s: %v", d, err)
		}
	}
	must(t, s.Close())
	s, err = Open(Config{Dirs: dirs(b, a), BootID: "a"})
	must(t, err)
	must(t, s.Close())
}

// A directory of an earlier release has no storage id: it keeps the one by which NameNodes
// knew it.
func TestVersionWithoutStorage(t *testing.T) {
	fs := newDisks()
	s := openDirs(t, fs, Config{Dirs: dirs("/a")})
	uuid := s.Identity().DatanodeUUID
	must(t, s.Close())
	old := fmt.Sprintf("layoutVersion=1\ndatanodeUuid=%s\nclusterID=\nblockpoolID=\n", uuid)
	must(t, replaceFile(fs, "/a/VERSION", []byte(old)))
	s = openDirs(t, fs, Config{Dirs: dirs("/a", "/b")})
	all := s.Storages()
	if all[0].ID != "DS-"+uuid || all[1].ID == "" || all[1].ID == all[0].ID || s.Identity().DatanodeUUID != uuid {
		t.Errorf("%+v", all)
	}
	must(t, s.Close())
}

// Directories that can't be opened are left out, as many as may be.
func TestOpenWithoutADirectory(t *testing.T) {
	fs := newDisks()
	s := openDirs(t, fs, Config{Dirs: dirs("/a", "/b", "/c")})
	for id := range uint64(3) {
		add(t, s, id, 100, Want{})
	}
	must(t, s.Close())
	fs.broken["/b"] = true
	_, err := Open(Config{FS: fs, Dirs: dirs("/a", "/b", "/c"), BootID: "a"})
	if !errors.Is(err, ErrTooManyFailed) || !strings.Contains(err.Error(), "/b") || !strings.Contains(err.Error(), "1 of 3, tolerated are 0") {
		t.Fatalf("%v", err)
	}
	s = openDirs(t, fs, Config{Dirs: dirs("/a", "/b", "/c"), Tolerated: 1})
	if all := s.Storages(); len(s.Replicas()) != 2 || all[1].Failed == nil || all[0].Failed != nil || !s.Failed(1) {
		t.Fatalf("%+v", all)
	}
	must(t, s.Close())
	fs.broken["/c"] = true
	if _, err := Open(Config{FS: fs, Dirs: dirs("/a", "/b", "/c"), BootID: "a", Tolerated: 1}); !errors.Is(err, ErrTooManyFailed) {
		t.Fatalf("%v", err)
	}
	s = openDirs(t, fs, Config{Dirs: dirs("/a", "/b", "/c"), Tolerated: -1})
	must(t, s.Close())
	fs.broken["/a"] = true
	if _, err := Open(Config{FS: fs, Dirs: dirs("/a", "/b", "/c"), BootID: "a", Tolerated: -1}); !errors.Is(err, ErrTooManyFailed) {
		t.Fatalf("without any: %v", err)
	}
}

// A directory that fails takes its replicas along, finished or not, and new ones go elsewhere.
func TestDirectoryFails(t *testing.T) {
	fs := newDisks()
	var changed []uint64
	s := openDirs(t, fs, Config{Dirs: dirs("/a", "/b"), Tolerated: 1, Changing: func(id uint64) { changed = append(changed, id) }})
	for id := range uint64(4) {
		add(t, s, id, 100, Want{})
	}
	r, err := s.Get(0)
	must(t, err)
	rd, err := r.Open()
	must(t, err)
	stopped := 0
	w, err := s.Create(4, 10, transfer.CRC32C(), false, func() { stopped++ }, Want{})
	must(t, err)
	write(t, w, 0, make([]byte, 100))
	must(t, s.Check(0))
	fs.broken["/a"] = true
	err = s.Check(0)
	if !errors.Is(err, syscall.EIO) {
		t.Fatalf("the check of a broken directory: %v", err)
	}
	changed = nil
	if n, first := s.Fail(0, err); n != 3 || !first {
		t.Fatalf("%d replicas lost, %v", n, first)
	}
	if n, first := s.Fail(0, err); n != 0 || first {
		t.Fatal("failed twice")
	}
	slices.Sort(changed)
	if !slices.Equal(changed, []uint64{0, 2, 4}) || stopped != 1 || len(s.Replicas()) != 2 {
		t.Fatalf("changed %v, %d writers stopped, %d replicas left", changed, stopped, len(s.Replicas()))
	}
	if err := w.Finalize(false); !errors.Is(err, ErrNotFound) {
		t.Errorf("finalized a replica that is gone: %v", err)
	}
	must(t, w.Close(true))
	if err := rd.Read(make([]byte, 100), make([]byte, 4), 0); !errors.Is(err, ErrChanged) {
		t.Errorf("read a replica that is gone: %v", err)
	}
	must(t, rd.Close())
	if _, err := s.Get(0); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	must(t, s.Enough())
	for id := range uint64(3) {
		if at := add(t, s, 2*id, 100, Want{}); at != 1 { // copies of what was lost may come here
			t.Errorf("directory %d", at)
		}
	}
	if ok, err := s.Promise(8, 20); !ok || err != nil {
		t.Errorf("promise with a failed directory: %v, %v", ok, err)
	}
	if _, first := s.Fail(1, err); !first || !errors.Is(s.Enough(), ErrTooManyFailed) {
		t.Errorf("%v", s.Enough())
	}
	if _, err := s.Create(20, 10, transfer.CRC32C(), false, nil, Want{}); !errors.Is(err, ErrTooManyFailed) {
		t.Errorf("create without a directory: %v", err)
	}
	if _, err := s.Promise(21, 20); !errors.Is(err, ErrTooManyFailed) {
		t.Errorf("promise without a directory: %v", err)
	}
	must(t, s.Close())
}

// Of two equal replicas the one whose bytes match its checksums stays, whichever directory
// it is in.
func TestDamagedReplicaInTwoDirectories(t *testing.T) {
	for damaged := range 2 {
		fs := newDisks()
		s := openDirs(t, fs, Config{Dirs: dirs("/a", "/b")})
		must(t, s.Close())
		for _, dir := range []string{"/a", "/b"} {
			s = openDirs(t, fs, Config{Dirs: dirs(dir)})
			add(t, s, 1, 100, Want{})
			must(t, s.Close())
		}
		f, err := fs.OpenReadWrite([]string{"/a", "/b"}[damaged]+"/blocks/00/blk_1", vfs.WriteCategoryUnspecified)
		must(t, err)
		var b [1]byte
		_, err = f.ReadAt(b[:], 50)
		must(t, err)
		b[0] ^= 4
		_, err = f.WriteAt(b[:], 50)
		must(t, errors.Join(err, f.Sync(), f.Close()))
		s = openDirs(t, fs, Config{Dirs: dirs("/a", "/b")})
		r, err := s.Get(1)
		must(t, err)
		if err := r.Verify(nil); err != nil || r.Storage() != 1-damaged {
			t.Errorf("damaged in directory %d: the one in %d stayed: %v", damaged, r.Storage(), err)
		}
		must(t, s.Close())
	}
}

// Of two equal replicas none is removed as long as the disks can read neither of them.
func TestUnreadableReplicaInTwoDirectories(t *testing.T) {
	const length = 5000
	for _, finalized := range []bool{true, false} {
		t.Run(fmt.Sprint("finalized: ", finalized), func(t *testing.T) {
			mem := vfs.NewMem()
			must(t, openDirs(t, mem, Config{Dirs: dirs("/a", "/b")}).Close())
			data := random(rand.New(rand.NewPCG(1, 0)), length)
			for _, dir := range []string{"/a", "/b"} {
				s := openDirs(t, mem, Config{Dirs: dirs(dir)})
				w, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{})
				must(t, err)
				write(t, w, 0, data)
				if finalized {
					must(t, w.Finalize(true))
				}
				must(t, w.Close(false))
				must(t, s.Close())
			}
			disk := &sectorFS{FS: mem, files: endsIn("blk_1"), at: 3000}
			s := openDirs(t, disk, Config{Dirs: dirs("/a", "/b")})
			if _, err := s.Get(1); err != nil {
				t.Error(err)
			}
			must(t, s.Close())
			for _, dir := range []string{"/a", "/b"} {
				names, err := mem.List(dir + "/blocks/00")
				if must(t, err); len(names) != 2 {
					t.Errorf("in %s: %v", dir, names)
				}
			}
			disk.files = nil // they can be read again
			s = openDirs(t, disk, Config{Dirs: dirs("/a", "/b")})
			if got := contents(t, s, 1); !bytes.Equal(got, data) || s.Storages()[1].Used != 0 {
				t.Errorf("%d bytes, %+v", len(got), s.Storages())
			}
			must(t, s.Close())
		})
	}
}

// A directory that was away comes back with replicas that have been replaced: the better one
// of each block stays.
func TestReplicaInTwoDirectories(t *testing.T) {
	for _, c := range []struct {
		what               string
		gen                uint64
		length             int
		unfinished, second bool // the one in the directory that was away; it stays
	}{
		{what: "newer", gen: 11, length: 50, second: true},
		{what: "older", gen: 9, length: 200},
		{what: "longer", gen: 10, length: 200, second: true},
		{what: "equal", gen: 10, length: 100},
		{what: "unfinished", gen: 10, length: 200, unfinished: true},
	} {
		fs := newDisks()
		s := openDirs(t, fs, Config{Dirs: dirs("/a", "/b")}) // a pair
		must(t, s.Close())
		s = openDirs(t, fs, Config{Dirs: dirs("/b")})
		w, err := s.Create(1, c.gen, transfer.CRC32C(), false, nil, Want{})
		must(t, err)
		write(t, w, 0, make([]byte, c.length))
		if !c.unfinished {
			must(t, w.Finalize(false))
		}
		must(t, w.Close(false))
		must(t, s.Close())
		s = openDirs(t, fs, Config{Dirs: dirs("/a")})
		add(t, s, 1, 100, Want{})
		must(t, s.Close())
		for range 2 { // the other is gone for good
			s = openDirs(t, fs, Config{Dirs: dirs("/a", "/b")})
			r, err := s.Get(1)
			must(t, err)
			all := s.Storages()
			if i := r.Info(); (i.Storage == 1) != c.second || all[i.Storage].Used != uint64(i.Length) || all[1-i.Storage].Used != 0 || len(s.Replicas()) != 1 {
				t.Errorf("%s: %+v %+v", c.what, i, all)
			}
			must(t, s.Close())
		}
		names, err := fs.List(map[bool]string{true: "/a", false: "/b"}[c.second] + "/blocks/00")
		must(t, err)
		if len(names) != 0 {
			t.Errorf("%s: %v are left", c.what, names)
		}
	}
}
