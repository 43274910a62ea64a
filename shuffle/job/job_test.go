package job

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/launch"
)

// roleVariable makes the test binary a process of a job.
const roleVariable = "VERBENA_JOB_TEST"

// whereVariable says whether such a process listens at a loopback address, and whether at all addresses, if that is looked at.
const whereVariable = "VERBENA_JOB_TEST_WHERE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if role == "leave" && os.Getenv(launch.RankVariable) == "1" {
			os.Exit(0) // before it meets the others
		}
		Main(func(ctx context.Context, p *Process) error { return play(ctx, p, role) })
		return
	}
	goleak.VerifyTestMain(m)
}

// play does several exchanges, one after the other and two at a time. Between the first two process 1 fails, or dies.
func play(ctx context.Context, p *Process, role string) error {
	if where := os.Getenv(whereVariable); where != "" {
		at, err := netip.ParseAddrPort(p.Listener.Addr().String())
		if err != nil || fmt.Sprint(at.Addr().IsLoopback(), at.Addr().IsUnspecified()) != where {
			return fmt.Errorf("process %d listens at %v, %w", p.Rank, at, err)
		}
	}
	exchange := func(name string) error {
		c := p.Config
		c.Name = name
		var got []string
		err := shuffle.Run(ctx, c, func(s *shuffle.Sender) error {
			for to := range c.Partitions() {
				if err := s.Send(to, fmt.Append(nil, p.Rank)); err != nil {
					return err
				}
			}
			return nil
		}, func(r *shuffle.Receiver) error {
			return r.InOrder(ctx, shuffle.Order{}, func(record []byte) error { got = append(got, string(record)); return nil })
		})
		if err == nil && len(got) != p.Size {
			err = fmt.Errorf("got %v", got)
		}
		return err
	}
	if err := exchange("first"); err != nil {
		return err
	}
	if p.Rank == 1 {
		switch role {
		case "fail":
			return errors.New("no disk")
		case "die":
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	if p.Rank == 0 && role == "write" {
		for {
			fmt.Println("much")
		}
	}
	if p.Rank == 0 && role == "wait" {
		fmt.Println("busy")
	}
	if role != "succeed" {
		<-ctx.Done() // busy, and in no exchange
		return context.Cause(ctx)
	}
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i := range errs {
		both.Go(func() { errs[i] = exchange(fmt.Sprint("both-", i)) })
	}
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("%d of %d\n", p.Rank, p.Size)
	return nil
}

// process is the test binary as a process of a job.
func process(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	return cmd
}

// TestLocal has a program start its processes itself.
func TestLocal(t *testing.T) {
	for role, want := range map[string]string{
		"succeed": "0 of 3\n",
		"fail":    "job.test: process 1 of 3: no disk\n",
		"leave":   "job.test: process 1 of 3 ended: exit status 0 before its part was done\n",
		"die":     "job.test: process 1 of 3 ended: signal: killed\n",
	} {
		out, err := process(t, role, "-workers", "3").CombinedOutput()
		if (err == nil) != (role == "succeed") || string(out) != want {
			t.Errorf("%s: %v, %q, want %q", role, err, out, want)
		}
	}
	if out, err := process(t, "succeed", "-workers", "2", "-wait", "0").CombinedOutput(); err != nil || string(out) != "0 of 2\n" {
		t.Errorf("the usual wait: %v, %q", err, out)
	}
	for _, args := range [][]string{{"-workers", "-3"}, {"-wait", "-1s"}, {"-rank", "-7"}, {"-size", "-5"}} {
		if out, err := process(t, "succeed", args...).CombinedOutput(); err == nil || !strings.Contains(string(out), "-"+args[0]+" "+args[1]+": want") {
			t.Errorf("%v: %v, %q", args, err, out)
		}
	}
	if out, err := process(t, "succeed", "-workers", "1").CombinedOutput(); err != nil || string(out) != "0 of 1\n" {
		t.Errorf("one process: %v, %q", err, out)
	}
}

// TestWhereProcessesListen has processes meet on one host, whose addresses nobody else reaches then, and where others might come.
func TestWhereProcessesListen(t *testing.T) {
	for rendezvous, loopback := range map[string]bool{
		"unix:" + filepath.Join(t.TempDir(), "meet"): true, "localhost:" + freePort(t): true, "0.0.0.0:" + freePort(t): false,
	} {
		t.Setenv(whereVariable, fmt.Sprint(loopback, !loopback))
		var all sync.WaitGroup
		for rank := range 2 {
			cmd := process(t, "succeed", "-rank", fmt.Sprint(rank), "-size", "2", "-rendezvous", rendezvous)
			all.Go(func() {
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v, %s", rendezvous, err, out)
				}
			})
		}
		all.Wait()
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestInterrupted has the user interrupt a job, as a terminal does, and SIGTERM come to the one process that others know of: all end
// silently, and by the signal.
func TestInterrupted(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := process(t, "wait", "-workers", "2")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "busy\n" {
			t.Errorf("%q, %v", line, err)
		}
		to := -cmd.Process.Pid
		if s == syscall.SIGTERM {
			to = cmd.Process.Pid
		}
		if err := syscall.Kill(to, s); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if how := cmd.ProcessState.Sys().(syscall.WaitStatus); !how.Signaled() || how.Signal() != s || said.String() != "" {
			t.Errorf("%v: %v, %q", s, cmd.ProcessState, said.String())
		}
	}
}

// TestOutputClosed has nobody read what process 0 writes: the job ends silently, with the status that shells give to SIGPIPE.
func TestOutputClosed(t *testing.T) {
	cmd := process(t, "write", "-workers", "2")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cmd.Start(), out.Close()); err != nil {
		t.Fatal(err)
	}
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 141 || said.String() != "" {
		t.Errorf("%v, %q", cmd.ProcessState, said.String())
	}
}

// TestLaunched has something else start the processes, which misses nobody: they learn of each other's end by themselves.
func TestLaunched(t *testing.T) {
	for role, want := range map[string]string{
		"succeed": "%[1]d of 3\n",
		"fail":    "process 1: no disk\n",
		"die":     "process 1 has gone before its end",
	} {
		meet := "unix:" + filepath.Join(t.TempDir(), "meet")
		var all sync.WaitGroup
		begin := time.Now()
		for rank := range 3 {
			cmd := process(t, role, "-rank", fmt.Sprint(rank), "-size", "3", "-rendezvous", meet)
			all.Go(func() {
				out, err := cmd.CombinedOutput()
				if want := strings.ReplaceAll(want, "%[1]d", fmt.Sprint(rank)); (err == nil) != (role == "succeed") || (rank != 1 || role == "succeed") && !strings.Contains(string(out), want) {
					t.Errorf("%s, process %d: %v, %q, want %q", role, rank, err, out, want)
				}
			})
		}
		all.Wait()
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("%s: it took %v", role, took)
		}
	}
	out, err := process(t, "succeed", "-rank", "0", "-size", "3", "-rendezvous", "unix:/x", "-workers", "2").CombinedOutput()
	if want := "flags has started 3 processes, --workers says 2"; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
}
