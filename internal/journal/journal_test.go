package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// list is a state machine that remembers every entry.
type list struct {
	mu      sync.Mutex
	entries [][]byte
}

func (l *list) Apply(entries []Entry) []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]any, len(entries))
	for i, e := range entries {
		l.entries = append(l.entries, bytes.Clone(e.Data))
		out[i] = len(l.entries)
	}
	return out
}

func (l *list) Snapshot() (io.WriterTo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var buf []byte
	for _, e := range l.entries {
		buf = binary.AppendUvarint(buf, uint64(len(e)))
		buf = append(buf, e...)
	}
	return bytes.NewReader(buf), nil
}

func (l *list) Restore(r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = nil
	for len(data) > 0 {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			return errors.New("damaged")
		}
		l.entries = append(l.entries, bytes.Clone(data[n:n+int(size)]))
		data = data[n+int(size):]
	}
	return nil
}

func mustOpen(t testing.TB, fs vfs.FS, dir string, sm StateMachine) *Journal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	j, err := Open(ctx, Config{Dir: dir, FS: fs, TrailingEntries: 4}, sm)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func appendEntry(t testing.TB, j *Journal, e string) int {
	t.Helper()
	res, err := j.Append(t.Context(), []byte(e))
	if err != nil {
		t.Fatal(err)
	}
	return res.(int)
}

func checkEntries(t *testing.T, sm *list, n int) {
	t.Helper()
	if len(sm.entries) != n {
		t.Fatalf("%d entries after opening, want %d", len(sm.entries), n)
	}
	for i, e := range sm.entries {
		if want := fmt.Sprint("entry ", i); string(e) != want {
			t.Fatalf("entry %d is %q, want %q", i, e, want)
		}
	}
}

func TestReopenOnDisk(t *testing.T) {
	dir := t.TempDir()
	n := 0
	for round := range 4 {
		sm := &list{}
		j := mustOpen(t, nil, dir+"/a/b", sm)
		checkEntries(t, sm, n)
		for range 20 {
			if got := appendEntry(t, j, fmt.Sprint("entry ", n)); got != n+1 {
				t.Fatalf("entry %d was number %d", n, got)
			}
			n++
		}
		if round%2 == 1 {
			if err := j.Snapshot(); err != nil {
				t.Fatal(err)
			}
			// It is cut behind the older of two snapshots.
			if first, _ := j.store.FirstIndex(); (first >= 10) != (round == 3) || first > 50 {
				t.Fatalf("round %d: the log begins at %d after a snapshot", round, first)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := j.Append(t.Context(), []byte("x")); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("append after close: %v", err)
		}
	}
}

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, nil, dir, &list{})
	if j, err := Open(t.Context(), Config{Dir: dir}, &list{}); err == nil {
		j.Close()
		t.Fatal("a second journal opened the same directory")
	} else if !bytes.Contains([]byte(err.Error()), []byte("in use")) {
		t.Fatalf("the error does not say that the directory is in use: %v", err)
	}
}

// TestCrash takes everything away that was not synced, at random moments of
// concurrent appends and snapshots.
func TestCrash(t *testing.T) {
	for seed := range int64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			fs := vfs.NewCrashableMem()
			acked := map[string]bool{}
			for round := range 4 {
				sm := &list{}
				j := mustOpen(t, fs, "/data/journal", sm)
				have := map[string]bool{}
				for _, e := range sm.entries {
					if have[string(e)] {
						t.Fatalf("round %d: entry %q is there twice", round, e)
					}
					have[string(e)] = true
				}
				for e := range acked {
					if !have[e] {
						t.Fatalf("round %d: acknowledged entry %q is lost; %d are there", round, e, len(have))
					}
				}
				var mu sync.Mutex
				var wg sync.WaitGroup
				total := 20 + rng.IntN(60)
				crashAt := rng.IntN(total)
				var clone *vfs.MemFS
				count := 0
				for w := range 4 {
					wg.Go(func() {
						for i := range total / 4 {
							e := fmt.Sprintf("%d/%d/%d", round, w, i)
							if _, err := j.Append(context.Background(), []byte(e)); err != nil {
								t.Errorf("append: %v", err)
								return
							}
							mu.Lock()
							if clone == nil {
								acked[e] = true
								if count++; count >= crashAt {
									clone = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
								}
							}
							mu.Unlock()
							if w == 0 && i%5 == 4 {
								if err := j.Snapshot(); err != nil {
									t.Errorf("snapshot: %v", err)
								}
							}
						}
					})
				}
				wg.Wait()
				j.Close()
				if clone != nil {
					fs = clone
				}
			}
		})
	}
}

// TestCrashWhileStarting cuts the very first start at every point where
// something is written.
func TestCrashWhileStarting(t *testing.T) {
	for n := 0; ; n++ {
		mem := vfs.NewCrashableMem()
		fs := &clonePoint{FS: mem, mem: mem, at: n}
		mustOpen(t, fs, "/j", &list{}).Close()
		if fs.clone == nil {
			if n < 5 {
				t.Fatalf("only %d writes at the first start", n)
			}
			return
		}
		sm := &list{}
		j := mustOpen(t, fs.clone, "/j", sm)
		appendEntry(t, j, "entry 0")
		checkEntries(t, sm, 1)
		j.Close()
	}
}

// clonePoint takes the crash clone after the at-th sync of a file.
type clonePoint struct {
	vfs.FS
	mem   *vfs.MemFS
	mu    sync.Mutex
	at    int
	clone *vfs.MemFS
}

func (c *clonePoint) synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == 0 {
		c.clone = c.mem.CrashClone(vfs.CrashCloneCfg{})
	}
	c.at--
}

func (c *clonePoint) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return syncedFile{f, c}, nil
}

func (c *clonePoint) Create(name string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	return c.wrap(c.FS.Create(name, cat))
}

func (c *clonePoint) OpenDir(name string) (vfs.File, error) { return c.wrap(c.FS.OpenDir(name)) }

func (c *clonePoint) ReuseForWrite(a, b string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	return c.wrap(c.FS.ReuseForWrite(a, b, cat))
}

type syncedFile struct {
	vfs.File
	c *clonePoint
}

func (f syncedFile) Sync() error {
	err := f.File.Sync()
	f.c.synced()
	return err
}

func (f syncedFile) SyncData() error {
	err := f.File.SyncData()
	f.c.synced()
	return err
}

// damage overwrites two bytes of each file in the snapshots' directory that
// match accepts.
func damage(t *testing.T, fs vfs.FS, match func(name string) bool) {
	t.Helper()
	names, err := fs.List("/j/snapshots")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !match(name) {
			continue
		}
		f, err := fs.OpenReadWrite("/j/snapshots/"+name, writeCategory)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xff, 0xff}, 3); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// withSnapshots makes a journal with snapshots after every 20 entries, and ten
// entries behind the last of them.
func withSnapshots(t *testing.T, fs vfs.FS, snapshots int) (entries int, newest string) {
	t.Helper()
	j, err := Open(t.Context(), Config{Dir: "/j", FS: fs, TrailingEntries: 1}, &list{})
	if err != nil {
		t.Fatal(err)
	}
	for range snapshots {
		for range 20 {
			appendEntry(t, j, fmt.Sprint("entry ", entries))
			entries++
		}
		if err := j.Snapshot(); err != nil {
			t.Fatal(err)
		}
		names, err := fs.List("/j/snapshots")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if id, ok := strings.CutSuffix(name, metaSuffix); ok {
				newest = max(newest, id)
			}
		}
	}
	for range 10 {
		appendEntry(t, j, fmt.Sprint("entry ", entries))
		entries++
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return entries, newest
}

// One damaged snapshot costs nothing: the older one and the log between have
// everything.
func TestDamagedSnapshot(t *testing.T) {
	for snapshots := 1; snapshots <= 4; snapshots++ {
		for _, suffix := range []string{stateSuffix, metaSuffix} {
			fs := vfs.NewMem()
			n, newest := withSnapshots(t, fs, snapshots)
			damage(t, fs, func(name string) bool { return name == newest+suffix })
			for range 2 { // the second start sees no damage
				sm := &list{}
				rep, err := Check(Config{Dir: "/j", FS: fs}, sm)
				if err != nil || rep.LogErr != nil {
					t.Fatalf("check: %+v, %v", rep, err)
				}
				checkEntries(t, sm, n)
				sm = &list{}
				j, err := Open(t.Context(), Config{Dir: "/j", FS: fs, TrailingEntries: 1}, sm)
				if err != nil {
					t.Fatalf("%d snapshots, the newest %s damaged: %v", snapshots, suffix, err)
				}
				checkEntries(t, sm, n)
				appendEntry(t, j, fmt.Sprint("entry ", n))
				n++
				if err := j.Snapshot(); err != nil {
					t.Fatal(err)
				}
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// If nothing whole is left the journal does not open as an empty one.
func TestAllSnapshotsDamaged(t *testing.T) {
	fs := vfs.NewMem()
	withSnapshots(t, fs, 4)
	damage(t, fs, func(name string) bool { return strings.HasSuffix(name, stateSuffix) })
	if rep, err := Check(Config{Dir: "/j", FS: fs}, &list{}); err == nil {
		t.Fatalf("check found a state: %+v", rep)
	}
	for range 2 {
		if j, err := Open(t.Context(), Config{Dir: "/j", FS: fs}, &list{}); err == nil {
			j.Close()
			t.Fatal("it opened though every snapshot is damaged and the log was cut")
		}
	}
	if err := fs.RemoveAll("/j/log"); err != nil {
		t.Fatal(err)
	}
	if j, err := Open(t.Context(), Config{Dir: "/j", FS: fs}, &list{}); err == nil {
		j.Close()
		t.Fatal("it opened as a new one")
	}
}

// A log whose manifest is gone does not open as a new one, whether or not there is a
// snapshot. The offline recovery goes on with the snapshot.
func TestNoManifest(t *testing.T) {
	without := func(fs vfs.FS) {
		t.Helper()
		names, err := fs.List("/j/log")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.Contains(name, "MANIFEST") { // and the marker that names it
				if err := fs.Remove(fs.PathJoin("/j/log", name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	refused := func(fs vfs.FS) {
		t.Helper()
		j, err := Open(t.Context(), Config{Dir: "/j", FS: fs}, &list{})
		if err == nil {
			j.Close()
		}
		if !errors.Is(err, errNoManifest) {
			t.Fatalf("the start without a manifest: %v", err)
		}
	}
	fs := vfs.NewMem()
	j := mustOpen(t, fs, "/j", &list{})
	appendEntry(t, j, "only")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	without(fs)
	refused(fs)

	fs = vfs.NewMem()
	withSnapshots(t, fs, 1)
	without(fs)
	refused(fs)
	rep, err := Recover(Config{Dir: "/j", FS: fs}, &list{})
	if err != nil || rep.Good == 0 {
		t.Fatalf("recover: %+v, %v", rep, err)
	}
	sm := &list{}
	j = mustOpen(t, fs, "/j", sm)
	defer j.Close()
	if len(sm.entries) == 0 {
		t.Error("nothing is left of the snapshot")
	}
	appendEntry(t, j, "more")
}

// A damaged entry is told of at the start, and the offline recovery gives up
// what follows it.
func TestDamagedEntry(t *testing.T) {
	fs := vfs.NewMem()
	n, _ := withSnapshots(t, fs, 2)
	s, err := openStore(fs, "/j/log", slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	var key [9]byte
	if err := s.db.Set(logKey(key[:0], s.last-3), []byte{99}, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err := Open(t.Context(), Config{Dir: "/j", FS: fs}, &list{}); err == nil {
		j.Close()
		t.Fatal("it opened with a damaged entry")
	}
	rep, err := Check(Config{Dir: "/j", FS: fs}, &list{})
	if err != nil || rep.LogErr == nil || rep.Last-rep.Good != 4 || !rep.Damaged() {
		t.Fatalf("check: %+v, %v", rep, err)
	}
	if _, err := Recover(Config{Dir: "/j", FS: fs}, &list{}); err != nil {
		t.Fatal(err)
	}
	sm := &list{}
	j := mustOpen(t, fs, "/j", sm)
	defer j.Close()
	checkEntries(t, sm, n-4)
	appendEntry(t, j, "more")
}

func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &countingFS{FS: vfs.NewMem()}
		j := mustOpen(t, fs, "/j", &list{})
		defer j.Close()
		// While the first sync is held up the others queue; then one more serves them all.
		hold := make(chan struct{})
		fs.hold.Store(&hold)
		fs.syncs.Store(0)
		const n = 64
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { appendEntry(t, j, fmt.Sprint(i)) })
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		if got := fs.syncs.Load(); got < 1 || got > 3 {
			t.Errorf("%d concurrent appends took %d syncs", n, got)
		}
		fs.syncs.Store(0)
		appendEntry(t, j, "alone")
		if got := fs.syncs.Load(); got != 1 {
			t.Errorf("one append took %d syncs", got)
		}
	})
}

// countingFS counts syncs of files and can hold them up.
type countingFS struct {
	vfs.FS
	syncs atomic.Int64
	hold  atomic.Pointer[chan struct{}]
}

func (c *countingFS) Create(name string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.Create(name, cat)
	return countingFile{f, c}, err
}

type countingFile struct {
	vfs.File
	c *countingFS
}

func (f countingFile) count() {
	if hold := f.c.hold.Load(); hold != nil {
		<-*hold
	}
	f.c.syncs.Add(1)
}

func (f countingFile) Sync() error { f.count(); return f.File.Sync() }

func (f countingFile) SyncData() error { f.count(); return f.File.SyncData() }

func (f countingFile) SyncTo(n int64) (bool, error) { f.count(); return f.File.SyncTo(n) }

// slow is a state whose snapshot is not written before it is let go.
type slow struct {
	list
	begun, goOn chan struct{}
}

type slowState struct {
	s    *slow
	data io.WriterTo
}

func (s *slow) Snapshot() (io.WriterTo, error) {
	data, err := s.list.Snapshot()
	return slowState{s, data}, err
}

func (w slowState) WriteTo(out io.Writer) (int64, error) {
	close(w.s.begun)
	<-w.s.goOn
	return w.data.WriteTo(out)
}

// Appends go on while a snapshot is written, which has the state of its beginning.
func TestAppendsDuringASnapshot(t *testing.T) {
	fs := vfs.NewMem()
	s := &slow{begun: make(chan struct{}), goOn: make(chan struct{})}
	j := mustOpen(t, fs, "/j", s)
	appendEntry(t, j, "entry 0")
	done := make(chan error)
	go func() { done <- j.Snapshot() }()
	<-s.begun
	for i := 1; i < 20; i++ {
		appendEntry(t, j, fmt.Sprint("entry ", i))
	}
	close(s.goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	again := &list{}
	defer mustOpen(t, fs, "/j", again).Close()
	checkEntries(t, again, 20)
}

func FuzzDecodeLog(f *testing.F) {
	f.Add(appendLog(nil, &raft.Log{Term: 3, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("ext"), AppendedAt: time.Unix(5, 6)}))
	f.Add(appendLog(nil, &raft.Log{}))
	f.Add([]byte{1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var l raft.Log
		if decodeLog(data, &l) != nil {
			return
		}
		var again raft.Log
		if err := decodeLog(appendLog(nil, &l), &again); err != nil {
			t.Fatal(err)
		}
		if again.Term != l.Term || again.Type != l.Type || !bytes.Equal(again.Data, l.Data) || !bytes.Equal(again.Extensions, l.Extensions) {
			t.Fatalf("%+v became %+v", l, again)
		}
	})
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add([]byte(`{"version":1,"id":"x","index":4,"term":2,"configuration":{"Servers":[{"ID":"1"}]},"size":3}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var m snapshotMeta
		if decodeMeta(data, "x", &m) == nil && (m.Size < 0 || m.ID != "x") {
			t.Fatalf("accepted %+v", m)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	j := mustOpen(b, nil, b.TempDir(), &discard{})
	b.Run("sequential", func(b *testing.B) {
		for b.Loop() {
			appendDiscard(b, j)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.SetParallelism(64)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				appendDiscard(b, j)
			}
		})
	})
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		mustOpen(b, nil, dir, &discard{}).Close()
	}
}

func appendDiscard(b *testing.B, j *Journal) {
	if _, err := j.Append(context.Background(), make([]byte, 100)); err != nil {
		b.Error(err)
	}
}

type discard struct{}

func (discard) Apply(entries []Entry) []any    { return make([]any, len(entries)) }
func (discard) Snapshot() (io.WriterTo, error) { return bytes.NewReader(nil), nil }
func (discard) Restore(io.Reader) error        { return nil }
