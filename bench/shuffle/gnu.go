package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/verbena-data/verbena/bench/internal/beside"
)

// gnuRows are verbena sort beside GNU sort: 2 GiB of lines, or with --quick a quarter of it,
// and so of the memory.
func gnuRows() []*jobRow {
	r := &jobRow{what: "verbena sort of lines in a quarter of their size of memory, 2 workers", beside: "GNU sort --parallel=2", target: beside.AtMost(0.7)}
	r.run = r.sort
	return []*jobRow{r}
}

func (r *jobRow) sort(ctx context.Context, j *jobs) error {
	if _, err := exec.LookPath("sort"); err != nil {
		return fmt.Errorf("GNU sort is missing (Debian: coreutils): %w", err)
	}
	records, memory := 21_474_836, "512"
	if j.quick {
		records, memory = records/4, "128"
		r.what += " (512 MiB)"
	} else {
		r.what += " (2 GiB)"
	}
	in, ours, theirs := filepath.Join(j.dir, "lines"), filepath.Join(j.dir, "ours"), filepath.Join(j.dir, "theirs")
	defer func() {
		for _, name := range []string{in, ours, theirs} {
			_ = os.Remove(name) // the folder goes in the end
		}
	}()
	if _, _, err := timed(ctx, j.verbena, "gensort", "-a", fmt.Sprint(records), in); err != nil {
		return err
	}
	for round := range j.rounds {
		sides := []func() error{
			func() error {
				c, _, err := timed(ctx, j.verbena, "sort", "--workers", "2", "--memory", memory+"MiB", "-T", j.dir, "-o", ours, in)
				r.ours = append(r.ours, c)
				return err
			},
			func() error {
				c, _, err := timed(ctx, "sh", "-c", `sort --parallel=2 -S "$1" -T "$2" -o "$3" "$4" && sync "$3"`, "sh", memory+"M", j.dir, theirs, in)
				r.theirs = append(r.theirs, c)
				return err
			},
		}
		for i := range sides {
			if err := level(in); err != nil {
				return err
			}
			if err := sides[(i+round)%2](); err != nil {
				return err
			}
		}
		if err := exec.CommandContext(ctx, "cmp", ours, theirs).Run(); err != nil {
			return fmt.Errorf("our output and GNU sort's: %w", err)
		}
		for _, name := range []string{ours, theirs} {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}
