package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/testneed"
)

// smallDisk is a file system of so many bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
	if errors.Is(err, unix.EPERM) {
		testneed.Missing(t, "this user may not mount a file system", "run as root")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil { // busy if somebody has a file open there
			t.Error(err)
		}
	})
	return dir
}

// TestJobsFillTheDisk runs out of room for temporary files, and for the output: the command says so,
// leaves nothing, and what was there before stays.
func TestJobsFillTheDisk(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in")
	if _, err := run(t, "", "gensort", "-a", "400000", in); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"sort":    {"sort"},
		"groupby": {"groupby", "--format", "tsv", "--key", "1", "--count"},
	} {
		for full, size := range map[string]int{"temporary files": 3 << 20, "output": 16 << 20} {
			t.Run(name+"/"+full, func(t *testing.T) {
				small, large := smallDisk(t, size), t.TempDir()
				temporary, out := small, filepath.Join(large, "out")
				if full == "output" {
					temporary, out = large, filepath.Join(small, "out")
				}
				if err := os.WriteFile(out, []byte("before"), 0o600); err != nil {
					t.Fatal(err)
				}
				cmd, said := asProcess(t, nil, append(args, "--workers", "2", "--memory", "150MiB", "-T", temporary, "-o", out, in)...)
				if err := cmd.Run(); err == nil || !strings.Contains(said.String(), "no space left on device") || !strings.Contains(said.String(), "process ") {
					t.Errorf("%v: %s", err, said)
				}
				if b, err := os.ReadFile(out); err != nil || string(b) != "before" {
					t.Errorf("the old output is %q, %v", b, err)
				}
				for _, file := range glob(t, small+"/*", small+"/.*", large+"/*", large+"/.*") {
					if file != out {
						t.Errorf("%s is left behind", file)
					}
				}
				var s unix.Statfs_t
				if err := unix.Statfs(small, &s); err != nil {
					t.Fatal(err)
				}
				if used := (s.Blocks - s.Bfree) * uint64(s.Bsize); used > 64<<10 {
					t.Errorf("%d bytes of the disk are still taken", used)
				}
			})
		}
	}
}

// TestJobsWithAHotKeyKeepTheirMemory gives half of all records one key, so that one process gets most of them: all processes
// together never have more than --memory resident, which is less than what they work on, and nothing is missing.
func TestJobsWithAHotKeyKeepTheirMemory(t *testing.T) {
	const records, workers = 1_400_000, 2
	dir := t.TempDir()
	in, out, lines := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "lines")
	if _, err := run(t, "", "gensort", fmt.Sprint(records), in); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(in)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.NewBufferString("key\tvalue\tand more\n")
	for n := range records {
		record := b[n*100 : n*100+100]
		key := fmt.Sprintf("key %07d of many", n)
		if n%2 == 0 {
			copy(record, "HOT KEY %%")
			key = "hot"
		}
		fmt.Fprintf(text, "%s\t1\t%070d\n", key, n)
	}
	if err := errors.Join(os.WriteFile(in, b, 0o600), os.WriteFile(lines, text.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	before, _ := run(t, "", "valsort", in) // it is not in order
	for name, c := range map[string]struct {
		memory int64
		args   []string
	}{ // little more than what the command needs
		"sort":    {128 << 20, []string{"sort", "--format", "gensort", in}},
		"groupby": {150 << 20, []string{"groupby", "--format", "tsv", "--key", "key", "--sum", "value", lines}},
	} {
		said := keepsMemory(t, workers, c.memory, append(c.args, "-T", dir, "-o", out, "--json")...)
		var told struct{ Records, Runs, Groups, Largest int64 }
		if err := json.Unmarshal(said.Bytes(), &told); err != nil || told.Records != records || told.Runs == 0 {
			t.Errorf("%s: %v\n%s", name, err, said)
		}
		if name == "sort" {
			report, err := run(t, "", "valsort", out)
			if sum := regexp.MustCompile("Checksum: .*").FindString(before); err != nil || sum == "" || !strings.Contains(report, sum) || told.Largest < int64(len(b)/2) {
				t.Errorf("%v\n%s\nbefore\n%s\n%s", err, report, before, said)
			}
			continue
		}
		groups, err := os.ReadFile(out)
		if err != nil || told.Groups != records/2+1 || !bytes.HasPrefix(groups, fmt.Appendf(nil, "key\tsum\nhot\t%d\nkey 0000001 of many\t1\n", records/2)) {
			t.Errorf("%v\n%s\n%s", err, groups[:min(100, len(groups))], said)
		}
	}
}

// keepsMemory runs a job that may have so much memory in all its processes together, and returns what it has said.
func keepsMemory(t *testing.T, workers int, memory int64, args ...string) (said *bytes.Buffer) {
	t.Helper()
	cmd, said := asProcess(t, nil, append(args, "--workers", fmt.Sprint(workers), "--memory", fmt.Sprint(memory))...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	peaks := map[int]int64{}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for working := true; working; {
		select {
		case err := <-ended:
			if working = false; err != nil {
				t.Fatalf("%v: %v\n%s", args, err, said)
			}
		case <-tick.C:
			for _, pid := range children(t, cmd.Process.Pid) {
				peaks[pid] = max(peaks[pid], peakOf(pid))
			}
		}
	}
	most := slices.Sorted(maps.Values(peaks))
	most = most[max(0, len(most)-workers):] // os/exec starts a process of its own, for a moment
	var sum int64
	for _, peak := range most {
		sum += peak
	}
	t.Logf("%v: the processes had at most %v bytes resident; %s", args, most, said)
	if len(most) != workers || sum > memory {
		t.Errorf("%v: %d processes had %d bytes resident, %d are allowed", args, len(most), sum, memory)
	}
	return said
}

// TestJobsWithLongLinesKeepTheirMemory works on lines that are nearly as long as they may be, more of them than the memory holds.
func TestJobsWithLongLinesKeepTheirMemory(t *testing.T) {
	const memory, length, lines = 256 << 20, 14 << 20, 20
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	f, err := os.Create(in)
	if err != nil {
		t.Fatal(err)
	}
	line := bytes.Repeat([]byte("a long line "), length/12)
	var want []byte // how they begin, in order
	for n := range lines {
		line[0] = byte('a' + n*7%lines)
		want = append(want, byte('a'+n))
		if _, err := f.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	keepsMemory(t, 2, memory, "sort", "-T", dir, "-o", out, in)
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for l := range bytes.Lines(got) {
		if len(want) == 0 || l[0] != want[0] || len(l) != len(line)+1 || !bytes.Equal(l[1:len(line)], line[1:]) {
			t.Fatalf("a line of %d bytes, %.20q, and %q are due", len(l), l, want)
		}
		want = want[1:]
	}
	if len(want) > 0 {
		t.Errorf("the lines %q are not there", want)
	}
}

// TestJobsWithLongKeysKeepTheirMemory works on lines and keys of JSON that are nearly as long as they may be, on more of them than the
// memory holds. In the rows of some, six bytes stand for each of the key.
func TestJobsWithLongKeysKeepTheirMemory(t *testing.T) {
	const memory, length, key, groups, often = 256 << 20, 2300 << 10, 80 << 10, 1600, 40
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	f, err := os.Create(in)
	if err != nil {
		t.Fatal(err)
	}
	rest := strings.Repeat("a long line ", (length-7*key)/12)
	for n := range groups {
		begin, end := strings.Repeat("x", key), ""
		if n%often == 0 {
			begin, end = strings.Repeat("\\u0001", key), rest
		}
		if _, err := fmt.Fprintf(f, "{\"key\":\"%d%s\",\"rest\":\"%s\"}\n", n, begin, end); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	keepsMemory(t, 2, memory, "groupby", "--format", "jsonl", "--key", "key", "--count", "-T", dir, "-o", out, in)
	got, err := os.ReadFile(out)
	rows, plain, escaped := bytes.Count(got, []byte("\",\"count\":1}\n")), bytes.Count(got, []byte("x")), bytes.Count(got, []byte("\\u0001"))
	if err != nil || rows != groups || plain != (groups-groups/often)*key || escaped != groups/often*key {
		t.Errorf("%d rows with keys of %d and %d bytes, %v", rows, plain, escaped, err)
	}
}

// peakOf is the most that a process has had resident; 0 if it has gone.
func peakOf(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(string(text), "\nVmHWM:")
	var kib int64
	_, _ = fmt.Sscan(after, &kib)
	return kib << 10
}
