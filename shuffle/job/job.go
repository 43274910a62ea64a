// Package job makes a program a job of several processes.
//
// [Run] finds out whether a launcher has started the program as one of several processes: srun, the mpirun of Open MPI or
// MPICH, an indexed Job of Kubernetes, or whoever sets the flags or variables of package launch. If none has, it starts the
// processes itself, on this host. In each of them it makes a runtime, has all meet, and calls a function with what an
// exchange needs:
//
//	func main() {
//		job.Main(func(ctx context.Context, p *job.Process) error {
//			return shuffle.Run(ctx, p.Config, send, receive)
//		})
//	}
//
// The package documentation of shuffle has a whole program.
//
// Exchanges may follow each other, and those that exist at the same time need names. When the function fails in one process,
// or a process dies, wherever it is, the context ends in all others, with the reason.
//
// What the program does before Run happens in each process, and once more in the one that starts them.
package job

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/signals"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/launch"
)

// Config says how a program becomes a job. The zero value serves most.
type Config struct {
	// Workers is how many processes to start on this host, if no launcher has started any. 0: as many as processors. The
	// one process of 1 is this one. Less than 0 is an error.
	Workers int
	// Wait is how long a process waits until all have come. 0: 2 minutes. Less than 0 is an error.
	Wait time.Duration
	// Runtime makes a process's runtime, of a configuration that suits an exchange but for its providers. Nil: with
	// those of [providers.Default].
	Runtime func(verbena.Config) (*verbena.Runtime, error)
	// Executable and Arguments start a process of this job. Empty: as this one was started.
	Executable string
	Arguments  []string
	// Output takes what process 0 writes to its standard output, and Errors what all write to their standard error, if
	// Run starts them. Nil: this process's.
	Output, Errors io.Writer
	// Event takes what processes tell by [launch.Child.Tell], one call at a time.
	Event func(rank int, data json.RawMessage)

	flags *launch.Flags // nil: there are none
}

// defaultWait is Config.Wait.
const defaultWait = 2 * time.Minute

// messageMemory is a runtime's, for messages of exchanges.
const messageMemory = 8 << 20

// AddFlags adds workers, wait, and the flags by which someone else starts the processes: rank, size and rendezvous.
func (c *Config) AddFlags(flags *flag.FlagSet) {
	c.flags = &launch.Flags{}
	flags.IntVar(&c.Workers, "workers", c.Workers, "processes to start on this host (default: as many as processors, if no launcher has started them)")
	flags.IntVar(&c.flags.Rank, "rank", -1, "number of this process, from 0 on, if something else starts the processes; or "+launch.RankVariable)
	flags.IntVar(&c.flags.Size, "size", 0, "how many processes there are then; or "+launch.SizeVariable)
	flags.StringVar(&c.flags.Rendezvous, "rendezvous", "", "`HOST:PORT` at which process 0 listens for the others, or unix:PATH; or "+launch.RendezvousVariable)
	flags.DurationVar(&c.Wait, "wait", defaultWait, "how long to wait until all processes have come")
}

// A Process is this process as one of a job.
type Process struct {
	// Config is for exchanges with the other processes: Runtime, Listener, Rank, Size and Addresses are set, unless there is
	// one process, which needs but Size. The rest is the program's.
	shuffle.Config
	// Wait is how long this process waits until all have come: [Config.Wait], or what its zero value means. Run has waited for that
	// once, and a program may wait as long for the others to join an exchange.
	Wait time.Duration
	// Child is nil if something else has started this process than Run.
	Child *launch.Child
}

// ErrTold is what Run fails with in a process that has told the one that has started it why.
var ErrTold = errors.New("the parent process tells why")

// Main is Run as a program's main: it adds the flags of [Config.AddFlags] to those that the program has, and parses them. If the
// job fails it says why and exits with 1. An interrupt, or SIGTERM, ends all processes, and then this one by that signal; and when
// nobody reads the output any more, it exits with 141, as a shell says of one that SIGPIPE has ended. It says nothing then.
func Main(work func(context.Context, *Process) error) {
	var c Config
	c.AddFlags(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := Run(ctx, c, work)
	interrupted := signals.Of(ctx)
	stop()
	switch {
	case err == nil:
		return
	case interrupted != nil && (errors.Is(err, ErrTold) || signals.Ends(ctx, err)):
		signals.Die(interrupted)
	case errors.Is(err, launch.ErrOutputClosed):
		os.Exit(signals.BrokenPipe)
	case !errors.Is(err, ErrTold):
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
	}
	os.Exit(1)
}

// Find tells which process of a job this one is; launched is false if no launcher has started it as one of several. It fails
// also if the configuration is impossible.
func (c *Config) Find() (w launch.Worker, launched bool, err error) {
	switch {
	case c.Workers < 0:
		return w, false, fmt.Errorf("--workers %d: want 1 or more", c.Workers)
	case c.Wait < 0:
		return w, false, fmt.Errorf("--wait %v: want more than 0", c.Wait)
	}
	flags := c.flags
	if flags == nil {
		flags = &launch.Flags{Rank: -1}
	}
	return launch.Find(*flags, os.Getenv)
}

// Run calls work in each process of a job, and returns when that has returned in this one, or, where it has started the
// processes itself, when all have ended. The context of work ends with ctx, with the process that has started this one, and
// when another process fails or dies.
func Run(ctx context.Context, c Config, work func(context.Context, *Process) error) error {
	w, launched, err := c.Find()
	if err != nil {
		return err
	}
	workers := c.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	if c.Wait == 0 {
		c.Wait = defaultWait
	}
	switch {
	case launched && c.Workers > 0 && c.Workers != w.Size && !launch.IsChild():
		return fmt.Errorf("%s has started %d processes, --workers says %d: leave it out", w.Launcher, w.Size, c.Workers)
	case launched:
		return c.part(ctx, w, work)
	case workers == 1:
		if err := work(ctx, &Process{Config: shuffle.Config{Size: 1}, Wait: c.Wait}); err != nil {
			err, _ = own(err, 0) // there are no others
			return err
		}
		return nil
	}
	local := launch.Local{Executable: c.Executable, Arguments: c.Arguments, Workers: workers, Output: c.Output, Errors: c.Errors, Event: c.Event}
	if local.Executable == "" {
		if local.Executable, err = os.Executable(); err != nil {
			return err
		}
		local.Arguments = os.Args[1:]
	}
	if local.Output == nil {
		local.Output = os.Stdout
	}
	if local.Errors == nil {
		local.Errors = os.Stderr
	}
	return local.Run(ctx)
}

// part is one process.
func (c *Config) part(ctx context.Context, w launch.Worker, work func(context.Context, *Process) error) error {
	child, ctx, cancel := launch.AsChild(ctx)
	defer cancel()
	err := c.meet(ctx, w, &Process{shuffle.Config{Rank: w.Rank, Size: w.Size}, c.Wait, child}, work)
	switch {
	case child == nil:
	case err == nil:
		err = child.Done()
	case child.Fail(own(err, w.Rank)) == nil:
		return ErrTold
	}
	return err
}

func (c *Config) meet(ctx context.Context, w launch.Worker, p *Process, work func(context.Context, *Process) error) (err error) {
	meets := false
	defer func() {
		if err != nil && !meets {
			launch.Decline(ctx, w, err) // or the others would wait
		}
	}()
	start := c.Runtime
	if start == nil {
		start = func(cfg verbena.Config) (*verbena.Runtime, error) {
			cfg.Providers = providers.Default()
			return verbena.New(cfg)
		}
	}
	// A process that is not ready yet refuses dials, which come again: no news.
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	if p.Runtime, err = start(verbena.Config{ReceiveMemory: messageMemory, SendMemory: messageMemory, Logger: quiet}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Runtime.Close()) }()
	meeting, stop := context.WithTimeoutCause(ctx, c.Wait, fmt.Errorf("not within %v (--wait)", c.Wait))
	defer stop()
	at := ":0"
	if w.OnOneHost(meeting) {
		at = "127.0.0.1:0" // nothing is authenticated there
	}
	if p.Listener, err = p.Runtime.Listen(ctx, at, verbena.ListenConfig{Services: []string{}}); err != nil {
		return err
	}
	defer p.Listener.Close()
	meets = true
	others, err := launch.Meet(meeting, w, p.Listener.Addr().String())
	if err != nil {
		return err
	}
	defer others.Close()
	p.Addresses = others.Addresses
	ctx, left := others.While(ctx)
	defer left()
	if err := work(ctx, p); err != nil {
		said, _ := own(err, w.Rank)
		others.Fail(said)
		return err
	}
	others.Done()
	return nil
}

// own is a process's error without what the others add to it, and whether it is that of another process.
func own(err error, rank int) (_ error, others bool) {
	var other *launch.OtherError
	if errors.As(err, &other) {
		return err, true
	}
	var p *shuffle.ProcessError
	if !errors.As(err, &p) {
		return err, false
	}
	text, ok := strings.CutPrefix(err.Error(), fmt.Sprintf("process %d: %v: ", rank, shuffle.ErrAborted))
	if ok {
		err = &ownError{text, err}
	}
	return err, p.Rank != rank
}

// ownError is an error that says less.
type ownError struct {
	text string
	err  error
}

func (e *ownError) Error() string { return e.text }
func (e *ownError) Unwrap() error { return e.err }
