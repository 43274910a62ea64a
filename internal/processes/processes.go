// Package processes runs the project's servers as child processes: it starts
// one, waits until it has written the address it listens on, tells what it
// costs, and stops or kills it. The demo and the tests that kill processes
// share it.
package processes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience bounds how long a process may take to start or to stop.
const patience = 20 * time.Second

// Process is a child process. Its methods belong to one goroutine at a time.
type Process struct {
	Name    string
	Address string // what it wrote to its address file
	cmd     *exec.Cmd
	log     tail
	exited  chan struct{} // closed when it has been waited for; err is set before
	err     error
	killed  bool
}

// Start runs a command that writes the address it listens on to addressFile
// when it is ready, and returns then. What it prints is appended to a file of that name
// with .log behind it. The child gets no signal from the terminal and does not outlive
// this process.
func Start(ctx context.Context, name, addressFile, executable string, args ...string) (*Process, error) {
	if err := os.Remove(addressFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	p := &Process{Name: name, cmd: exec.Command(executable, args...), exited: make(chan struct{})}
	log, err := os.OpenFile(addressFile+".log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	out := io.MultiWriter(&p.log, log)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = childAttributes()
	if err := p.cmd.Start(); err != nil {
		log.Close()
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		log.Close()
		close(p.exited)
	}()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if address, err := os.ReadFile(addressFile); err == nil {
			p.Address = strings.TrimSpace(string(address))
			return p, nil
		}
		var err error
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-p.exited:
			return nil, fmt.Errorf("%s ended before it was ready (%s)\n%s", name, p.cmd.ProcessState, p.log.String())
		case <-deadline.C:
			err = fmt.Errorf("%s was not ready after %v\n%s", name, patience, p.log.String())
		case <-tick.C:
			continue
		}
		p.Kill()
		return nil, err
	}
}

// Stop asks the process to end with SIGTERM and waits. An exit status other
// than 0 is an error that carries the end of what it printed.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself: the wait tells
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.Kill()
		return fmt.Errorf("%s did not stop within %v and was killed\n%s", p.Name, patience, p.log.String())
	}
	if p.err != nil && !p.killed {
		return fmt.Errorf("%s: %w\n%s", p.Name, p.err, p.log.String())
	}
	return nil
}

// Kill ends the process with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	p.killed = true
	_ = p.cmd.Process.Kill() // fails only if it is gone already
	<-p.exited
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// CPU is the user and system time that it has used so far.
func (p *Process) CPU() (time.Duration, error) { return CPUTime(p.Pid()) }

// Log is the end of what it printed.
func (p *Process) Log() string { return p.log.String() }

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if extra := t.buf.Len() - tailSize; extra > 0 {
		t.buf.Next(extra)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
