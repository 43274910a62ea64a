package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// said keeps what was logged as an error.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.buf.String(), text)
}

func (s *said) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelError}))
}

func openTwo(t *testing.T, fs vfs.FS, sm StateMachine, logger *slog.Logger) (*Journal, error) {
	t.Helper()
	j, err := Open(t.Context(), Config{Dir: "/j", Second: "/k", FS: fs, TrailingEntries: 1, Logger: logger}, sm)
	if err == nil {
		t.Cleanup(func() { j.Close() })
	}
	return j, err
}

func mustOpenTwo(t *testing.T, fs vfs.FS, n int) *Journal {
	t.Helper()
	sm := &list{}
	j, err := openTwo(t, fs, sm, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkEntries(t, sm, n)
	return j
}

func mustClose(t *testing.T, j *Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// withTwo makes a journal in two directories: 50 entries, two snapshots.
func withTwo(t *testing.T, fs vfs.FS) (entries int) {
	t.Helper()
	j := mustOpenTwo(t, fs, 0)
	for i := range 50 {
		appendEntry(t, j, fmt.Sprint("entry ", i))
		if i == 20 || i == 40 {
			if err := j.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, j)
	return 50
}

// tree is the content of the files that count.
func tree(t *testing.T, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, part := range []string{"snapshots", "log"} {
		names, err := fs.List(fs.PathJoin(dir, part))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			f, err := fs.Open(fs.PathJoin(dir, part, name))
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(f)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			if name != "LOCK" {
				out[part+"/"+name] = string(data)
			}
		}
	}
	return out
}

// Each of two directories has everything, and is a journal of its own.
func TestTwoDirectories(t *testing.T) {
	for _, dir := range []string{"/j", "/k"} {
		fs := vfs.NewMem()
		n := withTwo(t, fs)
		a, b := tree(t, fs, "/j"), tree(t, fs, "/k")
		if len(a) != len(b) {
			t.Fatalf("%d files and %d files", len(a), len(b))
		}
		for name, data := range a {
			if b[name] != data {
				t.Errorf("%s differs: %d and %d bytes", name, len(data), len(b[name]))
			}
		}
		sm := &list{}
		j := mustOpen(t, fs, dir, sm)
		checkEntries(t, sm, n)
		mustClose(t, j)
	}
}

// A start takes the state from the second directory if the first one is gone or
// damaged, says so, and repairs the first one.
func TestFallBackToSecond(t *testing.T) {
	hurt := map[string]func(t *testing.T, fs vfs.FS){
		"gone":  func(t *testing.T, fs vfs.FS) { check(t, fs.RemoveAll("/j")) },
		"empty": func(t *testing.T, fs vfs.FS) { check(t, errors.Join(fs.RemoveAll("/j"), fs.MkdirAll("/j", 0o700))) },
		"snapshots": func(t *testing.T, fs vfs.FS) {
			damage(t, fs, func(name string) bool { return strings.HasSuffix(name, stateSuffix) })
		},
		"one snapshot": func(t *testing.T, fs vfs.FS) {
			first := true
			damage(t, fs, func(name string) bool {
				hit := first && strings.HasSuffix(name, stateSuffix)
				first = first && !hit
				return hit
			})
		},
		"entry": func(t *testing.T, fs vfs.FS) { damageEntry(t, fs, "/j") },
	}
	for name, harm := range hurt {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			n := withTwo(t, fs)
			harm(t, fs)
			sm, log := &list{}, &said{}
			j, err := openTwo(t, fs, sm, log.logger())
			if err != nil {
				t.Fatal(err)
			}
			checkEntries(t, sm, n)
			if !log.has("the state comes from the second one") {
				t.Errorf("it does not say where the state comes from: %s", log.buf.String())
			}
			appendEntry(t, j, fmt.Sprint("entry ", n))
			mustClose(t, j)
			check(t, fs.RemoveAll("/k"))
			mustClose(t, mustOpenTwo(t, fs, n+1))
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func damageEntry(t *testing.T, fs vfs.FS, dir string) {
	t.Helper()
	s, err := openStore(fs, dir+"/log", slog.Default())
	check(t, err)
	var key [9]byte
	check(t, s.db.Set(logKey(key[:0], s.last-3), []byte{99}, pebble.Sync))
	check(t, s.Close())
}

// badDisk fails everything that changes a file below dir.
type badDisk struct {
	vfs.FS
	dir string
	bad atomic.Bool
}

func (d *badDisk) err(name string) error {
	if d.bad.Load() && strings.HasPrefix(name, d.dir+"/") {
		return fmt.Errorf("%s: %w", name, os.ErrInvalid)
	}
	return nil
}

func (d *badDisk) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err == nil {
		f = &badFile{f, d, name}
	}
	return f, err
}

func (d *badDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.err(name); err != nil {
		return nil, err
	}
	f, err := d.FS.Create(name, c)
	return d.wrap(name, f, err)
}

func (d *badDisk) OpenDir(name string) (vfs.File, error) {
	f, err := d.FS.OpenDir(name)
	return d.wrap(name, f, err)
}

func (d *badDisk) ReuseForWrite(a, b string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := d.err(b); err != nil {
		return nil, err
	}
	f, err := d.FS.ReuseForWrite(a, b, c)
	return d.wrap(b, f, err)
}

func (d *badDisk) Rename(a, b string) error { return errors.Join(d.err(a), d.FS.Rename(a, b)) }
func (d *badDisk) Unwrap() vfs.FS           { return d.FS }

type badFile struct {
	vfs.File
	d    *badDisk
	name string
}

func (f *badFile) Write(p []byte) (int, error) {
	if err := f.d.err(f.name); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f *badFile) SyncData() error { return errors.Join(f.d.err(f.name), f.File.SyncData()) }
func (f *badFile) Sync() error     { return errors.Join(f.d.err(f.name), f.File.Sync()) }

// When one disk fails the journal goes on with the other one, and the next start
// knows which of them has everything.
func TestOneDiskFails(t *testing.T) {
	for _, dir := range []string{"/j", "/k"} {
		t.Run(dir[1:], func(t *testing.T) {
			mem := vfs.NewMem()
			fs := &badDisk{FS: mem, dir: dir}
			n := withTwo(t, fs)
			sm, log := &list{}, &said{}
			j, err := openTwo(t, fs, sm, log.logger())
			check(t, err)
			fs.bad.Store(true)
			for range 10 {
				appendEntry(t, j, fmt.Sprint("entry ", n))
				n++
			}
			check(t, j.Snapshot())
			if j.Alone() == nil || len(j.Dirs()) != 1 || j.Dirs()[0] == dir || !log.has("out of service") {
				t.Fatalf("in service are %v, said was %s", j.Dirs(), log.buf.String())
			}
			mustClose(t, j)
			// A start that still sees the bad disk goes on with the other one.
			j = mustOpenTwo(t, fs, n)
			appendEntry(t, j, fmt.Sprint("entry ", n))
			n++
			mustClose(t, j)
			// The one that lacks something does not start by itself.
			if j, err := Open(t.Context(), Config{Dir: dir, FS: mem}, &list{}); err == nil && !errors.Is(fs.err(dir+"/x"), os.ErrInvalid) {
				j.Close()
				t.Fatal("a directory that lacks entries opened")
			} else if err == nil {
				j.Close()
			}
			fs.bad.Store(false)
			j = mustOpenTwo(t, fs, n)
			if j.Alone() != nil {
				t.Fatalf("only %v after the disk is back: %v", j.Dirs(), j.Alone())
			}
			mustClose(t, j)
			mustClose(t, mustOpen2(t, mem, dir, n))
		})
	}
}

// unreadable is a file system on which nothing in /j can be opened.
type unreadable struct{ vfs.FS }

func (u unreadable) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if strings.HasPrefix(name, "/j/") {
		return nil, errors.New("unreadable")
	}
	return u.FS.Open(name, opts...)
}

func mustOpen2(t *testing.T, fs vfs.FS, dir string, n int) *Journal {
	t.Helper()
	sm := &list{}
	j := mustOpen(t, fs, dir, sm)
	checkEntries(t, sm, n)
	return j
}

// Two journals that have nothing to do with each other are left alone, and so is
// one that is newer but damaged.
func TestTwoThatDoNotFit(t *testing.T) {
	fs := vfs.NewMem()
	for _, dir := range []string{"/j", "/k"} {
		j := mustOpen(t, fs, dir, &list{})
		appendEntry(t, j, "of "+dir)
		mustClose(t, j)
	}
	if _, err := openTwo(t, fs, &list{}, nil); err == nil || !strings.Contains(err.Error(), "/k") {
		t.Fatalf("two journals as one: %v", err)
	}
	// No new one is made while an old one may be on a disk that can't be read.
	mem := vfs.NewMem()
	check(t, mem.MkdirAll("/j", 0o700))
	if _, err := openTwo(t, unreadable{mem}, &list{}, nil); err == nil || !strings.Contains(err.Error(), "unreadable") {
		t.Fatalf("the first directory can't be read, the second is empty: %v", err)
	}
	fs = vfs.NewMem()
	n := withTwo(t, fs)
	j := mustOpen2(t, fs, "/j", n) // the first one alone: it is the newer one from then on
	appendEntry(t, j, fmt.Sprint("entry ", n))
	mustClose(t, j)
	damageEntry(t, fs, "/j")
	if _, err := openTwo(t, fs, &list{}, nil); err == nil || !strings.Contains(err.Error(), "offline recovery") {
		t.Fatalf("the newer one is damaged: %v", err)
	}
	cfg := Config{Dir: "/j", Second: "/k", FS: fs}
	rep, err := Check(cfg, &list{})
	if err != nil || rep.Dir != "/j" || rep.LogErr == nil || rep.Other == nil || rep.Other.Dir != "/k" || rep.Other.LogErr != nil || rep.OtherErr == nil {
		t.Fatalf("check: %+v, other %+v, %v", rep, rep.Other, err)
	}
	rep, err = Recover(cfg, &list{})
	check(t, err)
	sm := &list{}
	j, err = openTwo(t, fs, sm, nil)
	check(t, err)
	if got := uint64(len(sm.entries)); got == 0 || rep.Good == 0 {
		t.Fatalf("%d entries after %+v", got, rep)
	}
	mustClose(t, j)
	rep, err = Check(cfg, &list{})
	if err != nil || rep.Damaged() || rep.Other == nil || rep.OtherErr != nil {
		t.Fatalf("check afterwards: %+v, %v", rep, err)
	}
}

// TestTwoCrash takes away what was not synced, and now and then a whole
// directory; nothing that was acknowledged is lost.
func TestTwoCrash(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 7))
			mem := vfs.NewCrashableMem()
			acked := map[string]bool{}
			for round := range 4 {
				disk := &badDisk{FS: mem, dir: []string{"/j", "/k"}[rng.IntN(2)]}
				sm := &list{}
				j, err := openTwo(t, disk, sm, nil)
				check(t, err)
				have := map[string]bool{}
				for _, e := range sm.entries {
					have[string(e)] = true
				}
				for e := range acked {
					if !have[e] {
						t.Fatalf("round %d: acknowledged entry %q is lost", round, e)
					}
				}
				var mu sync.Mutex
				var wg sync.WaitGroup
				var clone *vfs.MemFS
				total, failAt, crashAt, count := 60, rng.IntN(120), rng.IntN(60), 0
				for w := range 3 {
					wg.Go(func() {
						for i := range total / 3 {
							e := fmt.Sprint(round, " ", w, " ", i)
							if _, err := j.Append(t.Context(), []byte(e)); err != nil {
								t.Error(err)
								return
							}
							mu.Lock()
							if clone == nil {
								acked[e] = true
							}
							if count == failAt {
								disk.bad.Store(true)
							}
							if count == crashAt {
								clone = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
							}
							count++
							mu.Unlock()
						}
					})
				}
				wg.Wait()
				lost := !disk.bad.Load() && rng.IntN(2) == 0
				disk.bad.Store(false)
				mustClose(t, j)
				mem = clone
				if lost { // both were in step: one of them may go
					check(t, mem.RemoveAll([]string{"/j", "/k"}[rng.IntN(2)]))
				}
			}
		})
	}
}
