package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// asCommand makes the test binary be the command, for the processes that it starts.
const asCommand = "VERBENA_TEST_AS_RPC"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		if err := root().ExecuteContext(context.Background()); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Each system echoes, from several callers at once.
func TestSystemsEcho(t *testing.T) {
	for name, system := range systems {
		t.Run(name, func(t *testing.T) {
			address := "127.0.0.1:0"
			if system.network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			l, err := net.Listen(system.network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go system.serve(l)
			c, err := system.dial(l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, size := range []int{0, 1, 1 << 10, 1 << 20, 4 << 20} {
				if err := c.call(payload(size))(ctx); err != nil {
					t.Errorf("%d bytes: %v", size, err)
				}
			}
		})
	}
}

// The processes that measure come to a number, each with its own server.
func TestProcessesMeasure(t *testing.T) {
	t.Setenv(asCommand, "1")
	if _, err := host.Distance(); err != nil {
		t.Skip("no two processors to bind to: ", err)
	}
	b := &bench{duration: 20 * time.Millisecond, running: map[string]*server{}, skipped: map[string]error{}}
	defer func() {
		for _, s := range b.running {
			_ = s.stop()
		}
	}()
	for name, m := range map[string]beside.Measure{
		"get":        b.self("get"),
		"memcpy":     b.self("get", "--memcpy"),
		"wake":       b.self("wake", "--pause", "1ms"),
		"goroutine":  b.self("wake", "--pause", "1ms", "--goroutine"),
		"latency":    b.drive(load{callers: 1, size: 100, iterations: 40, limit: time.Second}, oursTCP, roundTrip),
		"pauses":     b.drive(load{callers: 1, size: 100, iterations: 40, limit: time.Second, pause: time.Microsecond, free: true}, grpcUnix, roundTrip),
		"throughput": b.drive(load{callers: 4, size: 100, warm: time.Millisecond, limit: 20 * time.Millisecond}, netrpc, rate),
	} {
		if v, err := m(t.Context()); err != nil || v <= 0 {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := b.server(t.Context(), java, false); err == nil || !strings.Contains(err.Error(), "needs Java") {
		t.Error(err)
	}
}

func round(ours, theirs, distance float64, alike bool) beside.Round {
	return beside.Round{Ours: ours, Theirs: theirs, Distances: [3]float64{distance, distance, distance}, Alike: alike}
}

func TestJudge(t *testing.T) {
	rounds := []beside.Round{round(2, 100, 40, true), round(4, 100, 40, true), round(3, 100, 40, true), round(10, 100, 300, true), round(90, 100, 40, false)}
	r := row{what: "call", beside: "peer", unit: "ns", target: beside.AtMost(0.02), far: beside.AtMost(0.2), why: "it is slow"}
	got := r.judge(rounds, nil)
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	near, far := got[0], got[1]
	if near.What != "call, processors near" || near.Ours != 3 || near.Ratio != 0.03 || near.Low != 0.02 || near.High != 0.04 || *near.Met || near.Why != r.why || near.Counted != 3 || near.Distance != 40 {
		t.Errorf("%+v", near)
	}
	if far.What != "call, processors far" || far.Ratio != 0.1 || !*far.Met || far.Why != "" || far.Counted != 1 {
		t.Errorf("%+v", far)
	}
	if got = r.judge(rounds[:3], nil); got[1].Skipped == "" || got[1].Met != nil {
		t.Errorf("%+v", got[1])
	}
	r.far = beside.Target{}
	if got = r.judge(rounds, nil); len(got) != 1 || got[0].What != "call" || got[0].Counted != 5 || got[0].Ours != 4 {
		t.Errorf("%+v", got)
	}
	if got = r.judge(nil, errors.New("broken")); len(got) != 1 || got[0].Skipped != "broken" || got[0].Met != nil {
		t.Errorf("%+v", got)
	}
}

// What is measured anew replaces what was there, in the order of the rows. What stays has
// the reason that is known now.
func TestMerge(t *testing.T) {
	rows := []row{
		{what: "first", beside: "peer", far: beside.AtMost(1), target: beside.AtMost(1)},
		{what: "second", beside: "peer", target: beside.AtMost(0.5), why: "as thought then"}, {what: "third", beside: "peer"},
	}
	of := func(r row, ours float64, commit string) []record {
		list := r.judge([]beside.Round{round(ours, 1, 40, true)}, nil)
		for i := range list {
			list[i].Measured.Commit = commit
		}
		return list
	}
	r := &results{}
	r.merge(append(of(rows[1], 1, "old"), of(rows[0], 1, "old")...), rows)
	r.Rows = append(r.Rows, record{Row: beside.Row{What: "gone", Beside: "peer"}})
	failed := rows[1].judge(nil, errors.New("broken"))
	rows[1].why = "as known now"
	r.merge(append(append(of(rows[2], 3, "new"), of(rows[0], 2, "new")...), failed...), rows)
	var got []string
	for _, m := range r.Rows {
		got = append(got, m.What+" "+m.Measured.Commit)
	}
	if s := strings.Join(got, "; "); s != "first, processors near new; first, processors far new; second old; third new" {
		t.Error(s)
	}
	if r.Rows[0].Ours != 2 || r.Rows[1].Skipped == "" || r.Rows[2].Ours != 1 || r.Rows[2].Why != "as known now" {
		t.Errorf("%+v", r.Rows)
	}
}

func TestMetric(t *testing.T) {
	const out = "goos: linux\nBenchmarkRelay/shm/buffer-2  \t 100\t 193607 ns/op\t 5416 MB/s\t 193000 cpu-ns/op\t 54531 two-memcpy-ns\nPASS\n"
	if v, err := parseMetric(out, "two-memcpy-ns"); v != 54531 || err != nil {
		t.Error(v, err)
	}
	for _, bad := range []string{"", "PASS\n", "BenchmarkRelay 1 x cpu-ns/op\n"} {
		if v, err := parseMetric(bad, "cpu-ns/op"); err == nil {
			t.Errorf("%q gives %v", bad, v)
		}
	}
}

func TestShow(t *testing.T) {
	for in, want := range map[float64]string{0.01: "1/100", 0.25: "0.25", 5.189: "5.19"} {
		if got := ratio(in); got != want {
			t.Errorf("%v is shown as %q", in, got)
		}
	}
	for _, fraction := range []float64{10, 40, 80} {
		if got, want := target(beside.AtMost(1/fraction).String()), "at most 1/"; !strings.HasPrefix(got, want) {
			t.Errorf("1/%v is shown as %q", fraction, got)
		}
	}
	if got := target("at least 15"); got != "at least 15" {
		t.Error(got)
	}
	if got := powers(1, 64<<20, 1); len(got) != 27 || got[26] != 64<<20 {
		t.Error(got)
	}
	if got := powers(1, 4<<20, 2); got[1] != 4 || got[len(got)-1] != 4<<20 {
		t.Error(got)
	}
}

// The page has all rows and sweeps, in tables whose rows are as wide as their heads, and
// what is written can be read back.
func TestPage(t *testing.T) {
	b := &bench{out: t.TempDir(), quick: true}
	r := &results{Growth: map[string]growth{}}
	for i, w := range b.rows() {
		records := w.judge([]beside.Round{round(1, 2, 40, true), round(1, 2, 400, true)}, nil)
		if i == 0 {
			records = w.judge(nil, errors.New("it is broken"))
		}
		records[0].Measured.Commit = "123456789abc"
		r.Rows = append(r.Rows, records...)
	}
	for _, s := range b.sweeps() {
		for i := range s.lines {
			s.lines[i].measure = func(_ context.Context, x int) (host.PerfRow, error) {
				if i == 1 && x > 1 {
					return host.PerfRow{}, errors.New("it is broken")
				}
				return host.PerfRow{RoundP50: 1000, RoundP99: 2000, OpsPerS: 1e6, Iterations: 10, CPU: 1}, nil
			}
		}
		g, err := s.run(t.Context(), host.Machine{Commit: "abc"}, regexp.MustCompile(""), growth{})
		if err != nil || len(g.Failed) != 1 {
			t.Fatal(s.name, g.Failed, err)
		}
		// What was measured at the same commit stays, and tells why it ended.
		last := regexp.MustCompile("^" + regexp.QuoteMeta(s.lines[0].name) + "$")
		for commit, kept := range map[string]int{"abc": len(s.lines), "abd": 1} {
			again, err := s.run(t.Context(), host.Machine{Commit: commit}, last, g)
			if err != nil || len(again.Rows) != kept || len(again.Failed) != min(kept-1, 1) {
				t.Errorf("%s: %d lines are left, %d wanted; %q, %v", s.name, len(again.Rows), kept, again.Failed, err)
			}
		}
		r.Growth[s.name] = g
	}
	delete(r.Growth["hadoop sizes"].Rows, hadoopJava)
	if err := b.write(r); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(b.out, "rpc.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| gRPC-Go on loopback | 1 ns | 2 ns | 0.50 (0.50–0.50) | at most 1/80 | **missed** |", "was not measured: it is broken",
		"| 64 MiB |", "| 1000 |", "rpc-peers.svg", "- not measured: iwarp, peers 30 and more: it is broken", "abc. ",
		"- not measured: " + hadoopJava + ", which this run did not have"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	columns := 0
	for l := range strings.Lines(string(page)) {
		n := strings.Count(l, "|")
		switch {
		case !strings.HasPrefix(l, "|"):
			columns = 0
		case columns == 0:
			columns = n
		case n != columns:
			t.Errorf("%d columns, the head has %d: %s", n, columns, l)
		}
	}
	for _, s := range b.sweeps() {
		for _, c := range s.charts {
			if raw, err := os.ReadFile(filepath.Join(b.out, c.file)); err != nil || !strings.HasPrefix(string(raw), "<svg") {
				t.Error(c.file, err)
			}
		}
	}
	again, err := b.load()
	if err != nil {
		t.Fatal(err)
	}
	one, _ := json.Marshal(r)
	two, _ := json.Marshal(again)
	if string(one) != string(two) {
		t.Errorf("what is read back differs:\n%s\n%s", one, two)
	}
}
