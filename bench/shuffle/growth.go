package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/plot"
)

// A sweep measures all systems while one thing grows.
type sweep struct {
	name, title, x string
	xs             []int
	load           func(x int) load
	mib            func(x int) float64
	formatX        func(float64) string
}

// sweepSystems are ours and the peers, in the order of the tables.
// The two-sided modes show what puts are worth at each scale.
var sweepSystems = []string{"shm", "iwarp", "tcp", "A", "B", "grpc batched", "flight", "shm two-sided", "iwarp two-sided"}

// mostSockets is how many connections baseline A may have: it has one for each pair of
// remote threads, and loopback has 28,232 ports for them.
const mostSockets = 20_000

func sweeps() []sweep {
	const total, processes = 32, 8
	mib := func(int) float64 { return 256 }
	size := func(v float64) string { return beside.Bytes(v) }
	// Short records cost more, so fewer of them tell as much.
	bySize := func(x int) float64 {
		if x < 100 {
			return 64
		}
		return 512
	}
	return []sweep{
		{
			name: "threads", title: "Threads", x: "threads, in 8 processes, or as many processes below that", xs: []int{2, 4, 8, 16, 32, 64, 128, 256}, mib: mib,
			load: func(x int) load {
				size := min(processes, x)
				return load{Size: size, Threads: x / size, Record: 100}
			},
		},
		{
			name: "processes", title: "Processes", x: "processes, with 32 threads together", xs: []int{1, 2, 4, 8, 16, 32}, mib: mib,
			load: func(x int) load { return load{Size: x, Threads: total / x, Record: 100} },
		},
		{
			name: "records", title: "Sizes of records", x: "bytes of a record, 32 threads in 8 processes", xs: []int{8, 32, 100, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10},
			load: func(x int) load { return load{Size: processes, Threads: total / processes, Record: x} },
			mib:  bySize, formatX: size,
		},
		{
			name: "zipf", title: "Sizes of records, Zipf's keys", x: "bytes of a record, 32 threads in 8 processes, partition n in proportion to 1/(n+1)", xs: []int{8, 100, 1 << 10, 64 << 10},
			load: func(x int) load { return load{Size: processes, Threads: total / processes, Record: x, Zipf: true} },
			mib:  bySize, formatX: size,
		},
	}
}

// growth is a sweep that was measured.
type growth struct {
	Rows     map[string]map[int]measurement `json:"rows"` // by system and x
	Failed   []string                       `json:"failed,omitempty"`
	Measured host.Machine                   `json:"measured"`
}

// measure runs a sweep.
func (s *sweep) measure(ctx context.Context, m host.Machine, quick bool) (growth, error) {
	g := growth{Rows: map[string]map[int]measurement{}, Measured: m}
	for _, system := range sweepSystems {
		g.Rows[system] = map[int]measurement{}
	}
	for i, x := range s.xs {
		if quick && i%2 == 1 && i != len(s.xs)-1 {
			continue
		}
		for _, system := range sweepSystems {
			l := s.load(x)
			l.System = system
			if pairs := l.partitions() * (l.partitions() - l.Threads) / 2; system == "A" && pairs > mostSockets {
				g.Failed = append(g.Failed, fmt.Sprintf("baseline A at %d: %d connections", x, pairs))
				continue
			}
			mib := s.mib(x)
			if quick {
				mib /= 4
			}
			l.Records = max(1, int(mib*(1<<20))/l.partitions()/l.Record)
			measured, err := drive(ctx, l)
			if err != nil {
				if ctx.Err() != nil {
					return g, err
				}
				g.Failed = append(g.Failed, fmt.Sprintf("%s at %d: %v", system, x, err))
				continue
			}
			g.Rows[system][x] = measured
		}
	}
	return g, nil
}

// A view is one figure of measurements, as a table and a chart.
type view struct {
	name, title string
	systems     []string
	of          func(measurement) float64
	show        func(float64) string
}

var views = []view{
	{"rate", "records, bytes per second", sweepSystems, measurement.rate, func(v float64) string { return beside.Bytes(v) + "/s" }},
	{"cost", "processor time of a GiB, seconds", sweepSystems, measurement.perGiB, func(v float64) string { return fmt.Sprintf("%.2f s", v) }},
}

// tables are views without a chart. Of stalls and registered memory ours alone can tell.
var (
	ourSystems = []string{"shm", "iwarp", "tcp", "shm two-sided", "iwarp two-sided"}
	tables     = []view{
		{"calls", "system calls of a MiB", sweepSystems, measurement.callsPerMiB, func(v float64) string { return fmt.Sprintf("%.1f", v) }},
		{"stalled", "senders' time without room, percent", ourSystems, measurement.stalled, func(v float64) string { return fmt.Sprintf("%.0f", v) }},
		{"resident", "resident memory of all processes at the end", sweepSystems, func(m measurement) float64 { return float64(m.Resident) }, beside.Bytes},
		{"registered", "registered memory of all processes", []string{"shm", "iwarp", "shm two-sided", "iwarp two-sided"}, func(m measurement) float64 { return float64(m.Registered) }, beside.Bytes},
	}
)

func (s *sweep) show(x int) string {
	if s.formatX != nil {
		return s.formatX(float64(x))
	}
	return fmt.Sprint(x)
}

// page is a sweep's part of the page.
func (s *sweep) page(g *growth) string {
	var p strings.Builder
	fmt.Fprintf(&p, "### %s\n\n`go -C bench run ./shuffle --growth %s`. %s. One measurement each; x: %s.\n", s.title, s.name, beside.Ran(g.Measured), s.x)
	table := func(v view) {
		fmt.Fprintf(&p, "\n%s:\n\n| |", strings.ToUpper(v.title[:1])+v.title[1:])
		for _, system := range v.systems {
			fmt.Fprintf(&p, " %s |", system)
		}
		fmt.Fprintf(&p, "\n|---:|%s\n", strings.Repeat("---:|", len(v.systems)))
		for _, x := range s.xs {
			cells, any := "", false
			for _, system := range v.systems {
				m, ok := g.Rows[system][x]
				any = any || ok
				if ok {
					cells += " " + v.show(v.of(m)) + " |"
				} else {
					cells += " |"
				}
			}
			if any {
				fmt.Fprintf(&p, "| %s |%s\n", s.show(x), cells)
			}
		}
	}
	for _, v := range views {
		table(v)
		fmt.Fprintf(&p, "\n![%s](%s)\n", v.title, s.file(v))
	}
	for _, v := range tables {
		table(v)
	}
	for _, f := range g.Failed {
		fmt.Fprintf(&p, "\n- not measured: %s\n", strings.ReplaceAll(f, "\n", " "))
	}
	return p.String() + "\n"
}

func (s *sweep) file(v view) string { return "shuffle-" + s.name + "-" + v.name + ".svg" }

// mostLines is how many lines a chart has room for; the tables have the rest.
const mostLines = 8

// plot draws a sweep's charts into a folder.
func (s *sweep) plot(g *growth, dir string) error {
	for _, v := range views {
		c := plot.Chart{Title: s.title + ": " + v.title, Subtitle: beside.Ran(g.Measured), XLabel: s.x, YLabel: v.title, FormatX: s.formatX, FormatY: v.show}
		for _, system := range v.systems[:min(len(v.systems), mostLines)] {
			line := plot.Series{Name: system}
			for _, x := range s.xs {
				if m, ok := g.Rows[system][x]; ok {
					line.Points = append(line.Points, plot.Point{X: float64(x), Y: v.of(m)})
				}
			}
			if len(line.Points) > 0 {
				c.Series = append(c.Series, line)
			}
		}
		if len(c.Series) == 0 {
			continue // nothing of it was measured
		}
		f, err := os.Create(filepath.Join(dir, s.file(v)))
		if err != nil {
			return err
		}
		err = c.Write(f)
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.file(v), err)
		}
	}
	return nil
}

func sweepNames() (names []string) {
	for _, s := range sweeps() {
		names = append(names, s.name)
	}
	slices.Sort(names)
	return names
}
