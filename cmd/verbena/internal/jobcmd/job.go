// Package jobcmd is what the commands that are jobs of several processes have in common: flags, how the memory is divided, how
// far the processes are, and how the result is told. Package shuffle/job runs them.
package jobcmd

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/bytesize"
	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/job"
	"github.com/verbena-data/verbena/shuffle/launch"
)

// Options are a job's flags.
type Options struct {
	Threads     int
	Memory      bytesize.Size
	Transport   string
	Temporary   string
	Metrics     string // HOST:PORT of process 0, or empty
	JSON, Quiet bool

	job job.Config
}

// AddFlags adds them to a command; Threads may have a default of its own. transports names what can be chosen.
func (o *Options) AddFlags(flags *pflag.FlagSet, transports string) {
	o.Memory = 512 << 20
	o.Threads = max(1, o.Threads)
	flags.IntVar(&o.Threads, "threads", o.Threads, "threads of a process that read and send, and as many that receive")
	flags.Var(&o.Memory, "memory", "memory of all processes together, such as 512MiB or 2G; what does not fit goes to temporary files")
	flags.StringVar(&o.Transport, "transport", verbena.TransportAuto, transports+"; between the processes")
	flags.StringVarP(&o.Temporary, "temporary-directory", "T", "", "`directory` for temporary files (default: TMPDIR, or where the output goes)")
	flags.BoolVar(&o.JSON, "json", false, "what was done as one JSON object")
	flags.StringVar(&o.Metrics, "metrics", "", "serve Prometheus metrics of process N at http://`HOST:PORT`/metrics with PORT+N, or at any port if it is 0, and a page for a browser at / of what the process does")
	flags.BoolVarP(&o.Quiet, "quiet", "q", false, "no progress bar")
	launched := flag.NewFlagSet("", flag.ContinueOnError)
	o.job.AddFlags(launched)
	flags.AddGoFlagSet(launched)
}

// LauncherHelp tells how jobs are launched, for the help of commands.
const LauncherHelp = `Without a launcher the command starts its processes on this host. Under one each of
them is a process of the job: srun, the mpirun of Open MPI and of MPICH, and indexed
Jobs of Kubernetes tell them their numbers. On several hosts those but srun need
--rendezvous HOST:PORT too, an address of the host of process 0:

  srun -n 8 verbena %[1]s
  mpirun -n 4 verbena %[1]s
  VERBENA_SIZE=4 VERBENA_RENDEZVOUS=job-0.job:4700 verbena %[1]s   # in an indexed Job
  verbena %[1]s --rank 1 --size 2 --rendezvous node1:4700         # by hand`

// A Job is a command that runs as several processes.
type Job struct {
	Options
	// Runtime makes the runtime of one of the processes.
	Runtime func(verbena.Config) (*verbena.Runtime, error)
	Output  io.Writer
	Errors  io.Writer
	// Inputs are the names of the inputs, of which StandardInput is Input. Those that can be read but once go to temporary files in the
	// directory Spool.
	Inputs []string
	Input  io.Reader
	Spool  string
	// What names the job in the progress bar.
	What string
	// Divide gives a process's memory to its exchange, and the rest to the work.
	Divide func(memory int64, threads int) (exchange, work int64, err error)
	// Work is done in each process. What it returns for process 0 is printed by Report, or as JSON.
	Work   func(context.Context, *Part) (any, error)
	Report func(w io.Writer, result any) error

	instead map[string]string
}

// Part is one process's.
type Part struct {
	Exchange *shuffle.Exchange
	Runtime  *verbena.Runtime // nil if there is one process
	Memory   int64
	// Instead has the paths of inputs that the command has read for its processes, by their names: see [dataset.Files].
	Instead map[string]string
	tell    func(done, total int64)
	last    time.Time
	mu      sync.Mutex
}

// Tell says that this process has done so many units of what all have to do together. It
// may be called concurrently, and often.
func (p *Part) Tell(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.last) >= 100*time.Millisecond {
		p.last = now
		p.tell(done, total)
	}
}

// advance is what a process tells its parent.
type advance struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// Run runs the job, or this process's part in it.
func (j *Job) Run(ctx context.Context) error {
	if j.Threads < 1 {
		return fmt.Errorf("--threads %d: want 1 or more", j.Threads)
	}
	_, launched, err := j.job.Find()
	if err != nil {
		return err
	}
	cfg := j.job
	cfg.Runtime, cfg.Output, cfg.Errors = j.Runtime, j.Output, j.Errors
	if launch.IsChild() {
		if j.instead, err = readSpooled(); err != nil {
			return err
		}
	}
	if !launched {
		if cfg.Workers == 0 {
			cfg.Workers = runtime.GOMAXPROCS(0)
			for ; cfg.Workers > 1; cfg.Workers-- { // as many as the memory is enough for
				if _, _, err := j.Divide(int64(j.Memory)/int64(cfg.Workers), j.Threads); err == nil {
					break
				}
			}
		}
		if _, _, err := j.Divide(int64(j.Memory)/int64(cfg.Workers), j.Threads); err != nil {
			return err
		}
		inputs, err := spool(ctx, j.Inputs, j.Input, j.Spool)
		if err != nil {
			return err
		}
		defer inputs.Close()
		if err := inputs.tell(); err != nil {
			return err
		}
		j.instead = inputs.paths
		bar := newBars(j.bar(), cfg.Workers)
		defer bar.finish()
		cfg.Event = func(rank int, data json.RawMessage) {
			var a advance
			if json.Unmarshal(data, &a) == nil {
				bar.set(rank, a)
			}
		}
	}
	return job.Run(ctx, cfg, j.part)
}

// part is one process.
func (j *Job) part(ctx context.Context, process *job.Process) (err error) {
	exchange, memory, err := j.Divide(int64(j.Memory)/int64(process.Size), j.Threads)
	if err != nil {
		return err
	}
	// The heap is small: records lie outside it.
	debug.SetMemoryLimit(heapLimit)
	cfg := process.Config
	cfg.Name, cfg.Threads, cfg.Memory, cfg.Transport = "job", j.Threads, exchange, j.Transport
	p := &Part{Memory: memory, Runtime: cfg.Runtime, Instead: j.instead}
	joining, stop := context.WithTimeoutCause(ctx, process.Wait, fmt.Errorf("not within %v (--wait)", process.Wait))
	p.Exchange, err = shuffle.Join(joining, cfg)
	stop()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Exchange.Close()) }()
	if process.Size > 1 && process.Child == nil {
		if err := j.refuseOnce(); err != nil {
			p.Exchange.Abort(err)
			return err
		}
	}
	if child := process.Child; child != nil {
		p.tell = func(done, total int64) { _ = child.Tell(advance{done, total}) }
	} else {
		// Under a launcher process 0 shows itself, as one of many.
		bar := newBars(nil, 1)
		if cfg.Rank == 0 {
			bar = newBars(j.bar(), 1)
		}
		defer bar.finish()
		p.tell = func(done, total int64) { bar.set(0, advance{done * int64(cfg.Size), total}) }
	}
	result, err := j.Work(ctx, p)
	if err != nil || cfg.Rank != 0 {
		return err
	}
	if j.JSON {
		return json.NewEncoder(j.Output).Encode(result)
	}
	return j.Report(j.Output, result)
}

const heapLimit = 24 << 20

// bar is a progress bar on a terminal, or nil.
func (j *Job) bar() *progressbar.ProgressBar {
	f, ok := j.Errors.(*os.File)
	if j.Quiet || j.JSON || !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	// Any length but an unknown one, with which a goroutine draws the bar, also when it has been cleared.
	return progressbar.NewOptions64(1,
		progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(j.What), progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetWidth(30), progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
}

// bars adds up what processes have done.
type bars struct {
	bar  *progressbar.ProgressBar
	done []int64
}

func newBars(bar *progressbar.ProgressBar, n int) *bars { return &bars{bar, make([]int64, n)} }

func (b *bars) set(rank int, a advance) {
	if b.bar == nil {
		return
	}
	b.done[rank] = a.Done
	var sum int64
	for _, n := range b.done {
		sum += n
	}
	if b.bar.GetMax64() != a.Total {
		b.bar.ChangeMax64(a.Total)
	}
	_ = b.bar.Set64(min(sum, a.Total))
}

func (b *bars) finish() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}
