package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Patience bounds one measurement by another program.
const Patience = 90 * time.Second

// A Process is a passive end that runs in the background.
type Process struct {
	cmd    *exec.Cmd
	Stdin  io.WriteCloser
	output bytes.Buffer
	done   chan struct{} // closed when it has ended
	err    error         // why, after that
}

// Start runs a program. What it prints is kept for the case that it fails.
func Start(file *os.File, name string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if file != nil {
		p.cmd.ExtraFiles = []*os.File{file}
	}
	var err error
	if p.Stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// StartSelf runs this program.
func StartSelf(file *os.File, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return Start(file, self, args...)
}

// Stop waits a little for the process to end by itself, then kills it.
func (p *Process) Stop() error {
	_ = p.Stdin.Close() // it may not read
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s: %w: %s", p.cmd.Path, p.err, Tail(p.output.String()))
		}
		return nil
	case <-time.After(3 * time.Second):
		return p.Kill()
	}
}

// Kill ends the process.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done // was killed: its status says no more
	return nil
}

// Output runs a program to its end and returns what it printed.
func Output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w after %s", context.Cause(ctx), Patience)
		}
		return "", fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, Tail(out.String()), Tail(errOut.String()))
	}
	return out.String(), nil
}

// Tail is the end of a text.
func Tail(s string) string {
	const most = 400
	if s = strings.TrimSpace(s); len(s) > most {
		return "..." + s[len(s)-most:]
	}
	return s
}

// Said is the end of what the process has printed.
func (p *Process) Said() string { return Tail(p.output.String()) }

// OutputSelf runs this program to its end and returns what it printed.
func OutputSelf(ctx context.Context, args ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return Output(ctx, nil, self, args...)
}

// Number runs this program and returns the number that it prints.
func Number(ctx context.Context, args ...string) (float64, error) {
	out, err := OutputSelf(ctx, args...)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(out), 64)
}
