package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func simulateCommand(c *common) *cobra.Command {
	s := simulation{totals: map[string]int{}}
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Simulate clusters in virtual time in which everything goes wrong that can",
		Long: `Each seed makes a cluster in memory, of NameNode, DataNodes and clients, with its own
time: processes die, machines lose power with what they had not synced, disks are full
or come back old, empty or with flipped bits, hosts are cut off, clocks leap. After each
round every acknowledged byte must be there, every lease must have ended, and every block must
have its replicas. The history of a seed that fails is kept.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.withoutBinary = true
			return c.run(cmd, func(ctx context.Context, dir string) error { return s.run(ctx, c, dir) })
		},
	}
	flags := cmd.Flags()
	flags.Uint64Var(&s.seeds, "seeds", 1, "how many seeds")
	flags.Uint64Var(&s.seed, "seed", 1, "the first one")
	return cmd
}

// simulation runs seeds in processes of the test's binary: time can be simulated in a
// test alone.
type simulation struct {
	seed, seeds uint64

	mu     sync.Mutex
	totals map[string]int // of what happened
	failed []string
	done   uint64
}

// seedsAtOnce is how many seeds one process runs.
const seedsAtOnce = 20

func (s *simulation) run(ctx context.Context, c *common, dir string) error {
	binary := filepath.Join(dir, "simulate.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "./hdfs/internal/simulate")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("building the test of ./hdfs/internal/simulate: %w: run this from the project's folder", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for first := s.seed; first < s.seed+s.seeds; first += seedsAtOnce {
		group.Go(func() error { return s.some(ctx, binary, dir, first, min(seedsAtOnce, s.seed+s.seeds-first)) })
	}
	err := group.Wait()
	fmt.Fprintln(progress)
	s.print(c)
	if err == nil && len(s.failed) > 0 {
		err = fmt.Errorf("%d of %d seeds failed", len(s.failed), s.seeds)
	}
	return err
}

// some runs a few seeds, and keeps what they print if one fails.
func (s *simulation) some(ctx context.Context, binary, dir string, first, count uint64) error {
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^TestSimulate$", "-seed", fmt.Sprint(first), "-seeds", fmt.Sprint(count), "-all")
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done += count
	fmt.Fprintf(progress, "\r%d of %d seeds, %d failed ", s.done, s.seeds, len(s.failed))
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		var n int
		if rest, ok := strings.CutPrefix(line, "COUNT "); ok {
			number, what, _ := strings.Cut(rest, " ")
			if _, err := fmt.Sscan(number, &n); err != nil {
				return fmt.Errorf("seeds from %d: %q: %w", first, line, err)
			}
			s.totals[what] += n
		}
		if i := strings.Index(line, ": seed "); i >= 0 && strings.Contains(line[:i], "simulate_test.go") {
			s.failed = append(s.failed, line[i+2:])
		}
	}
	if err == nil {
		return nil
	}
	name := filepath.Join(dir, fmt.Sprintf("seeds-%d", first))
	if werr := os.WriteFile(name, out, 0o600); werr != nil {
		return werr
	}
	fmt.Fprintln(progress, "\nhistories of seeds that failed:", name)
	if !strings.Contains(string(out), "run it again") {
		s.failed = append(s.failed, fmt.Sprintf("one of the seeds from %d: the process ended (%v): see %s", first, err, name))
	}
	return nil
}

func (s *simulation) print(c *common) {
	c.printf("# Simulated clusters\n\n`go run ./soak simulate --seeds %d --seed %d`\n\n| what | count |\n|---|---:|\n| seeds | %d |\n", s.seeds, s.seed, s.done)
	for _, what := range slices.Sorted(maps.Keys(s.totals)) {
		c.printf("| %s | %d |\n", what, s.totals[what])
	}
	c.printf("| seeds that failed | %d |\n", len(s.failed))
	for _, f := range s.failed {
		c.printf("\n- %s", f)
	}
}
