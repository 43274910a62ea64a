package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/maven"
)

// bench is a run of the command.
type bench struct {
	quick, json            bool
	clients, rounds, calls int
	dir                    string
}

// warm is how many times the calls of a round each system gets before, so that Java has
// compiled what counts.
const warm = 4

func (b *bench) run(ctx context.Context) (err error) {
	if b.rounds == 0 {
		b.rounds = 5
		if b.quick {
			b.rounds = 3
		}
	}
	if b.calls == 0 {
		b.calls = 600
		if b.quick {
			b.calls = 200
		}
	}
	if b.clients < 1 || b.rounds < 1 || b.calls < 1 {
		return fmt.Errorf("%d clients, %d rounds, %d calls: one at least of each", b.clients, b.rounds, b.calls)
	}
	root, err := host.ModuleRoot(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(b.dir, "verbena-namenode-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	user, err := me()
	if err != nil {
		return err
	}
	for _, part := range []string{"ours", "apache"} {
		if err := os.Mkdir(filepath.Join(dir, part), 0o755); err != nil {
			return err
		}
	}
	ours, err := startOurs(ctx, root, filepath.Join(dir, "ours"), user)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop()) }()
	theirs, err := startApache(ctx, filepath.Join(dir, "apache"), user)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.stop()) }()
	for _, s := range []*system{theirs, ours} {
		for n := range warm {
			if _, err := s.drive(ctx, n, b.clients, max(b.calls, 300)); err != nil {
				return err
			}
		}
	}
	var measured [2][]map[string]figure
	for n := range b.rounds {
		for i := range 2 {
			which := (n + i) % 2
			f, err := []*system{ours, theirs}[which].drive(ctx, warm+n, b.clients, b.calls)
			if err != nil {
				return err
			}
			measured[which] = append(measured[which], f)
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", n+1, b.rounds)
	}
	rows := b.rows(measured)
	if b.json {
		return beside.Write(os.Stdout, rows)
	}
	return show(rows)
}

// rows are the medians over the rounds: of each kind the calls a second, and the
// processor time of the server.
func (b *bench) rows(measured [2][]map[string]figure) []beside.Row {
	var rates, costs []beside.Row
	for _, k := range kinds {
		if !k.counts {
			continue
		}
		name := k.method
		if short, ok := names[name]; ok {
			name = short
		}
		row := func(what, unit string, target beside.Target, of func(figure) float64) beside.Row {
			var values [2][]float64
			var ratios []float64
			for n := range measured[0] {
				for i := range 2 {
					values[i] = append(values[i], of(measured[i][n][k.method]))
				}
				if theirs := values[1][n]; theirs > 0 {
					ratios = append(ratios, values[0][n]/theirs)
				}
			}
			r := beside.Row{
				What:   fmt.Sprintf("NameNode, %s, %d clients over TCP, %s", name, b.clients, what),
				Beside: "Apache HDFS " + maven.Hadoop + "'s NameNode", Unit: unit,
				Ours: beside.Middle(values[0]), Theirs: beside.Middle(values[1]),
			}
			if len(ratios) < len(measured[0]) || r.Theirs == 0 {
				r.Skipped = "too few calls for the accounting of processor time: more --calls"
			} else {
				r.Ratio, r.Low, r.High = r.Ours/r.Theirs, ratios[0], ratios[0]
				for _, ratio := range ratios {
					r.Low, r.High = min(r.Low, ratio), max(r.High, ratio)
				}
			}
			r.Judge(target)
			return r
		}
		rates = append(rates, row("calls a second", "calls/s", beside.AtLeast(1.5), func(f figure) float64 { return f.rate }))
		costs = append(costs, row("processor time of the server a call", beside.Nanoseconds, beside.AtMost(0.5), func(f figure) float64 { return f.cpu }))
	}
	return append(rates, costs...)
}

func show(rows []beside.Row) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tours\tApache's\tratio\tof the rounds\ttarget\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t%.2f to %.2f\t%s\t%s\n", r.What, beside.Show(r.Ours, r.Unit), beside.Show(r.Theirs, r.Unit), r.Ratio, r.Low, r.High, r.Target, r.Mark())
	}
	return w.Flush()
}
