// Command guest is the lab's agent inside the virtual machine: it brings up the
// network that its job asks for, runs the job's command, sends the output and
// the exit status out over virtio-serial ports, and returns to init, which
// switches the machine off.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/lab/internal/job"
	"github.com/verbena-data/verbena/lab/internal/world"
)

func main() {
	status, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab agent:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func run() (int, error) {
	j, err := job.Read(job.File)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := world.LoadModules(ctx, "virtio_pci", "virtio_console"); err != nil {
		return 0, err
	}
	var ports [3]*os.File
	for i, name := range []string{job.PortStdout, job.PortStderr, job.PortStatus} {
		if ports[i], err = openPort(ctx, name); err != nil {
			return 0, err
		}
		defer ports[i].Close()
	}
	if err := prepare(ctx, j); err != nil {
		fmt.Fprintln(ports[1], "lab agent:", err)
		return 0, errors.Join(err, report(ports[2], 125))
	}
	cmd := exec.Command(j.Argv[0], j.Argv[1:]...)
	cmd.Env = append(append(os.Environ(), job.InsideVariable+"=1"), j.Env...)
	cmd.Dir = j.Dir
	if j.Console {
		return 0, errors.Join(shell(cmd), report(ports[2], 0))
	}
	// Not the ports themselves: a port can be opened once, and programs reopen
	// what they find at /dev/stdout.
	cmd.Stdout, cmd.Stderr = struct{ io.Writer }{ports[0]}, struct{ io.Writer }{ports[1]}
	// Children that outlive the command hold its output open.
	cmd.WaitDelay = 2 * time.Second
	status := 0
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled():
			status = 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
			fmt.Fprintln(ports[1], "lab agent:", err)
		case errors.As(err, &exit):
			status = exit.ExitCode()
		case errors.Is(err, exec.ErrWaitDelay):
			fmt.Fprintln(ports[1], "lab agent: the command left children behind")
		default:
			status = 127
			fmt.Fprintln(ports[1], "lab agent:", err)
		}
	}
	if status != 0 && j.ShellOnFailure {
		fmt.Fprintln(ports[1], "lab agent: status", status, "- a shell on the console; exit ends it")
		sh := exec.Command("/bin/sh")
		sh.Env, sh.Dir = cmd.Env, cmd.Dir
		if err := shell(sh); err != nil {
			fmt.Fprintln(ports[1], "lab agent: shell:", err)
		}
	}
	return 0, report(ports[2], status)
}

// prepare brings up what the job asks for.
func prepare(ctx context.Context, j job.Job) error {
	if j.Share {
		if err := world.LoadModules(ctx, "9pnet_virtio", "9p"); err != nil {
			return err
		}
		if err := os.MkdirAll(job.Share, 0o755); err != nil {
			return err
		}
		if _, err := world.Run(ctx, "mount", "-t", "9p", "-o", "trans=virtio,version=9p2000.L,msize=1048576", job.ShareTag, job.Share); err != nil {
			return err
		}
	}
	if err := world.SetUp(ctx, j.World); err != nil || j.Loss == 0 {
		return err
	}
	for _, i := range []string{world.Interface0, world.Interface1} {
		if err := world.Loss(ctx, i, j.Loss); err != nil {
			return err
		}
	}
	return nil
}

// shell runs a command with the console as its terminal.
func shell(cmd *exec.Cmd) error {
	console, err := os.OpenFile("/dev/ttyS0", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer console.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = console, console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) { // the status of its last command
		return nil
	}
	return err
}

// openPort opens a port, which the driver may take a moment to make.
func openPort(ctx context.Context, name string) (*os.File, error) {
	for {
		path, err := job.Port(name)
		if err == nil {
			var f *os.File
			if f, err = os.OpenFile(path, os.O_WRONLY, 0); err == nil {
				return f, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("open port: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func report(port *os.File, status int) error {
	_, err := port.WriteString("exit " + strconv.Itoa(status) + "\n")
	return err
}
