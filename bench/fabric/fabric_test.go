package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/bench/internal/host"
)

// asFabric makes the test binary be the command, for the bare peers' children.
const asFabric = "VERBENA_TEST_AS_FABRIC"

func TestMain(m *testing.M) {
	if os.Getenv(asFabric) != "" {
		if err := root().ExecuteContext(context.Background()); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestParsers(t *testing.T) {
	for name, c := range map[string]struct {
		parse func(string) (float64, error)
		out   string
		want  float64
	}{
		"ucx": {func(s string) (float64, error) {
			c, err := parseUCX(s)
			if err != nil {
				return 0, err
			}
			return ucxMedian(c), nil
		}, `+--------------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
                      200000      0.261     4.697    29.812      207.91      32.76      212895       33544
`, 261},
		"ucx, final": {func(s string) (float64, error) {
			c, err := parseUCX(s)
			if err != nil {
				return 0, err
			}
			return ucxRate(c), nil
		}, "[thread 0]     195576      0.145    24.214    27.333        0.32       0.28       41299       36586\nFinal:                200000      0.145    63.955    28.143        0.12       0.27       15636       35533\n", 35533},
		"libfabric": {parsePingpong, "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n1k      20k     =20k     39m         7.38s      5.55     184.43       0.01\n", 184430},
		"perftest": {parseSendLat, ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       1000          7.11           52.77        8.25     	       8.60        	1.93   		16.18   		52.77
`, 8250},
	} {
		if got, err := c.parse(c.out); err != nil || math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
		for _, bad := range []string{"", "something else\n", "1 2 3 4 5 6 7 x"} {
			if got, err := c.parse(bad); err == nil {
				t.Errorf("%s: %q gives %v", name, bad, got)
			}
		}
	}
	list, err := parseDispatch("goos: linux\nBenchmarkPostAndPollInTurns-2  3  0 ns/op  60.9 cgo-ns  31.9 direct-ns  0.52 direct/cgo\nPASS\n")
	if err != nil || len(list) != 2 || list[1].Route != "direct" || list[1].Ratio != 0.52 || list[0].Ratio != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := parseDispatch("PASS\n"); err == nil {
		t.Error("nothing is a result")
	}
}

func pairWith(ours, theirs, distance float64, alike bool) round {
	return round{Ours: ours, Theirs: theirs, Distances: [3]float64{distance, distance, distance}, Alike: alike}
}

// Only rounds at one distance count, and the verdict is the ratio of medians.
func TestJudge(t *testing.T) {
	v := verdict{Target: 0.8, Rounds: []round{
		pairWith(60, 100, 30, true), pairWith(70, 100, 31, true), pairWith(90, 100, 32, true),
		pairWith(400, 300, 220, true), pairWith(1, 1000, 30, false),
	}}
	v.judge()
	if v.Counted != 3 || v.Ratio != 0.7 || v.Low != 0.6 || v.High != 0.9 || !*v.row().Met || v.Distance != 31 || v.Note != "" {
		t.Errorf("%+v", v)
	}
	v.AtLeast, v.Target = true, 0.75
	if *v.row().Met {
		t.Error("0.7 is at least 0.75")
	}
	absent := verdict{Target: 0.8, Unmeasured: "it is not installed"}
	absent.judge()
	if r := absent.row(); r.Met != nil || r.Skipped != absent.Unmeasured || r.Target != "at most 0.8" {
		t.Errorf("%+v", r)
	}
	moved := verdict{Rounds: []round{pairWith(2, 1, 30, false)}}
	moved.judge()
	if moved.Counted != 1 || moved.Note == "" {
		t.Errorf("%+v", moved)
	}
}

func TestBarePeers(t *testing.T) {
	t.Setenv(asFabric, "1")
	if _, err := host.Distance(); err != nil {
		t.Skip("no two processors to bind to: ", err)
	}
	for _, args := range [][]string{
		{"futex", "--duration", "20ms"},
		{"pingpong", "--bytes", "1024", "--duration", "20ms"},
		{"stream", "--bytes", "65536", "--duration", "20ms"},
	} {
		v, err := host.Number(t.Context(), append([]string{"bare"}, args...)...)
		if err != nil || v <= 0 {
			t.Errorf("%v: %v, %v", args, v, err)
		}
	}
}

func someResults() *results {
	r := &results{Runs: map[string]host.Machine{"compare": {Date: "today", Peers: map[string]string{}, Short: true}}}
	good := verdict{Name: "shm, Send", Beside: "UCX", Unit: nanoseconds, Target: 0.8, Rounds: []round{pairWith(60, 100, 30, true)}}
	bad := verdict{Name: "iwarp, Write", Beside: "TCP", Unit: bandwidth, Target: 0.9, AtLeast: true, Rounds: []round{pairWith(1e9, 2e9, 30, true)}}
	good.judge()
	bad.judge()
	r.Compare = []verdict{good, bad, {Name: "gone", Beside: "nobody", Target: 1, Unmeasured: "it is not installed"}}
	r.Dispatch = []dispatch{{"direct", 30, 0.5}, {"cgo", 60, 0}}
	g := &growth{}
	for _, transport := range networks {
		for i := 1; i <= 1000; i *= 10 {
			g.Connections = append(g.Connections,
				row{Transport: transport, Mode: "rate", Connections: i, OpsPerS: 1e6, Registered: int64(i) << 12, Resident: int64(i) << 14},
				row{Transport: transport, Mode: "lat", Connections: i, P50: 100, P99: 200})
		}
		for _, size := range []int{1, 64 << 20} {
			g.Latency = append(g.Latency, row{Transport: transport, Size: size, P50: 100, P99: 300, P9999: 900})
			g.Bandwidth = append(g.Bandwidth, row{Transport: transport, Size: size, BytesPerS: 1e9})
		}
		for n := 1; n <= 64; n *= 2 {
			g.Posters = append(g.Posters, row{Transport: transport, Posters: n, Connections: 1, OpsPerS: 1e6, Iterations: 10, CPU: 1},
				row{Transport: transport, Posters: n, Connections: n, OpsPerS: 2e6, Iterations: 10, CPU: 1})
		}
	}
	r.Growth = g
	return r
}

func TestPageAndPlots(t *testing.T) {
	b := &bench{out: t.TempDir()}
	if err := b.write(someResults()); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(b.out, "fabric.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| shm, Send | UCX | 60 ns | 100 ns | 0.60 (0.60–0.60) | at most 0.8 | met |",
		"| iwarp, Write | TCP | 1 GB/s | 2 GB/s | 0.50 (0.50–0.50) | at least 0.9 | **missed** |",
		"not measured", "it is not installed", "| direct | 30.0 | 0.50 | met |", "fabric-connections.svg", "A short run",
		"| 64 MiB |", "| shm | 1000 |", "| iwarp | 64 |",
	} {
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
	svgs, err := filepath.Glob(filepath.Join(b.out, "*.svg"))
	if err != nil || len(svgs) != 4 {
		t.Fatal(svgs, err)
	}
	for _, name := range svgs {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(bytes.NewReader(raw))
		for err == nil {
			_, err = d.Token()
		}
		if err != io.EOF {
			t.Errorf("%s: %v", name, err)
		}
	}
	again, err := b.load()
	if err != nil {
		t.Fatal(err)
	}
	one, _ := json.Marshal(someResults())
	two, _ := json.Marshal(again)
	if !bytes.Equal(one, two) {
		t.Errorf("what is read back differs:\n%s\n%s", one, two)
	}
}
