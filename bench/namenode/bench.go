package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/maven"
)

// bench is a run of the command.
type bench struct {
	quick, json            bool
	clients, rounds, calls int
	dir, out, against      string
	machine                host.Machine
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
	if b.out == "" {
		b.out = filepath.Join(root, "docs", "benchmarks")
	}
	b.machine = host.Describe(ctx, root, nil)
	dir, err := os.MkdirTemp(b.dir, "verbena-namenode-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ours, theirs, err := b.start(ctx, root, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop(), theirs.stop()) }()
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
	return b.report(b.rows(measured))
}

// start starts both systems, with their data below dir.
func (b *bench) start(ctx context.Context, root, dir string) (ours, theirs *system, err error) {
	user, err := me()
	if err != nil {
		return nil, nil, err
	}
	places := make(map[string]string)
	for _, part := range []string{"ours", "theirs"} {
		places[part] = filepath.Join(dir, part)
		if err := os.Mkdir(places[part], 0o755); err != nil {
			return nil, nil, err
		}
	}
	binary := filepath.Join(dir, "verbena")
	if err := host.Build(ctx, root, binary, []string{"build"}, "./cmd/verbena"); err != nil {
		return nil, nil, err
	}
	if ours, err = startOurs(ctx, "ours", binary, places["ours"], user); err != nil {
		return nil, nil, err
	}
	if b.against == "" {
		theirs, err = startApache(ctx, places["theirs"], user)
	} else {
		theirs, err = startOurs(ctx, b.against, b.against, places["theirs"], user)
	}
	if err != nil {
		return nil, nil, errors.Join(err, ours.stop())
	}
	return ours, theirs, nil
}

// rows are the medians over the rounds: of each kind the calls a second, and the
// processor time of the server.
func (b *bench) rows(measured [2][]map[string]figure) []beside.Row {
	peer := "Apache HDFS " + maven.Hadoop + "'s NameNode"
	rate, cost := beside.AtLeast(1.5), beside.AtMost(0.5)
	if b.against != "" {
		peer, rate, cost = b.against, beside.Target{}, beside.Target{}
	}
	var rates, costs []beside.Row
	for _, k := range kinds {
		if !k.counts {
			continue
		}
		row := func(what, unit string, target beside.Target, of func(figure) float64) beside.Row {
			what = fmt.Sprintf("%s, %d clients over TCP, %s", cmp.Or(names[k.method], k.method), b.clients, what)
			var values [2][]float64
			for i := range values {
				for _, round := range measured[i] {
					values[i] = append(values[i], of(round[k.method]))
				}
			}
			if slices.Contains(values[1], 0) {
				r := beside.Row{What: what, Beside: peer, Unit: unit, Skipped: "too few calls for the accounting of processor time: more --calls"}
				r.Judge(target)
				return r
			}
			return beside.Medians(what, peer, unit, values[0], values[1], target)
		}
		rates = append(rates, row("calls a second", "calls/s", rate, func(f figure) float64 { return f.rate }))
		costs = append(costs, row("processor time of the server a call", beside.Nanoseconds, cost, func(f figure) float64 { return f.cpu }))
	}
	return append(rates, costs...)
}

// report prints the rows, and writes the page if they are those that it shows.
func (b *bench) report(rows []beside.Row) error {
	if b.json {
		return beside.Write(os.Stdout, rows)
	}
	text := fmt.Sprintf("%s. %d clients, %d rounds of %d calls of each client and kind after %d that warm up; medians, and in brackets the least and the greatest ratio of a round.\n\n",
		beside.Ran(b.machine), b.clients, b.rounds, b.calls, warm) + beside.Table(rows)
	fmt.Print(text)
	if b.against != "" {
		return nil
	}
	return beside.Replace(filepath.Join(b.out, "namenode.md"), "rows", text)
}
