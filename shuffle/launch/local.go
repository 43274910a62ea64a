package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// childVariable says that this process is a child of Local: its input ends when its parent
// does, and a descriptor takes events.
const childVariable = "VERBENA_CHILD"

// eventsDescriptor is the first one after the usual three.
const eventsDescriptor = 3

// endLimit is how long processes may take to end.
const endLimit = 10 * time.Second

// Local starts the processes of a job on this host.
type Local struct {
	Executable string
	Arguments  []string
	Workers    int
	// Output takes what rank 0 writes, Errors what all write to their standard error,
	// each line with its process's number in front.
	Output, Errors io.Writer
	// Event takes what processes tell by [Child.Tell], one call at a time.
	Event func(rank int, data json.RawMessage)
}

// event is a line of what a process tells.
type event struct {
	Data json.RawMessage `json:"data,omitempty"`
	// Failed is why the process ends; Caused tells that another one's end is the reason.
	Failed string `json:"failed,omitempty"`
	Caused bool   `json:"caused,omitempty"`
	Done   bool   `json:"done,omitempty"` // its part
}

// ended is how a process has ended.
type ended struct {
	rank   int
	err    error // nil: in order
	said   string
	caused bool
}

// Run starts the processes and waits until all have ended; for programs that these have started it does not wait. When one fails, or exits without
// [Child.Done], the others are told to end, and killed 10 s later. The error is the first process's whose failure was not
// that of another one.
func (l Local) Run(ctx context.Context) (err error) {
	place, remove, err := newPlace()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make(chan ended)
	var one sync.Mutex // Event and Errors
	var children []*child
	failStart := error(nil)
	for rank := range l.Workers {
		c, err := l.start(rank, place, &one)
		if err != nil {
			failStart = fmt.Errorf("starting process %d: %w", rank, err)
			break
		}
		children = append(children, c)
		go func() { results <- c.wait() }()
	}
	end := sync.OnceFunc(func() {
		for _, c := range children {
			_ = c.input.Close()
		}
		time.AfterFunc(endLimit, func() {
			for _, c := range children {
				_ = c.command.Process.Kill() // an error if it has ended
			}
		})
	})
	if failStart != nil {
		end()
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	var first *ended
	for range children {
		r := <-results
		if r.err == nil {
			continue
		}
		if first == nil || first.caused && !r.caused {
			first = &r
		}
		end()
	}
	switch {
	case failStart != nil:
		return failStart
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case first == nil:
		return nil
	case first.rank == 0 && endedByPipe(first.err):
		return fmt.Errorf("process 0 of %d: %w", l.Workers, ErrOutputClosed)
	case first.said != "":
		return fmt.Errorf("process %d of %d: %s", first.rank, l.Workers, first.said)
	}
	return fmt.Errorf("process %d of %d ended: %w", first.rank, l.Workers, first.err)
}

type child struct {
	rank    int
	command *exec.Cmd
	input   io.Closer
	outlets []*outlet
	errors  *prefixed
	last    event
}

func (l Local) start(rank int, rendezvous string, one *sync.Mutex) (_ *child, err error) {
	cmd := exec.Command(l.Executable, l.Arguments...)
	cmd.Env = append(os.Environ(), childVariable+"=1",
		fmt.Sprintf("%s=%d", RankVariable, rank), fmt.Sprintf("%s=%d", SizeVariable, l.Workers), RendezvousVariable+"="+rendezvous)
	c := &child{rank: rank, command: cmd, errors: &prefixed{to: l.Errors, prefix: fmt.Sprintf("[%d] ", rank), one: one}}
	if c.input, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			return
		}
		_ = c.input.Close()
		for _, o := range c.outlets {
			o.close()
		}
	}()
	if file, ok := l.Output.(*os.File); rank == 0 && ok {
		cmd.Stdout = file
	} else if rank == 0 && l.Output != nil {
		if cmd.Stdout, err = c.outlet(func(r io.Reader) error { return copyTo(l.Output, r) }); err != nil {
			return nil, err
		}
	}
	if cmd.Stderr, err = c.outlet(func(r io.Reader) error { return copyTo(c.errors, r) }); err != nil {
		return nil, err
	}
	events, err := c.outlet(func(r io.Reader) error { l.take(c, r, one); return nil })
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{events}
	if err = cmd.Start(); err != nil {
		return nil, err
	}
	for _, o := range c.outlets {
		o.start()
	}
	return c, nil
}

// outlet makes one of the process, and returns the process's end of it.
func (c *child) outlet(read func(io.Reader) error) (*os.File, error) {
	o, err := newOutlet(read)
	if err != nil {
		return nil, err
	}
	c.outlets = append(c.outlets, o)
	return o.theirs, nil
}

func copyTo(w io.Writer, r io.Reader) error {
	_, err := io.Copy(w, r)
	return err
}

// take takes a process's events.
func (l Local) take(c *child, events io.Reader, one *sync.Mutex) {
	for d := json.NewDecoder(events); ; {
		var e event
		if d.Decode(&e) != nil {
			return
		}
		if e.Failed != "" || e.Done {
			c.last = e
		} else if l.Event != nil {
			one.Lock()
			l.Event(c.rank, e.Data)
			one.Unlock()
		}
	}
}

func (c *child) wait() ended {
	err := c.command.Wait()
	for _, o := range c.outlets {
		o.end()
	}
	for _, o := range c.outlets {
		if <-o.done; o.err != nil && (err == nil || endedByPipe(err)) {
			err = o.err
		}
	}
	if len(c.errors.rest) > 0 {
		_, _ = c.errors.Write([]byte("\n"))
	}
	if err == nil && !c.last.Done {
		err = errEarly
	}
	return ended{c.rank, err, c.last.Failed, c.last.Caused}
}

// ErrOutputClosed is why a job fails whose process 0 writes to a pipe that nobody reads any more. A shell's other commands end
// silently then.
var ErrOutputClosed = errors.New("nobody reads the output any more")

// endedByPipe tells whether a process has written to a pipe that nobody reads.
func endedByPipe(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGPIPE
}

// errEarly is how a process has ended that the others would wait for.
var errEarly = errors.New("exit status 0 before its part was done")

// prefixed writes whole lines, with a prefix each.
type prefixed struct {
	to     io.Writer
	prefix string
	one    *sync.Mutex
	rest   []byte
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		line, rest, ok := bytes.Cut(p.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		p.one.Lock()
		_, err := fmt.Fprintf(p.to, "%s%s\n", p.prefix, line)
		p.one.Unlock()
		if err != nil {
			return 0, err
		}
		p.rest = rest
	}
}

// A Child is this process as one that [Local] has started.
type Child struct {
	mu     sync.Mutex
	events *os.File
}

// AsChild returns this process as a child of Local, or nil if it is none, and a context that
// ends when the parent does. A process that is still there 10 s later exits by itself.
func AsChild(ctx context.Context) (*Child, context.Context, context.CancelFunc) {
	if os.Getenv(childVariable) != "1" {
		ctx, cancel := context.WithCancel(ctx)
		return nil, ctx, cancel
	}
	_ = os.Unsetenv(childVariable) // not for children of this one
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // ends with the input or with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		time.AfterFunc(endLimit, func() { os.Exit(1) })
		cancel(errors.New("the job has been ended"))
	}()
	syscall.CloseOnExec(eventsDescriptor) // programs that it starts have nothing to tell
	return &Child{events: os.NewFile(eventsDescriptor, "events")}, ctx, func() { cancel(nil) }
}

// Tell hands something to the parent's Event. It may be used concurrently.
func (c *Child) Tell(data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return c.write(event{Data: b})
}

// Done tells the parent that this process has done its part. One that exits without having
// said so has failed.
func (c *Child) Done() error { return c.write(event{Done: true}) }

// Fail tells the parent why this process ends; caused says that another process's end is
// the reason.
func (c *Child) Fail(err error, caused bool) error {
	return c.write(event{Failed: err.Error(), Caused: caused})
}

func (c *Child) write(e event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return json.NewEncoder(c.events).Encode(e)
}

// IsChild tells whether this process is a child of Local.
func IsChild() bool { return os.Getenv(childVariable) == "1" }
