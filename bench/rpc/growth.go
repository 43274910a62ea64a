package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/plot"
)

// A sweep measures one thing while another one grows.
type sweep struct {
	name, title, x string // name selects it; x is what grows
	text           string // what is measured
	xs             []int
	lines          []line
	columns        []column
	charts         []chart
}

// A line is one system or transport.
type line struct {
	name    string
	measure func(ctx context.Context, x int) (host.PerfRow, error)
}

// A column shows something of each line.
type column struct {
	title string
	show  func(host.PerfRow) string
}

// A chart draws something of each line.
type chart struct {
	file, title, y string
	unit           string
	point          func(host.PerfRow) (y, high float64)
}

// growth is a sweep that was measured.
type growth struct {
	Rows     map[string]map[int]host.PerfRow `json:"rows"`             // by line and x
	Text     string                          `json:"text,omitempty"`   // how it was measured
	Failed   []string                        `json:"failed,omitempty"` // what could not be measured, and why
	Measured host.Machine                    `json:"measured"`
}

var (
	columnP50      = column{"p50", func(r host.PerfRow) string { return beside.Show(r.RoundP50, beside.Nanoseconds) }}
	columnP99      = column{"p99", func(r host.PerfRow) string { return beside.Show(r.RoundP99, beside.Nanoseconds) }}
	columnRate     = column{"calls/s", func(r host.PerfRow) string { return beside.Decimal(r.OpsPerS) }}
	columnResident = column{"resident", func(r host.PerfRow) string { return beside.Bytes(float64(r.Resident)) }}
	columnCPU      = column{"CPU a call", func(r host.PerfRow) string { return beside.Show(cpuEach(r), beside.Nanoseconds) }}
)

func latencyChart(file, title string) chart {
	return chart{file, title, "there and back", beside.Nanoseconds, func(r host.PerfRow) (float64, float64) { return r.RoundP50, r.RoundP99 }}
}

func rateChart(file, title string) chart {
	return chart{file, title, "calls per second", "", func(r host.PerfRow) (float64, float64) { return r.OpsPerS, 0 }}
}

const hadoopJava = "Hadoop's Java server, TCP"

// sweeps are all of them, in the page's order.
func (b *bench) sweeps() []sweep {
	transports := func(args func(x int) []string) (lines []line) {
		for _, transport := range []string{overSHM, "iwarp", "tcp"} {
			lines = append(lines, line{transport, func(ctx context.Context, x int) (host.PerfRow, error) {
				return b.perfRow(ctx, append([]string{"--level", "runtime", "--test", "call", "--transport", transport}, args(x)...)...)
			}})
		}
		return lines
	}
	// hadoop is Hadoop RPC over the transports, and its peers by the same client program,
	// which is ours for Hadoop's Java server, too.
	hadoop := func(args func(x int) []string, load func(x int) load) (lines []line) {
		for _, transport := range []string{overSHM, "iwarp"} {
			lines = append(lines, line{"ours, " + transport, func(ctx context.Context, x int) (host.PerfRow, error) {
				return b.perfRow(ctx, append([]string{"--level", "rpc", "--test", "call", "--wait", "adaptive", "--transport", transport}, args(x)...)...)
			}})
		}
		for _, peer := range []struct{ name, system string }{{"ours, TCP", oursTCP}, {"gRPC, TCP", grpcTCP}, {"gRPC, Unix", grpcUnix}, {"net/rpc, TCP", netrpc}, {hadoopJava, java}} {
			lines = append(lines, line{peer.name, func(ctx context.Context, x int) (host.PerfRow, error) {
				return b.driveRow(ctx, load(x), peer.system)
			}})
		}
		return lines
	}
	size := func(n int) string { return strconv.Itoa(n) }
	iterations, limit, sizeStep := 20_000, 20*time.Second, 1
	callers, peers, osuCallers := []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}, []int{1, 3, 10, 30, 100, 300, 1000}, []int{1, 2, 4, 8, 16, 32, 64}
	if b.quick {
		limit, sizeStep = 2*time.Second, 2
		callers, peers, osuCallers = []int{1, 16, 64, 1024}, []int{1, 30, 1000}, []int{1, 16, 64}
	}
	osu := func(x int) []string {
		if n := atMost(x, iterations); n > 0 {
			return []string{"--size", size(x), "--warm-half", "--iterations", strconv.Itoa(n)}
		}
		return []string{"--size", size(x), "--warm-half", "--duration", limit.String()}
	}
	return []sweep{
		{
			name: "callers", title: "Calls, with callers of one endpoint", x: "callers",
			text: "1 KiB there and back, all callers on one endpoint, adaptive waits. CPU is that of both processes.",
			xs:   callers,
			lines: transports(func(x int) []string {
				return []string{"--size", "1K", "--wait", "adaptive", "--posters", size(x)}
			}),
			columns: []column{columnRate, columnP50, columnP99, columnCPU},
			charts:  []chart{rateChart("rpc-callers.svg", "Calls and callers"), latencyChart("rpc-callers-latency.svg", "Latency of calls and callers")},
		},
		{
			name: "peers", title: "Calls, with peers", x: "peers",
			text: "1 KiB there and back, adaptive waits, each peer an endpoint with one caller. CPU is that of both processes. Resident is what both grew by.",
			xs:   peers,
			lines: transports(func(x int) []string {
				return []string{"--size", "1K", "--wait", "adaptive", "--posters", size(x), "--connections", size(x)}
			}),
			columns: []column{columnRate, columnP50, columnP99, columnCPU, columnResident},
			charts:  []chart{rateChart("rpc-peers.svg", "Calls and peers"), latencyChart("rpc-peers-latency.svg", "Latency of calls and peers")},
		},
		{
			name: "sizes", title: "Calls, with their size", x: "size",
			text: "One caller, as many bytes there as back, spinning (TCP always sleeps).",
			xs:   powers(1, 64<<20, sizeStep),
			lines: transports(func(x int) []string {
				return []string{"--size", size(x), "--wait", "spin"}
			}),
			columns: []column{columnP50, columnP99, columnCPU},
			charts:  []chart{latencyChart("rpc-sizes.svg", "Latency of calls and their size")},
		},
		{
			name: "hadoop sizes", title: "Hadoop RPC, with the size of the echo", x: "size",
			text:    fmt.Sprintf("One caller, an echo of as many bytes. As in OSU's benchmark %d calls of a size, of which the first half warms up; above 64 KiB as many as fit into %s, of which the first half of the time warms up.", iterations, limit),
			xs:      powers(1, 4<<20, sizeStep),
			lines:   hadoop(osu, func(x int) load { return load{callers: 1, size: x, iterations: atMost(x, iterations), limit: limit} }),
			columns: []column{columnP50},
			charts:  []chart{latencyChart("rpc-hadoop-sizes.svg", "Hadoop RPC: latency and size of the echo")},
		},
		{
			name: "hadoop callers", title: "Hadoop RPC, with callers", x: "callers",
			text: "1 KiB echo, all callers on one connection.",
			xs:   osuCallers,
			lines: hadoop(func(x int) []string { return []string{"--size", "1K", "--posters", size(x)} },
				func(x int) load {
					return load{callers: x, size: 1 << 10, iterations: 1 << 20, limit: b.duration, warm: b.duration / 2}
				}),
			columns: []column{columnRate},
			charts:  []chart{rateChart("rpc-hadoop-callers.svg", "Hadoop RPC: calls and callers")},
		},
	}
}

// atMost bounds the calls only up to 64 KiB. Above it is 0: the time does.
func atMost(size, iterations int) int {
	if size > 64<<10 {
		return 0
	}
	return iterations
}

// powers are powers of two, every step-th and the last.
func powers(from, to, step int) (all []int) {
	for n := from; n < to; n <<= step {
		all = append(all, n)
	}
	return append(all, to)
}

// run measures the lines that match. The others stay as they were in before, if they
// were measured in the same way at the same commit.
func (s *sweep) run(ctx context.Context, machine host.Machine, match *regexp.Regexp, before growth) (growth, error) {
	g := growth{Rows: map[string]map[int]host.PerfRow{}, Measured: machine, Text: s.text}
	same := before.Measured.Commit == machine.Commit && before.Text == s.text
	for _, l := range s.lines {
		if !match.MatchString(l.name) {
			if same && before.Rows[l.name] != nil {
				g.Rows[l.name] = before.Rows[l.name]
				g.Failed = append(g.Failed, slices.DeleteFunc(slices.Clone(before.Failed), func(f string) bool { return !strings.HasPrefix(f, l.name+", "+s.x) })...)
			}
			continue
		}
		g.Rows[l.name] = map[int]host.PerfRow{}
		for _, x := range s.xs {
			r, err := l.measure(ctx, x)
			if ctx.Err() != nil {
				return g, context.Cause(ctx)
			}
			if err != nil {
				failed := fmt.Sprintf("%s, %s %d and more: %v", l.name, s.x, x, err)
				fmt.Fprintln(os.Stderr, failed)
				g.Failed = append(g.Failed, failed)
				break
			}
			fmt.Fprintf(os.Stderr, "growth: %s: %s, %d: p50 %s, %s calls/s\n", s.name, l.name, x, beside.Show(r.RoundP50, beside.Nanoseconds), beside.Decimal(r.OpsPerS))
			g.Rows[l.name][x] = r
		}
	}
	return g, nil
}

// format is how an x is shown.
func (s *sweep) format(x int) string {
	if s.x == "size" {
		return beside.Bytes(float64(x))
	}
	return strconv.Itoa(x)
}

// command measures the sweep anew and writes the page.
func (s *sweep) command() string { return "go -C bench run ./rpc --row 'growth: " + s.name + "'" }

// measuredAs tells how the figures have come about, which may be in another way than new ones would.
func (s *sweep) measuredAs(g *growth) string { return cmp.Or(g.Text, s.text) }

// draw draws a chart of what was measured.
func (s *sweep) draw(c *chart, g *growth) plot.Chart {
	subtitle, _, _ := strings.Cut(strings.TrimSuffix(s.measuredAs(g), "."), ". ") // there is room for a sentence
	p := plot.Chart{
		Title: c.title, Subtitle: subtitle, XLabel: s.x, YLabel: c.y,
		FormatX: func(x float64) string { return s.format(int(x)) }, FormatY: func(y float64) string { return beside.Show(y, c.unit) },
	}
	for _, l := range s.lines {
		series := plot.Series{Name: l.name}
		for x, r := range g.Rows[l.name] {
			if y, high := c.point(r); y > 0 {
				series.Points = append(series.Points, plot.Point{X: float64(x), Y: y, Low: y, High: high})
			}
		}
		if len(series.Points) > 0 {
			p.Series = append(p.Series, series)
		}
	}
	return p
}
