package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/cmd/verbena/internal/fscmd"
	"github.com/verbena-data/verbena/cmd/verbena/internal/jobcmd"
	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/gensort"
	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/launch"
)

// asProcess runs the command as a process of its own.
func asProcess(t *testing.T, before []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	line := append(append(before, self), args...)
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
	cmd.Env = append(os.Environ(), asVerbena+"=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

func verbenaProcess(t *testing.T, before []string, args ...string) string {
	t.Helper()
	cmd, out := asProcess(t, before, args...)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out.String()
}

// TestSortCommand makes records, sorts them by several processes, started in all ways, and
// checks them.
func TestSortCommand(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	checksum, err := run(t, "", "gensort", "-c", "200000", in)
	if err != nil {
		t.Fatal(err)
	}
	ways := map[string][]string{"alone": nil}
	for launcher, install := range map[string]string{"mpirun.openmpi": "openmpi-bin", "mpirun.mpich": "mpich"} {
		ways[launcher] = []string{launcher, "-n", "3"}
		if launcher == "mpirun.openmpi" {
			ways[launcher] = append(ways[launcher], "--allow-run-as-root", "--oversubscribe")
		}
		testneed.Tool(t, launcher, "apt-get install "+install)
	}
	for name, before := range ways {
		t.Run(name, func(t *testing.T) {
			args := []string{"sort", "--format", "gensort", "--memory", "256MiB", "-o", out, in, "--json"}
			if before == nil {
				args = append(args, "--workers", "3")
			}
			said := verbenaProcess(t, before, args...)
			var result struct{ Records, Processes int64 }
			if err := json.Unmarshal([]byte(said), &result); err != nil || result.Records != 200000 || result.Processes != 3 {
				t.Errorf("%v\n%s", err, said)
			}
			report, err := run(t, "", "valsort", out)
			want := "Records: 200000\nChecksum: " + checksum + "Duplicate keys: 0\nSUCCESS - all records are in order\n"
			if err != nil || report != want {
				t.Errorf("%v\n%s\nwant\n%s", err, report, want)
			}
		})
	}
	if report, err := run(t, "", "valsort", in); err == nil || !strings.Contains(report, "First unordered record is record 2\n") {
		t.Error(report, err)
	}
}

// TestSummaries checks parts of a file apart: their summaries are checked as the whole file is. What goes wrong leaves what was there.
func TestSummaries(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, text ...string) {
		if err := os.WriteFile(at(name), []byte(strings.Join(text, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		text, err := os.ReadFile(at(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	record := func(key string) string { return key + strings.Repeat(".", 100-len(key)) }
	low, high := record("a")+record("b"), record("b")+record("c")
	write("low", low)
	write("high", high)
	write("whole", low, high)
	for _, name := range []string{"low", "high"} {
		if out, err := run(t, "", "valsort", "-q", "-t1", "-o", at(name+".sum"), at(name)); err != nil || out != "" {
			t.Fatal(out, err)
		}
	}
	write("sums", read("low.sum"), read("high.sum"))
	write("turned", read("high.sum"), read("low.sum"))
	whole, err := run(t, "", "valsort", "-o", at("whole.sum"), at("whole"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, "", "valsort", "-s", "-o", at("joined.sum"), at("sums")); err != nil || out != whole || !strings.Contains(out, "Duplicate keys: 1\n") {
		t.Errorf("%v\n%s\nwant\n%s", err, out, whole)
	}
	if read("joined.sum") != read("whole.sum") || len(read("whole.sum")) != 280 {
		t.Error("the summary of the parts is not that of the whole")
	}
	var failure *fscmd.Failure
	out, err := run(t, "", "valsort", "-s", "--json", at("turned"))
	if want := `"unordered_records":1,"first_unordered":2,"summaries":2}`; !errors.As(err, &failure) || failure.Code != 1 || !strings.Contains(out, want) {
		t.Errorf("%v\n%s", err, out)
	}

	// What is out of order has a summary, too, and is told also if that cannot be written.
	write("unordered", high, low)
	out, err = run(t, "", "valsort", "-q", "-o", at("unordered.sum"), at("unordered"))
	if !errors.As(err, &failure) || failure.Code != 1 || out != "" {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = run(t, "", "valsort", "-s", at("unordered.sum"))
	if want := "First unordered record is record 2\n"; !errors.As(err, &failure) || failure.Code != 1 || !strings.HasPrefix(out, want) {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
	if err := os.Remove(at("unordered.sum")); err != nil {
		t.Fatal(err)
	}

	write("cut", read("sums")[:559])
	write("records", strings.Repeat(low, 7))
	write("spoilt", read("low.sum"), "\x01", read("high.sum")[1:])
	write("empty")
	for want, args := range map[string][]string{
		"partial partition summary found at end":      {"-s", at("cut")},
		"summary 0 of " + at("records"):               {"-s", at("records")},
		"summary 1 of " + at("spoilt"):                {"-s", at("spoilt")},
		"at least one record":                         {"-s", at("empty")},
		"partial record found at end":                 {at("sums")},
		"-o " + at("whole") + ": that is the file to": {"-o", at("whole"), at("whole")},
		"no such file":                                {"-o", at("no/such"), at("whole")},
	} {
		if len(args) == 2 && args[0] == "-s" {
			args = append([]string{"-o", at("whole.sum")}, args...)
		}
		if out, err := run(t, "", append([]string{"valsort"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, %s; want %q", args, err, out, want)
		}
	}
	if read("joined.sum") != read("whole.sum") || read("whole") != low+high {
		t.Error("what failed has written")
	}
	if left, _ := filepath.Glob(at(".*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestUnsavedSummary tells what was found although the summary cannot be saved, and that.
func TestUnsavedSummary(t *testing.T) {
	for _, records := range []string{"ab", "ba"} {
		var r validated
		for _, key := range records {
			r.Add([]byte(strings.Repeat(string(key), 100)))
		}
		var out strings.Builder
		v := validation{summary: "x.sum"}
		err := v.finish(&out, r, func(gensort.Summary) error { return syscall.ENOSPC })
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "-o x.sum: ") || !strings.Contains(out.String(), "Records: 2\n") {
			t.Errorf("%s: %v\n%s", records, err, &out)
		}
	}
}

// TestValsortThreads bounds how many threads hold records at the same time.
func TestValsortThreads(t *testing.T) {
	for threads, want := range map[int]int{0: runtime.GOMAXPROCS(0), 1: 1, 256: 256, 257: 256, 1_000_000_000: 256} {
		if got := (&validation{threads: threads}).parts(); got != want {
			t.Errorf("-t%d: %d, want %d", threads, got, want)
		}
	}
}

// TestSummaryInPlaceOfTheInput refuses to put a summary in place of the file that is checked, under any of its names.
func TestSummaryInPlaceOfTheInput(t *testing.T) {
	address := startUp(t, t.TempDir(), "127.0.0.1:0").Address
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	here, there, link := filepath.Join(dir, "part"), "hdfs://"+address+"/part", filepath.Join(dir, "link")
	for _, name := range []string{here, there} {
		if out, err := run(t, "", "gensort", "1", name); err != nil {
			t.Fatal(out, err)
		}
	}
	if err := os.Symlink("part", link); err != nil {
		t.Fatal(err)
	}
	for other, name := range map[string]string{
		here: here, link: here, dir + "/../" + filepath.Base(dir) + "/part": here,
		there: there, "hdfs://" + address + "//part": there, "hdfs://" + address + "/./part": there, "hdfs://localhost:" + port + "/part": there,
	} {
		if out, err := run(t, "", "valsort", "-o", other, name); err == nil || !strings.Contains(err.Error(), "-o "+other+": that is the file to") {
			t.Errorf("-o %s of %s: %v\n%s", other, name, err, out)
		}
		if out, err := run(t, "", "valsort", name); err != nil || !strings.HasPrefix(out, "Records: 1\n") {
			t.Fatalf("%s after -o %s: %v\n%s", name, other, err, out)
		}
	}
	for other, name := range map[string]string{dir + "/sum": here, there + ".sum": there, dir + "/sum2": there, there + ".sum2": here} {
		if out, err := run(t, "", "valsort", "-o", other, name); err != nil {
			t.Errorf("-o %s of %s: %v\n%s", other, name, err, out)
		}
		if out, err := run(t, "", "valsort", "-s", other); err != nil || !strings.HasPrefix(out, "Records: 1\n") {
			t.Errorf("%s: %v\n%s", other, err, out)
		}
	}
}

// TestOnlyAnAbsentNameNodeIsAskedFor asks for a NameNode where none has answered: not behind a refusal, nor an interrupt.
func TestOnlyAnAbsentNameNodeIsAskedFor(t *testing.T) {
	unreached := fmt.Errorf("connection refused: %w", hdfs.ErrNoNameNode)
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		ctx         context.Context
		err         error
		fails, asks bool
	}{
		{t.Context(), unreached, true, true},
		{ended, unreached, true, false},
		{t.Context(), &hdfs.ServerError{Class: exception.Standby, Message: "in standby"}, true, false},
		{t.Context(), os.ErrPermission, false, false},
		{t.Context(), nil, false, false},
	} {
		err := absent(c.ctx, c.err)
		if (err != nil) != c.fails || c.fails && (!errors.Is(err, hdfs.ErrNoNameNode) || strings.Contains(err.Error(), "is a NameNode running there?") != c.asks) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}

// TestSilentNameNodesAreToldOfSoon has a NameNode take a connection and say nothing, as a stopped process does. A job asks for
// another one before a call's 2 min are over.
func TestSilentNameNodesAreToldOfSoon(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // connections wait in its queue
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = answers(ctx, hdfs.ClientConfig{NameNodes: []string{ln.Addr().String()}})
	if !errors.Is(err, hdfs.ErrNoNameNode) || !strings.Contains(err.Error(), "is a NameNode running there?") {
		t.Error(err)
	}
}

// TestCommandsDoNotWaitForTimeouts has what a configuration says of time-outs alone, Hadoop's default for instance, not count on
// top of a command's short patience.
func TestCommandsDoNotWaitForTimeouts(t *testing.T) {
	const retries, timeouts = "ipc.client.connect.max.retries=10", "ipc.client.connect.max.retries.on.timeouts=45"
	for _, c := range []struct {
		properties []string
		patience   time.Duration
		timeouts   int
	}{
		{nil, fsPatience, -1},
		{[]string{timeouts}, fsPatience, -1},
		{[]string{retries}, 10*time.Second + 1, 9},
		{[]string{retries, timeouts}, 10*time.Second + 1, 45},
	} {
		var cfg hdfs.ClientConfig
		if err := findNameNode(&cfg, "here:1", &hadoopFlags{properties: c.properties}); err != nil {
			t.Fatal(err)
		}
		beSoon(&cfg)
		if cfg.Patience != c.patience || cfg.Timeouts != c.timeouts {
			t.Errorf("%v: the patience is %v, with %d time-outs on top; want %v and %d", c.properties, cfg.Patience, cfg.Timeouts, c.patience, c.timeouts)
		}
	}
}

// TestJobTransports has each transport carry the records, and the same results come out.
func TestJobTransports(t *testing.T) {
	dir := t.TempDir()
	in, out, words := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "words")
	checksum, err := run(t, "", "gensort", "-c", "-a", "50000", in)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(words, []byte(strings.Repeat("b a c b\n", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for transport, mode := range map[string]string{"shm": "one-sided", "iwarp": "one-sided", "tcp": "two-sided"} {
		options := []string{"--transport", transport, "--workers", "3", "--memory", "256MiB"}
		over := fmt.Sprintf(" by 3 processes over %s (%s) ", transport, mode)
		if said := verbenaProcess(t, nil, append([]string{"sort", "-o", out, in}, options...)...); !strings.Contains(said, over) {
			t.Errorf("%q is missing in %s", over, said)
		}
		if said := verbenaProcess(t, nil, append([]string{"groupby", "--format", "words", "--count", "-o", out + ".groups", words}, options...)...); !strings.Contains(said, over) {
			t.Errorf("%q is missing in %s", over, said)
		}
		var result struct{ Ways []shuffle.Way }
		for _, args := range [][]string{
			{"sort", "-o", out, in}, {"groupby", "--format", "words", "--count", "-o", out + ".groups", words},
		} {
			said := verbenaProcess(t, nil, append(append(args, "--json"), options...)...)
			result.Ways = nil
			if err := json.Unmarshal([]byte(said), &result); err != nil || len(result.Ways) != 1 || result.Ways[0].Transport != transport ||
				result.Ways[0].Mode.String() != mode || result.Ways[0].Peers != 6 || result.Ways[0].Why == "" { // three have two each
				t.Errorf("%v over %s: %v: %s", args, transport, err, said)
			}
		}
		report, err := run(t, "", "valsort", out)
		if err != nil || !strings.Contains(report, "Records: 50000\nChecksum: "+checksum) || !strings.Contains(report, "SUCCESS") {
			t.Errorf("%s: %v\n%s", transport, err, report)
		}
		if got := verbenaProcess(t, nil, append([]string{"groupby", "--format", "words", "--count", words}, options...)...); got != "a\t10000\nb\t20000\nc\t10000\n" {
			t.Errorf("%s: %q", transport, got)
		}
	}
}

// TestSortKilled kills one of the processes, when it has begun to read and at random moments: the others end, with the reason, and
// nothing is left behind.
func TestSortKilled(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if _, err := run(t, "", "gensort", "-a", "1000000", in); err != nil {
		t.Fatal(err)
	}
	sorting := func(transport string) (*exec.Cmd, *bytes.Buffer) {
		return asProcess(t, nil, "sort", "--workers", "3", "--memory", "256MiB", "--transport", transport, "-o", out, in)
	}
	begin := time.Now()
	if cmd, said := sorting("auto"); cmd.Run() != nil {
		t.Fatal(said)
	}
	whole := time.Since(begin)
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, a whole sort takes %v", seed, whole)
	random := rand.New(rand.NewPCG(seed, 0))
	for n, transport := range []string{"auto", "shm", "iwarp", "tcp"} {
		cmd, said := sorting(transport)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		victim := 0
		if n == 0 {
			if victim = readerOf(t, cmd.Process.Pid, in); victim == 0 {
				t.Fatal("no process has opened the input")
			}
		} else {
			after := time.Duration(random.Int64N(int64(whole)))
			time.Sleep(after) // whatever happens meanwhile
			if pids := children(t, cmd.Process.Pid); len(pids) > 0 {
				victim = pids[random.IntN(len(pids))]
			}
			t.Logf("over %s process %d is killed after %v", transport, victim, after)
		}
		killed := victim != 0 && syscall.Kill(victim, syscall.SIGKILL) == nil
		err := cmd.Wait()
		_, missing := os.Stat(out)
		if missing == nil { // the output was there already, or nobody to kill yet: then it is whole
			if report, err := run(t, "", "valsort", out); n == 0 || err != nil || !strings.HasPrefix(report, "Records: 1000000\n") {
				t.Errorf("%v\n%s", err, report)
			}
			if err := os.Remove(out); err != nil {
				t.Error(err)
			}
		}
		if err == nil && missing != nil || err != nil && (!killed || !strings.Contains(said.String(), "of 3 ended: signal: killed")) {
			t.Errorf("killed: %v; %v, %v\n%s", killed, err, missing, said)
		}
		for _, name := range glob(t, dir+"/*", dir+"/.*") {
			if name != in {
				t.Errorf("%s is left behind", name)
			}
		}
	}
}

// readerOf waits for a child of a process to open a file.
func readerOf(t *testing.T, parent int, file string) int {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		for _, pid := range children(t, parent) {
			for _, fd := range glob(t, fmt.Sprintf("/proc/%d/fd/*", pid)) {
				if to, err := os.Readlink(fd); err == nil && to == file {
					return pid
				}
			}
		}
	}
	return 0
}

// children are those of a process.
func children(t *testing.T, parent int) (pids []int) {
	t.Helper()
	for _, task := range glob(t, fmt.Sprintf("/proc/%d/task/*/children", parent)) {
		text, _ := os.ReadFile(task) // the thread may have ended
		for _, pid := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, n)
		}
	}
	return pids
}

// TestOneCannotTakePart has processes that something else starts, one of which fails before it meets the others: they end
// with its reason, and long before they would have waited enough.
func TestOneCannotTakePart(t *testing.T) {
	dir := t.TempDir()
	for _, bad := range []int{0, 1} {
		var all sync.WaitGroup
		for rank := range 3 {
			memory := "512MiB"
			if rank == bad {
				memory = "20MiB"
			}
			cmd, out := asProcess(t, nil, "sort", "--rank", fmt.Sprint(rank), "--size", "3", "--rendezvous", fmt.Sprintf("unix:%s/%d/meet", dir, bad), "--wait", "1m",
				"--memory", memory, "-o", filepath.Join(dir, "out"), os.DevNull)
			all.Go(func() {
				err := cmd.Run()
				if err == nil || !strings.Contains(out.String(), "needs") || rank != bad && !strings.Contains(out.String(), fmt.Sprintf("process %d: ", bad)) {
					t.Errorf("process %d, while process %d cannot take part: %v\n%s", rank, bad, err, out)
				}
			})
		}
		all.Wait()
	}
}

// TestProcessGoesBeforeItHasJoined has a process, which nothing here has started, end when it has met the others and has not
// joined them: they end long before they would have waited enough.
func TestProcessGoesBeforeItHasJoined(t *testing.T) {
	dir := t.TempDir()
	for gone := range 3 {
		meet := fmt.Sprintf("unix:%s/%d/meet", dir, gone)
		var all sync.WaitGroup
		for rank := range 3 {
			if rank == gone {
				continue
			}
			cmd, out := asProcess(t, nil, "sort", "--rank", fmt.Sprint(rank), "--size", "3", "--rendezvous", meet, "--wait", "2m", "-o", filepath.Join(dir, "out"), os.DevNull)
			all.Go(func() {
				begin := time.Now()
				err := cmd.Run()
				if err == nil || !strings.Contains(out.String(), fmt.Sprintf("process %d has gone", gone)) || time.Since(begin) > time.Minute {
					t.Errorf("process %d, when process %d has gone: %v after %v\n%s", rank, gone, err, time.Since(begin), out)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		m, err := launch.Meet(ctx, launch.Worker{Rank: gone, Size: 3, Rendezvous: meet}, "127.0.0.1:9") // where nobody listens
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
		all.Wait()
		cancel()
	}
}

// TestJobsEndAsShellsExpect has nobody read what groupby prints, and an interrupt while a sort waits for another process: both end
// silently, as the usual commands do.
func TestJobsEndAsShellsExpect(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	if err := os.WriteFile(in, []byte("b\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) (*exec.Cmd, *strings.Builder) {
		cmd, _ := asProcess(t, nil, args...)
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = nil, &said
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(cmd.Start(), out.Close()); err != nil {
			t.Fatal(err)
		}
		return cmd, &said
	}
	cmd, said := start("groupby", "--format", "words", "--count", "--workers", "2", in)
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 141 || said.String() != "" {
		t.Errorf("%v, %q", cmd.ProcessState, said)
	}
	meet := filepath.Join(dir, "meet")
	cmd, said = start("sort", "--rank", "0", "--size", "2", "--rendezvous", "unix:"+meet, "-o", in+".sorted", in)
	for listens := time.Now().Add(time.Minute); ; {
		c, err := net.Dial("unix", meet)
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(listens) {
			t.Fatal("nobody listens")
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if how := cmd.ProcessState.Sys().(syscall.WaitStatus); !how.Signaled() || how.Signal() != syscall.SIGINT || said.String() != "" {
		t.Errorf("%v, %q", cmd.ProcessState, said)
	}
}

// TestFailureIsToldOnce has jobs of one process and of two fail, in both or in one: one line says why.
func TestFailureIsToldOnce(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	if err := os.WriteFile(in, []byte("b\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"open /nowhere/in: no such file or directory\n": {"sort", "-o", filepath.Join(dir, "out"), "/nowhere/in"},
		"partial: no such file or directory\n":          {"sort", "-o", "/nowhere/out", in},
		"there are b\n":                                 {"groupby", "--key", "k", "--count", in},
	} {
		for _, workers := range []string{"1", "2"} {
			cmd, out := asProcess(t, nil, append(args, "--workers", workers)...)
			if err := cmd.Run(); err == nil || strings.Count(out.String(), "\n") != 1 || strings.HasPrefix(out.String(), "verbena: process ") != (workers == "2") ||
				!strings.HasPrefix(out.String(), "verbena: ") || !strings.HasSuffix(out.String(), want) || strings.Contains(out.String(), "aborted") {
				t.Errorf("%v, %s workers: %v\n%s", args, workers, err, out)
			}
		}
	}
}

// TestJobMetrics asks a process of a job for its numbers while it works.
func TestJobMetrics(t *testing.T) {
	var said bytes.Buffer
	cmd := command()
	cmd.SetErr(&said)
	cmd.SetContext(t.Context())
	answered := ""
	var told struct {
		Process map[string]any
		Runtime any
		Shuffle struct{ Exchanges []map[string]any }
	}
	j := &jobcmd.Job{
		Divide: func(int64, int) (exchange, work int64, err error) { return 1 << 20, 0, nil },
		Work: func(ctx context.Context, p *jobcmd.Part) (any, error) {
			s := p.Exchange.Sender(0)
			if err := errors.Join(s.Send(0, []byte("record")), s.Close()); err != nil {
				return nil, err
			}
			_, address, _ := strings.Cut(said.String(), "Metrics at ")
			address, _, _ = strings.Cut(address, "\n")
			fetchJSON(t, strings.TrimSuffix(address, "metrics")+"status.json", &told)
			r, err := http.Get(address)
			if err != nil {
				return nil, err
			}
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			answered = string(b)
			return nil, err
		},
		Report: func(io.Writer, any) error { return nil },
	}
	j.AddFlags(cmd.PersistentFlags(), "")
	j.Metrics = "127.0.0.1:0"
	o := &options{}
	if err := errors.Join(cmd.PersistentFlags().Set("workers", "1"), o.load(), o.runJob(cmd, j)); err != nil {
		t.Fatal(err)
	}
	if want := `verbena_shuffle_sent_records_total{exchange="job"} 1`; !strings.Contains(answered, want) {
		t.Errorf("%q is missing in\n%s", want, answered)
	}
	if x := told.Shuffle.Exchanges; len(x) != 1 || x[0]["exchange"] != "job" || x[0]["sent_records"] != 1.0 || told.Process["command"] != "verbena, process 0 of 1" || told.Runtime != nil {
		t.Errorf("%+v", told)
	}
	in := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(in, []byte("b\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Each process has a port.
	for address, want := range map[string][]string{
		"127.0.0.1:0":     {"[0] Metrics at http://127.0.0.1:", "[1] Metrics at http://127.0.0.1:"},
		"127.0.0.1:65535": {"process 1 of 2: --metrics 127.0.0.1:65535: there is no port 65536"},
	} {
		cmd, out := asProcess(t, nil, "sort", "--workers", "2", "--metrics", address, "-o", in+".sorted", in)
		err := cmd.Run()
		for _, w := range want {
			if (err == nil) != (len(want) == 2) || !strings.Contains(out.String(), w) {
				t.Errorf("%s: %v, %q is missing in\n%s", address, err, w, out)
			}
		}
	}
}

// TestJobFlags has flags that mean nothing, which the command refuses before it starts a process, and a wait of 0, which stands for
// the usual one.
func TestJobFlags(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(in, []byte("b\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags []string
		want  string // empty: it works
	}{
		{[]string{"--workers", "-3"}, "--workers -3: want 1 or more"},
		{[]string{"--workers", "2", "--size", "-5"}, "--size -5: want 1 or more"},
		{[]string{"--workers", "2", "--rank", "-7"}, "--rank -7: want 0 or more"},
		{[]string{"--workers", "2", "--wait", "-1s"}, "--wait -1s: want more than 0"},
		{[]string{"--workers", "2", "--metrics", "127.0.0.1:-5"}, "--metrics 127.0.0.1:-5: there is no port -5"},
		{[]string{"--workers", "2", "--wait", "0s"}, ""},
	} {
		cmd, out := asProcess(t, nil, append([]string{"sort", "--memory", "256MiB", "-o", in + ".sorted", in}, c.flags...)...)
		err := cmd.Run()
		if (err == nil) != (c.want == "") || !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "process 0 of") {
			t.Errorf("%v: %v\n%s", c.flags, err, out)
		}
	}
}

func glob(t *testing.T, patterns ...string) (names []string) {
	t.Helper()
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// TestJobsOnHDFS sorts and counts from and to HDFS.
func TestJobsOnHDFS(t *testing.T) {
	address := startUp(t, t.TempDir(), "127.0.0.1:0").Address
	at := "hdfs://" + address
	checksum, err := run(t, "", "gensort", "-c", "50000", at+"/in/a")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/in/_SUCCESS", "/in/.hidden"} {
		if _, err := run(t, "", "gensort", "7", at+name); err != nil {
			t.Fatal(err)
		}
	}
	for _, in := range []string{"/in", "/i*/{a,b}"} { // the second one replaces the output of the first
		verbenaProcess(t, nil, "sort", "--format", "gensort", "--workers", "2", "--memory", "256MiB", "-o", at+"/out/sorted", at+in)
	}
	if cmd, said := asProcess(t, nil, "sort", "--workers", "2", "--memory", "256MiB", at+"/in/b*"); cmd.Run() == nil || !strings.Contains(said.String(), "/in/b*: no file matches this pattern") {
		t.Error(said)
	}
	report, err := run(t, "", "valsort", at+"/out/sorted")
	if err != nil || !strings.Contains(report, "Checksum: "+checksum+"Duplicate keys: 0\nSUCCESS") {
		t.Errorf("%v\n%s", err, report)
	}
	if listed, err := run(t, "", "fs", "--namenode", address, "ls", "/out"); err != nil || strings.Count(listed, "\n") > 2 || !strings.Contains(listed, "sorted") {
		t.Errorf("%v\n%s", err, listed)
	}
	// Each of the two has written its half at the same time as the other, as a file of its own.
	c, err := hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if blocks, err := c.BlockLocations(t.Context(), "/out/sorted", 0, 50000*100); err != nil || len(blocks) != 2 || blocks[1].Offset != blocks[0].Length {
		t.Errorf("blocks: %+v, %v", blocks, err)
	}
	words := filepath.Join(t.TempDir(), "words")
	if err := os.WriteFile(words, []byte("b a b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := verbenaProcess(t, nil, "groupby", "--format", "words", "--count", "--workers", "2", "--memory", "256MiB", words); got != "a\t1\nb\t2\n" {
		t.Errorf("%q", got)
	}
	if got := verbenaProcess(t, nil, "groupby", "--format", "words", "--count", "--workers", "2", "--memory", "256MiB", words, "-o", at+"/out/words"); !strings.Contains(got, "2 groups of 3 records") {
		t.Errorf("%q", got)
	}
	if got, err := run(t, "", "fs", "--namenode", address, "cat", "/out/words"); err != nil || got != "a\t1\nb\t2\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestPairsCommand does both benchmarks by several processes, over each transport.
func TestPairsCommand(t *testing.T) {
	for _, operation := range []string{"groupby", "sortby"} {
		for _, transport := range []string{"auto", "shm", "iwarp", "tcp"} {
			said := verbenaProcess(t, nil, "pairs", operation, "--pairs", "20000", "--keys", "1", "--value-size", "500", "--workers", "2", "--memory", "256MiB",
				"--mappers", "3", "--reducers", "4", "--check", "--json", "--transport", transport)
			var result struct{ Pairs, Groups, Mappers, Reducers, Processes int64 }
			var over struct{ Ways []shuffle.Way }
			if err := errors.Join(json.Unmarshal([]byte(said), &result), json.Unmarshal([]byte(said), &over)); err != nil ||
				result != struct{ Pairs, Groups, Mappers, Reducers, Processes int64 }{20000, 1, 3, 4, 2} || len(over.Ways) != 1 || over.Ways[0].Peers != 2 {
				t.Errorf("%s over %s: %v\n%s", operation, transport, err, said)
			}
		}
	}
	if said := verbenaProcess(t, nil, "pairs", "sortby", "--pairs", "1000", "--workers", "1"); !strings.HasPrefix(said, "1000 pairs with ") {
		t.Errorf("%q", said)
	}
}

func TestJobsRefuse(t *testing.T) {
	for want, args := range map[string][]string{
		"-o names no file":                    {"sort", "-o", "", "x"},
		"-o /dev/fd/2: that is an open file":  {"sort", "-o", "/dev/fd/2", "x"},
		"-o /dev/null: that is not a regular": {"groupby", "--count", "--key", "k", "-o", os.DevNull, "x"},
		"--json tells":                        {"sort", "--json", "x"},
		"name a file with -o":                 {"groupby", "--count", "--key", "k", "--json", "x"},
		"no format":                           {"sort", "-o", "y", "--format", "csv", "x"},
		"needs":                               {"sort", "-o", "y", "--memory", "100MiB", "--workers", "4", "x"},
		"no transport":                        {"sort", "-o", "y", "--transport", "ether", "x"},
		"missing port":                        {"sort", "-o", "y", "--metrics", "here", "x"},
		"the port is no number":               {"sort", "-o", "y", "--metrics", "here:there", "x"},
		"no port 70000":                       {"sort", "-o", "y", "--metrics", "here:70000", "x"},
		"want bytes":                          {"sort", "-o", "y", "--memory", "much", "x"},
		"--rendezvous":                        {"sort", "-o", "y", "--rank", "0", "--size", "2", "x"},
		"either --count":                      {"groupby", "--key", "k", "x"},
		"--key names it":                      {"groupby", "--count", "x"},
		"counted by themselves":               {"groupby", "--format", "words", "--count", "--key", "k", "x"},
		"want a number":                       {"gensort", "many", "x"},
		"2^128":                               {"gensort", "-b", "-1", "1", "x"},
		"no operation":                        {"pairs", "join", "--workers", "1"},
		"no such file":                        {"valsort", "/nowhere/x"},
		"not a regular file":                  {"valsort", os.DevNull},
		"-t -1":                               {"valsort", "-t-1", "x"},
	} {
		if out, err := run(t, "", args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, %s; want %q", args, err, out, want)
		}
	}
}

// TestInputsOnHDFS opens files of HDFS as a job's inputs: two processes see the same in one, and each notices when it is appended to, replaced
// by one of the same length, or deleted.
func TestInputsOnHDFS(t *testing.T) {
	address := startUp(t, t.TempDir(), "127.0.0.1:0").Address
	connect := func(context.Context, string) (*hdfs.Client, error) {
		return hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{address}})
	}
	c, err := connect(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	written := func(w *hdfs.FileWriter, err error) error {
		if err != nil {
			return err
		}
		_, err = w.Write([]byte("text\n"))
		return errors.Join(err, w.Close())
	}
	make := func(name string) error {
		return written(c.Create(t.Context(), name, hdfs.CreateOptions{Replace: true}))
	}
	for name, change := range map[string]func(name string) error{
		"nothing":  nil,
		"appended": func(name string) error { return written(c.Append(t.Context(), name, hdfs.AppendOptions{})) },
		"replaced": make,
		"deleted":  func(name string) error { return c.Remove(t.Context(), name) },
	} {
		file := "/inputs/" + name
		if err := make(file); err != nil {
			t.Fatal(err)
		}
		var sums []uint64
		for range 2 {
			files := &dataset.Files{Connect: connect}
			defer files.Close()
			in, err := files.Open(t.Context(), "hdfs://"+address+file)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			sum, err := in.Sample(16)
			if err != nil {
				t.Fatal(err)
			}
			sums = append(sums, sum)
			if len(sums) == 2 && change != nil {
				if err := change(file); err != nil {
					t.Fatal(err)
				}
			}
			if err := in.Unchanged(t.Context()); (err != nil) != (len(sums) == 2 && change != nil) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if sums[0] != sums[1] {
			t.Errorf("%s: %x", name, sums)
		}
	}
}

// TestOutputOnHDFS names outputs in HDFS that cannot be written, for which the job need not work first.
func TestOutputOnHDFS(t *testing.T) {
	at := "hdfs://" + startUp(t, t.TempDir(), "127.0.0.1:0").Address
	if _, err := run(t, "", "gensort", "1", at+"/file"); err != nil {
		t.Fatal(err)
	}
	files := (&options{}).files(nil, "tcp")
	defer files.Close()
	for name, c := range map[string]struct {
		size int64
		want string // of the error; empty: none
	}{
		"/file/out": {1, "not a directory"},
		"/dir/out":  {1, ""},
		"/dir/huge": {1 << 60, "bytes left"},
	} {
		out, err := files.Output(t.Context(), at+name, dataset.NewID())
		if err == nil {
			err = out.Create(t.Context(), c.size)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		if out != nil {
			if err := out.Abort(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
