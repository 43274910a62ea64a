package groupby

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/internal/external"
	"github.com/verbena-data/verbena/shuffle/internal/jobtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run groups with several processes. It returns what was printed, or is in the output.
func run(t *testing.T, size, threads int, cfg Config) (string, Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	files := &dataset.Files{}
	defer files.Close()
	var printed strings.Builder
	cfg.Files, cfg.Print, cfg.Temporary = files, &printed, t.TempDir()
	if cfg.Memory == 0 {
		cfg.Memory = int64(threads) * 3 * external.MinMemory
	}
	results, errs := make([]Result, size), make([]error, size)
	var group sync.WaitGroup
	for rank, x := range jobtest.Exchanges(t, size, threads) {
		group.Go(func() { results[rank], errs[rank] = Run(ctx, x, cfg) })
	}
	group.Wait()
	for rank, err := range errs {
		if (err == nil) != (errs[0] == nil) {
			t.Errorf("process %d: %v; process 0: %v", rank, err, errs[0])
		}
	}
	if errs[0] == nil && cfg.Output != "" {
		b, err := os.ReadFile(cfg.Output)
		if err != nil {
			t.Fatal(err)
		}
		printed.Write(b)
	}
	return printed.String(), results[0], errs[0]
}

func write(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

var shapes = [][2]int{{1, 1}, {3, 1}, {2, 2}}

// TestCSV groups records whose fields have quotes, commas and newlines, wherever the parts'
// borders lie.
func TestCSV(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	keys := []string{"plain", "with, comma", "with \"quotes\"", "two\nlines", "\n", "", "\"", "ü"}
	for round := range 12 {
		var text bytes.Buffer
		w := csv.NewWriter(&text)
		w.UseCRLF = round%2 == 1
		_ = w.Write([]string{"id", "na\"me", "amount"})
		sums, counts := map[string]int64{}, map[string]int64{}
		for i := range r.IntN(400) {
			key := keys[r.IntN(len(keys))]
			cents := int64(r.IntN(2000) - 1000)
			sums[key] += cents
			counts[key]++
			_ = w.Write([]string{fmt.Sprint(i), key, string(decimal{units: cents, scale: 2}.append(nil))})
		}
		w.Flush()
		// csv.Reader reads \r\n within quotes as \n: so does csv.Writer write it.
		in := write(t, text.String())
		for _, shape := range shapes {
			for _, sum := range []string{"", "amount"} {
				var want bytes.Buffer
				out := csv.NewWriter(&want)
				name := map[bool]string{true: "count", false: "sum"}[sum == ""]
				_ = out.Write([]string{"na\"me", name})
				for _, key := range slices.Sorted(maps.Keys(counts)) {
					number := decimal{units: counts[key]}
					if sum != "" {
						number = decimal{units: sums[key], scale: 2}
					}
					_ = out.Write([]string{key, string(number.append(nil))})
				}
				out.Flush()
				got, _, err := run(t, shape[0], shape[1], Config{Format: CSV, Inputs: []string{in}, Key: "na\"me", Sum: sum})
				if err != nil {
					t.Fatal(err)
				}
				if got != want.String() {
					t.Fatalf("round %d, %v %s: got\n%s\nwant\n%s", round, shape, sum, got, want.String())
				}
			}
		}
	}
}

func TestFormats(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  Config
		in   []string
		want string
	}{
		"tsv":            {Config{Format: TSV, Key: "k"}, []string{"k\tv\nb\t1\na\t2\nb\t3"}, "k\tcount\na\t1\nb\t2\n"},
		"tsv by number":  {Config{Format: TSV, Key: "1", Sum: "2"}, []string{"k\tv\nb\t1\na\t2\r\nb\t3"}, "1\tsum\na\t2\nb\t4\n"},
		"orders differ":  {Config{Format: CSV, Key: "k", Sum: "v"}, []string{"k,v\na,1\n", "v,k\n2,a\n3,b\n", "", "k,v\n"}, "k,sum\na,3\nb,3\n"},
		"quotes of tsv":  {Config{Format: TSV, Key: "k"}, []string{"k\n\"\n\"\n"}, "k\tcount\n\"\t2\n"},
		"header alone":   {Config{Format: CSV, Key: "k"}, []string{"k,v"}, "k,count\n"},
		"empty":          {Config{Format: JSONL, Key: "k"}, []string{""}, ""},
		"jsonl":          {Config{Format: JSONL, Key: "u.n", Sum: "v"}, []string{`{"u":{"n":"x\ny"},"v":0.1}` + "\n\n" + `{"v":"0.2","u":{"n":"x\ny"}}` + "\n" + `{"u":{"n":7},"v":1e2}` + "\n" + `{"v":5}`}, `{"key":"7","sum":100}` + "\n" + `{"key":"x\ny","sum":0.3}` + "\n"},
		"no value":       {Config{Format: JSONL, Key: "k", Sum: "v"}, []string{`{"k":"a"}` + "\n" + `{"k":"a","v":null}`}, `{"key":"a","sum":0}` + "\n"},
		"words":          {Config{Format: Words}, []string{"b a  b\tc\n\nb", " a "}, "a\t2\nb\t3\nc\t1\n"},
		"large":          {Config{Format: CSV, Key: "k", Sum: "v"}, []string{"k,v\na,9223372036854775807\na,9223372036854775807\na,-1\n"}, "k,sum\na,18446744073709551613\n"},
		"mark of csv":    {Config{Format: CSV, Key: "k", Sum: "v"}, []string{"\xef\xbb\xbf\"k\",v\r\n\"a\",1\r\n", "k,v\na,2\n", "\xef\xbb\xbf"}, "k,sum\na,3\n"},
		"mark of tsv":    {Config{Format: TSV, Key: "k"}, []string{"\xef\xbb\xbfk\tv\na\t1\n", "\xef\xbb\xbf"}, "k\tcount\na\t1\n"},
		"mark of jsonl":  {Config{Format: JSONL, Key: "k"}, []string{"\xef\xbb\xbf" + `{"k":"a"}` + "\n" + `{"k":"\ufeffa"}`, "\xef\xbb\xbf"}, `{"key":"a","count":1}` + "\n" + "{\"key\":\"\ufeffa\",\"count\":1}\n"},
		"mark of words":  {Config{Format: Words}, []string{"\xef\xbb\xbfa b\na\n", "\xef\xbb\xbf"}, "a\t2\nb\t1\n"},
		"marks within":   {Config{Format: TSV, Key: "k"}, []string{"k\n\xef\xbb\xbfa\na\n"}, "k\tcount\na\t1\n\xef\xbb\xbfa\t1\n"},
		"missing fields": {Config{Format: CSV, Key: "v"}, []string{"k,v\na\nb,1\n"}, "v,count\n1,1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, text := range test.in {
				test.cfg.Inputs = append(test.cfg.Inputs, write(t, text))
			}
			for _, output := range []string{"", filepath.Join(t.TempDir(), "out")} {
				test.cfg.Output = output
				got, _, err := run(t, 2, 1, test.cfg)
				if err != nil || got != test.want {
					t.Errorf("%v; got\n%s\nwant\n%s", err, got, test.want)
				}
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  Config
		in   string
		want string
	}{
		"no field":   {Config{Format: CSV, Key: "x"}, "a,b\n1,2\n", `no field "x"`},
		"no number":  {Config{Format: CSV, Key: "a", Sum: "b"}, "a,b\n1,two\n", `b is "two": not a number`},
		"bare quote": {Config{Format: CSV, Key: "a"}, "a,b\nx\"y,2\n", "bare"},
		"open quote": {Config{Format: CSV, Key: "a"}, "a,b\nz,1\n\"xy,2\nv,1\n", "the record at byte 8: extraneous or missing \" in quoted-field"},
		"no JSON":    {Config{Format: JSONL, Key: "a"}, "{\"a\":1}\n{\"a\":\n", "no JSON"},
		"long line":  {Config{Format: JSONL, Key: "a"}, "{\"a\":\"" + strings.Repeat("x", 9<<20) + "\"}", "--memory"},
		"no file":    {Config{Format: JSONL, Key: "a", Inputs: []string{"/nowhere/x"}}, "", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.cfg.Inputs == nil {
				test.cfg.Inputs = []string{write(t, test.in)}
			}
			test.cfg.Output = filepath.Join(t.TempDir(), "out")
			if got, _, err := run(t, 2, 1, test.cfg); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%q, %v; want %q", got, err, test.want)
			}
			entries, err := os.ReadDir(filepath.Dir(test.cfg.Output))
			if err != nil || len(entries) != 0 {
				t.Error("something is left behind: ", entries, err)
			}
		})
	}
}

// TestOutputComesFirst names an output that cannot be written: the job fails before it has read its inputs.
func TestOutputComesFirst(t *testing.T) {
	cfg := Config{Format: TSV, Key: "k", Inputs: []string{write(t, "k\na\nb\n")}, Output: filepath.Join(t.TempDir(), "none", "out")}
	cfg.Progress = func(read, total int64) { t.Errorf("%d bytes of %d have been read", read, total) }
	for _, size := range []int{1, 2} {
		if _, _, err := run(t, size, 1, cfg); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Error(err)
		}
	}
}

// TestOpenQuote has a quote that is never closed at the beginning of a large file: that is noticed within the memory, and where it is.
func TestOpenQuote(t *testing.T) {
	const fills = 4 << 20
	for name, row := range map[string]string{"lines": "key,1\n", "one line": "key,1 "} {
		t.Run(name, func(t *testing.T) {
			in := write(t, "k,v\na,1\n\"b,1\n"+strings.Repeat(row, fills))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for _, shape := range shapes {
				_, _, err := run(t, shape[0], shape[1], Config{Format: CSV, Inputs: []string{in}, Key: "k"})
				if want := "the record at byte 8 is longer than the "; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), in) {
					t.Errorf("%v: %v; want %q", shape, err, want)
				}
			}
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 { // the file has 24 MiB, and is read in three shapes
				t.Errorf("%d MiB were allocated", n>>20)
			}
		})
	}
}

// small is the configuration of a process with as little memory as may be, of several with a thread each.
func small(format Format, processes int) Config {
	return Config{Format: format, Key: "k", Memory: 3 * external.MinMemory, threads: 1, partitions: processes}
}

// TestLongRecords has records of CSV as long as they may be, and longer ones, at the border of what the parser reads ahead, too.
func TestLongRecords(t *testing.T) {
	c := small(CSV, 1)
	longest := int(c.longest())
	for _, n := range []int{longest - 10, longest, longest + aheadOfCSV + 1, 3 * longest} {
		for _, fill := range []string{"x", "\n"} {
			field := "v\"\"" + strings.Repeat(fill, n-len("1,\"v\"\"\"\n"))
			_, result, err := run(t, 1, 1, Config{Format: CSV, Inputs: []string{write(t, "k,v\n"+strings.Repeat("1,\""+field+"\"\n", 5))}, Key: "k"})
			if fits := n <= longest; (err == nil) != fits || fits && (result.Records != 5 || result.Groups != 1) {
				t.Errorf("%d bytes, at most %d: %+v, %v", n, longest, result, err)
			}
		}
	}
}

// TestLongLines has lines as long as they may be, and longer ones by a byte: the error tells where one begins, and how long it is.
func TestLongLines(t *testing.T) {
	for format, c := range map[Format]struct{ first, begin, end string }{
		JSONL: {"{\"k\":\"1\"}\n", "{\"k\":\"1\",\"v\":\"", "\"}"},
		TSV:   {"k\tv\n", "1\t", ""},
		Words: {"one two\n", "1 ", " 2"},
	} {
		limits := small(format, 2)
		longest := int(limits.longest())
		for _, n := range []int{longest, longest + 1} {
			line := c.begin + strings.Repeat(" ", n-len(c.begin)-len(c.end)) + c.end
			in, out := write(t, c.first+line+"\n"+line), filepath.Join(t.TempDir(), "out")
			cfg := Config{Format: format, Inputs: []string{in}, Key: "k", Output: out}
			if format == Words {
				cfg.Key = ""
			}
			_, result, err := run(t, 2, 1, cfg)
			if n == longest && (err != nil || result.Groups < 1) {
				t.Errorf("%s: %d bytes: %+v, %v", format, n, result, err)
			}
			if n == longest {
				continue
			}
			want := fmt.Sprintf(" has %d bytes, at most %d are possible: raise --memory", n, longest)
			place, second := fmt.Sprintf("that at byte %d", len(c.first)), fmt.Sprintf("that at byte %d", len(c.first)+n+1)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), in) || !strings.Contains(err.Error(), place) && !strings.Contains(err.Error(), second) {
				t.Errorf("%s: %v; want %q", format, err, place+want)
			}
			if _, err := os.Stat(out); err == nil {
				t.Errorf("%s: there is an output", format)
			}
		}
	}
}

// TestLongKeys has keys as long as they may be, and longer ones by a byte.
func TestLongKeys(t *testing.T) {
	for format, c := range map[Format]struct{ first, begin, end string }{
		CSV:   {"k,v\n", "", ",1\n"},
		JSONL: {"\n", "{\"k\":\"", "\",\"v\":1}\n"},
		TSV:   {"k\tv\n", "", "\t1\n"},
	} {
		limits := small(format, 2)
		longest := int(limits.longestKey())
		for _, n := range []int{longest, longest + 1} {
			text := c.first
			for i := range 50 {
				text += c.begin + strings.Repeat(string(rune('a'+i%20)), n) + c.end
			}
			in := write(t, text)
			rows, result, err := run(t, 2, 1, Config{Format: format, Inputs: []string{in}, Key: "k", Sum: "v"})
			if n == longest {
				if err != nil || result.Groups != 20 || result.Records != 50 || strings.Count(rows, strings.Repeat("t", n)) != 1 {
					t.Errorf("%s: %d bytes: %+v, %v", format, n, result, err)
				}
				continue
			}
			want := fmt.Sprintf("a key of %d bytes is longer than the %d for which there is memory: raise --memory", n, longest)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), in) || !strings.Contains(err.Error(), "at byte ") {
				t.Errorf("%s: %v; want %q", format, err, want)
			}
		}
	}
}

// TestMoreThanMemory has more groups than tables and sorters hold.
func TestMoreThanMemory(t *testing.T) {
	const n = 700_000
	var text bytes.Buffer
	for i := range n {
		fmt.Fprintf(&text, "key-%08d\tx\n", uint32(i)*2654435761%n)
	}
	in := write(t, "k\tv\n"+text.String()+text.String())
	got, result, err := run(t, 2, 1, Config{Format: TSV, Inputs: []string{in}, Key: "k", Output: filepath.Join(t.TempDir(), "out")})
	if err != nil {
		t.Fatal(err)
	}
	if result.Runs == 0 || result.Shuffled <= n {
		t.Errorf("%+v: the test proves nothing of temporary files", result)
	}
	counts := map[string]int64{}
	for line := range strings.Lines(text.String()) {
		key, _, _ := strings.Cut(line, "\t")
		counts[key] += 2
	}
	var want strings.Builder
	want.WriteString("k\tcount\n")
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&want, "%s\t%d\n", key, counts[key])
	}
	if got != want.String() {
		t.Error("other counts than those of a map")
	}
	if result.Groups != int64(len(counts)) || result.Records != 2*n {
		t.Errorf("%+v", result)
	}
}

// TestDictionary counts the words of the GNU Collaborative International Dictionary of
// English, 40 MB of text.
func TestDictionary(t *testing.T) {
	const words = 5_000_000
	text := jobtest.Dictionary(t)
	counts := map[string]int64{}
	for word := range bytes.FieldsSeq(text) {
		counts[string(word)]++
	}
	got, result, err := run(t, 2, 1, Config{Format: Words, Inputs: []string{write(t, string(text))}})
	if err != nil {
		t.Fatal(err)
	}
	if result.Records < words {
		t.Errorf("%d words of %d", result.Records, words)
	}
	last, n := "", 0
	for line := range strings.Lines(got) {
		word, number, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if fmt.Sprint(counts[word]) != number || n > 0 && word <= last {
			t.Fatalf("%s after %s: %s, want %d", word, last, number, counts[word])
		}
		last = word
		n++
	}
	if n != len(counts) {
		t.Errorf("%d words of %d", n, len(counts))
	}
}

// FuzzCSV reads a text in parts: the records are those of the whole.
func FuzzCSV(f *testing.F) {
	f.Add([]byte("k,v\n\"a\nb\",2\nc,\"d\"\"e\"\n"), uint8(3))
	f.Add([]byte("k\n\n\"\n\"\n"), uint8(4))
	f.Fuzz(func(t *testing.T, text []byte, parts uint8) {
		whole := csv.NewReader(bytes.NewReader(text))
		whole.FieldsPerRecord = -1
		records, err := whole.ReadAll()
		if err != nil || len(records) == 0 {
			return
		}
		var want []string
		at, err := column(records[0], "1")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records[1:] {
			if at < len(r) {
				want = append(want, r[at])
			}
		}
		name := filepath.Join(t.TempDir(), "in")
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		in, err := (&dataset.Files{}).Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		var got []string
		quoted := false
		n := int(parts%20) + 1
		for part := range n {
			spans, err := dataset.Split([]*dataset.Input{in}, part, n, 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, span := range spans {
				r := &reader{cfg: &Config{Format: CSV, Key: "1", Memory: 3 * external.MinMemory, threads: 1}, read: func(int) {}}
				r.take = func(key, _ []byte) error {
					got = append(got, string(key))
					return nil
				}
				odd, err := oddQuotes(t.Context(), span, func(int) {})
				if err != nil {
					t.Fatal(err)
				}
				q := quotes{quoted, quoted != odd}
				if err := r.span(t.Context(), span, q); err != nil {
					t.Fatalf("part %d of %d: %v", part, n, err)
				}
				quoted = q.after
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d parts: %q, want %q", n, got, want)
		}
	})
}

// FuzzJSONL never fails but by saying what is wrong.
func FuzzJSONL(f *testing.F) {
	f.Add([]byte(`{"k":"a","v":1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.IndexByte(line, '\n') >= 0 {
			return
		}
		r := &reader{cfg: &Config{Format: JSONL, Key: "k", Sum: "v"}}
		taken := 0
		r.take = func(_, _ []byte) error { taken++; return nil }
		err := r.line(line, columns{})
		if blank := len(bytes.TrimSpace(line)) == 0; !blank && (err == nil) != json.Valid(line) {
			t.Errorf("%q: %v", line, err)
		}
		if err == nil && taken > 1 {
			t.Error("one line is two records")
		}
	})
}

// TestInputIsWritten overwrites an input in place while the job reads it, and leaves its length: the job fails.
func TestInputIsWritten(t *testing.T) {
	in := write(t, strings.Repeat("word\n", 200_000))
	if err := os.Chtimes(in, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	got, _, err := run(t, 2, 1, Config{Format: Words, Inputs: []string{in}, Progress: func(int64, int64) {
		once.Do(func() {
			if err := os.WriteFile(in, bytes.Repeat([]byte("WORD\n"), 200_000), 0o600); err != nil {
				t.Error(err)
			}
		})
	}})
	if err == nil || got != "" { // a reader may have found it shorter, before
		t.Errorf("%q, %v", got, err)
	}
}

// TestLargeSums has sums that leave 64 bits, of new keys and of keys that the table has: few of them lie on the heap at a time, and
// none is lost.
func TestLargeSums(t *testing.T) {
	const keys, rounds = mostLarge * 3 / 2, 100
	most := 0
	var total decimal
	table, err := newTable(16<<20, func(t *table) error {
		most = max(most, len(t.large))
		for _, s := range t.all() {
			total = total.plus(s.sum)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer table.close()
	value, err := parseDecimal([]byte("987654321098765.43")) // 17 digits: the sum of 94 has more than 63 bits
	if err != nil {
		t.Fatal(err)
	}
	var key []byte
	for range rounds {
		for k := range keys {
			key = binary.BigEndian.AppendUint32(key[:0], uint32(k))
			if err := table.add(key, state{count: 1, sum: value}); err != nil {
				t.Fatal(err)
			}
			most = max(most, len(table.large))
		}
	}
	if err := table.empty(); err != nil {
		t.Fatal(err)
	}
	if want := new(big.Int).Mul(big.NewInt(value.units), big.NewInt(keys*rounds)); total.integer().Cmp(want) != 0 || most != mostLarge {
		t.Errorf("%d large sums at a time; the sum is %v, want %v", most, total.integer(), want)
	}
}

// TestQuotesAreCountedUntilTheEnd has the job end while quotes are counted, and while the end of a quote is looked for that goes on
// behind a span.
func TestQuotesAreCountedUntilTheEnd(t *testing.T) {
	gone := errors.New("gone")
	in, err := (&dataset.Files{}).Open(t.Context(), write(t, "k\n\""+strings.Repeat("x", 3*bufferSize)))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	ctx, end := context.WithCancelCause(t.Context())
	read := 0
	_, err = oddQuotes(ctx, dataset.Span{Input: in, To: in.Size()}, func(n int) {
		read += n
		end(gone)
	})
	if !errors.Is(err, gone) || read != bufferSize {
		t.Errorf("%v after %d bytes", err, read)
	}
	if _, err := recordStart(ctx, in, 5, true); !errors.Is(err, gone) {
		t.Error(err)
	}
}

// TestProgress tells of all that is read, of CSV twice.
func TestProgress(t *testing.T) {
	for format, times := range map[Format]int64{CSV: 2, TSV: 1} {
		text := "k\n" + strings.Repeat("a key\n", 10_000)
		var last, of atomic.Int64
		_, _, err := run(t, 1, 1, Config{Format: format, Key: "k", Inputs: []string{write(t, text)}, Progress: func(read, total int64) {
			if read < last.Swap(read) {
				t.Errorf("%s: it goes back to %d", format, read)
			}
			of.Store(total)
		}})
		if want := times * int64(len(text)); err != nil || last.Load() != want || of.Load() != want {
			t.Errorf("%s: %v; %d of %d bytes, want %d", format, err, last.Load(), of.Load(), want)
		}
	}
}

// TestRowsEnd has no rows written when the job has ended.
func TestRowsEnd(t *testing.T) {
	gone := errors.New("gone")
	sorter, err := external.New(t.Context(), external.Config{Pairs: true, Memory: external.MinMemory, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	p := &part{sorter: sorter}
	defer p.close()
	one := state{count: 1}
	if err := sorter.Add(external.AppendPair(nil, []byte("key"), one.encode(nil))); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancelCause(t.Context())
	end(gone)
	if err := (&job{cfg: Config{Format: Words, Temporary: t.TempDir()}}).rows(ctx, p); !errors.Is(err, gone) || p.size > 0 {
		t.Errorf("%v; %d bytes", err, p.size)
	}
}
