package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

func open(t testing.TB, fs vfs.FS, boot string) *Store {
	t.Helper()
	s, err := Open(Config{FS: fs, Dirs: []Directory{{Path: "/dn"}}, BootID: boot})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func packet(sum transfer.Checksum, data []byte) []byte {
	b := make([]byte, int(sum.Chunks(int64(len(data))))*sum.Size())
	if sum.Size() > 0 {
		sum.Sum(b, data)
	}
	return b
}

func write(t testing.TB, w *Writer, off int64, data []byte) {
	t.Helper()
	tail, err := w.Write(off, data, packet(transfer.CRC32C(), data), transfer.CRC32C())
	must(t, err)
	w.Acked(off+int64(len(data)), tail)
}

func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b[:n]
}

// contents reads all of a replica, verified.
func contents(t testing.TB, s *Store, id uint64) []byte {
	t.Helper()
	r, err := s.Get(id)
	must(t, err)
	rd, err := r.Open()
	must(t, err)
	defer rd.Close()
	data := make([]byte, rd.Length)
	must(t, rd.ReadVerified(data, make([]byte, 4*rd.Sum.Chunks(rd.Length)), 0))
	return data
}

// countingFS counts the writes to files whose names end so.
type countingFS struct {
	vfs.FS
	suffix string
	writes int
	fail   int // so many writes from now on are done; 0 is all
}

type countingFile struct {
	vfs.File
	fs *countingFS
}

func (fs *countingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	if err == nil && strings.HasSuffix(name, fs.suffix) {
		f = &countingFile{f, fs}
	}
	return f, err
}

func (f *countingFile) WriteAt(b []byte, off int64) (int, error) {
	if f.fs.writes++; f.fs.fail > 0 && f.fs.writes > f.fs.fail {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(b, off)
}

// piecesOf cuts data from off on as packets do, each beginning at a chunk.
func piecesOf(sum transfer.Checksum, off int64, data []byte, size int) []Piece {
	var out []Piece
	for at := 0; at < len(data); at += size {
		part := data[at:min(at+size, len(data))]
		out = append(out, Piece{Off: off + int64(at), Data: part, Sums: packet(sum, part)})
	}
	return out
}

func TestWriteAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, typ := range []hdfspb.ChecksumTypeProto{hdfspb.ChecksumTypeProto_CHECKSUM_NULL, hdfspb.ChecksumTypeProto_CHECKSUM_CRC32, hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C} {
		sum, err := transfer.NewChecksum(typ, 512)
		must(t, err)
		fs := &countingFS{FS: vfs.NewMem(), suffix: ".meta"}
		s := open(t, fs, "a")
		w, err := s.Create(1, 1001, sum, false, nil, Want{})
		must(t, err)
		data := random(rng, 10*4096+100)
		fs.writes = 0
		n, err := w.WriteAll(piecesOf(sum, 0, data[:8*4096], 4096), sum, true)
		must(t, err)
		if n != 8 || fs.writes != 1 || w.Info().Length != 8*4096 {
			t.Errorf("%v: %d pieces, %d writes of checksums, %+v", typ, n, fs.writes, w.Info())
		}
		// Sent again in part, and with an end inside a chunk.
		pieces := piecesOf(sum, 7*4096, data[7*4096:], 4096)
		n, err = w.WriteAll(pieces, sum, true)
		must(t, err)
		last := pieces[n-1]
		w.Acked(last.Off+int64(len(last.Data)), last.Tail)
		// From inside a chunk, behind one that is not written yet.
		more := random(rng, 1000)
		at := int64(len(data))
		start := at / 512 * 512
		again := append(slices.Clone(data[start:]), more[:300]...)
		n, err = w.WriteAll([]Piece{
			{Off: start, Data: again, Sums: packet(sum, again)},
			{Off: at + 300, Data: more[300:], Sums: packet(sum, more[300:])},
		}, sum, false)
		if n != 2 || err != nil {
			t.Fatalf("%v: %d pieces, %v", typ, n, err)
		}
		must(t, w.Finalize(false))
		must(t, w.Close(false))
		if got := contents(t, s, 1); !bytes.Equal(got, append(data, more...)) {
			t.Errorf("%v: other bytes came back", typ)
		}
		must(t, s.Close())
	}
}

// Of pieces of which one is wrong those before it count, and none if the checksums can't be
// written.
func TestWriteAllInPart(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	sum := transfer.CRC32C()
	fs := &countingFS{FS: vfs.NewMem(), suffix: ".meta"}
	s := open(t, fs, "a")
	defer s.Close()
	w, err := s.Create(1, 1001, sum, false, nil, Want{})
	must(t, err)
	data := random(rng, 5*4096)
	pieces := piecesOf(sum, 0, data, 4096)
	bad := slices.Clone(pieces)
	bad[2].Sums = slices.Clone(bad[2].Sums)
	bad[2].Sums[0]++
	n, err := w.WriteAll(bad, sum, true)
	if n != 2 || !errors.Is(err, transfer.ErrChecksum) || w.Info().Length != 2*4096 {
		t.Fatalf("%d pieces, %v, %+v", n, err, w.Info())
	}
	fs.fail = fs.writes
	n, err = w.WriteAll(pieces[2:], sum, true)
	if n != 0 || !errors.Is(err, syscall.ENOSPC) || w.Info().Length != 2*4096 {
		t.Fatalf("%d pieces, %v, %+v", n, err, w.Info())
	}
	fs.fail = 0
	n, err = w.WriteAll(pieces[2:], sum, true)
	if n != 3 || err != nil {
		t.Fatalf("%d pieces, %v", n, err)
	}
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	if !bytes.Equal(contents(t, s, 1), data) {
		t.Error("other bytes came back")
	}
}

// A piece that begins inside a chunk has those before it committed first. When that fails none of them is
// written.
func TestWriteAllInPartInsideAChunk(t *testing.T) {
	sum := transfer.CRC32C()
	fs := &countingFS{FS: vfs.NewMem(), suffix: ".meta"}
	s := open(t, fs, "a")
	defer s.Close()
	w, err := s.Create(1, 1001, sum, false, nil, Want{})
	must(t, err)
	data := random(rand.New(rand.NewPCG(1, 2)), 3000)
	pieces := piecesOf(sum, 0, data, 1000)
	for _, c := range []struct{ writes, done, length int }{
		{0, 0, 0},          // the commit before the second piece
		{2, 1, 1000},       // the one before the third
		{1 << 20, 3, 3000}, // none
	} {
		fs.writes, fs.fail = 0, max(c.writes, 1)
		if c.writes == 0 {
			fs.writes = 1
		}
		n, err := w.WriteAll(pieces, sum, true)
		if n != c.done || w.Info().Length != int64(c.length) || (err == nil) != (c.done == 3) || err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("after %d writes: %d pieces, %v, %+v", c.writes, n, err, w.Info())
		}
	}
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	if !bytes.Equal(contents(t, s, 1), data) {
		t.Error("other bytes came back")
	}
}

// When the checksums of pieces that go back can't be written, those before the first that is lost count,
// and none behind it: the one that is lost is never taken for written, and always there to be blamed.
func TestWriteAllInPartOfPiecesThatGoBack(t *testing.T) {
	sum := transfer.CRC32C()
	data := random(rand.New(rand.NewPCG(1, 2)), 1500)
	piece := func(from, to int) Piece {
		return Piece{Off: int64(from), Data: data[from:to], Sums: packet(sum, data[from:to])}
	}
	for _, c := range []struct {
		pieces []Piece
		done   int
	}{
		{[]Piece{piece(600, 1000), piece(0, 500)}, 0},
		{[]Piece{piece(600, 1000), piece(0, 500), piece(1000, 1500)}, 0},
		{[]Piece{piece(0, 500), piece(600, 1000), piece(0, 600)}, 1},
		{[]Piece{piece(0, 500), piece(0, 600), piece(512, 1500)}, 2},
	} {
		fs := &countingFS{FS: vfs.NewMem(), suffix: ".meta"}
		s := open(t, fs, "a")
		w, err := s.Create(1, 1001, sum, false, nil, Want{})
		must(t, err)
		_, err = w.WriteAll([]Piece{piece(0, 600)}, sum, true)
		must(t, err)
		fs.fail = fs.writes
		n, err := w.WriteAll(c.pieces, sum, true)
		if n != c.done || !errors.Is(err, syscall.ENOSPC) || w.Info().Length != 600 {
			t.Errorf("%d of %d pieces count: %v, %+v", n, len(c.pieces), err, w.Info())
		} else if at := fmt.Sprintf("packet at %d:", c.pieces[n].Off); !strings.Contains(err.Error(), at) {
			t.Errorf("%q is not of the %s", err, at)
		}
		fs.fail = 0
		n, err = w.WriteAll([]Piece{piece(512, 1500)}, sum, true)
		if n != 1 || err != nil {
			t.Errorf("with room: %d pieces, %v", n, err)
		}
		must(t, w.Finalize(false))
		must(t, w.Close(false))
		if !bytes.Equal(contents(t, s, 1), data) {
			t.Error("other bytes came back")
		}
		must(t, s.Close())
	}
}

// What a truncate takes away takes no room any more, also if the process died meanwhile.
func TestCutFreesRoom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	dir := t.TempDir()
	s, err := Open(Config{Dirs: []Directory{{Path: dir}}, BootID: "a"})
	must(t, err)
	data := random(rng, 1<<20)
	w, err := s.Create(1, 1001, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, data)
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	r, err := s.Get(1)
	must(t, err)
	_, err = r.InitRecovery(1001, 1002)
	must(t, err)
	const left = 100_001
	must(t, r.Settle(1002, left))
	usage := s.Storages()[0]
	if usage.Used != left {
		t.Errorf("%d bytes are used, want %d", usage.Used, left)
	}
	size := func() int64 {
		info, err := vfs.Default.Stat(s.volumes[0].dataPath(1))
		must(t, err)
		return info.Size()
	}
	if size() != left {
		t.Errorf("the file has %d bytes, want %d", size(), left)
	}
	if !bytes.Equal(contents(t, s, 1), data[:left]) {
		t.Error("other bytes came back")
	}
	// As if it had died before the room was given back.
	f, err := vfs.Default.OpenReadWrite(s.volumes[0].dataPath(1), vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.WriteAt(data[left:], left)
	must(t, err)
	must(t, f.Close())
	must(t, s.Close())
	s, err = Open(Config{Dirs: []Directory{{Path: dir}}, BootID: "a"})
	must(t, err)
	defer s.Close()
	if size() != left {
		t.Errorf("the file has %d bytes after a start, want %d", size(), left)
	}
	if !bytes.Equal(contents(t, s, 1), data[:left]) {
		t.Error("other bytes came back")
	}
}

func TestWriteFinalizeRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, typ := range []hdfspb.ChecksumTypeProto{hdfspb.ChecksumTypeProto_CHECKSUM_NULL, hdfspb.ChecksumTypeProto_CHECKSUM_CRC32, hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C} {
		for _, bpc := range []uint32{1, 100, 512, 4096} {
			for _, size := range []int{0, 1, 511, 512, 513, 70_000} {
				t.Run(fmt.Sprintf("%v/%d/%d", typ, bpc, size), func(t *testing.T) {
					s := open(t, vfs.NewMem(), "a")
					defer s.Close()
					sum, err := transfer.NewChecksum(typ, bpc)
					must(t, err)
					data := random(rng, size)
					w, err := s.Create(7, 1001, sum, false, nil, Want{})
					must(t, err)
					for off := 0; off < size; off += 5000 {
						p := data[off:min(off+5000, size)]
						tail, err := w.Write(int64(off), p, packet(sum, p), sum)
						must(t, err)
						w.Acked(int64(off+len(p)), tail)
						if got := contents(t, s, 7); !bytes.Equal(got, data[:off+len(p)]) {
							t.Fatalf("while being written: wrong bytes at length %d", len(got))
						}
					}
					must(t, w.Finalize(false))
					must(t, w.Close(false))
					if got := contents(t, s, 7); !bytes.Equal(got, data) {
						t.Fatal("wrong bytes")
					}
				})
			}
		}
	}
}

func TestRefused(t *testing.T) {
	s := open(t, vfs.NewMem(), "a")
	defer s.Close()
	w, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	data := random(rand.New(rand.NewPCG(1, 1)), 1000)
	write(t, w, 0, data)
	if _, err := w.Write(1001, data, packet(transfer.CRC32C(), data), transfer.CRC32C()); !errors.Is(err, ErrLength) {
		t.Fatalf("gap: %v", err)
	}
	if _, err := w.Write(1000, data, make([]byte, 8), transfer.CRC32C()); !errors.Is(err, transfer.ErrChecksum) {
		t.Fatalf("wrong checksum: %v", err)
	}
	other := bytes.Clone(data)
	other[900]++
	other = append(other, 1, 2, 3)
	if _, err := w.Write(0, other, packet(transfer.CRC32C(), other), transfer.CRC32C()); !errors.Is(err, transfer.ErrChecksum) {
		t.Fatalf("other bytes sent again: %v", err)
	}
	if _, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{}); !errors.Is(err, ErrExists) {
		t.Fatalf("create again: %v", err)
	}
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	for _, o := range []ReopenOptions{
		{Mode: Append, Generation: 10, NewGeneration: 11, Min: 999},
		{Mode: Append, Generation: 9, NewGeneration: 11, Min: 1000},
		{Mode: Append, Generation: 10, NewGeneration: 9, Min: 1000},
		{Mode: RecoverWriting, Generation: 10, NewGeneration: 11, Min: 0, Max: 2000},
		{Mode: RecoverAppend, Generation: 10, NewGeneration: 11, Min: 1001},
	} {
		if w, err := s.Reopen(1, o); err == nil {
			w.Close(false)
			t.Errorf("%+v: admitted", o)
		}
	}
	if err := s.Delete(1, 9); !errors.Is(err, ErrGeneration) {
		t.Fatalf("delete of an older generation: %v", err)
	}
	must(t, s.Delete(1, 10))
	if _, err := s.Get(1); !errors.Is(err, ErrNotFound) {
		t.Fatalf("after deletion: %v", err)
	}
	if u := s.volumes[0].used.Load(); u != 0 {
		t.Fatalf("%d bytes used by nothing", u)
	}
}

// A second writer stops the first one.
func TestTakeOver(t *testing.T) {
	s := open(t, vfs.NewMem(), "a")
	defer s.Close()
	stop := make(chan struct{}, 8)
	w, err := s.Create(1, 10, transfer.CRC32C(), false, func() { stop <- struct{}{} }, Want{})
	must(t, err)
	data := random(rand.New(rand.NewPCG(1, 1)), 1000)
	write(t, w, 0, data)
	closed := make(chan error)
	go func() {
		<-stop
		closed <- w.Close(false)
	}()
	w2, err := s.Reopen(1, ReopenOptions{Mode: RecoverWriting, Generation: 10, NewGeneration: 12, Min: 600, Max: 1000})
	must(t, err)
	must(t, <-closed)
	write(t, w2, 512, append(bytes.Clone(data[512:]), data...))
	must(t, w2.Finalize(true))
	must(t, w2.Close(false))
	if got := contents(t, s, 1); !bytes.Equal(got, append(bytes.Clone(data), data...)) {
		t.Fatal("wrong bytes")
	}
}

func TestDamage(t *testing.T) {
	for _, what := range []string{"data", "sums", "data missing", "data short"} {
		t.Run(what, func(t *testing.T) {
			fs := vfs.NewMem()
			s := open(t, fs, "a")
			defer s.Close()
			w, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{})
			must(t, err)
			write(t, w, 0, random(rand.New(rand.NewPCG(1, 1)), 100_000))
			must(t, w.Finalize(false))
			must(t, w.Close(false))
			name, off := s.volumes[0].dataPath(1), int64(77_777)
			switch what {
			case "sums":
				name, off = s.volumes[0].metaPath(1, 10), headerSize+400
			case "data missing":
				must(t, fs.Remove(name))
			case "data short":
				f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
				must(t, err)
				must(t, f.Close())
			}
			if what == "data" || what == "sums" {
				f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
				must(t, err)
				_, err = f.WriteAt([]byte{0xaa, 0x55, 0xaa}, off)
				must(t, err)
				must(t, f.Close())
			}
			r, err := s.Get(1)
			must(t, err)
			if err := r.Verify(nil); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("damage not noticed: %v", err)
			}
		})
	}
}

func TestIdentity(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, fs, "a")
	id := s.Identity()
	if id.DatanodeUUID == "" || id.ClusterID != "" {
		t.Fatalf("%+v", id)
	}
	if _, err := Open(Config{FS: fs, Dirs: []Directory{{Path: "/dn"}}, BootID: "a"}); err == nil {
		t.Fatal("opened twice")
	}
	id.ClusterID, id.BlockPoolID = "CID-1", "BP-1"
	must(t, s.SetIdentity(id))
	if err := s.SetIdentity(Identity{DatanodeUUID: "a\nb"}); err == nil {
		t.Fatal("an identity of two lines")
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	s2 := open(t, crashed, "b")
	if s2.Identity() != id {
		t.Fatalf("%+v after the crash", s2.Identity())
	}
	must(t, s.Close())
	must(t, s2.Close())
}

// The checksum of a flushed partial chunk survives however the machine forgets
// what came after it.
func TestSyncedPartialChunkSurvivesTornAppend(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		fs := vfs.NewCrashableMem()
		s := open(t, fs, "a")
		w, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{})
		must(t, err)
		data := random(rng, 5000)
		write(t, w, 0, data[:700])
		must(t, w.Sync())
		write(t, w, 512, data[512:900])
		write(t, w, 512, data[512:5000])
		must(t, w.Finalize(false))
		crashed := open(t, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng}), "b")
		got := contents(t, crashed, 1)
		if len(got) < 700 || !bytes.Equal(got, data[:len(got)]) {
			t.Fatalf("seed %d: %d bytes are left", seed, len(got))
		}
		must(t, w.Close(false))
	}
}

// A replica of an older generation is in nobody's way.
func TestCreateReplacesAnOlderGeneration(t *testing.T) {
	for _, state := range []State{Finalized, BeingWritten, Temporary, WaitingRecovery} {
		fs := vfs.NewMem()
		s := open(t, fs, "a")
		stopped := make(chan struct{})
		w, err := s.Create(1, 10, transfer.CRC32C(), state == Temporary, func() { close(stopped) }, Want{})
		must(t, err)
		write(t, w, 0, make([]byte, 700))
		switch state {
		case Finalized:
			must(t, w.Finalize(false))
			must(t, w.Close(false))
		case WaitingRecovery:
			must(t, w.Close(false))
			must(t, s.Close())
			s = open(t, fs, "a")
		default:
			go func() {
				<-stopped
				if err := w.Close(false); err != nil {
					t.Error(err)
				}
			}()
		}
		for _, gen := range []uint64{9, 10} {
			if _, err := s.Create(1, gen, transfer.CRC32C(), true, nil, Want{}); !errors.Is(err, ErrExists) {
				t.Fatalf("%v: created at generation %d over 10: %v", state, gen, err)
			}
		}
		w2, err := s.Create(1, 11, transfer.CRC32C(), true, nil, Want{})
		if err != nil {
			t.Fatalf("%v: %v", state, err)
		}
		data := random(rand.New(rand.NewPCG(1, 1)), 600)
		write(t, w2, 0, data)
		must(t, w2.Finalize(true))
		must(t, w2.Close(false))
		if got := contents(t, s, 1); !bytes.Equal(got, data) {
			t.Fatalf("%v: wrong bytes", state)
		}
		if u := s.Storages()[0]; u.Used != 600 {
			t.Fatalf("%v: %d bytes used, want 600", state, u.Used)
		}
		r, err := s.Get(1)
		must(t, err)
		_, err = r.InitRecovery(11, 20)
		must(t, err)
		if _, err := s.Create(1, 20, transfer.CRC32C(), false, nil, Want{}); !errors.Is(err, ErrExists) {
			t.Fatalf("created what is being recovered: %v", err)
		}
		must(t, s.Close())
	}
}

// extend brings a replica what it lacks of data.
func extend(t testing.TB, r *Replica, recovery uint64, data []byte) {
	t.Helper()
	sum := transfer.CRC32C()
	off := r.Info().Length / 512 * 512
	sums := make([]byte, 4*sum.Chunks(int64(len(data))-off))
	sum.Sum(sums, data[off:])
	must(t, r.Extend(recovery, off, data[off:], sums, sum))
}

// A torn replica that was extended is torn still after a power cut, and has what it had.
func TestExtendAndPowerCuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	data := random(rng, 5000)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 2))
		fs := vfs.NewCrashableMem()
		s := open(t, fs, "a")
		w, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{})
		must(t, err)
		synced := rng.IntN(3000)
		write(t, w, 0, data[:synced])
		must(t, w.Sync())
		write(t, w, int64(synced), data[synced:synced+rng.IntN(2000)])
		cut := vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng}
		fs = fs.CrashClone(cut)
		must(t, w.Close(false))
		must(t, s.Close())
		s = open(t, fs, "b")
		r, err := s.Get(1)
		must(t, err)
		_, err = r.InitRecovery(10, 20)
		must(t, err)
		extend(t, r, 20, data)
		fs = fs.CrashClone(cut)
		must(t, s.Close())
		s = open(t, fs, "c")
		r, err = s.Get(1)
		must(t, err)
		if i := r.Info(); i.State != WaitingRecovery || !i.Torn || i.Generation != 10 || i.Length < int64(synced) {
			t.Errorf("seed %d, %d bytes synced: %+v", seed, synced, i)
		}
		_, err = r.InitRecovery(10, 21)
		must(t, err)
		extend(t, r, 21, data)
		must(t, r.Settle(21, int64(len(data))))
		if got := contents(t, s, 1); !bytes.Equal(got, data) {
			t.Errorf("seed %d: wrong bytes", seed)
		}
		must(t, s.Close())
	}
}

// A replica that can't be cut because it is damaged is of no use to the next recovery, which
// would choose it for ever.
func TestRecoveryOfADamagedReplica(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, "a")
	w, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, random(rand.New(rand.NewPCG(1, 1)), 400))
	must(t, w.Finalize(true))
	must(t, w.Close(false))
	r, err := s.Get(1)
	must(t, err)
	f, err := fs.OpenReadWrite(s.volumes[0].dataPath(1), vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.WriteAt([]byte{0xa5, 0x5a, 0xa5}, 10)
	must(t, err)
	must(t, f.Close())
	i, err := r.InitRecovery(10, 20)
	must(t, err)
	if err := r.Settle(20, 300); !errors.Is(err, ErrCorrupt) || i.Length != 400 {
		t.Fatalf("%d bytes: %v", i.Length, err)
	}
	if i, err := r.InitRecovery(10, 21); err != nil || i.Length != 0 || !i.Torn {
		t.Fatalf("%+v %v", i, err)
	}
	must(t, s.Close())
}

// What does not fit is refused, and changes nothing.
func TestExtendRefuses(t *testing.T) {
	s := open(t, vfs.NewMem(), "a")
	data := random(rand.New(rand.NewPCG(1, 1)), 3000)
	w, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	write(t, w, 0, data[:1000])
	must(t, w.Close(false))
	r, err := s.Get(1)
	must(t, err)
	_, err = r.InitRecovery(10, 20)
	must(t, err)
	sum, other := transfer.CRC32C(), bytes.Clone(data)
	other[600]++
	for _, c := range []struct {
		name     string
		recovery uint64
		off      int64
		data     []byte
		sums     []byte // nil: the right ones
		want     error
	}{
		{"another recovery", 19, 512, data[512:], nil, ErrGeneration},
		{"a gap", 20, 1024, data[1024:], nil, ErrLength},
		{"other bytes than those here", 20, 512, other[512:], nil, transfer.ErrChecksum},
		{"wrong checksums", 20, 512, data[512:], make([]byte, 20), transfer.ErrChecksum},
		{"no checksums", 20, 512, data[512:], []byte{}, transfer.ErrChecksum},
	} {
		sums := c.sums
		if sums == nil {
			sums = make([]byte, 4*sum.Chunks(int64(len(c.data))))
			sum.Sum(sums, c.data)
		}
		if err := r.Extend(c.recovery, c.off, c.data, sums, sum); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if i := r.Info(); i.Length != 1000 {
			t.Errorf("%s: %d bytes now", c.name, i.Length)
		}
	}
	must(t, r.Settle(20, 1000))
	sums := make([]byte, 4*sum.Chunks(int64(len(data)-512)))
	sum.Sum(sums, data[512:])
	if err := r.Extend(20, 512, data[512:], sums, sum); !errors.Is(err, ErrGeneration) {
		t.Error(err)
	}
	must(t, s.Close())
}

// A power cut after an append has begun never leaves a replica that passes for
// complete under the generation of the append.
func TestReopenedReplicaIsNotFinalAfterAPowerCut(t *testing.T) {
	for _, sync := range []bool{false, true} {
		for _, gen := range []uint64{10, 11} {
			fs := vfs.NewCrashableMem()
			s := open(t, fs, "a")
			data := random(rand.New(rand.NewPCG(1, 1)), 3000)
			w, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{})
			must(t, err)
			write(t, w, 0, data[:1000])
			must(t, w.Sync())
			must(t, w.Finalize(sync))
			must(t, w.Close(false))
			w, err = s.Reopen(1, ReopenOptions{Mode: Append, Generation: 10, NewGeneration: gen, Min: 1000})
			must(t, err)
			write(t, w, 1000, data[1000:])
			crashed := open(t, fs.CrashClone(vfs.CrashCloneCfg{}), "b")
			r, err := crashed.Get(1)
			must(t, err)
			if i := r.Info(); i.State != WaitingRecovery || i.Generation != gen || i.Length != 1000 {
				t.Errorf("finalized with hsync %t, appended to under generation %d: %+v", sync, gen, i)
			}
			must(t, crashed.Close())
			must(t, w.Close(false))
			must(t, s.Close())
		}
	}
}

func TestTemporaryReplicasDoNotSurvive(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, "a")
	w, err := s.Create(1, 10, transfer.CRC32C(), true, nil, Want{})
	must(t, err)
	write(t, w, 0, make([]byte, 100))
	if r, _ := s.Get(1); r != nil {
		if _, err := r.Open(); !errors.Is(err, ErrNotFound) {
			t.Fatalf("a temporary replica was read: %v", err)
		}
	}
	if len(s.Replicas()) != 0 {
		t.Fatal("a temporary replica was reported")
	}
	must(t, s.Close())
	s = open(t, fs, "a")
	if _, err := s.Get(1); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v", err)
	}
	w, err = s.Create(1, 10, transfer.CRC32C(), true, nil, Want{})
	must(t, err)
	write(t, w, 0, make([]byte, 100))
	must(t, w.Publish())
	must(t, w.Close(false))
	must(t, s.Close())
	s = open(t, fs, "a")
	if r, err := s.Get(1); err != nil || r.Info().State != WaitingRecovery || r.Info().Length != 100 {
		t.Fatalf("a published replica: %v", err)
	}
	must(t, s.Close())
}

func FuzzDecodeHeader(f *testing.F) {
	h := metaHeader{id: 5, sum: transfer.CRC32C()}
	h.slots[slotFinal] = slot{length: 77, tail: 9, valid: true, synced: true}
	f.Add(appendHeader(nil, &h))
	f.Add(make([]byte, headerSize))
	f.Add([]byte(metaMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeader(b)
		if err != nil {
			return
		}
		again, err := decodeHeader(appendHeader(nil, &h))
		if err != nil || again.id != h.id || again.slots != h.slots || again.temporary != h.temporary {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
	})
}

func FuzzDecodeVersion(f *testing.F) {
	b, _ := encodeVersion(Identity{DatanodeUUID: "u", ClusterID: "c", BlockPoolID: "b"}, "s")
	f.Add(b)
	f.Add([]byte("layoutVersion=1\n"))
	f.Add([]byte("#\n\n=\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, storage, err := decodeVersion(b)
		if err != nil {
			return
		}
		again, err := encodeVersion(id, storage)
		if err != nil {
			return
		}
		if got, of, err := decodeVersion(again); err != nil || got != id || of != storage {
			t.Fatalf("%+v became %+v, %v", id, got, err)
		}
	})
}

func FuzzParseName(f *testing.F) {
	f.Add("blk_1")
	f.Add("blk_1_2.meta")
	f.Add("blk_01_2.meta")
	f.Fuzz(func(t *testing.T, name string) {
		id, gen, meta, ok := parseName(name)
		if !ok {
			return
		}
		want := dataName(id)
		if meta {
			want = metaName(id, gen)
		}
		if want != name {
			t.Fatalf("%q is %q", name, want)
		}
	})
}

// The layout on disk is a promise to later versions.
func TestMetaGolden(t *testing.T) {
	h := metaHeader{id: 0x0102030405060708, sum: transfer.CRC32C()}
	h.slots[slotFlushed] = slot{length: 700, tail: 0xdeadbeef, valid: true}
	got := fmt.Sprintf("%x", appendHeader(nil, &h)[:slotOffset(slotFinal)])
	const want = "56424e424c4f434b00010200000002000102030405060708"
	if got[:len(want)] != want {
		t.Fatalf("header begins with %s", got[:len(want)])
	}
	const slotWant = "00000000000002bcdeadbeef00000001"
	if s := got[2*slotOffset(slotFlushed):][:len(slotWant)]; s != slotWant {
		t.Fatalf("flushed slot %s", s)
	}
}

// A replica that was fsynced after it was closed needs no look after a crash.
func TestSyncFinalized(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, fs, "a")
	w, err := s.Create(1, 10, transfer.CRC32C(), false, nil, Want{})
	must(t, err)
	data := random(rand.New(rand.NewPCG(1, 1)), 100_000)
	write(t, w, 0, data)
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	r, err := s.Get(1)
	must(t, err)
	if r.Info().Synced {
		t.Fatal("synced already")
	}
	must(t, r.SyncFinalized())
	all := vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}
	after := open(t, fs.CrashClone(all), "b")
	r, err = after.Get(1)
	must(t, err)
	if i := r.Info(); i.State != Finalized || !i.Synced {
		t.Fatalf("%+v", i)
	}
	if got := contents(t, after, 1); !bytes.Equal(got, data) {
		t.Fatal("wrong bytes")
	}
	must(t, after.Close())
	must(t, s.Close())
}
