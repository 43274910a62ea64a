package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// sortKillCommand kills workers of sorts at random times.
func sortKillCommand(c *common) *cobra.Command {
	var kills int
	var records int64
	cmd := &cobra.Command{
		Use:   "sortkill",
		Short: "Kill a worker of a sort, again and again at random times over each transport: it ends with the reason and leaves nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return c.sortKill(ctx, dir, kills, records) })
		},
	}
	cmd.Flags().IntVar(&kills, "kills", 100, "how many sorts to kill")
	cmd.Flags().Int64Var(&records, "records", 2_000_000, "records of 100 bytes")
	return cmd
}

// sortTransports are what the workers exchange records over.
var sortTransports = []string{"shm", "iwarp", "tcp"}

// endPatience is how long a job may take to end after one of its processes was killed.
const endPatience = 15 * time.Second

func (c *common) sortKill(ctx context.Context, dir string, kills int, records int64) error {
	const workers = 3
	place := filepath.Join(dir, "sorts")
	if err := os.Mkdir(place, 0o755); err != nil {
		return err
	}
	in, out := filepath.Join(dir, "in"), filepath.Join(place, "out")
	sum, err := exec.CommandContext(ctx, c.binary, "gensort", "-c", fmt.Sprint(records), in).Output()
	if err != nil {
		return fmt.Errorf("gensort: %w", err)
	}
	c.printf("# Sorts in the middle of which a worker is killed\n\n`go run ./soak sortkill`: %d records of 100 bytes, %d workers, one of them killed (SIGKILL) at a random time of the sort.\n\n"+
		"| transport | sorts with a worker killed | a whole sort | slowest end after the kill | sorts that were done before |\n|---|---:|---:|---:|---:|\n", records, workers)
	for i, transport := range sortTransports {
		args := []string{"sort", "--format", "gensort", "--transport", transport, "--workers", fmt.Sprint(workers), "--memory", "240MiB", "-T", place, "-o", out, in}
		// Of the remainder each of the first has one.
		if err := c.sortKillOver(ctx, transport, place, args, (kills+len(sortTransports)-1-i)/len(sortTransports)); err != nil {
			return fmt.Errorf("over %s: %w", transport, err)
		}
	}
	report, err := exec.CommandContext(ctx, c.binary, "valsort", out).Output()
	if want := fmt.Sprintf("Records: %d\nChecksum: %s", records, sum); err != nil || !strings.HasPrefix(string(report), want) {
		return fmt.Errorf("valsort: %w: %s; gensort's checksum is %s", err, report, sum)
	}
	c.printf("\nAll that were killed failed with the worker and the signal as the reason. Files left behind, temporary or partial: 0. The output meanwhile: whole, in order, checksum right.\n")
	return nil
}

// sortKillOver kills workers of sorts over one transport.
func (c *common) sortKillOver(ctx context.Context, transport, place string, args []string, kills int) error {
	var whole time.Duration
	for range 2 { // the second one finds the input in memory, as all that follow do
		began := time.Now()
		if said, err := exec.CommandContext(ctx, c.binary, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("sort: %w: %s", err, said)
		}
		whole = time.Since(began)
	}
	var killed, finished int
	var slowest time.Duration
	for n := 0; killed < kills; n++ {
		if n > 3*kills {
			return fmt.Errorf("of %d sorts only %d were killed before their end", n, killed)
		}
		took, hit, err := c.killOne(ctx, args, time.Duration(rand.Int64N(int64(whole))))
		if err != nil {
			return fmt.Errorf("sort %d: %w", n, err)
		}
		if hit {
			killed++
			slowest = max(slowest, took)
		} else {
			finished++
		}
		if killed%20 == 0 {
			fmt.Fprintln(progress, transport, killed, "killed,", finished, "finished before")
		}
		// The output is that of a sort that came to its end; nothing else is there.
		entries, err := os.ReadDir(place)
		if err != nil {
			return err
		}
		if len(entries) != 1 || entries[0].Name() != "out" {
			return fmt.Errorf("sort %d: it has left %v", n, entries)
		}
	}
	c.printf("| %s | %d | %.1f s | %.2f s | %d |\n", transport, killed, whole.Seconds(), slowest.Seconds(), finished)
	return nil
}

// killOne starts a sort and kills a worker of it after a while. hit says that it was still at
// work; took is how long all its processes then took to end.
func (c *common) killOne(ctx context.Context, args []string, after time.Duration) (took time.Duration, hit bool, err error) {
	cmd := exec.CommandContext(ctx, c.binary, args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return 0, false, err
	}
	time.Sleep(after)
	began := time.Now()
	workers := children(cmd.Process.Pid)
	for len(workers) > 0 && !hit {
		i := rand.IntN(len(workers))
		hit = syscall.Kill(workers[i], syscall.SIGKILL) == nil
		workers = append(workers[:i], workers[i+1:]...)
	}
	late := time.AfterFunc(endPatience, func() { _ = cmd.Process.Kill() })
	err = cmd.Wait()
	if !late.Stop() {
		return 0, hit, fmt.Errorf("it had not ended %v after the kill: %s", endPatience, said.String())
	}
	took = time.Since(began)
	switch {
	case err == nil:
		return took, false, nil // the worker had done its part
	case !hit:
		return took, false, fmt.Errorf("it failed by itself: %w: %s", err, said.String())
	case !strings.Contains(said.String(), fmt.Sprintf("of %d ended: signal: killed", 3)):
		return took, true, errors.Join(fmt.Errorf("it does not say what was killed: %s", said.String()), err)
	}
	return took, true, nil
}
