package sort

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/internal/gensort"
	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/internal/external"
	"github.com/verbena-data/verbena/shuffle/internal/jobtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run sorts with several processes and returns each one's error.
func run(t *testing.T, size, threads int, change func(rank int, cfg *Config), cfg Config) (Result, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	files := &dataset.Files{}
	defer files.Close()
	cfg.Files = files
	if cfg.Memory == 0 {
		cfg.Memory = int64(threads) * 8 << 20
	}
	if cfg.Temporary == "" {
		cfg.Temporary = t.TempDir()
	}
	results, errs := make([]Result, size), make([]error, size)
	var group sync.WaitGroup
	for rank, x := range jobtest.Exchanges(t, size, threads) {
		own := cfg
		if change != nil {
			change(rank, &own)
		}
		group.Go(func() { results[rank], errs[rank] = Run(ctx, x, own) })
	}
	group.Wait()
	return results[0], errs
}

func write(t *testing.T, content []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(name, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// alone fails if there is anything but these in a directory.
func alone(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			t.Errorf("%s is left behind", e.Name())
		}
	}
}

// texts are inputs of lines.
func texts() map[string][]byte {
	r := rand.New(rand.NewPCG(7, 7))
	random := func(n, longest, values int) []byte {
		var b []byte
		for range n {
			for range r.IntN(longest + 1) {
				b = append(b, byte(r.IntN(values)))
			}
			b = append(b, '\n')
		}
		return b
	}
	hot := bytes.Repeat([]byte("the line that half of all are\n"), 5000)
	return map[string][]byte{
		"empty":        nil,
		"one newline":  []byte("\n"),
		"one line":     []byte("line\n"),
		"no newline":   []byte("b\na"),
		"one byte":     []byte("x"),
		"newlines":     bytes.Repeat([]byte("\n"), 1000),
		"random":       random(20000, 60, 256),
		"equal":        bytes.Repeat([]byte("same\n"), 10000),
		"hot":          append(hot, random(5000, 30, 256)...),
		"long lines":   random(40, 200_000, 200),
		"one long":     append(append([]byte("b\n"), bytes.Repeat([]byte("a"), 1_300_000)...), "\nc"...),
		"without last": bytes.TrimSuffix(random(3000, 10, 100), []byte("\n")),
	}
}

func TestLines(t *testing.T) {
	gnu := testneed.Tool(t, "sort", "apt-get install coreutils")
	for name, text := range texts() {
		for _, shape := range [][2]int{{1, 1}, {3, 1}, {2, 2}} {
			t.Run(fmt.Sprint(name, "/", shape), func(t *testing.T) {
				in := write(t, text)
				cmd := exec.CommandContext(t.Context(), gnu, in)
				cmd.Env = append(os.Environ(), "LC_ALL=C")
				want, err := cmd.Output()
				if err != nil {
					t.Fatal(err)
				}
				out := filepath.Join(t.TempDir(), "out")
				result, errs := run(t, shape[0], shape[1], nil, Config{Format: Lines, Inputs: []string{in}, Output: out})
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(out)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%d bytes differ from GNU sort's %d", len(got), len(want))
				}
				if result.Bytes != int64(len(want)) || result.Records != int64(bytes.Count(want, []byte("\n"))) {
					t.Errorf("result: %+v", result)
				}
				alone(t, filepath.Dir(out), "out")
			})
		}
	}
}

// TestFiles sorts several, of which some are empty or lack the last newline.
func TestFiles(t *testing.T) {
	var names []string
	for _, text := range []string{"d\nb", "", "c\n", "a", "\n"} {
		names = append(names, write(t, []byte(text)))
	}
	out := write(t, []byte("what was there"))
	if err := os.Chmod(out, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs := run(t, 3, 1, nil, Config{Format: Lines, Inputs: names, Output: out}); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	if got, err := os.ReadFile(out); err != nil || string(got) != "\na\nb\nc\nd\n" {
		t.Errorf("%q, %v", got, err)
	}
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o600 {
		t.Error("the mode has changed: ", info.Mode(), err)
	}
}

// TestGensort sorts more than the memory holds.
func TestGensort(t *testing.T) {
	const n = 600_000
	p := make([]byte, n*gensort.RecordSize)
	gensort.New(gensort.Binary, gensort.Uint128{}).Fill(p)
	in, out := write(t, p), filepath.Join(t.TempDir(), "out")
	result, errs := run(t, 2, 1, nil, Config{Format: Gensort, Inputs: []string{in}, Output: out})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if result.Runs < 5 {
		t.Errorf("%d temporary files: the test proves nothing of them", result.Runs)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var s gensort.Summary
	s.Add(got)
	if !s.Sorted() || s.Records != n || s.Checksum != gensort.Checksum(p) {
		t.Errorf("%+v", s)
	}
}

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"truncated":      {Config{Format: Gensort, Inputs: []string{write(t, make([]byte, 250))}}, "ends within a record"},
		"missing":        {Config{Format: Lines, Inputs: []string{"/nowhere/at all"}}, "no such file"},
		"directory":      {Config{Format: Lines, Inputs: []string{filepath.Dir(dir)}}, "has a directory"},
		"input device":   {Config{Format: Lines, Inputs: []string{os.DevNull}}, "not a regular file"},
		"output dir":     {Config{Format: Lines, Inputs: []string{write(t, nil)}, Output: dir}, "is a directory"},
		"output nowhere": {Config{Format: Lines, Inputs: []string{write(t, nil)}, Output: "/nowhere/out"}, "no such file"},
		"device":         {Config{Format: Lines, Inputs: []string{write(t, nil)}, Output: "/dev/full"}, "not a regular file"},
		"temporary":      {Config{Format: Lines, Inputs: []string{write(t, bytes.Repeat([]byte("a line\n"), 4<<20))}, Temporary: "/nowhere"}, "temporary file"},
		"hdfs":           {Config{Format: Lines, Inputs: []string{"hdfs://x/y"}}, "no HDFS"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			if test.cfg.Output == "" {
				test.cfg.Output = out
			}
			_, errs := run(t, 2, 1, nil, test.cfg)
			for rank, err := range errs {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("process %d: %v; want %q", rank, err, test.want)
				}
			}
			alone(t, filepath.Dir(out))
		})
	}
}

// TestPrint has process 0 write what all have sorted, which is more than goes to it at once, and with temporary files.
func TestPrint(t *testing.T) {
	var text []byte
	r := rand.New(rand.NewPCG(3, 3))
	for range 400_000 {
		text = fmt.Appendf(text, "%016x\n", r.Uint64())
	}
	lines := strings.SplitAfter(string(text), "\n")
	slices.Sort(lines)
	var out bytes.Buffer
	result, errs := run(t, 2, 2, nil, Config{Format: Lines, Inputs: []string{write(t, text)}, Print: &out})
	if err := errors.Join(errs...); err != nil || out.String() != strings.Join(lines, "") || result.Bytes != int64(len(text)) {
		t.Errorf("%d bytes, %v; %+v", out.Len(), err, result)
	}
	if _, errs := run(t, 2, 1, nil, Config{Format: Lines, Inputs: []string{write(t, text)}, Print: full{}}); !strings.Contains(fmt.Sprint(errs[1]), "it is full") {
		t.Error(errs)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("it is full") }

// TestOutputComesFirst names an output that cannot be written: the job fails before it has read its inputs. Of one that can be,
// the room is taken by then, and what is too much of it given back.
func TestOutputComesFirst(t *testing.T) {
	in := write(t, bytes.Repeat(append(bytes.Repeat([]byte("x"), 99_999), '\n'), 60)) // several blocks for each
	dir := t.TempDir()
	var reads atomic.Int64
	cfg := Config{Format: Lines, Inputs: []string{in}, Output: filepath.Join(dir, "none", "out"), Progress: func(Progress) { reads.Add(1) }}
	for _, size := range []int{1, 2} {
		_, errs := run(t, size, 1, nil, cfg)
		for rank, err := range errs {
			if err == nil || !strings.Contains(err.Error(), "no such file") || reads.Load() > 0 {
				t.Errorf("process %d: %v, after %d reads", rank, err, reads.Load())
			}
		}
	}
	cfg.Output = filepath.Join(dir, "out")
	var once sync.Once
	cfg.Progress = func(n Progress) {
		once.Do(func() {
			found, err := filepath.Glob(filepath.Join(dir, ".out.*.partial"))
			if err != nil || len(found) != 1 {
				t.Error(found, err)
				return
			}
			if info, err := os.Stat(found[0]); err != nil || info.Size() != n.Total || n.Written > 0 {
				t.Errorf("%v, %v; want %d bytes before the work: %+v", info, err, n.Total, n)
			}
		})
	}
	if _, errs := run(t, 2, 1, nil, cfg); errors.Join(errs...) != nil {
		t.Error(errs)
	}
	once.Do(func() { t.Error("nobody tells of progress") })
	if info, err := os.Stat(cfg.Output); err != nil || info.Size() != 6_000_000 {
		t.Error(info, err)
	}
	alone(t, dir, "out")
}

// TestLongestLine has lines as long as the memory holds, and longer ones by a byte, at the begin and at the end of a file, with
// their newlines and without: a longer one ends the job with its place and its length.
func TestLongestLine(t *testing.T) {
	longest := external.Longest(8<<20) - 1
	for name, c := range map[string]struct {
		text string // in which x stands for the line
		at   int
	}{
		"alone":           {"x", 0},
		"first":           {"x\nb\na\n", 0},
		"last":            {"b\na\nx\n", 4},
		"without newline": {"b\na\nx", 4},
		"two":             {"c\nx\na\nx\nb", 2},
	} {
		for _, n := range []int{longest, longest + 1} {
			t.Run(fmt.Sprint(name, "/", n), func(t *testing.T) {
				text := strings.ReplaceAll(c.text, "x", strings.Repeat("long", n/4)+"more"[:n%4])
				in, out := write(t, []byte(text)), filepath.Join(t.TempDir(), "out")
				_, errs := run(t, 2, 2, func(_ int, cfg *Config) { cfg.Memory = 16 << 20 }, Config{Format: Lines, Inputs: []string{in}, Output: out})
				if n > longest {
					want := fmt.Sprintf("%s: the line at byte %d has %d bytes, and a thread's share of the memory holds one of %d: raise --memory", in, c.at, n, longest)
					for rank, err := range errs {
						if err == nil || !strings.Contains(err.Error(), want) && !(name == "two" && strings.Contains(err.Error(), "raise --memory")) {
							t.Errorf("process %d: %v; want %q", rank, err, want)
						}
					}
					alone(t, filepath.Dir(out))
					return
				}
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
				slices.Sort(lines)
				if got, err := os.ReadFile(out); err != nil || string(got) != strings.Join(lines, "\n")+"\n" {
					t.Errorf("%d bytes are wrong, %v", len(got), err)
				}
			})
		}
	}
}

// TestNoLines gives a file without a newline, of which not all is read to say so.
func TestNoLines(t *testing.T) {
	in, out := write(t, nil), filepath.Join(t.TempDir(), "out")
	if err := os.Truncate(in, 4<<30); err != nil {
		t.Fatal(err)
	}
	_, errs := run(t, 2, 1, nil, Config{Format: Lines, Inputs: []string{in}, Output: out})
	for rank, err := range errs {
		if want := in + ": the line at byte 0 has more than 2"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("process %d: %v; want %q", rank, err, want)
		}
	}
	alone(t, filepath.Dir(out))
}

// TestReferences reads lines by references to them: none is believed.
func TestReferences(t *testing.T) {
	file, err := (&dataset.Files{}).Open(t.Context(), write(t, []byte("one\nfour\n")))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	inputs := []*dataset.Input{file}
	for r, want := range map[reference]string{
		{0, 4, 4}:       "four",
		{0, 9, 0}:       "",
		{0, 2, 4}:       "is another one",
		{0, 4, 6}:       "damaged",
		{0, 10, 0}:      "damaged",
		{0, -1, 4}:      "damaged",
		{0, 4, -4}:      "damaged",
		{1, 0, 0}:       "damaged",
		{-1, 0, 0}:      "damaged",
		{0, 1 << 62, 4}: "damaged",
	} {
		got, err := decode(r.encode(nil), inputs)
		line := make([]byte, got.length)
		if err == nil {
			err = got.read(t.Context(), inputs[got.file], line)
		}
		if err == nil && string(line) != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %q, %v; want %q", r, line, err, want)
		}
	}
}

func FuzzReference(f *testing.F) {
	f.Add(reference{0, 1, 2}.encode(nil))
	file, err := (&dataset.Files{}).Open(f.Context(), "sort_test.go")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = file.Close() })
	inputs := []*dataset.Input{file}
	f.Fuzz(func(t *testing.T, record []byte) {
		r, err := decode(record, inputs)
		if err != nil {
			return
		}
		if again, err := decode(r.encode(nil), inputs); err != nil || again != r || r.file != 0 || r.at < 0 || r.length < 0 || r.at+r.length > file.Size() {
			t.Errorf("%x is %+v, then %+v, %v", record, r, again, err)
		}
	})
}

// TestOneFails has one process fail while the others work: all end with its reason.
func TestOneFails(t *testing.T) {
	var text []byte
	for i := range uint32(1 << 20) {
		text = fmt.Appendf(text, "%08x is a line of some length, which needs memory\n", i*2654435761)
	}
	in, out := write(t, text), write(t, []byte("old"))
	_, errs := run(t, 3, 1, func(rank int, cfg *Config) {
		if rank == 1 {
			cfg.Temporary = "/nowhere"
		}
	}, Config{Format: Lines, Inputs: []string{in}, Output: out})
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("process %d: %v", rank, err)
		}
	}
	if got, err := os.ReadFile(out); err != nil || string(got) != "old" {
		t.Errorf("the old output is now %.20q, %v", got, err)
	}
	alone(t, filepath.Dir(out), "in")
}

func TestDifferentInputs(t *testing.T) {
	names := []string{write(t, []byte("a\n")), write(t, []byte("a\nb\n"))}
	_, errs := run(t, 2, 1, func(rank int, cfg *Config) { cfg.Inputs = names[rank : rank+1] }, Config{Format: Lines, Output: filepath.Join(t.TempDir(), "out")})
	if err := errors.Join(errs...); err == nil || !strings.Contains(err.Error(), "all must see the same files") {
		t.Error(err)
	}
}

// FuzzScan divides a text into parts: each line is in one of them, in order.
func FuzzScan(f *testing.F) {
	f.Add([]byte("a\nbb\n\nccc"), uint8(3))
	f.Add([]byte("\n\n\n"), uint8(5))
	f.Fuzz(func(t *testing.T, text []byte, parts uint8) {
		name := filepath.Join(t.TempDir(), "in")
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		files := &dataset.Files{}
		in, err := files.Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		n := int(parts%20) + 1
		const short = 3
		var got []byte
		for part := range n {
			spans, err := dataset.Split([]*dataset.Input{in}, part, n, 1)
			if err != nil {
				t.Fatal(err)
			}
			s := newScanner(Lines, short, 1<<20)
			for _, span := range spans {
				err := s.scan(t.Context(), span, takers{
					record: func(record []byte) error {
						if n := len(record) - 1; n < 0 || n > short || bytes.IndexByte(record, '\n') != n {
							t.Errorf("%q is no short line", record)
						}
						got = append(got, record...)
						return nil
					},
					long: func(head []byte, at, length int64) error {
						line := text[at:][:length]
						if length <= short || !bytes.Equal(head, line[:short]) || at > 0 && text[at-1] != '\n' {
							t.Errorf("%q at %d is no long line that begins with %q", line, at, head)
						}
						got = append(append(got, line...), '\n')
						return nil
					},
				}, func(int) {})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		want := text
		if len(want) > 0 && want[len(want)-1] != '\n' {
			want = append(slices.Clone(want), '\n')
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d parts: %q, want %q", n, got, want)
		}
	})
}

func TestRanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		var keys [][]byte
		for range r.IntN(30) {
			key := make([]byte, r.IntN(12))
			for i := range key {
				key[i] = byte(r.IntN(3))
			}
			keys = append(keys, key)
		}
		bounds := evenBounds(slices.Clone(keys), 1+r.IntN(8))
		ours, theirs := newRanges(bounds), shuffle.Range(bounds)
		for _, key := range keys {
			if a, b := ours.of(key), theirs.Partition(key); a != b {
				t.Fatalf("%q in %q is %d, want %d", key, bounds, a, b)
			}
		}
	}
}

// TestInputIsWritten overwrites an input in place while the job reads it, and leaves its length: the job fails in all processes.
func TestInputIsWritten(t *testing.T) {
	in := write(t, bytes.Repeat([]byte("line\n"), 1_000_000))
	if err := os.Chtimes(in, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	var once sync.Once
	_, errs := run(t, 2, 1, nil, Config{Format: Lines, Inputs: []string{in}, Output: out, Progress: func(Progress) {
		once.Do(func() {
			f, err := os.OpenFile(in, os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := f.WriteAt([]byte("LINE"), 0); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}})
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), in+" has been written") {
			t.Errorf("process %d: %v", rank, err)
		}
	}
	alone(t, filepath.Dir(out))
}

// TestEndsWhileItMerges has the job end, or a process of it fail, when it has begun to write the output: all end with the reason,
// write little of what is left, and leave nothing.
func TestEndsWhileItMerges(t *testing.T) {
	const size = 320_000 * gensort.RecordSize
	p := make([]byte, size)
	gensort.New(gensort.Binary, gensort.Uint128{}).Fill(p)
	in, gone := write(t, p), errors.New("gone")
	for how, processes := range map[string]int{"context": 1, "exchange": 2} {
		out := filepath.Join(t.TempDir(), "out")
		files := &dataset.Files{}
		ctx, end := context.WithCancelCause(t.Context())
		exchanges := jobtest.Exchanges(t, processes, 1)
		written, errs := make([]int64, processes), make([]error, processes)
		begun := make(chan struct{})
		var group sync.WaitGroup
		for rank, x := range exchanges {
			var first sync.Once
			group.Go(func() {
				_, errs[rank] = Run(ctx, x, Config{Format: Gensort, Inputs: []string{in}, Output: out, Memory: 8 << 20, Temporary: t.TempDir(), Files: files, Progress: func(p Progress) {
					if written[rank] = p.Written; p.Written == 0 {
						return
					}
					first.Do(func() {
						switch {
						case how == "context":
							end(gone)
						case rank == 0:
							<-begun // the other one, too
							x.Abort(gone)
						default:
							close(begun)
							<-x.Done()
						}
					})
				}})
			})
		}
		group.Wait()
		for rank, err := range errs {
			if err == nil || !strings.Contains(err.Error(), "gone") || written[rank] == 0 || written[rank] > size/int64(processes)*3/4 {
				t.Errorf("%s: process %d of %d: %v after %d bytes", how, rank, processes, err, written[rank])
			}
		}
		alone(t, filepath.Dir(out))
		end(nil)
		if err := files.Close(); err != nil {
			t.Error(err)
		}
	}
}
