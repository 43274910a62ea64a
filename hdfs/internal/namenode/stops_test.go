package namenode

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/trace"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A stopwatch tells what a long write has waited for, from the runtime's own trace of the last
// seconds.
type stopwatch struct {
	t        *testing.T
	recorder *trace.FlightRecorder
	file     string
	used     processUse
	from     time.Duration // on the system's monotonic clock
	// Of the longest write that has been recorded.
	label   string
	spent   processUse
	took    time.Duration
	between [2]time.Duration
}

// processUse is what a process has had of the machine.
type processUse struct {
	cpu      time.Duration // of all threads
	switches int64         // to other programs, while a thread wanted to go on
	faults   int64         // pages that came from a disk
}

func useOfProcess(t *testing.T) processUse {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Error(err)
	}
	return processUse{cpu: time.Duration(u.Utime.Nano() + u.Stime.Nano()), switches: u.Nivcsw, faults: u.Majflt}
}

// leastStop is how long a write must take to be explained. Each explanation reads the trace
// of some seconds.
const leastStop = 5 * time.Millisecond

func newStopwatch(t *testing.T) *stopwatch {
	s := &stopwatch{t: t, file: filepath.Join(cmp.Or(os.Getenv("VERBENA_SCALE_TRACE"), t.TempDir()), "trace")}
	s.recorder = trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: 3 * time.Second, MaxBytes: 64 << 20})
	if err := s.recorder.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stopwatch) begin(n int) {
	s.used, s.from = useOfProcess(s.t), monotonic()
	trace.Logf(context.Background(), "write", "begin %d", n)
}

// end keeps the trace of a write that is a quarter longer than the one it has.
func (s *stopwatch) end(n int, took time.Duration) {
	if took < leastStop || took < s.took+s.took/4 {
		return
	}
	trace.Logf(context.Background(), "write", "end %d", n)
	after, until := useOfProcess(s.t), monotonic()
	f, err := os.Create(s.file)
	if err == nil {
		_, err = s.recorder.WriteTo(f)
		err = cmp.Or(err, f.Close())
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	s.took, s.label, s.between = took, strconv.Itoa(n), [2]time.Duration{s.from, until}
	s.spent = processUse{after.cpu - s.used.cpu, after.switches - s.used.switches, after.faults - s.used.faults}
}

// stopFormat tells another process when the longest write was, on the clock of a [pulse].
const stopFormat = "the longest write was from %d to %d us"

// reset forgets the write and returns lines about it.
func (s *stopwatch) reset() (lines []string) {
	if s.took == 0 {
		return nil
	}
	label, took, spent := s.label, s.took, s.spent
	s.took = 0
	lines = append(lines, fmt.Sprintf(stopFormat, s.between[0].Microseconds(), s.between[1].Microseconds()))
	cmd := exec.Command("go", "tool", "trace", "-d=parsed", s.file)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return append(lines, err.Error())
	}
	if err := cmd.Start(); err != nil {
		return append(lines, err.Error())
	}
	h, err := readHistory(out)
	_, _ = io.Copy(io.Discard, out) // so that the tool ends
	if err := cmp.Or(cmd.Wait(), err); err != nil {
		return append(lines, fmt.Sprintf("a write of %v: its trace: %v", took, err))
	}
	w, err := h.explain(label)
	if err != nil {
		return append(lines, fmt.Sprintf("a write of %v: %v", took, err))
	}
	lines = append(lines, fmt.Sprintf("a write of %v: goroutines ran for %v, the process had %v of the processors, lost them %d times, read %d pages from a disk",
		took, w.ran.Round(10*time.Microsecond), spent.cpu.Round(10*time.Microsecond), spent.switches, spent.faults))
	for _, p := range w.parts[:min(len(w.parts), 8)] {
		lines = append(lines, fmt.Sprintf("    %10v %s", p.took.Round(10*time.Microsecond), p.what))
	}
	return lines
}

// A history is what goroutines did, by the clock of a trace in nanoseconds.
type history struct {
	goroutines map[int64][]spell
	ranges     []spell // stops of the world, and assists to the collector
	marks      map[string]mark
	last       int64
}

// A spell is a time in which a goroutine was in one state, or in a range.
type spell struct {
	goroutine int64 // -1 for all of them
	from, to  int64
	state     string
	reason    string // why it waited
	where     string // in which function the spell ended
	waker     int64  // who ended a wait; -1: the network or a timer
}

type mark struct{ goroutine, at int64 }

var (
	transitionLine = regexp.MustCompile(`^M=\S+ P=\S+ G=(\S+) StateTransition Time=(\d+) GoID=(\d+) (\w+)->(\w+) Reason="([^"]*)"`)
	rangeLine      = regexp.MustCompile(`^M=\S+ P=\S+ G=(\S+) Range(Begin|Active|End) Time=(\d+) Name="([^"]*)"`)
	logLine        = regexp.MustCompile(`^M=\S+ P=\S+ G=(\S+) Log Time=(\d+) .*Category="write" Message="([^"]*)"`)
	frameLine      = regexp.MustCompile(`^\t(\S+) @ 0x`)
)

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // the expressions take digits
	return n
}

// readHistory reads what `go tool trace -d=parsed` prints.
func readHistory(r io.Reader) (*history, error) {
	h := &history{goroutines: make(map[int64][]spell), marks: make(map[string]mark)}
	now := make(map[int64]spell)
	open := make(map[string]spell)
	var ended *spell // its place is still to come
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if m := frameLine.FindStringSubmatch(line); m != nil {
			if ended != nil && (ended.where == "" || !ours(ended.where)) && !plumbing(m[1]) {
				if ended.where == "" || ours(m[1]) {
					ended.where = m[1]
				}
			}
			continue
		}
		if m := transitionLine.FindStringSubmatch(line); m != nil {
			g, at := number(m[3]), number(m[2])
			h.last = max(h.last, at)
			ended = nil
			if s, known := now[g]; known {
				s.to, s.waker = at, -1
				if s.state == "Waiting" {
					s.waker = number(m[1])
				}
				h.goroutines[g] = append(h.goroutines[g], s)
				ended = &h.goroutines[g][len(h.goroutines[g])-1]
			}
			now[g] = spell{goroutine: g, from: at, state: m[5], reason: m[6]}
			continue
		}
		if !strings.HasPrefix(line, "M=") {
			continue
		}
		ended = nil
		if m := rangeLine.FindStringSubmatch(line); m != nil {
			h.addRange(open, m)
		} else if m := logLine.FindStringSubmatch(line); m != nil {
			h.marks[m[3]] = mark{number(m[1]), number(m[2])}
			h.last = max(h.last, number(m[2]))
		}
	}
	for g, s := range now {
		s.to, s.waker = h.last, -1
		h.goroutines[g] = append(h.goroutines[g], s)
	}
	return h, lines.Err()
}

// ours tells whether a function is the project's or a library's of its own, and not a test's.
func ours(function string) bool {
	return strings.Contains(function, "verbena") || strings.Contains(function, "raft") || strings.Contains(function, "pebble")
}

// plumbing is what every goroutine passes when it waits.
func plumbing(function string) bool {
	return strings.HasPrefix(function, "sync.") || strings.HasPrefix(function, "internal/sync.") || strings.HasPrefix(function, "runtime.") && function != "runtime.gcBgMarkWorker"
}

func (h *history) addRange(open map[string]spell, m []string) {
	g, at, name := number(m[1]), number(m[3]), m[4]
	switch {
	case strings.HasPrefix(name, "stop-the-world"):
		g = -1
	case name != "GC mark assist" && name != "GC incremental sweep":
		return
	}
	key := fmt.Sprint(g, name)
	if m[2] != "End" {
		if _, ok := open[key]; !ok {
			open[key] = spell{goroutine: g, from: at, reason: name}
		}
		return
	}
	if s, ok := open[key]; ok {
		delete(open, key)
		s.to = at
		h.ranges = append(h.ranges, s)
	}
}

// A wait is a write, by what it waited for.
type wait struct {
	parts []part
	ran   time.Duration // of all goroutines together meanwhile
}

type part struct {
	what string
	took time.Duration
}

// explain goes back from the end of a write: through what its goroutine did, and where that
// waited for another one, through what the other one did until then.
func (h *history) explain(label string) (*wait, error) {
	begin, ok := h.marks["begin "+label]
	end, ok2 := h.marks["end "+label]
	if !ok || !ok2 {
		return nil, fmt.Errorf("the trace does not reach back to the beginning of write %s", label)
	}
	parts := make(map[string]time.Duration)
	var ready time.Duration // in which nothing was waited for but a processor
	others := make(map[string]time.Duration)
	g, at := end.goroutine, end.at
	for at > begin.at {
		s, ok := h.spellOf(g, at)
		if !ok {
			parts["what the trace does not tell"] += time.Duration(at - begin.at)
			break
		}
		from := max(s.from, begin.at)
		switch {
		case s.state == "Waiting" && s.waker > 0 && s.waker != g && !strings.HasPrefix(s.reason, "GC"):
			g = s.waker
			continue
		case s.state == "Waiting":
			parts["waits: "+cmp.Or(s.reason, "for what the trace does not tell")+" in "+h.before(s)] += time.Duration(at - from)
		case s.state == "Running":
			h.run(parts, s, from, at)
		case s.state == "Runnable":
			ready += time.Duration(at - from)
			for where, ran := range h.running(from, at) {
				others[where] += ran
			}
		default:
			parts["in a system call in "+h.before(s)] += time.Duration(at - from)
		}
		at = from
	}
	if ready > 0 {
		parts["could go on, but these ran: "+strings.Join(busiest(others), ", ")] = ready
	}
	w := &wait{}
	for what, took := range parts {
		w.parts = append(w.parts, part{what, took})
	}
	slices.SortFunc(w.parts, func(a, b part) int { return cmp.Or(cmp.Compare(b.took, a.took), cmp.Compare(a.what, b.what)) })
	for _, took := range h.running(begin.at, end.at) {
		w.ran += took
	}
	return w, nil
}

// spellOf is what a goroutine did before a time.
func (h *history) spellOf(g, at int64) (spell, bool) {
	all := h.goroutines[g]
	i, _ := slices.BinarySearchFunc(all, at, func(s spell, at int64) int { return cmp.Compare(s.to, at) })
	for i < len(all) && all[i].to == all[i].from {
		i++
	}
	if i == len(all) || all[i].from >= at {
		return spell{}, false
	}
	return all[i], true
}

// before is where a goroutine stopped running for a spell.
func (h *history) before(s spell) string {
	if b, ok := h.spellOf(s.goroutine, s.from); ok {
		return b.where
	}
	return ""
}

// run divides a time in which a goroutine ran.
func (h *history) run(parts map[string]time.Duration, s spell, from, to int64) {
	left := time.Duration(to - from)
	for _, r := range h.ranges {
		if both := time.Duration(min(r.to, to) - max(r.from, from)); both > 0 && (r.goroutine == -1 || r.goroutine == s.goroutine) {
			both = min(both, left)
			parts["the collector: "+r.reason] += both
			left -= both
		}
	}
	parts["runs, until "+s.where] += left
}

// running is how long goroutines ran, by where they stopped.
func (h *history) running(from, to int64) map[string]time.Duration {
	out := make(map[string]time.Duration)
	for _, all := range h.goroutines {
		i, _ := slices.BinarySearchFunc(all, from, func(s spell, at int64) int { return cmp.Compare(s.to, at) })
		for ; i < len(all) && all[i].from < to; i++ {
			if both := min(all[i].to, to) - max(all[i].from, from); both > 0 && all[i].state == "Running" {
				out[all[i].where] += time.Duration(both)
			}
		}
	}
	return out
}

// busiest are the functions in which most of the running ended, and for how long they ran.
func busiest(ran map[string]time.Duration) []string {
	names := slices.SortedFunc(maps.Keys(ran), func(a, b string) int { return cmp.Or(cmp.Compare(ran[b], ran[a]), cmp.Compare(a, b)) })
	names = names[:min(len(names), 3)]
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %v", cmp.Or(name, "others"), ran[name].Round(10*time.Microsecond))
	}
	return names
}

// A write of 100 us of goroutine 1: it ran, waited for 2, which was in a system call, helped
// the collector and ran, and then had no processor while 3 ran.
func TestStopIsExplained(t *testing.T) {
	at := func(g, us int, rest string) string {
		return fmt.Sprintf("M=1 P=0 G=%d %s\n", g, strings.Replace(rest, "Time=", fmt.Sprint("Time=", us*1000), 1))
	}
	change := func(g, us, of int, states, reason string, stack ...string) string {
		s := at(g, us, fmt.Sprintf("StateTransition Time= GoID=%d %s Reason=%q", of, states, reason)) + "TransitionStack=\n"
		for _, f := range stack {
			s += "\t" + f + " @ 0x1\n\t\t/x.go:1\n"
		}
		return s
	}
	text := change(-1, 0, 1, "Undetermined->Running", "") +
		change(-1, 0, 2, "Undetermined->Waiting", "") +
		change(-1, 0, 3, "Undetermined->Runnable", "") +
		at(1, 10, `Log Time= Task=0 Category="write" Message="begin 7"`) +
		change(1, 15, 2, "Waiting->Runnable", "") +
		change(1, 20, 1, "Running->Waiting", "chan receive", "runtime.chanrecv1", "sync.(*Cond).Wait", "github.com/verbena-data/verbena/x.Ask") +
		change(2, 20, 2, "Runnable->Running", "") +
		change(2, 30, 2, "Running->Syscall", "", "syscall.write", "github.com/cockroachdb/pebble/v2.Sync") +
		change(2, 60, 2, "Syscall->Running", "") +
		at(2, 61, `RangeBegin Time= Name="GC mark assist" Scope=Goroutine(2)`) +
		at(2, 66, `RangeEnd Time= Name="GC mark assist" Scope=Goroutine(2) Attributes=[]`) +
		change(2, 70, 1, "Waiting->Runnable", "", "github.com/verbena-data/verbena/x.Ask") +
		change(2, 71, 2, "Running->Waiting", "chan receive", "github.com/verbena-data/verbena/x.Answer") +
		change(3, 71, 3, "Runnable->Running", "") +
		change(3, 100, 3, "Running->Runnable", "preempted", "runtime.gcBgMarkWorker") +
		change(1, 100, 1, "Runnable->Running", "") +
		at(1, 110, `Log Time= Task=0 Category="write" Message="end 7"`)
	h, err := readHistory(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	w, err := h.explain("7")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range w.parts {
		got = append(got, fmt.Sprint(p.took, " ", p.what))
	}
	want := []string{
		"35µs could go on, but these ran: runtime.gcBgMarkWorker 30µs, github.com/verbena-data/verbena/x.Ask 10µs, github.com/verbena-data/verbena/x.Answer 0s",
		"30µs in a system call in github.com/cockroachdb/pebble/v2.Sync",
		"10µs runs, until ", // the trace ends
		"10µs runs, until github.com/cockroachdb/pebble/v2.Sync",
		"5µs runs, until github.com/verbena-data/verbena/x.Answer",
		"5µs runs, until github.com/verbena-data/verbena/x.Ask",
		"5µs the collector: GC mark assist",
	}
	if !slices.Equal(got, want) || w.ran != 70*time.Microsecond {
		t.Errorf("ran for %v:\n%s", w.ran, strings.Join(got, "\n"))
	}
	if _, err := h.explain("8"); err == nil {
		t.Error("a write that is not there was explained")
	}
}
