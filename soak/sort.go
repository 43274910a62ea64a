package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// sortCommand sorts more than the memory holds, and checks the order and the records.
func sortCommand(c *common) *cobra.Command {
	var records int64
	var mebibytes int64
	cmd := &cobra.Command{
		Use:   "sort",
		Short: "Sort 2 GiB of gensort's records and of lines with 512 MiB of memory, beside GNU sort",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return c.sort(ctx, dir, records, mebibytes) })
		},
	}
	cmd.Flags().Int64Var(&records, "records", 21_474_836, "records of 100 bytes")
	cmd.Flags().Int64Var(&mebibytes, "memory", 512, "`MiB` of memory of all processes of a sort together")
	return cmd
}

func (c *common) sort(ctx context.Context, dir string, records, mebibytes int64) error {
	memory := fmt.Sprintf("%dMiB", mebibytes)
	c.printf("# Sorting more than the memory holds\n\n`go run ./soak sort`: %d records of 100 bytes, two workers, --memory %s. Each sort includes the fsync of its output.\n\n"+
		"| what | wall | CPU | most memory | checked |\n|---|---|---|---|---|\n", records, memory)
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	var most int64 // memory of the last one
	timed := func(what, checked, name string, args ...string) error {
		fmt.Fprintln(progress, what)
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		began := time.Now()
		if err := cmd.Start(); err != nil {
			return err
		}
		memory := watchMemory(cmd.Process.Pid)
		err := cmd.Wait()
		most = memory()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", what, err, said.String())
		}
		c.printf("| %s | %.1f s | %.1f s | %d MiB | %s |\n", what, time.Since(began).Seconds(), (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), most>>20, checked)
		return nil
	}
	for _, format := range []string{"gensort", "lines"} {
		args := []string{"gensort", "-c", fmt.Sprint(records), in}
		if format == "lines" {
			args = append(args, "-a")
		}
		sum, err := exec.CommandContext(ctx, c.binary, args...).Output()
		if err != nil {
			return fmt.Errorf("gensort: %w", err)
		}
		if err := timed("verbena sort --format "+format, "order and checksum, by valsort", c.binary, "sort", "--format", format, "--workers", "2", "--memory", memory, "-T", dir, "-o", out, in); err != nil {
			return err
		}
		if limit := mebibytes<<20 + besideMemory; most > limit {
			return fmt.Errorf("the processes of verbena sort had %d MiB together, --memory and the command itself are %d", most>>20, limit>>20)
		}
		report, err := exec.CommandContext(ctx, c.binary, "valsort", out).Output()
		if want := fmt.Sprintf("Records: %d\nChecksum: %s", records, sum); err != nil || !strings.HasPrefix(string(report), want) {
			return fmt.Errorf("valsort: %w: %s; gensort's checksum is %s", err, report, sum)
		}
	}
	if path, _ := exec.LookPath("sort"); path == "" {
		return c.aboutMemory() // the comparison alone is missing
	}
	reference := out + "-gnu"
	if err := timed(fmt.Sprintf("GNU sort --parallel=2 -S %dM, lines", mebibytes), "the same bytes as above",
		"sh", "-c", `sort --parallel=2 -S "$1M" -T "$2" -o "$3" "$4" && sync "$3"`, "sh", fmt.Sprint(mebibytes), dir, reference, in); err != nil {
		return err
	}
	if err := exec.CommandContext(ctx, "cmp", out, reference).Run(); err != nil {
		return fmt.Errorf("our output and GNU sort's: %w", err)
	}
	return c.aboutMemory()
}

func (c *common) aboutMemory() error {
	c.printf("\nMemory is the proportional set size of all processes together, looked at 20 times a second; pages that several share count once. The soak fails where verbena has more than --memory and %d MiB for the command that starts the workers.\n", besideMemory>>20)
	return nil
}

// besideMemory is what the process that starts the workers may have beside their --memory.
const besideMemory = 32 << 20

// watchMemory looks at the memory of a process and its descendants until the function that it
// returns is called, which tells the most that they had.
func watchMemory(pid int) (stop func() int64) {
	end, result := make(chan struct{}), make(chan int64)
	go func() {
		var most int64
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, memoryOf(pid))
			select {
			case <-tick.C:
			case <-end:
				result <- most
				return
			}
		}
	}()
	return func() int64 {
		close(end)
		return <-result
	}
}

// memoryOf is the proportional set size of a process and its descendants in bytes. A process
// that has ended has none.
func memoryOf(pid int) (sum int64) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			var kib int64
			_, _ = fmt.Sscan(rest, &kib)
			sum = kib << 10
		}
	}
	for _, child := range children(pid) {
		sum += memoryOf(child)
	}
	return sum
}

// children are a process's.
func children(pid int) (pids []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		raw, _ := os.ReadFile(file) // a thread may have ended
		for _, text := range strings.Fields(string(raw)) {
			if n, err := strconv.Atoi(text); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}
