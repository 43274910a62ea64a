package rdmatest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"golang.org/x/sys/unix"
)

// An Opener opens the device that a child process uses.
type Opener func() (rdma.Device, error)

// childVariable tells a process that it is a child, and with which opener.
const childVariable = "VERBENA_RDMATEST_CHILD"

// RunChild serves as the other side, and ends the process, if this process is
// one that [Process] started. Otherwise it returns. It must be the first thing
// in TestMain of a package that uses Process.
func RunChild(openers map[string]Opener) {
	name, ok := os.LookupEnv(childVariable)
	if !ok {
		return
	}
	if err := runChild(openers[name], name); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runChild(open Opener, name string) error {
	if open == nil {
		return fmt.Errorf("rdmatest: no opener %q was given to RunChild", name)
	}
	device, err := open()
	if err != nil {
		return fmt.Errorf("rdmatest: open device of the child process: %w", err)
	}
	return ServeDevice(&pipes{os.NewFile(3, "calls"), os.NewFile(4, "replies")}, device)
}

// pipes are the two directions of a control connection.
type pipes struct{ in, out *os.File }

func (p *pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pipes) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p *pipes) Close() error                { return errors.Join(p.in.Close(), p.out.Close()) }

// StartChild starts this test binary as a process that serves the device of an
// opener of that name (see [RunChild]). The peer's Kill must be called.
func StartChild(opener string) (*Peer, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	callsOut, calls, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	replies, repliesIn, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, callsOut.Close(), calls.Close())
	}
	cmd := exec.Command(executable)
	cmd.Env = append(os.Environ(), childVariable+"="+opener)
	cmd.ExtraFiles = []*os.File{callsOut, repliesIn}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	err = cmd.Start()
	callsOut.Close()
	repliesIn.Close()
	control := &pipes{replies, calls}
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	kill := func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // which tells only how
	}
	device, err := RemoteDevice(control)
	if err != nil {
		kill()
		return nil, fmt.Errorf("%w (did TestMain call RunChild?)", err)
	}
	var once sync.Once
	return &Peer{
		Device: device,
		Kill: func() {
			once.Do(func() {
				kill()
				control.Close()
				device.(*remoteDevice).reading.Wait()
			})
		},
		Stop: func() {
			_ = cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
			// The signal has been sent; wait until it has stopped all threads.
			var status unix.WaitStatus
			for {
				_, err := unix.Wait4(cmd.Process.Pid, &status, unix.WUNTRACED, nil)
				if err != unix.EINTR {
					return
				}
			}
		},
		Continue: func() { _ = cmd.Process.Signal(syscall.SIGCONT) },
	}, nil
}

// Process returns a maker of peers that are child processes: the test binary
// itself, whose TestMain calls [RunChild] with an opener of that name.
func Process(opener string) func(t *testing.T) *Peer {
	return func(t *testing.T) *Peer {
		t.Helper()
		p, err := StartChild(opener)
		if err != nil {
			t.Errorf("rdmatest: start child process: %v", err)
			return nil
		}
		return p
	}
}

var _ io.ReadWriteCloser = (*pipes)(nil)
