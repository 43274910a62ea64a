package cases

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/lab/internal/world"
)

// A program is a child process that says on its output how far it is.
type program struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd

	mu      sync.Mutex
	said    bytes.Buffer
	changed chan struct{} // closed and replaced when more was said or it ended
	ended   bool
	err     error
	done    chan struct{}
}

// start starts a program in a network namespace, or in this one if that is
// empty. It is killed at the end of the test.
func start(t *testing.T, namespace, name string, args ...string) *program {
	t.Helper()
	argv := append([]string{name}, args...)
	if namespace != "" {
		argv = append([]string{"ip", "netns", "exec", namespace}, argv...)
	}
	p := &program{t: t, name: strings.Join(argv, " "), changed: make(chan struct{}), done: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	go func() {
		err := p.cmd.Wait()
		p.mu.Lock()
		p.ended, p.err = true, err
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
		close(p.done)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			p.quit()
		}
		p.kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", p.name, p.output())
		}
	})
	return p
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said.Write(b)
	close(p.changed)
	p.changed = make(chan struct{})
	return len(b), nil
}

var _ io.Writer = (*program)(nil)

func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// says waits until the program has said something.
func (p *program) says(ctx context.Context, text string) {
	p.t.Helper()
	for {
		p.mu.Lock()
		has, ended, changed := strings.Contains(p.said.String(), text), p.ended, p.changed
		p.mu.Unlock()
		if has {
			return
		}
		if ended {
			p.t.Fatalf("%s ended without saying %q", p.name, text)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			p.quit()
			p.t.Fatalf("%s does not say %q: %v", p.name, text, ctx.Err())
		}
	}
}

// quit ends a program that hangs; one of ours shows its stacks.
func (p *program) quit() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT) // it may have ended
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
	}
}

// succeeds waits for the program's end, with status 0.
func (p *program) succeeds(ctx context.Context) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.quit()
		p.t.Fatalf("%s does not end: %v", p.name, ctx.Err())
	}
	if p.err != nil {
		p.t.Fatalf("%s: %v", p.name, p.err)
	}
}

// rpingServed waits for the end of rping's server, whose client has succeeded. After
// the client's disconnect its main thread closes the channel of events that another of
// its threads reads; when that one comes late it calls exit(-1) for it.
func (p *program) rpingServed(ctx context.Context) {
	p.t.Helper()
	select {
	case <-p.done:
		said := p.output()
		if p.err != nil && p.cmd.ProcessState.ExitCode() == 255 &&
			strings.Contains(said, "server DISCONNECT EVENT") && strings.HasSuffix(strings.TrimSpace(said), "rdma_get_cm_event: Bad file descriptor") {
			return
		}
	case <-ctx.Done():
	}
	p.succeeds(ctx)
}

// listensRDMA waits until a listener of rdma_cm is at a port: there is a
// resource of that source port then.
func listensRDMA(ctx context.Context, t *testing.T, p *program, port string) {
	t.Helper()
	for {
		out, err := world.Run(ctx, "rdma", "resource", "show", "cm_id")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(out, "\n") {
			if strings.Contains(line, "state LISTEN") && strings.Contains(line, ":"+port+" ") {
				return
			}
		}
		select {
		case <-p.done:
			t.Fatalf("%s ended before it listened: %v", p.name, p.err)
		case <-ctx.Done():
			t.Fatalf("%s does not listen at port %s: %v; there are:\n%s", p.name, port, ctx.Err(), out)
		case <-time.After(20 * time.Millisecond): // the kernel has no event for it
		}
	}
}

// setUp fails the test if a step of setting up the network does.
func setUp(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("set up the network: %v", err)
	}
}

// kernelIsSane fails the test if the kernel has complained of itself.
func kernelIsSane(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	record := make([]byte, 8192)
	for {
		n, err := syscall.Read(int(f.Fd()), record)
		if errors.Is(err, syscall.EAGAIN) {
			return
		}
		if errors.Is(err, syscall.EPIPE) { // records were overwritten meanwhile
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"BUG:", "kernel BUG at", "Oops", "general protection", "rcu_sched self-detected", "refcount_t:"} {
			if strings.Contains(string(record[:n]), bad) {
				t.Errorf("the kernel complains: %s", record[:n])
			}
		}
	}
}
