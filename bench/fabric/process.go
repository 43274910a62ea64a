package main

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

// patience bounds one measurement by another program.
const patience = 90 * time.Second

// A process is a passive end that runs in the background.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	output bytes.Buffer
	done   chan struct{} // closed when it has ended
	err    error         // why, after that
}

// start runs a program. What it prints is kept for the case that it fails.
func start(file *os.File, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if file != nil {
		p.cmd.ExtraFiles = []*os.File{file}
	}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
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

func startSelf(file *os.File, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(file, self, args...)
}

// stop waits a little for the process to end by itself, then kills it.
func (p *process) stop() error {
	_ = p.stdin.Close() // it may not read
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s: %w: %s", p.cmd.Path, p.err, tail(p.output.String()))
		}
		return nil
	case <-time.After(3 * time.Second):
		return p.kill()
	}
}

// kill ends the process.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done // was killed: its status says no more
	return nil
}

// output runs a program to its end and returns what it printed.
func output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w after %s", context.Cause(ctx), patience)
		}
		return "", fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, tail(out.String()), tail(errOut.String()))
	}
	return out.String(), nil
}

func tail(s string) string {
	const most = 400
	if s = strings.TrimSpace(s); len(s) > most {
		return "..." + s[len(s)-most:]
	}
	return s
}

// number runs this program's bare peer and returns the number it prints.
func number(ctx context.Context, args ...string) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	out, err := output(ctx, nil, self, append([]string{"bare"}, args...)...)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(out), 64)
}
