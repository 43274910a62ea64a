// Command lab tests Verbena against the Linux kernel's own RDMA drivers, in a
// virtual machine of its own: it builds an image with Debian's kernel, Soft-RoCE
// (rxe), Soft-iWARP (siw), rdma-core, rping and perftest, boots it under QEMU,
// runs test binaries of this tree in it and brings back what they printed and
// how they ended. It needs no right on the host.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

const module = "github.com/verbena-data/verbena"

// An exitStatus is the status of a command in the virtual machine.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	// The first signal ends the virtual machines and tidies up, a second one ends
	// this process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	root := rootCommand()
	root.SetArgs(asGoTest(os.Args[1:]))
	err := root.ExecuteContext(ctx)
	stop()
	var status exitStatus
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status))
	default:
		fmt.Fprintln(os.Stderr, "lab:", err)
		if errors.Is(err, errMissing) && os.Getenv(requireVariable) != "1" {
			os.Exit(exitMissing)
		}
		os.Exit(1)
	}
}

// asGoTest takes -run for --run, as go test's users write it. What follows "--" is
// somebody else's.
func asGoTest(args []string) []string {
	args = slices.Clone(args)
	for i, a := range args {
		if a == "--" {
			break
		}
		if a == "-run" || strings.HasPrefix(a, "-run=") {
			args[i] = "-" + a
		}
	}
	return args
}

// exitMissing tells scripts that Debian packages are missing, as EX_UNAVAILABLE
// of sysexits.h does.
const exitMissing = 69

// requireVariable set to 1 says that everything has to be there.
const requireVariable = "VERBENA_REQUIRE_TOOLS"

// options are those of every command.
type options struct {
	cpus, memory int
	timeout      time.Duration
	console      bool
	quiet        bool
	tcg          bool
}

func (o *options) progress() *progress { return newProgress(os.Stderr, o.quiet) }

func rootCommand() *cobra.Command {
	o := &options{}
	root := casesCommand(o)
	root.SilenceUsage, root.SilenceErrors = true, true
	f := root.PersistentFlags()
	f.IntVar(&o.cpus, "cpus", 2, "processors of a virtual machine")
	f.IntVar(&o.memory, "memory", 1536, "memory of a virtual machine, in MiB")
	f.DurationVar(&o.timeout, "timeout", 6*time.Minute, "kill a virtual machine after this time and show where it hung (those whose cases take seconds: 2m)")
	f.BoolVar(&o.console, "console", false, "show what kernel and init print, on standard error")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not tell what takes long")
	f.BoolVar(&o.tcg, "tcg", false, "emulate, even where KVM works")
	root.AddCommand(execCommand(o), shellCommand(o), imageCommand(o), packagesCommand())
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// newMachine prepares what every boot needs: image, agent, accelerator. The
// scratch directory takes what is built.
func (o *options) newMachine(ctx context.Context, scratch string) (*machine, string, error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, "", fmt.Errorf("the lab runs on Debian 12 on amd64; this is %s on %s", runtime.GOOS, runtime.GOARCH)
	}
	say := o.progress()
	image, err := ensureImage(ctx, say)
	if err != nil {
		return nil, "", err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return nil, "", err
	}
	agent := scratch + "/agent"
	if err := buildGuest(ctx, root, agent, "./lab/guest", false); err != nil {
		return nil, "", err
	}
	m := &machine{
		image: image, agent: agent, cpus: o.cpus, memory: o.memory, limit: o.timeout,
		accelerator: tcg, stdout: os.Stdout, stderr: os.Stderr,
	}
	if !o.tcg {
		if m.accelerator, err = chooseAccelerator(ctx, *m, say); err != nil {
			return nil, "", err
		}
	}
	if o.console {
		m.console = os.Stderr
	}
	return m, root, nil
}

// exitError turns a status into the error that main ends with.
func exitError(status int) error {
	if status == 0 {
		return nil
	}
	return exitStatus(status)
}

// dedent takes the tabs off that the source indents help texts with.
func dedent(s string) string {
	return strings.TrimSpace(strings.ReplaceAll(s, "\n\t", "\n"))
}
