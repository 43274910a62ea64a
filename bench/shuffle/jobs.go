package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// A jobRow is a job of the command verbena beside another system that does the same: wall
// time and processor time of all processes.
type jobRow struct {
	what, beside      string
	target, targetCPU beside.Target
	run               func(context.Context, *jobs) error
	ours, theirs      []cost // of rounds
}

// A cost is what a job takes, in seconds.
type cost struct{ wall, cpu float64 }

// jobs are the comparisons of a run, with what they share.
type jobs struct {
	*bench
	rounds       int
	dir, verbena string
}

func jobRows() []*jobRow { return append(sparkRows(), gnuRows()...) }

// runJobs measures those rows whose names match.
func (b *bench) runJobs(ctx context.Context, only *regexp.Regexp, rounds int) (out []beside.Row, err error) {
	j := &jobs{bench: b, rounds: rounds}
	for _, r := range jobRows() {
		if !only.MatchString(r.what+" "+r.beside) || b.quick && r.target.None() {
			continue
		}
		if err := j.prepare(ctx); err != nil {
			return nil, err
		}
		failed := r.run(ctx, j)
		if ctx.Err() != nil {
			return nil, errors.Join(failed, os.RemoveAll(j.dir))
		}
		out = append(out, r.row("wall time", r.target, failed, func(c cost) float64 { return c.wall }), r.row("processor time", r.targetCPU, failed, func(c cost) float64 { return c.cpu }))
	}
	if j.dir != "" {
		err = os.RemoveAll(j.dir)
	}
	return out, err
}

func (r *jobRow) row(figure string, target beside.Target, failed error, of func(cost) float64) beside.Row {
	what := r.what + ", " + figure
	if failed != nil {
		row := beside.Row{What: what, Beside: r.beside, Unit: beside.Nanoseconds, Skipped: failed.Error()}
		row.Judge(target)
		return row
	}
	values := func(costs []cost) (v []float64) {
		for _, c := range costs {
			v = append(v, of(c)*1e9)
		}
		return v
	}
	return beside.Medians(what, r.beside, beside.Nanoseconds, values(r.ours), values(r.theirs), target)
}

// prepare makes a folder for what jobs write, on a disk, and builds the command.
func (j *jobs) prepare(ctx context.Context) (err error) {
	if j.dir != "" {
		return nil
	}
	root, err := host.ModuleRoot(ctx)
	if err != nil {
		return err
	}
	parent := j.temporary
	if parent == "" {
		parent = os.TempDir()
	}
	if j.dir, err = os.MkdirTemp(parent, "verbena-bench-"); err != nil {
		return err
	}
	j.verbena = filepath.Join(j.dir, "verbena")
	return host.Build(ctx, root, j.verbena, []string{"build", "-trimpath"}, "./cmd/verbena")
}

// level makes the state before each measurement the same: nothing waits to be written to the
// disk, these files are in the page cache and others, if we may say so, are not, and free
// memory is this machine's.
func level(files ...string) error {
	if err := exec.Command("sync").Run(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	_ = os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0) // root's
	for _, name := range files {
		if err := exec.Command("cat", name).Run(); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
	return host.WarmMemory(warm)
}

// warm is more memory than any of the jobs takes, with the pages of its files.
const warm = 6 << 30

// timed runs a command. Its processor time is that of its children, too.
func timed(ctx context.Context, name string, args ...string) (c cost, out []byte, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var said, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &errs
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return c, nil, fmt.Errorf("%s: %w: %s", name, err, host.Tail(errs.String()))
	}
	c.wall = time.Since(began).Seconds()
	c.cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return c, said.Bytes(), nil
}

// pairs runs verbena pairs, whose figures are those of the shuffle and the reducers alone.
func (j *jobs) pairs(ctx context.Context, operation string, p pairsLoad) (c cost, groups int64, err error) {
	_, out, err := timed(ctx, j.verbena, "pairs", operation, "--json", "--workers", "2", "--memory", p.memory, "-T", j.dir,
		"--pairs", fmt.Sprint(p.mappers*p.each), "--value-size", fmt.Sprint(p.value), "--mappers", fmt.Sprint(p.mappers), "--reducers", fmt.Sprint(p.mappers))
	if err != nil {
		return c, 0, err
	}
	var r struct {
		Pairs, Groups int64
		Finished, CPU time.Duration
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return c, 0, fmt.Errorf("verbena pairs: %w: %s", err, out)
	}
	if r.Pairs != int64(p.mappers*p.each) {
		return c, 0, fmt.Errorf("verbena pairs: %d pairs", r.Pairs)
	}
	return cost{r.Finished.Seconds(), r.CPU.Seconds()}, r.Groups, nil
}
