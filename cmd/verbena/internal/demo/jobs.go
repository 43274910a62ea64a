package demo

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// dictionary is a large English text that Debian's package dict-gcide ships: 40 MB unpacked.
const dictionary = "/usr/share/dictd/gcide.dict.dz"

// JobRow is what the jobs did whose processes exchanged records over one transport. MB are
// 10^6 bytes of the input, divided by the wall time of the whole command.
type JobRow struct {
	Transport string  `json:"transport"`
	WordsMB   float64 `json:"words_mb_per_s,omitempty"` // there is none where the tree has no text
	WordsCPU  float64 `json:"words_cpu_s,omitempty"`
	SortMB    float64 `json:"sort_mb_per_s"`
	SortCPU   float64 `json:"sort_cpu_s"`
	Verified  bool    `json:"verified"`
}

// Jobs are the jobs' table.
type Jobs struct {
	Rows []JobRow
	// Text is how many bytes the text has, Words how many words, and Different how many different ones.
	Text, Words int64
	Different   int
	Dictionary  bool // it is in the text
	Records     int64
}

// Table writes the table for people.
func (j *Jobs) Table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "transport\twords MB/s\tCPU s\tsort MB/s\tCPU s\tresults\t")
	for _, row := range j.Rows {
		verdict := "right"
		if !row.Verified {
			verdict = "WRONG"
		}
		words := "-\t-"
		if j.Words > 0 {
			words = fmt.Sprintf("%.0f\t%.2f", row.WordsMB, row.WordsCPU)
		}
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%.2f\t%s\t\n", row.Transport, words, row.SortMB, row.SortCPU, verdict)
	}
	return w.Flush()
}

// jobs runs the jobs.
type jobs struct {
	cfg      Config
	dir      string
	counts   map[string]*int64 // of the text's words
	checksum string            // of the records
}

// runJobs counts the words of a text and sorts records, over each transport, in dir.
func runJobs(ctx context.Context, cfg Config, dir string) (_ *Jobs, err error) {
	j := &jobs{cfg: cfg, dir: dir, counts: map[string]*int64{}}
	result := &Jobs{Records: cfg.Records}
	if result.Text, result.Dictionary, err = j.makeText(ctx); err != nil {
		return nil, err
	}
	for _, n := range j.counts {
		result.Words += *n
	}
	result.Different = len(j.counts)
	var made struct{ Checksum string }
	if err := j.run(ctx, nil, &made, "gensort", "--json", fmt.Sprint(cfg.Records), j.path("records")); err != nil {
		return nil, err
	}
	j.checksum = made.Checksum
	fmt.Fprintf(cfg.Progress, "A text of %d MB with %d words, %d of them different, and %d records of 100 bytes are made.\n",
		result.Text/1e6, result.Words, result.Different, cfg.Records)
	for _, transport := range cfg.Transports {
		row, err := j.measure(ctx, transport, result)
		if err != nil {
			return nil, fmt.Errorf("demo of jobs over %s: %w", transport, err)
		}
		result.Rows = append(result.Rows, row)
	}
	return result, nil
}

func (j *jobs) path(name string) string { return filepath.Join(j.dir, name) }

// measure does both jobs over one transport.
func (j *jobs) measure(ctx context.Context, transport string, result *Jobs) (JobRow, error) {
	row := JobRow{Transport: transport}
	common := []string{"--quiet", "--transport", transport, "--workers", fmt.Sprint(j.cfg.JobWorkers), "--memory", j.cfg.JobMemory}
	var usage usage
	stage := func(name, output string, bytes int64, args ...string) error {
		if err := j.settle(output); err != nil {
			return err
		}
		fmt.Fprintf(j.cfg.Progress, "%-6s %-8s %d MB...", transport, name, bytes/1e6)
		if err := j.run(ctx, &usage, nil, slices.Concat(args, common, []string{"-o", output})...); err != nil {
			fmt.Fprintln(j.cfg.Progress)
			return err
		}
		fmt.Fprintf(j.cfg.Progress, " %.2f s\n", usage.wall.Seconds())
		return nil
	}
	if result.Words > 0 {
		if err := stage("words", j.path("counts"), result.Text, "groupby", "--format", "words", "--count", j.path("text")); err != nil {
			return row, err
		}
		row.WordsMB, row.WordsCPU = float64(result.Text)/1e6/usage.wall.Seconds(), usage.cpu.Seconds()
	}
	if err := stage("sort", j.path("sorted"), 100*result.Records, "sort", "--format", "gensort", j.path("records")); err != nil {
		return row, err
	}
	row.SortMB, row.SortCPU = float64(100*result.Records)/1e6/usage.wall.Seconds(), usage.cpu.Seconds()
	err := j.check(ctx)
	var wrong *wrongError
	if errors.As(err, &wrong) {
		fmt.Fprintln(j.cfg.Progress, err)
		return row, nil
	}
	row.Verified = err == nil
	return row, err
}

// settle removes the output of the transport before, and waits until the disk has what was written so far: a
// job would pay for its place in the order, and not for its transport.
func (j *jobs) settle(output string) error {
	if err := os.Remove(output); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return flush(j.dir)
}

// usage is what a command took.
type usage struct{ wall, cpu time.Duration }

// run runs a command of this program, with all processes that it starts. into, unless nil, gets the JSON that it prints.
func (j *jobs) run(ctx context.Context, took *usage, into any, args ...string) error {
	cmd := exec.CommandContext(ctx, j.cfg.Executable, slices.Concat(args, j.cfg.Flags)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	began := time.Now()
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, bytes.TrimSpace(said.Bytes()))
	}
	if took != nil {
		*took = usage{time.Since(began), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(out, into)
}

// wrongError says what a job has got wrong.
type wrongError struct{ what string }

func (e *wrongError) Error() string { return e.what }

// check compares both results with what is known of the inputs.
func (j *jobs) check(ctx context.Context) error {
	if len(j.counts) > 0 {
		if err := j.checkWords(); err != nil {
			return err
		}
	}
	var sorted struct {
		Records   int64
		Checksum  string
		Unordered int64 `json:"unordered_records"`
	}
	if err := j.run(ctx, nil, &sorted, "valsort", "--json", j.path("sorted")); err != nil {
		return err
	}
	if sorted.Records != j.cfg.Records || sorted.Checksum != j.checksum || sorted.Unordered != 0 {
		return &wrongError{fmt.Sprintf("of %d records with the checksum %s came %d with %s, %d of them out of order",
			j.cfg.Records, j.checksum, sorted.Records, sorted.Checksum, sorted.Unordered)}
	}
	return nil
}

func (j *jobs) checkWords() error {
	f, err := os.Open(j.path("counts"))
	if err != nil {
		return err
	}
	defer f.Close()
	return checkCounts(f, j.counts)
}

// checkCounts reads words and their numbers, which must be in order and those of counts.
func checkCounts(r io.Reader, counts map[string]*int64) error {
	in := bufio.NewReaderSize(r, 1<<20)
	last, n := []byte(nil), 0
	for ; ; n++ {
		line, err := in.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			break
		}
		if err != nil {
			return fmt.Errorf("line %d of the counts: %w", n+1, err)
		}
		word, number, _ := bytes.Cut(line[:len(line)-1], []byte("\t"))
		want := counts[string(word)]
		switch {
		case want == nil || fmt.Sprint(*want) != string(number):
			return &wrongError{fmt.Sprintf("the word %.50q was counted %.50q times", word, number)}
		case n > 0 && bytes.Compare(last, word) >= 0:
			return &wrongError{fmt.Sprintf("the word %.50q comes behind %.50q", word, last)}
		}
		last = word
	}
	if n != len(counts) {
		return &wrongError{fmt.Sprintf("%d words were counted, there are %d", n, len(counts))}
	}
	return nil
}

// makeText writes the share of the texts among the tree's files, and of the dictionary if it is installed, into one
// file, and counts their words.
func (j *jobs) makeText(ctx context.Context) (size int64, withDictionary bool, err error) {
	f, err := os.Create(j.path("text"))
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	add := func(b []byte) error {
		for word := range bytes.FieldsSeq(b) {
			n := j.counts[string(word)]
			if n == nil {
				n = new(int64)
				j.counts[string(word)] = n
			}
			*n++
		}
		n, err := f.Write(append(b, '\n'))
		size += int64(n)
		return err
	}
	n := 0
	err = filepath.WalkDir(j.cfg.Tree, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if n++; (n-1)%j.cfg.Share != 0 {
			return nil
		}
		b, err := os.ReadFile(name)
		if err != nil || bytes.IndexByte(b, 0) >= 0 { // no text, as git sees it
			return err
		}
		return errors.Join(add(b), ctx.Err())
	})
	if err != nil {
		return 0, false, fmt.Errorf("reading the tree's text: %w", err)
	}
	switch b, err := readDictionary(); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return 0, false, fmt.Errorf("%s: %w", dictionary, err)
	default:
		withDictionary = true
		if err := add(b[:len(b)/j.cfg.Share]); err != nil {
			return 0, false, err
		}
	}
	if len(j.counts) == 0 {
		fmt.Fprintf(j.cfg.Progress, "There is no text in %s, so no words are counted: --tree names another directory.\n", j.cfg.Tree)
	}
	return size, withDictionary, f.Close()
}

func readDictionary() ([]byte, error) {
	f, err := os.Open(dictionary)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}
