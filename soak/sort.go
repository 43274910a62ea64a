package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// sortCommand sorts more than the memory holds, and checks the order and the records.
func sortCommand(c *common) *cobra.Command {
	var records int64
	var memory string
	cmd := &cobra.Command{
		Use:   "sort",
		Short: "Sort 2 GiB of gensort's records and of lines with 512 MiB of memory, beside GNU sort",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return c.sort(ctx, dir, records, memory) })
		},
	}
	cmd.Flags().Int64Var(&records, "records", 21_474_836, "records of 100 bytes")
	cmd.Flags().StringVar(&memory, "memory", "512MiB", "memory of all processes of a sort together")
	return cmd
}

func (c *common) sort(ctx context.Context, dir string, records int64, memory string) error {
	c.printf("# Sorting more than the memory holds\n\n`go run ./soak sort`: %d records of 100 bytes, two workers, --memory %s. Each sort includes the fsync of its output.\n\n"+
		"| what | wall | CPU | checked |\n|---|---|---|---|\n", records, memory)
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	timed := func(what, checked, name string, args ...string) error {
		fmt.Fprintln(progress, what)
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		began := time.Now()
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", what, err, said.String())
		}
		c.printf("| %s | %.1f s | %.1f s | %s |\n", what, time.Since(began).Seconds(), (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), checked)
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
		report, err := exec.CommandContext(ctx, c.binary, "valsort", out).Output()
		if want := fmt.Sprintf("Records: %d\nChecksum: %s", records, sum); err != nil || !strings.HasPrefix(string(report), want) {
			return fmt.Errorf("valsort: %w: %s; gensort's checksum is %s", err, report, sum)
		}
	}
	if path, _ := exec.LookPath("sort"); path == "" {
		return nil // the comparison alone is missing
	}
	reference := out + "-gnu"
	if err := timed("GNU sort --parallel=2 -S 512M, lines", "the same bytes as above", "sh", "-c", `sort --parallel=2 -S 512M -T "$1" -o "$2" "$3" && sync "$2"`, "sh", dir, reference, in); err != nil {
		return err
	}
	if err := exec.CommandContext(ctx, "cmp", out, reference).Run(); err != nil {
		return fmt.Errorf("our output and GNU sort's: %w", err)
	}
	return nil
}
