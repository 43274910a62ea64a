package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// bench is a run of the command.
type bench struct {
	quick, json     bool
	rounds          int
	duration        time.Duration // of one measurement
	only, lines     string
	out, hadoop     string
	root, temporary string
	running         map[string]*server // by system, and whether it is bound
	built           map[string]string  // binaries, by package
	skipped         map[string]error   // systems that do not run here
}

// results are the raw figures, docs/benchmarks/rpc.json.
type results struct {
	Rows   []record          `json:"rows"`
	Growth map[string]growth `json:"growth"` // by name of the sweep
}

// A record is a row that was measured.
type record struct {
	beside.Row
	Why string `json:"why,omitempty"` // the target is missed
	// Counted are the rounds that the medians are of. The others were at another
	// distance of the processors, or they moved in them.
	Counted  int            `json:"rounds_counted"`
	Distance float64        `json:"distance_ns"` // median of those rounds
	Rounds   []beside.Round `json:"rounds"`
	Measured host.Machine   `json:"measured"`
}

func (b *bench) run(ctx context.Context) (err error) {
	match, err := regexp.Compile(b.only)
	if err != nil {
		return fmt.Errorf("--row: %w", err)
	}
	lines, err := regexp.Compile(b.lines)
	if err != nil {
		return fmt.Errorf("--line: %w", err)
	}
	if runtime.NumCPU() < 2 {
		return errors.New("two processors are needed, one for each end")
	}
	b.duration = 1500 * time.Millisecond
	if b.quick {
		b.duration = 700 * time.Millisecond
	}
	switch {
	case b.rounds < 0:
		return fmt.Errorf("%d rounds", b.rounds)
	case b.rounds == 0 && b.quick:
		b.rounds = 3
	case b.rounds == 0:
		b.rounds = 7
	}
	if b.root, err = host.ModuleRoot(ctx); err != nil {
		return err
	}
	if b.out == "" {
		b.out = filepath.Join(b.root, "docs", "benchmarks")
	}
	r, err := b.load()
	if err != nil {
		return err
	}
	if b.temporary, err = os.MkdirTemp("", "verbena-rpc-"); err != nil {
		return err
	}
	b.running, b.built, b.skipped = map[string]*server{}, map[string]string{}, map[string]error{}
	defer func() {
		for _, s := range b.running {
			err = errors.Join(err, s.stop())
		}
		err = errors.Join(err, os.RemoveAll(b.temporary))
	}()
	machine := host.Describe(ctx, b.root, nil)
	rows := slices.DeleteFunc(b.rows(), func(r row) bool { return !match.MatchString(r.what + " | " + r.beside) })
	measured, err := b.compare(ctx, rows)
	if err != nil {
		return err
	}
	for i := range measured {
		measured[i].Measured = machine
	}
	if b.json {
		if len(measured) == 0 {
			return errors.New("--row matches nothing")
		}
		var plain []beside.Row
		for _, m := range measured {
			plain = append(plain, m.Row)
		}
		return beside.Write(os.Stdout, plain)
	}
	r.merge(measured, b.rows())
	grown := 0
	for _, s := range b.sweeps() {
		if match.MatchString("growth: " + s.name) {
			if r.Growth[s.name], err = s.run(ctx, machine, lines, r.Growth[s.name]); err != nil {
				return err
			}
			grown++
		}
	}
	if len(measured)+grown == 0 {
		return errors.New("--row matches nothing")
	}
	return b.write(r)
}

// compare measures the rows. Rounds are outside and rows inside, so that what disturbs
// the machine for a while falls on all of them.
func (b *bench) compare(ctx context.Context, rows []row) ([]record, error) {
	rounds, failed := make([][]beside.Round, len(rows)), make([]error, len(rows))
	for n := range b.rounds {
		for i, r := range rows {
			if failed[i] != nil {
				continue
			}
			measured, err := b.round(ctx, &r, n)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if failed[i] = err; err != nil {
				fmt.Fprintf(os.Stderr, "%s, beside %s: %v\n", r.what, r.beside, err)
			}
			rounds[i] = append(rounds[i], measured...)
		}
	}
	var all []record
	for i, r := range rows {
		all = append(all, r.judge(rounds[i], failed[i])...)
	}
	return all, nil
}

// round measures a row, and again when the processors have moved. It returns all that was
// measured.
func (b *bench) round(ctx context.Context, r *row, n int) (measured []beside.Round, err error) {
	for range 1 + mostMoved {
		round, err := beside.Pair(ctx, r.ours, r.theirs, n%2 == 0)
		if err != nil {
			return measured, err
		}
		measured = append(measured, round)
		moved := ""
		if !r.counts(round) {
			moved = ", moved"
		}
		fmt.Fprintf(os.Stderr, "round %d of %d: %-80s %-40s %10s %10s %7.3f  %.0f ns%s\n", n+1, b.rounds, r.what, r.beside,
			beside.Show(round.Ours, r.unit), beside.Show(round.Theirs, r.unit), round.Ours/round.Theirs, round.Distances[1], moved)
		if moved == "" {
			break
		}
	}
	return measured, nil
}

// mostMoved is how often a round is measured again whose processors have moved. On some hosts
// they do every few seconds, and a row of which no round counts tells nothing.
const mostMoved = 3

// counts tells whether a round says something: one in which the processors moved does only
// where their distance does not matter.
func (r *row) counts(round beside.Round) bool { return r.far.None() || round.Alike }

// judge makes a record of the rounds; of a row with a target for far processors two, one
// of the rounds near and one of those far.
func (r *row) judge(rounds []beside.Round, failed error) []record {
	if r.far.None() {
		return []record{r.record("", r.target, rounds, rounds, failed)}
	}
	var records []record
	for _, class := range []struct {
		name   string
		near   bool
		target beside.Target
	}{{nearby, true, r.target}, {faraway, false, r.far}} {
		var counted []beside.Round
		for _, round := range rounds {
			if r.counts(round) && round.Near() == class.near {
				counted = append(counted, round)
			}
		}
		err := failed
		if err == nil && len(counted) == 0 {
			err = errElsewhere
		}
		records = append(records, r.record(class.name, class.target, rounds, counted, err))
	}
	return records
}

const (
	nearby  = ", processors near"
	faraway = ", processors far"
)

var errElsewhere = errors.New("the processors were never at this distance, or moved")

func (r *row) record(class string, target beside.Target, rounds, counted []beside.Round, failed error) record {
	m := record{Row: beside.Row{What: r.what + class, Beside: r.beside, Unit: r.unit}, Counted: len(counted), Rounds: rounds}
	if failed != nil {
		m.Skipped = failed.Error()
	} else {
		var ours, theirs, ratios, distances []float64
		for _, c := range counted {
			ours, theirs = append(ours, c.Ours), append(theirs, c.Theirs)
			ratios, distances = append(ratios, c.Ours/c.Theirs), append(distances, c.Distances[1])
		}
		m.Ours, m.Theirs, m.Distance = beside.Middle(ours), beside.Middle(theirs), beside.Middle(distances)
		m.Ratio, m.Low, m.High = m.Ours/m.Theirs, slices.Min(ratios), slices.Max(ratios)
	}
	m.Judge(target)
	if m.Met != nil && !*m.Met {
		m.Why = r.why
	}
	return m
}

// merge puts what was measured in the place of what is there. Rows that are no more go,
// and one that could not be measured does not replace one that was.
func (r *results) merge(measured []record, rows []row) {
	same := func(a *record) func(record) bool {
		return func(b record) bool { return a.What == b.What && a.Beside == b.Beside }
	}
	var merged []record
	for _, w := range rows {
		for _, place := range w.judge(nil, errors.New("not measured yet")) {
			i, j := slices.IndexFunc(measured, same(&place)), slices.IndexFunc(r.Rows, same(&place))
			switch {
			case i >= 0 && (measured[i].Skipped == "" || j < 0 || r.Rows[j].Skipped != ""):
				merged = append(merged, measured[i])
			case j >= 0:
				kept := r.Rows[j]
				if kept.Why != "" { // the reason is not measured: it is told as it is known today
					kept.Why = w.why
				}
				merged = append(merged, kept)
			}
		}
	}
	r.Rows = merged
}

// load reads the results that are there, for what is not measured again.
func (b *bench) load() (*results, error) {
	r := &results{}
	raw, err := os.ReadFile(filepath.Join(b.out, "rpc.json"))
	if err == nil {
		err = json.Unmarshal(raw, r)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the results that are there: %w: remove the file to begin anew", err)
	}
	if r.Growth == nil {
		r.Growth = map[string]growth{}
	}
	return r, nil
}

// verbena builds the command, tests the runtime's tests, each once.
func (b *bench) verbena(ctx context.Context) (string, error) {
	return b.build(ctx, []string{"build"}, "./cmd/verbena")
}

func (b *bench) tests(ctx context.Context) (string, error) {
	return b.build(ctx, []string{"test", "-c"}, ".")
}

func (b *bench) build(ctx context.Context, args []string, pkg string) (string, error) {
	if b.built[pkg] == "" {
		out := filepath.Join(b.temporary, fmt.Sprint("binary", len(b.built)))
		if err := host.Build(ctx, b.root, out, args, pkg); err != nil {
			return "", err
		}
		b.built[pkg] = out
	}
	return b.built[pkg], nil
}

// server is the running server of a system, bound to the server's processor or free.
func (b *bench) server(ctx context.Context, system string, free bool) (*server, error) {
	key := fmt.Sprint(system, free)
	if s, err := b.running[key], b.skipped[key]; s != nil || err != nil {
		return s, err
	}
	var s *server
	var err error
	switch {
	case system != java:
		s, err = startServer("serve", system, fmt.Sprintf("--free=%t", free))
	default:
		var jars string
		if jars, err = hadoopJars(ctx, b.hadoop); err == nil {
			s, err = startJava(ctx, jars)
		}
	}
	if err != nil {
		b.skipped[key] = err
		return nil, err
	}
	b.running[key] = s
	return s, nil
}
