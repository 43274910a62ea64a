package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	_ "embed"

	"github.com/verbena-data/verbena/lab/internal/job"
)

//go:embed init.sh
var initScript []byte

// A machine is one boot of the image with one job.
type machine struct {
	image  image
	job    job.Job
	agent  string // the agent's binary on the host
	files  []file
	share  string // host directory to mount at job.Share; empty for none
	cpus   int
	memory int // MiB
	limit  time.Duration
	// accelerator is kvm or tcg: see chooseAccelerator.
	accelerator string
	stdout      io.Writer
	stderr      io.Writer
	// console takes what the kernel and init print; nil keeps the end of it for
	// error messages alone.
	console io.Writer
	// terminal connects the console with this process' terminal.
	terminal bool
}

// A file is a host file in the virtual machine.
type file struct{ guest, host string }

// A machineError says that the virtual machine ended without the job's status.
type machineError struct {
	what    string
	console string
	err     error
}

func (e *machineError) Error() string {
	s := "the virtual machine " + e.what
	if e.err != nil {
		s += ": " + e.err.Error()
	}
	return s + "; its console's last lines:\n" + e.console
}

func (e *machineError) Unwrap() error { return e.err }

// run boots, and returns the job's exit status.
func (m *machine) run(ctx context.Context) (status int, err error) {
	initrd, err := os.CreateTemp("", "verbena-lab-*.cpio")
	if err != nil {
		return 0, err
	}
	defer remove(initrd.Name())
	defer initrd.Close()
	if err := m.pack(initrd); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	control := initrd.Name() + ".qmp"
	defer remove(control)

	last := &ring{size: 32 << 10}
	said := &ring{size: 256}
	sinks := []struct {
		id string
		w  io.Writer
	}{{"stdout", m.stdout}, {"stderr", m.stderr}, {"status", said}, {"console", io.Writer(last)}}
	if m.console != nil {
		sinks[3].w = io.MultiWriter(last, m.console)
	}
	args := m.arguments(initrd.Name(), control)
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64")
	cmd.Cancel = func() error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			interrogate(control)
		}
		return cmd.Process.Kill()
	}
	var copying sync.WaitGroup
	var ends, theirs []*os.File
	defer func() {
		for _, f := range append(ends, theirs...) {
			f.Close()
		}
	}()
	for i, s := range sinks {
		if s.id == "console" && m.terminal {
			args = append(args, "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console")
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		ends, theirs = append(ends, r), append(theirs, w)
		args = append(args, "-chardev", fmt.Sprintf("file,id=%s,path=/dev/fd/%d", s.id, 3+i))
		if s.id == "console" {
			args = append(args, "-serial", "chardev:console")
		} else {
			args = append(args, "-device", "virtserialport,chardev="+s.id+",name=lab."+s.id)
		}
		copying.Go(func() {
			if _, err := io.Copy(s.w, r); err != nil {
				_, _ = io.Copy(io.Discard, r) // QEMU must not block on a reader who has gone
			}
		})
	}
	cmd.Args = append(cmd.Args, args...)
	cmd.ExtraFiles = theirs
	complaint := &ring{size: 4 << 10}
	cmd.Stderr = complaint
	if m.terminal {
		cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start the virtual machine: %w", err)
	}
	for _, f := range theirs {
		f.Close()
	}
	theirs = nil
	ended := cmd.Wait()
	copying.Wait()

	if rest, ok := strings.CutPrefix(strings.TrimSpace(said.String()), "exit "); ok {
		if status, err = strconv.Atoi(rest); err == nil {
			return status, nil
		}
	}
	return 0, m.failure(ctx, ended, last.String(), complaint.String())
}

// arguments are QEMU's, but for what the machine writes to.
func (m *machine) arguments(initrd, control string) []string {
	args := []string{
		"-machine", "q35", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-smp", strconv.Itoa(m.cpus), "-m", strconv.Itoa(m.memory),
		"-kernel", m.image.kernel, "-initrd", initrd,
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off no_timer_check tsc=reliable nokaslr random.trust_cpu=on unknown_nmi_panic panic_print=0x40 psi=1",
		"-device", "virtio-serial-pci", "-qmp", "unix:" + control + ",server=on,wait=off",
	}
	if m.accelerator == kvm {
		args = append(args, "-accel", "kvm", "-cpu", "host")
	} else {
		args = append(args, "-accel", "tcg,thread=multi", "-cpu", "max")
	}
	if m.share != "" {
		args = append(args, "-virtfs", "local,path="+m.share+",mount_tag="+job.ShareTag+",security_model=none,multidevs=remap")
	}
	return args
}

// failure tells why the machine has no status to tell: how QEMU ended, and what it and
// the console said.
func (m *machine) failure(ctx context.Context, ended error, console, complaint string) error {
	failure := &machineError{what: "ended without telling the command's status", console: tail(console, 120), err: ended}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		failure.what, failure.err = fmt.Sprintf("was killed after %v (--timeout)", m.limit), ctx.Err()
	case ctx.Err() != nil:
		failure.what, failure.err = "was killed", ctx.Err()
	case complaint != "":
		failure.what = "failed: qemu-system-x86_64: " + strings.TrimSpace(complaint)
	}
	return failure
}

// interrogate makes a virtual machine that hangs show on its console where its
// processors are: an interrupt that nothing masks makes the kernel panic, tell, and
// end. What does not work is left: the machine is killed anyway.
func interrogate(control string) {
	c, err := net.Dial("unix", control)
	if err != nil {
		return
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return
	}
	if _, err := io.WriteString(c, `{"execute":"qmp_capabilities"}{"execute":"inject-nmi"}`); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c) // until it has ended
}

// pack writes the initial RAM file system: the image's and the job's.
func (m *machine) pack(f *os.File) error {
	base, err := os.Open(m.image.base)
	if err != nil {
		return err
	}
	defer base.Close()
	if _, err := io.Copy(f, base); err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	a := newArchive(w)
	if err := a.bytes("init", 0o755, initScript); err != nil {
		return err
	}
	description, err := m.job.Encode()
	if err != nil {
		return err
	}
	if err := a.bytes(job.File, 0o644, description); err != nil {
		return err
	}
	if err := a.file(job.Agent, m.agent); err != nil {
		return err
	}
	for _, f := range m.files {
		if err := a.program(f.guest, f.host); err != nil {
			return err
		}
	}
	if err := a.close(); err != nil {
		return err
	}
	return w.Flush()
}

// buildGuest builds a package of this module for the virtual machine: a program,
// or with test its tests.
func buildGuest(ctx context.Context, root, out, pkg string, test bool) error {
	args := []string{"build"}
	if test {
		args = []string{"test", "-c"}
	}
	args = append(args, "-o", out, "-ldflags=-s -w", pkg)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, output)
	}
	return nil
}

// moduleRoot is the directory of this module's go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := command(ctx, "", "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}")
	if err != nil {
		return "", err
	}
	path, dir, _ := strings.Cut(strings.TrimSpace(out), " ")
	if path != module {
		return "", fmt.Errorf("run the lab inside the module %s: this is %s", module, path)
	}
	return filepath.Clean(dir), nil
}

// A ring keeps the last bytes written to it.
type ring struct {
	mu   sync.Mutex
	size int
	b    []byte
}

func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.b = append(r.b, p...)
	if extra := len(r.b) - r.size; extra > 0 {
		r.b = append(r.b[:0], r.b[extra:]...)
	}
	return len(p), nil
}

func (r *ring) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.b)
}
