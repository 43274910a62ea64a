package external

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sorted runs records through a sorter.
func sorted(t testing.TB, cfg Config, records [][]byte) (out []byte, s *Sorter) {
	t.Helper()
	s, err := newSorter(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	size := 0
	for _, r := range records {
		if err := s.Add(r); err != nil {
			t.Fatal(err)
		}
		size += len(r)
	}
	if err := s.Finish(); err != nil {
		t.Fatal(err)
	}
	if s.Size() != int64(size) || s.Records() != int64(len(records)) {
		t.Errorf("%d records, %d bytes counted of %d, %d", s.Records(), s.Size(), len(records), size)
	}
	var b bytes.Buffer
	told := 0
	if err := s.Merge(t.Context(), &b, func(n int) { told += n }); err != nil {
		t.Fatal(err)
	}
	if len(records) > 0 && told != size {
		t.Errorf("progress tells of %d bytes, not %d", told, size)
	}
	return b.Bytes(), s
}

// kinds of lines, without their newlines.
var kinds = map[string]func(r *rand.Rand) []byte{
	"random": func(r *rand.Rand) []byte { return random(r, r.IntN(40), 256) },
	"few":    func(r *rand.Rand) []byte { return random(r, r.IntN(12), 2) }, // zeros, ones, many equal
	"shared": func(r *rand.Rand) []byte {
		return append(bytes.Repeat([]byte("common "), r.IntN(3)*5), random(r, r.IntN(6), 3)...)
	},
	"empty": func(r *rand.Rand) []byte { return nil },
	"equal": func(r *rand.Rand) []byte { return []byte("the same line of more than eight bytes") },
	"long":  func(r *rand.Rand) []byte { return random(r, r.IntN(4000), 4) },
	"tail":  func(r *rand.Rand) []byte { return append(make([]byte, r.IntN(40)), random(r, r.IntN(2), 3)...) },
}

func random(r *rand.Rand, n, values int) []byte {
	b := make([]byte, n)
	for i := range b {
		if b[i] = byte(r.IntN(values)); b[i] == '\n' {
			b[i] = 11
		}
	}
	return b
}

func TestLines(t *testing.T) {
	for name, kind := range kinds {
		for _, n := range []int{0, 1, 2, 27, 1000, 30000} {
			if name == "long" {
				n /= 30
			}
			for _, memory := range []int64{256 << 10, 16 << 20} {
				t.Run(fmt.Sprint(name, "/", n, "/", memory), func(t *testing.T) {
					r := rand.New(rand.NewPCG(uint64(n), 1))
					var lines, want [][]byte
					for range n {
						line := kind(r)
						want = append(want, line)
						lines = append(lines, append(slices.Clone(line), '\n'))
					}
					slices.SortFunc(want, bytes.Compare)
					got, _ := sorted(t, Config{Memory: memory, Dir: t.TempDir()}, lines)
					expected := []byte(nil)
					for _, line := range want {
						expected = append(append(expected, line...), '\n')
					}
					if !bytes.Equal(got, expected) {
						t.Errorf("%d lines differ from those that slices.SortFunc orders", n)
					}
				})
			}
		}
	}
}

func TestFixed(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var records [][]byte
	for range 50000 {
		records = append(records, random(r, 100, 256))
	}
	got, s := sorted(t, Config{Fixed: 100, Memory: 512 << 10, Dir: t.TempDir()}, records)
	slices.SortFunc(records, bytes.Compare)
	if !bytes.Equal(got, bytes.Join(records, nil)) {
		t.Error("wrong order")
	}
	_ = s
}

// TestManyRuns has more runs than can be merged at a time.
func TestManyRuns(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 2))
	var lines [][]byte
	for range 40000 {
		lines = append(lines, append(random(r, 50+r.IntN(3000), 90), '\n'))
		if len(lines) == 1500 {
			break
		}
	}
	s, err := newSorter(t.Context(), Config{Memory: 64 << 10, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, line := range lines {
		if err := s.Add(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Finish(); err != nil {
		t.Fatal(err)
	}
	_, fanIn := s.buffers()
	if s.Runs() <= fanIn {
		t.Fatalf("%d runs, %d can be merged at a time: the test proves nothing", s.Runs(), fanIn)
	}
	var got bytes.Buffer
	if err := s.Merge(t.Context(), &got, func(int) {}); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(lines, func(a, b []byte) int { return bytes.Compare(a[:len(a)-1], b[:len(b)-1]) })
	if !bytes.Equal(got.Bytes(), bytes.Join(lines, nil)) {
		t.Error("wrong order")
	}
}

func TestTooLong(t *testing.T) {
	s, err := newSorter(t.Context(), Config{Memory: 64 << 10, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Add([]byte(strings.Repeat("x", 20<<10) + "\n")); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
}

// TestLongest adds records as long as the memory holds, by both ways, behind one another and behind short ones, and longer ones.
func TestLongest(t *testing.T) {
	const memory = 64 << 10
	s, err := newSorter(t.Context(), Config{Memory: memory, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var want []byte
	for i := range 20 {
		line := append(bytes.Repeat([]byte{byte('a' + i)}, Longest(memory)-1), '\n')
		want = append(append(want, byte('a'+i), '\n'), line...)
		fill := func(into []byte) error {
			copy(into, line)
			return nil
		}
		if err := errors.Join(s.AddBy(len(line), fill), s.Add([]byte{byte('a' + i), '\n'})); err != nil {
			t.Fatal(err)
		}
		refused := errors.New("refused")
		if err := s.AddBy(2, func([]byte) error { return refused }); !errors.Is(err, refused) {
			t.Error(err)
		}
		if err := s.AddBy(len(line)+1, fill); !errors.Is(err, ErrTooLong) {
			t.Error(err)
		}
	}
	var got bytes.Buffer
	if err := errors.Join(s.Finish(), s.Merge(t.Context(), &got, func(int) {})); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) || s.Records() != 40 || s.Size() != int64(len(want)) {
		t.Errorf("%d records of %d bytes are %d bytes, not %d", s.Records(), s.Size(), got.Len(), len(want))
	}
}

// TestNoRoom can't write temporary files.
func TestNoRoom(t *testing.T) {
	s, err := newSorter(t.Context(), Config{Memory: 64 << 10, Dir: "/nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 100000 {
		if err = s.Add([]byte("a line\n")); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "temporary file") {
		t.Error(err)
	}
	if err := s.Finish(); err == nil {
		t.Error("Finish says nothing about it")
	}
}

// TestPairs orders by keys alone, and hands each pair out once.
func TestPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, memory := range []int64{64 << 10, 16 << 20} {
		s, err := newSorter(t.Context(), Config{Pairs: true, Memory: memory, Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]int{}
		for range 20000 {
			key, value := random(r, r.IntN(20), 3), random(r, r.IntN(30), 256)
			want[string(key)+"\x00\xff"+string(value)]++
			if err := s.Add(AppendPair(nil, key, value)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Finish(); err != nil {
			t.Fatal(err)
		}
		var last []byte
		err = s.Each(t.Context(), func(record []byte) error {
			key, value := Pair(record)
			if bytes.Compare(last, key) > 0 {
				return fmt.Errorf("%q after %q", key, last)
			}
			last = bytes.Clone(key)
			want[string(key)+"\x00\xff"+string(value)]--
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		for pair, n := range want {
			if n != 0 {
				t.Errorf("%q came %d times less", pair, n)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

type failing struct{ after int }

func (f *failing) Write(p []byte) (int, error) {
	if f.after--; f.after < 0 {
		return 0, errors.New("full")
	}
	return len(p), nil
}

func TestOutputFails(t *testing.T) {
	s, err := newSorter(t.Context(), Config{Memory: 64 << 10, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 10000 {
		if err := s.Add(fmt.Appendf(nil, "line %d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Finish(); err != nil {
		t.Fatal(err)
	}
	if err := s.Merge(t.Context(), &failing{after: 3}, func(int) {}); err == nil || err.Error() != "full" {
		t.Error(err)
	}
}

// stops ends a context after so many blocks, and counts all.
type stops struct {
	after, blocks int
	end           func()
}

func (s *stops) Write(p []byte) (int, error) {
	if s.blocks++; s.blocks == s.after {
		s.end()
	}
	return len(p), nil
}

// TestEndsWithItsContext has the context end before the merge of the runs that are too many, before a block and before a record,
// in the midst of long records and of short ones: nothing more is written or handed out than what was due next.
func TestEndsWithItsContext(t *testing.T) {
	gone := errors.New("gone")
	for name, length := range map[string]int{"short": 20, "long": 12_000} {
		filled := func() (*Sorter, context.Context, func()) {
			s, err := newSorter(t.Context(), Config{Memory: 64 << 10, Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			for i := range 3_000_000 / length {
				if err := s.Add(append(bytes.Repeat([]byte{byte('a' + i%20)}, length-1), '\n')); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Finish(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			t.Cleanup(func() { cancel(nil) })
			return s, ctx, func() { cancel(gone) }
		}
		s, ctx, end := filled()
		runs := s.Runs()
		end()
		w := &stops{}
		if err := s.Merge(ctx, w, func(int) {}); !errors.Is(err, gone) || w.blocks > 0 || s.Runs() != runs {
			t.Errorf("%s: %v; %d blocks; %d runs became %d", name, err, w.blocks, runs, s.Runs())
		}
		s, ctx, end = filled()
		w = &stops{after: 2, end: end}
		if err := s.Merge(ctx, w, func(int) {}); !errors.Is(err, gone) || w.blocks != 2 {
			t.Errorf("%s: %v after %d blocks", name, err, w.blocks)
		}
		s, ctx, end = filled()
		records := 0
		err := s.Each(ctx, func([]byte) error {
			if records++; records == 3 {
				end()
			}
			return nil
		})
		if most := lookEach/(length+lookPerRecord) + 2; !errors.Is(err, gone) || records > most {
			t.Errorf("%s: %v after %d records, want %d at most", name, err, records, most)
		}
	}
}

// TestLeavesWhatIsQueued ends the context of a sorter, or closes it: an arena that is full is neither sorted nor written.
func TestLeavesWhatIsQueued(t *testing.T) {
	gone := errors.New("gone")
	for _, how := range []string{"context", "close"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		s, err := newSorter(ctx, Config{Memory: 64 << 10, Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		add := func() error { return s.Add([]byte("a line\n")) }
		if err := add(); err != nil {
			t.Fatal(err)
		}
		if how == "context" {
			cancel(gone)
			for err == nil {
				err = add()
			}
			if again := add(); !errors.Is(err, gone) || !errors.Is(again, gone) {
				t.Error(err, again)
			}
			if err := s.Finish(); !errors.Is(err, gone) {
				t.Error(err)
			}
		} else {
			s.mu.Lock() // so that nothing is done with the first arena before the sorter is closed
			first := s.filled
			s.work <- first
			go func() {
				<-s.ctx.Done()
				s.mu.Unlock()
			}()
			s.work <- first
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if most := map[string]int{"context": 0, "close": 1}[how]; len(s.sorted) > most || len(s.runs) > 0 {
			t.Errorf("%s: %d arenas were sorted, and %d written", how, len(s.sorted), len(s.runs))
		}
		cancel(nil)
	}
}

func BenchmarkSort(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 400_000
	var records [][]byte
	for range n {
		records = append(records, append(random(r, 20+r.IntN(120), 90), '\n'))
	}
	size := 0
	for _, x := range records {
		size += len(x)
	}
	a := &arena{memory: make([]byte, 2*size)}
	a.memory = a.memory[:len(a.memory)/16*16]
	b.SetBytes(int64(size))
	for b.Loop() {
		a.reset()
		for _, x := range records {
			room := a.room(len(x))
			if room == nil {
				b.Fatal("no room")
			}
			copy(room, x)
			a.add(room, 0, len(x)-1)
		}
		a.sort()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("b\na\n\n\x00\na\x00\n"), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, copies uint8) {
		var lines [][]byte
		for range int(copies%40) + 1 {
			for line := range bytes.Lines(data) {
				if line[len(line)-1] == '\n' {
					lines = append(lines, line)
				}
			}
		}
		if len(data) > 2000 {
			return
		}
		got, _ := sorted(t, Config{Memory: 64 << 10, Dir: t.TempDir()}, lines)
		slices.SortFunc(lines, func(a, b []byte) int { return bytes.Compare(a[:len(a)-1], b[:len(b)-1]) })
		if !bytes.Equal(got, bytes.Join(lines, nil)) {
			t.Error("wrong order")
		}
	})
}
