// Command soak runs what takes longer than a test may: processes killed at
// random under load, very many files, a very large file, the cost of idle
// connections, very many random operations of the fabric, attacks, and calls in the middle of
// which servers end. Each run prints a
// report in Markdown, which --out keeps.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1)
	}
}

// common is what every run needs: a binary to test, a place, and a report.
type common struct {
	binary, dir, out string
	keep             bool
	withoutBinary    bool // the run needs none
	report           strings.Builder
}

func command() *cobra.Command {
	c := &common{}
	root := &cobra.Command{
		Use:   "soak",
		Short: "Kill loops, very many files, a very large file, foreign clients, idle connections, random operations, attacks, calls",
		Long: `Each run brings up a cluster in processes of its own in a temporary directory,
works on it, checks every byte and prints a report. A run that finds lost or
wrong data ends with exit status 1 and keeps the directory.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&c.binary, "verbena", "", "the verbena binary (default: built from this tree)")
	flags.StringVar(&c.dir, "dir", "", "where the cluster keeps its data (default: a temporary directory)")
	flags.StringVar(&c.out, "out", "", "write the report to this file, too")
	flags.BoolVar(&c.keep, "keep", false, "keep the data")
	root.AddCommand(killCommand(c), filesCommand(c), largeCommand(c), javaCommand(c), idleCommand(c), idleServerCommand(), fabricCommand(c), fabricPeerCommand(),
		attacksCommand(c), attacksServerCommand(), attackerCommand(), callsCommand(c), callsServerCommand(), methodsCommand(c), letterCommand(c), clientCommand(c))
	root.AddCommand(simulateCommand(c), sortCommand(c), sortKillCommand(c), shortCircuitCommand(c), shellCommand(c), srunCommand(c), crowdCommand(c), crowdMemberCommand())
	return root
}

// run prepares the place, calls f and publishes the report.
func (c *common) run(cmd *cobra.Command, f func(ctx context.Context, dir string) error) (err error) {
	dir, temporary := c.dir, c.dir == ""
	if temporary {
		if dir, err = os.MkdirTemp("", "verbena-soak-"); err != nil {
			return err
		}
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer func() {
		switch {
		case err != nil || c.keep:
			fmt.Fprintln(os.Stderr, "the data is kept in", dir)
		case temporary:
			err = os.RemoveAll(dir)
		}
	}()
	if c.binary == "" && !c.withoutBinary {
		c.binary = filepath.Join(dir, "verbena-binary")
		build := exec.CommandContext(cmd.Context(), "go", "build", "-o", c.binary, "./cmd/verbena")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building ./cmd/verbena: %w: run this from the project's folder, or name a binary with --verbena", err)
		}
	}
	began := time.Now()
	err = f(cmd.Context(), dir)
	c.printf("\n%s, %s/%s, %d processors, %s, took %s. Outcome: %s.\n", time.Now().UTC().Format("2006-01-02"), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), runtime.Version(), time.Since(began).Round(time.Second), outcome(err))
	fmt.Fprint(cmd.OutOrStdout(), c.report.String())
	if c.out != "" {
		if werr := os.WriteFile(c.out, []byte(c.report.String()), 0o644); werr != nil && err == nil {
			return werr
		}
	}
	return err
}

func outcome(err error) string {
	if err != nil {
		return "FAILED: " + err.Error()
	}
	return "passed"
}

func (c *common) printf(format string, args ...any) { fmt.Fprintf(&c.report, format, args...) }

// progress tells on standard error what goes on.
var progress io.Writer = os.Stderr
