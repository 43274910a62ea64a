package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// A writer that was given a block comes when a recovery has heard that the block is not
// here: what it would have acknowledged is given up already.
func TestPromisedBlockIsNotCreated(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, fs, "a")
	if absent, err := s.Promise(7, 1010); err != nil || !absent {
		t.Fatal(absent, err)
	}
	refused := func(s *Store) {
		t.Helper()
		if _, err := s.Create(7, 1001, transfer.CRC32C(), false, nil, Want{}); !errors.Is(err, ErrGeneration) {
			t.Fatalf("created: %v", err)
		}
	}
	refused(s)
	must(t, s.Close())
	s = open(t, fs.CrashClone(vfs.CrashCloneCfg{}), "b")
	refused(s)
	// What the recovery has settled on elsewhere may be copied here.
	w, err := s.Create(7, 1010, transfer.CRC32C(), true, nil, Want{})
	must(t, err)
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	if absent, err := s.Promise(7, 1020); err != nil || absent {
		t.Fatal(absent, err)
	}
	must(t, s.Close())
}

// deafFS fails to make so many promises.
type deafFS struct {
	vfs.FS
	failures int
}

func (f *deafFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, promiseSuffix) && f.failures > 0 {
		f.failures--
		return nil, syscall.EIO
	}
	return f.FS.Create(name, c)
}

// A promise that could not be written is no promise, until it has been written by another attempt.
func TestPromiseIsDurableWhenItSaysSo(t *testing.T) {
	for _, again := range []uint64{1010, 1005, 1020} {
		mem := vfs.NewCrashableMem()
		s := open(t, &deafFS{mem, 1}, "a")
		if absent, err := s.Promise(7, 1010); !errors.Is(err, syscall.EIO) || absent {
			t.Fatal(absent, err)
		}
		if absent, err := s.Promise(7, again); err != nil || !absent {
			t.Fatal(absent, err)
		}
		must(t, s.Close())
		promised := max(again, 1010) // memory has 1010 from the first call on: less is never written
		for name, fs := range map[string]vfs.FS{"the process": mem, "the machine": mem.CrashClone(vfs.CrashCloneCfg{})} {
			s = open(t, fs, "b")
			if _, err := s.Create(7, promised-1, transfer.CRC32C(), false, nil, Want{}); !errors.Is(err, ErrGeneration) {
				t.Errorf("after the end of %s created under generation %d though %d was promised: %v", name, promised-1, promised, err)
			}
			must(t, s.Close())
		}
	}
}

// A promise that the start finds may not be on stable storage: the process may have died before it was.
func TestPromiseOfAnEarlierProcessIsMadeDurable(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := open(t, mem, "a")
	if absent, err := s.Promise(8, 1010); err != nil || !absent { // its directory is there
		t.Fatal(absent, err)
	}
	f, err := mem.Create(s.volumes[0].promisePath(7, 1010), vfs.WriteCategoryUnspecified)
	must(t, err)
	must(t, f.Close())
	must(t, s.Close())
	s = open(t, mem, "a")
	if absent, err := s.Promise(7, 1010); err != nil || !absent {
		t.Fatal(absent, err)
	}
	must(t, s.Close())
	s = open(t, mem.CrashClone(vfs.CrashCloneCfg{}), "b")
	defer s.Close()
	if _, err := s.Create(7, 1009, transfer.CRC32C(), false, nil, Want{}); !errors.Is(err, ErrGeneration) {
		t.Errorf("after the end of the machine created under generation 1009 though 1010 was promised: %v", err)
	}
}

// A replica that may have lost acknowledged bytes says so, for as long as nobody has
// looked after it.
func TestPowerCutTearsOpenReplicas(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	fs := vfs.NewCrashableMem()
	s := open(t, fs, "a")
	data := random(rng, 9000)
	w, err := s.Create(7, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, data[:4096])
	must(t, w.Sync())
	write(t, w, 4096, data[4096:])
	// One that was finalized without hsync, too, if it does not hold.
	f, err := s.Create(8, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, f, 0, data[:4096])
	must(t, f.Sync())
	f.keeps = false
	write(t, f, 4096, data[4096:])
	must(t, f.Finalize(false))
	must(t, f.meta.Sync())
	torn := func(s *Store, id uint64, want bool) {
		t.Helper()
		r, err := s.Get(id)
		must(t, err)
		if i := r.Info(); i.State != WaitingRecovery || i.Torn != want {
			t.Fatalf("block %d is %+v, want torn %t", id, i, want)
		}
	}

	same := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
	after := open(t, same, "a") // the process has died
	torn(after, 7, false)
	must(t, after.Close())

	cut := fs.CrashClone(vfs.CrashCloneCfg{})
	after = open(t, cut, "b")
	torn(after, 7, true)
	torn(after, 8, true)
	must(t, after.Close())
	after = open(t, cut, "b") // and once more in the same boot
	torn(after, 7, true)
	torn(after, 8, true)
	r, err := after.Get(7)
	must(t, err)
	n := r.Info().Length
	_, err = r.InitRecovery(1001, 1010)
	must(t, err)
	must(t, r.Settle(1010, n))
	if r.Info().Torn {
		t.Fatal("torn after a recovery")
	}
	must(t, after.Close())
	must(t, w.Close(false))
	must(t, f.Close(false))
}

// A replica that was closed without hsync, and synced later, has its names on stable
// storage, too.
func TestSyncFinalizedKeepsTheNames(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	fs := vfs.NewCrashableMem()
	s := open(t, fs, "a")
	data := random(rng, 3000)
	w, err := s.Create(7, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, data)
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	must(t, w.Replica().SyncFinalized())
	after := open(t, fs.CrashClone(vfs.CrashCloneCfg{}), "b")
	if got := contents(t, after, 7); !bytes.Equal(got, data) {
		t.Fatalf("%d bytes", len(got))
	}
	must(t, after.Close())
	must(t, s.Close())
}

// What a client has copied to a new member of its pipeline may have been hsynced.
func TestPublishedCopyIsDurable(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	fs := vfs.NewCrashableMem()
	s := open(t, fs, "a")
	data := random(rng, 3000)
	w, err := s.Create(7, 1001, transfer.CRC32C(), true, nil, Want{})
	must(t, err)
	write(t, w, 0, data)
	must(t, w.Publish())
	after := open(t, fs.CrashClone(vfs.CrashCloneCfg{}), "b")
	if got := contents(t, after, 7); !bytes.Equal(got, data) {
		t.Fatalf("%d bytes", len(got))
	}
	must(t, after.Close())
	must(t, w.Close(false))
	must(t, s.Close())
}

// A replica that was copied here is appended to; the process dies.
func TestAppendToACopySurvives(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	fs := vfs.NewCrashableMem()
	s := open(t, fs, "a")
	data := random(rng, 3000)
	w, err := s.Create(7, 1001, transfer.CRC32C(), true, nil, Want{})
	must(t, err)
	write(t, w, 0, data[:1000])
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	w, err = s.Reopen(7, ReopenOptions{Mode: Append, Generation: 1001, NewGeneration: 1002, Min: 1000})
	must(t, err)
	write(t, w, 1000, data[1000:])
	after := open(t, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng}), "a")
	if got := contents(t, after, 7); !bytes.Equal(got, data) {
		t.Fatalf("%d bytes", len(got))
	}
	must(t, after.Close())
	must(t, w.Close(false))
	must(t, s.Close())
}

// A bit has flipped in a replica that is being written when the process dies: what the
// checksums still prove is not all that was acknowledged.
func TestDamageTearsOpenReplicas(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	fs := vfs.NewMem()
	s := open(t, fs, "a")
	w, err := s.Create(7, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, random(rng, 3000))
	must(t, s.Close())
	for _, damaged := range []bool{false, true} {
		if damaged {
			f, err := fs.OpenReadWrite(s.volumes[0].dataPath(7), vfs.WriteCategoryUnspecified)
			must(t, err)
			_, err = f.WriteAt([]byte{1, 2, 3, 4}, 2000)
			must(t, err)
			must(t, f.Close())
		}
		after := open(t, fs, "a")
		r, err := after.Get(7)
		must(t, err)
		if i := r.Info(); i.Torn != damaged || !damaged && i.Length != 3000 {
			t.Fatalf("damaged %t: %+v", damaged, i)
		}
		must(t, after.Close())
	}
	must(t, w.Close(false))
}

// Bytes that were hsynced can be read after a power cut on all DataNodes only if the
// replica is as long as the NameNode knows the block to be: its end is synced, too.
func TestEndOfSyncedReplicaIsDurable(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	fs := vfs.NewCrashableMem()
	s := open(t, fs, "a")
	data := random(rng, 6000)
	w, err := s.Create(7, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, data[:100])
	must(t, w.Sync())
	write(t, w, 100, data[100:5000])
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	after := open(t, fs.CrashClone(vfs.CrashCloneCfg{}), "b")
	if got := contents(t, after, 7); len(got) != 5000 {
		t.Fatalf("%d bytes", len(got))
	}
	// And after an append, in which nothing is hsynced.
	w, err = after.Reopen(7, ReopenOptions{Mode: Append, Generation: 1001, NewGeneration: 1002, Min: 5000})
	must(t, err)
	write(t, w, 5000, data[5000:])
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	must(t, after.Close())
	cut, ok := after.volumes[0].fs.(*vfs.MemFS)
	if !ok {
		t.Fatal("no memory")
	}
	after = open(t, cut.CrashClone(vfs.CrashCloneCfg{}), "c")
	if got := contents(t, after, 7); len(got) != 6000 {
		t.Fatalf("%d bytes", len(got))
	}
	must(t, after.Close())
	must(t, s.Close())
}
