package providers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
)

// squeezed names the environment of the child: "default", "follow" or "ignore".
const squeezed = "VERBENA_TEST_SQUEEZED"

const (
	squeezeLimit     = 128 << 20 // bytes that the child's cgroup may use
	squeezeMessage   = 4 << 20
	squeezeEndpoints = 64
	squeezeMessages  = 4 // of each endpoint
)

// squeezeReport is what the child says, ten times a second.
type squeezeReport struct {
	Address                      string
	Memory                       verbena.MemoryStats
	Registered, Largest, Limit   int64
	ReceiveDefault, Arrived, Bad int64
	Ends                         []string // of endpoints that their peer did not end
}

// In a cgroup of 128 MiB a server that has been given 1 GiB, whose clients fill
// whatever it gives them, shrinks, goes on, and gives back what it had. One that
// ignores the pressure is killed by the kernel, so the test would notice.
func TestSqueezedProcess(t *testing.T) {
	if how := os.Getenv(squeezed); how != "" {
		if err := beSqueezed(how); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("VERBENA_SQUEEZE") != "1" {
		t.Skip("it makes a cgroup and has the kernel kill a process; VERBENA_SQUEEZE=1 runs it")
	}
	group := newCgroup(t, squeezeLimit)

	t.Run("default", func(t *testing.T) {
		c := startSqueezed(t, group, "default")
		r := c.next()
		if r.Memory.Limit > squeezeLimit || r.Memory.Limit == 0 || !strings.Contains(r.Memory.LimitOf, filepath.Base(group)) {
			t.Errorf("the limit is %d by %s", r.Memory.Limit, r.Memory.LimitOf)
		}
		if r.ReceiveDefault > r.Memory.Limit/4 {
			t.Errorf("%d bytes of memory for what arrives by default, in a cgroup of %d", r.ReceiveDefault, r.Memory.Limit)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	t.Run("follow", func(t *testing.T) {
		c := startSqueezed(t, group, "follow")
		r := c.next()
		if err := flood(t, r.Address); err != nil {
			t.Errorf("a client failed: %v", err)
		}
		worst := ""
		deadline := time.Now().Add(time.Minute)
		for {
			if r = c.next(); c.dead() {
				t.Fatalf("it was killed: %v; the last it said: %+v\n%s", c.end(), r, killReport())
			}
			if r.Memory.Pressure != "calm" {
				worst = max(worst, r.Memory.Pressure)
			}
			if r.Arrived == squeezeEndpoints*squeezeMessages && r.Registered < 8<<20 && r.Memory.Pressure == "calm" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("it does not come to rest: %+v", r)
			}
		}
		if r.Bad > 0 {
			t.Errorf("%d messages were wrong", r.Bad)
		}
		if worst == "" {
			t.Error("it never noticed any pressure")
		}
		t.Logf("at most %d MiB registered of a limit of %d, in a cgroup of %d; now %d", r.Largest>>20, r.Limit>>20, squeezeLimit>>20, r.Registered>>20)
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	t.Run("ignore", func(t *testing.T) {
		c := startSqueezed(t, group, "ignore")
		if err := flood(t, c.next().Address); err == nil {
			t.Error("no client noticed")
		}
		err := c.end()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("the server that ignores the pressure ended with %v: the test proves nothing", err)
		}
	})
}

// newCgroup makes a cgroup without swap, of version 2 if there is one with the
// memory controller, or of version 1.
func newCgroup(t *testing.T, limit int64) (dir string) {
	t.Helper()
	name := "verbena-squeeze-" + strconv.Itoa(os.Getpid())
	write := func(name, text string) error {
		f, err := os.OpenFile(name, os.O_WRONLY, 0) // not a file of another file system
		if err != nil {
			return err
		}
		_, err = f.WriteString(text)
		return errors.Join(err, f.Close())
	}
	set := func(file string, value int64) error {
		return write(filepath.Join(dir, file), strconv.FormatInt(value, 10))
	}
	two := func(root string) error {
		_ = write(filepath.Join(root, "cgroup.subtree_control"), "+memory") // it may have been
		dir = filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		_ = set("memory.swap.max", 0) // a kernel without swap has none
		return set("memory.max", limit)
	}
	one := func() error {
		dir = filepath.Join("/sys/fs/cgroup/memory", name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		err := set("memory.limit_in_bytes", limit)
		_ = set("memory.memsw.limit_in_bytes", limit)
		return err
	}
	var reasons []error
	roots := []func() error{func() error { return two("/sys/fs/cgroup") }, one}
	for _, make := range roots {
		err := make()
		if err == nil {
			t.Cleanup(func() {
				if err := os.Remove(dir); err != nil {
					t.Error(err)
				}
			})
			return dir
		}
		reasons = append(reasons, err)
		_ = os.Remove(dir) // it may not be there
	}
	// Where the lab's machine runs it, a skip is a failure.
	t.Skipf("no cgroup can be made (%v): the lab's machine has some", errors.Join(reasons...))
	return ""
}

// A squeezedProcess is the server.
type squeezedProcess struct {
	t       *testing.T
	cmd     *exec.Cmd
	stdin   io.Closer
	reports *bufio.Scanner
	stderr  bytes.Buffer
	last    squeezeReport
	over    bool
}

func startSqueezed(t *testing.T, group, how string) *squeezedProcess {
	t.Helper()
	// The shell moves itself, so that all of the server's memory is counted there.
	cmd := exec.Command("/bin/sh", "-c", `echo $$ > "$1/cgroup.procs" && exec "$2" -test.run='^TestSqueezedProcess$'`, "sh", group, os.Args[0])
	cmd.Env = append(os.Environ(), squeezed+"="+how)
	c := &squeezedProcess{t: t, cmd: cmd}
	cmd.Stderr = &c.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		}
	})
	c.stdin, c.reports = stdin, bufio.NewScanner(out)
	return c
}

// next is the next report, or the last one of a server that is dead.
func (c *squeezedProcess) next() squeezeReport {
	if !c.reports.Scan() {
		c.over = true
		return c.last
	}
	c.last = squeezeReport{}
	if err := json.Unmarshal(c.reports.Bytes(), &c.last); err != nil {
		c.t.Fatalf("%v: %s", err, c.reports.Text())
	}
	return c.last
}

func (c *squeezedProcess) dead() bool { return c.over }

// end lets the server end and tells how it did.
func (c *squeezedProcess) end() error {
	c.stdin.Close()
	for !c.over {
		c.next()
	}
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, c.stderr.String())
	}
	return nil
}

// killReport is what the kernel says of a process that it has killed for want of memory.
func killReport() string {
	fd, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err.Error()
	}
	defer syscall.Close(fd)
	var lines []string
	record := make([]byte, 8<<10) // the longest
	for {
		n, err := syscall.Read(fd, record)
		if n <= 0 || err != nil {
			return strings.Join(lines, "\n")
		}
		_, text, _ := strings.Cut(string(record[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		if strings.Contains(text, "invoked oom-killer") {
			lines = lines[:0]
		}
		lines = append(lines, text)
	}
}

// patient is the configuration of an end on an emulated host, whose other programs may keep
// it from running for many seconds: 64 dials at once, and 64 messages of 4 MiB, are much for
// it. No time limit but the test's own should decide here.
func patient() (verbena.Config, error) {
	list, err := New(Config{Settings: map[string]string{"shm.access-timeout": "2m"}})
	return verbena.Config{Providers: list, ConnectTimeout: time.Minute, HelloTimeout: time.Minute}, err
}

// flood sends messages on many endpoints at once, as fast as they are taken.
func flood(t *testing.T, address string) error {
	cfg, err := patient()
	if err != nil {
		return err
	}
	cfg.Linger, cfg.SendMemory = 2*time.Minute, 512<<20
	rt, err := verbena.New(cfg)
	if err != nil {
		return err
	}
	defer rt.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	message := bytes.Repeat([]byte{7}, squeezeMessage)
	var all sync.WaitGroup
	failures := make(chan error, squeezeEndpoints)
	for range squeezeEndpoints {
		all.Go(func() {
			e, err := rt.Dial(ctx, address, "squeeze/1", verbena.DialConfig{Transport: "shm"})
			// The server may miss shm's limit of 10 s for reading a connection request.
			for again := 0; err != nil && again < 3; again++ {
				e, err = rt.Dial(ctx, address, "squeeze/1", verbena.DialConfig{Transport: "shm"})
			}
			if err != nil {
				failures <- err
				return
			}
			for range squeezeMessages {
				if err = e.Send(ctx, 1, message); err != nil {
					break
				}
			}
			if err := errors.Join(err, e.Close()); err != nil {
				failures <- err
			}
		})
	}
	all.Wait()
	close(failures)
	return <-failures
}

// beSqueezed is the server.
func beSqueezed(how string) error {
	cfg, err := patient()
	if err != nil {
		return err
	}
	if how != "default" {
		cfg.ReceiveMemory, cfg.SendMemory, cfg.IgnorePressure = 1<<30, 64<<20, how == "ignore"
	}
	rt, err := verbena.New(cfg)
	if err != nil {
		return err
	}
	l, err := rt.Listen(context.Background(), "127.0.0.1:0", verbena.ListenConfig{HelloTimeout: time.Minute})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var report squeezeReport
	go func() {
		for {
			e, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			go func() {
				defer e.Close()
				for {
					m, err := e.Receive(context.Background())
					if err != nil {
						if !errors.Is(err, io.EOF) {
							mu.Lock()
							report.Ends = append(report.Ends, err.Error())
							mu.Unlock()
						}
						return
					}
					time.Sleep(20 * time.Millisecond) // work
					mu.Lock()
					report.Arrived++
					if b := m.Bytes(); len(b) != squeezeMessage || b[0] != 7 || b[len(b)-1] != 7 {
						report.Bad++
					}
					mu.Unlock()
					m.Release()
				}
			}()
		}
	}()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	out := json.NewEncoder(os.Stdout)
	for {
		s := rt.Stats()
		mu.Lock()
		report.Address, report.Memory = l.Addr().String(), s.Memory
		report.Registered, report.Limit = 0, 0
		for _, d := range s.Devices {
			if d.Transport == verbena.TransportTCP {
				report.ReceiveDefault = d.Pools[0].Limit
			}
			for _, p := range d.Pools {
				report.Registered += p.Registered
				report.Limit += p.Limit
			}
		}
		report.Largest = max(report.Largest, report.Registered)
		now := report
		mu.Unlock()
		if err := out.Encode(now); err != nil {
			return err
		}
		select {
		case <-over:
			return errors.Join(l.Close(), rt.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
