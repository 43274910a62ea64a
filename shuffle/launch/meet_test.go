package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/internal/testneed"
)

// roleVariable makes the test binary a process of a job.
const roleVariable = "VERBENA_LAUNCH_TEST"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// play is a process of a job: it meets the others and says whom it has met.
func play(role string) (err error) {
	child, ctx, cancel := AsChild(context.Background())
	defer cancel()
	defer func() {
		if err == nil && child != nil {
			err = child.Done()
		}
	}()
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	w, launched, err := Find(Flags{Rank: -1}, os.Getenv)
	if err != nil || !launched {
		return fmt.Errorf("launched %v: %w", launched, err)
	}
	if role == "early" && w.Rank == 1 {
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	met, err := Meet(ctx, w, fmt.Sprintf(":%d", 1000+w.Rank))
	if err != nil {
		return err
	}
	met.Done()
	switch role {
	case "meet":
		fmt.Printf("%d of %d met %s\n", w.Rank, w.Size, strings.Join(met.Addresses, " "))
	case "tell":
		fmt.Fprintf(os.Stderr, "I am %d\nand end", w.Rank)
		fmt.Printf("output of %d\n", w.Rank)
		return child.Tell(w.Rank)
	case "fail": // process 1 fails, the others because of it
		if w.Rank == 1 {
			err = errors.New("the disk is full")
			return errors.Join(err, child.Fail(err, false))
		}
		<-ctx.Done()
		return child.Fail(errors.New("process 1 has gone"), true)
	case "die": // process 1 is killed
		if w.Rank == 1 {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		<-ctx.Done()
		return errors.Join(child.Fail(errors.New("process 1 has gone"), true), errors.New("too"))
	case "leave", "leave and die": // a program that process 1 has started outlives it
		if w.Rank != 1 {
			return nil
		}
		if err := exec.Command("sh", "-c", ": >&3").Run(); err == nil {
			return errors.New("programs that it starts have the descriptor for events, too")
		}
		program := exec.Command("sleep", "1000")
		program.Stderr = os.Stderr
		if err := program.Start(); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "I leave")
		if err := child.Tell(program.Process.Pid); err != nil || role == "leave" {
			return err
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "orphans": // the parent is killed
		if err := child.Tell(os.Getpid()); err != nil {
			return err
		}
		<-ctx.Done()
	case "parent":
	}
	return nil
}

func TestMeet(t *testing.T) {
	port := freePort(t)
	for name, address := range map[string]string{"tcp": port, "unix": "unix:" + filepath.Join(t.TempDir(), "dir", "meet")} {
		t.Run(name, func(t *testing.T) {
			const n = 5
			var all [n]*Meeting
			var errs [n]error
			var group sync.WaitGroup
			for rank := range n {
				group.Go(func() {
					all[rank], errs[rank] = Meet(t.Context(), Worker{Rank: rank, Size: n, Rendezvous: address, Job: "a"}, fmt.Sprintf("0.0.0.0:%d", 1000+rank))
				})
			}
			group.Wait()
			want := []string{"127.0.0.1:1000", "127.0.0.1:1001", "127.0.0.1:1002", "127.0.0.1:1003", "127.0.0.1:1004"}
			for rank := range n {
				if errs[rank] != nil {
					t.Fatalf("process %d: %v", rank, errs[rank])
				}
				if !slices.Equal(all[rank].Addresses, want) {
					t.Errorf("process %d: %v", rank, all[rank].Addresses)
				}
				all[rank].Close()
			}
		})
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestMeetStrangers meets where others talk, too: none of them keeps the job from it.
func TestMeetStrangers(t *testing.T) {
	address := freePort(t)
	w := Worker{Rank: 0, Size: 2, Rendezvous: address, Job: "mine"}
	done := make(chan error, 1)
	go func() {
		m, err := Meet(t.Context(), w, ":1000")
		if err == nil {
			m.Done()
		}
		done <- err
	}()
	for stranger, want := range map[string]string{
		"GET / HTTP/1.1\n": "invalid character",
		`{"protocol":"other","rank":1,"size":2,"address":":1"}` + "\n":                          protocol,
		`{"protocol":"verbena-job/3","job":"b","rank":1,"size":2,"address":":1"}` + "\n":        "another job",
		`{"protocol":"verbena-job/3","job":"mine","rank":2,"size":2,"address":":1"}` + "\n":     "no process 2",
		`{"protocol":"verbena-job/3","job":"mine","rank":0,"size":2,"address":":1"}` + "\n":     "no process 0",
		`{"protocol":"verbena-job/3","job":"mine","rank":1,"size":2,"address":"nobody"}` + "\n": "missing port",
	} {
		c := dialStranger(t, address)
		if _, err := c.Write([]byte(stranger)); err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(c)
		_ = c.Close()
		if !strings.Contains(string(said), want) {
			t.Errorf("%q is told %s, want %q", stranger, said, want)
		}
	}
	w.Rank = 1
	m, err := Meet(t.Context(), w, ":1001")
	if err != nil {
		t.Fatal(err)
	}
	m.Done()
	if len(m.Addresses) != 2 {
		t.Error(m.Addresses)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func dialStranger(t *testing.T, address string) net.Conn {
	t.Helper()
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			return c
		}
		if t.Context().Err() != nil {
			t.Fatal("nobody listens")
		}
	}
}

// TestMeetMissing gives up waiting for one that does not come: the reason reaches all, and that one when it comes.
func TestMeetMissing(t *testing.T) {
	address := freePort(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	var errs [3]error
	var group sync.WaitGroup
	meet := func(ctx context.Context, rank int) {
		group.Go(func() {
			_, errs[rank] = Meet(ctx, Worker{Rank: rank, Size: 3, Rendezvous: address}, ":1")
		})
	}
	meet(ctx, 0)
	time.AfterFunc(300*time.Millisecond, func() { cancel(errors.New("not within the time")) })
	_, errs[2] = Meet(t.Context(), Worker{Rank: 2, Size: 3, Rendezvous: address}, ":1")
	meet(t.Context(), 1)
	group.Wait()
	for rank, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "processes 1 did not come") || !strings.Contains(err.Error(), "not within the time") {
			t.Errorf("process %d: %v", rank, err)
		}
	}
}

// TestMeetEnds has one process end, or decline, before all have come: the others do not wait.
func TestMeetEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		rank int
		end  func(ctx context.Context, w Worker)
		want string
	}{
		{"declines", 2, func(ctx context.Context, w Worker) { Decline(ctx, w, errors.New("no disk")) }, "process 2: no disk"},
		{"process 0 declines", 0, func(ctx context.Context, w Worker) { Decline(ctx, w, errors.New("no disk")) }, "process 0: no disk"},
		{"dies", 2, func(ctx context.Context, w Worker) {
			c, err := dialUntil(ctx, "tcp", w.Rendezvous)
			if err == nil {
				err = errors.Join(json.NewEncoder(c).Encode(hello{Protocol: protocol, Rank: w.Rank, Size: w.Size, Address: ":1"}), c.Close())
			}
			if err != nil {
				t.Error(err)
			}
		}, "process 2 has gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := freePort(t)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var errs [4]error
			heard := make(chan struct{}) // by process 1; then process 3 comes
			var group sync.WaitGroup
			for rank := range errs {
				w := Worker{Rank: rank, Size: len(errs), Rendezvous: address}
				group.Go(func() {
					switch rank {
					case c.rank:
						c.end(ctx, w)
						return
					case 1:
						defer close(heard)
					case 3:
						<-heard
					}
					if _, errs[rank] = Meet(ctx, w, ":1"); ctx.Err() != nil {
						t.Errorf("process %d has waited to the end", rank)
					}
				})
			}
			group.Wait()
			for rank, err := range errs {
				var other *OtherError
				if rank != c.rank && (!errors.As(err, &other) || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("process %d: %v, want %q", rank, err, c.want)
				}
			}
		})
	}
}

// TestOneGoesBeforeItsEnd has one process end, or fail, after all have met: the others, whatever they do, learn of it, and also
// of its rank.
func TestOneGoesBeforeItsEnd(t *testing.T) {
	for want, end := range map[string]func(*Meeting){
		"process %d has gone before its end": (*Meeting).Close,
		"process %d: no disk":                func(m *Meeting) { m.Fail(errors.New("no disk")) },
	} {
		for gone := range 3 {
			t.Run(fmt.Sprintf(want, gone), func(t *testing.T) {
				meetings := meetAll(t, 3)
				end(meetings[gone])
				for rank, m := range meetings {
					if rank == gone {
						continue
					}
					ctx, cancel := m.While(t.Context())
					select {
					case <-ctx.Done():
						var other *OtherError
						if err := context.Cause(ctx); !errors.As(err, &other) || !strings.Contains(err.Error(), fmt.Sprintf(want, gone)) {
							t.Errorf("process %d: %v", rank, err)
						}
					case <-time.After(20 * time.Second):
						t.Errorf("process %d does not learn of it", rank)
					}
					cancel()
					m.Close()
				}
			})
		}
	}
}

// TestWhoIsDoneMayGo has processes end that have done their parts, in each order: that is no reason for others to end.
func TestWhoIsDoneMayGo(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}} {
		meetings := meetAll(t, 3)
		for i, rank := range order {
			meetings[rank].Done()
			for _, other := range order[i+1:] {
				if m := meetings[other]; rank == 0 {
					<-m.read
				}
			}
		}
		for rank, m := range meetings {
			m.Close()
			select {
			case <-m.gone:
				t.Errorf("order %v: process %d: %v", order, rank, m.err)
			default:
			}
		}
	}
	// The one that goes next is told of, not the one that has done its part.
	meetings := meetAll(t, 3)
	meetings[2].Done()
	meetings[1].Close()
	<-meetings[0].gone
	if err := meetings[0].err; !strings.Contains(err.Error(), "process 1 has gone") {
		t.Error(err)
	}
	meetings[0].Close()
}

// meetAll has so many processes meet.
func meetAll(t *testing.T, n int) []*Meeting {
	t.Helper()
	address := freePort(t)
	meetings, errs := make([]*Meeting, n), make([]error, n)
	var group sync.WaitGroup
	for rank := range n {
		group.Go(func() {
			meetings[rank], errs[rank] = Meet(t.Context(), Worker{Rank: rank, Size: n, Rendezvous: address}, ":1")
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return meetings
}

func TestMeetSizes(t *testing.T) {
	address := freePort(t)
	var errs [3]error
	var group sync.WaitGroup
	for rank := range errs {
		group.Go(func() {
			_, errs[rank] = Meet(t.Context(), Worker{Rank: rank, Size: 3 + rank%2, Rendezvous: address}, ":1")
		})
	}
	group.Wait()
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "believes that there are 4") {
			t.Error(err)
		}
	}
}

// TestLaunchers starts processes by others' launchers.
func TestLaunchers(t *testing.T) {
	for _, launcher := range []struct {
		program, pack string
		arguments     []string
	}{
		{"mpirun.openmpi", "openmpi-bin", []string{"--allow-run-as-root", "--oversubscribe"}},
		{"mpirun.mpich", "mpich", nil},
	} {
		t.Run(launcher.program, func(t *testing.T) {
			mpirun := testneed.Tool(t, launcher.program, "apt-get install "+launcher.pack)
			cmd := exec.CommandContext(t.Context(), mpirun, append(launcher.arguments, "-n", "4", self(t))...)
			cmd.Env = append(os.Environ(), roleVariable+"=meet")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			haveMet(t, string(out), 4)
		})
	}
}

// TestIndexed starts processes as an indexed Job of Kubernetes, and srun, would.
func TestIndexed(t *testing.T) {
	port := freePort(t)
	job := strconv.Itoa(os.Getpid()) // whose port nobody else has
	for name, environment := range map[string]func(rank int) []string{
		"Kubernetes": func(rank int) []string {
			return []string{fmt.Sprint("JOB_COMPLETION_INDEX=", rank), "VERBENA_SIZE=3", "VERBENA_RENDEZVOUS=" + port}
		},
		"Slurm": func(rank int) []string {
			return []string{fmt.Sprint("SLURM_PROCID=", rank), "SLURM_NTASKS=3", "SLURM_STEP_ID=0", "SLURM_JOB_ID=" + job, "SLURM_STEP_NODELIST=localhost,other[1-2]"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out [3][]byte
			var errs [3]error
			var group sync.WaitGroup
			for rank := range 3 {
				cmd := exec.CommandContext(t.Context(), self(t))
				cmd.Env = append(os.Environ(), append(environment(rank), roleVariable+"=meet")...)
				group.Go(func() { out[rank], errs[rank] = cmd.CombinedOutput() })
			}
			group.Wait()
			all := ""
			for rank := range 3 {
				if errs[rank] != nil {
					t.Errorf("process %d: %v\n%s", rank, errs[rank], out[rank])
				}
				all += string(out[rank])
			}
			haveMet(t, all, 3)
		})
	}
}

func haveMet(t *testing.T, out string, n int) {
	t.Helper()
	var list []string
	for rank := range n {
		list = append(list, fmt.Sprintf("127.0.0.1:%d", 1000+rank))
	}
	for rank := range n {
		want := fmt.Sprintf("%d of %d met %s\n", rank, n, strings.Join(list, " "))
		if !strings.Contains(out, want) && !strings.Contains(out, strings.ReplaceAll(want, "127.0.0.1", "::1")) {
			t.Errorf("%sis missing in\n%s", want, out)
		}
	}
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func runLocal(t *testing.T, role string, event func(int, json.RawMessage)) (out, errOut string, err error) {
	t.Helper()
	t.Setenv(roleVariable, role)
	var output, errs strings.Builder
	err = Local{Executable: self(t), Workers: 3, Output: &output, Errors: &errs, Event: event}.Run(t.Context())
	return output.String(), errs.String(), err
}

func TestLocal(t *testing.T) {
	told := map[int]string{}
	out, errOut, err := runLocal(t, "tell", func(rank int, data json.RawMessage) { told[rank] = string(data) })
	if err != nil {
		t.Fatal(err)
	}
	if out != "output of 0\n" {
		t.Errorf("output: %q", out)
	}
	for rank := range 3 {
		for _, want := range []string{fmt.Sprintf("[%d] I am %d\n", rank, rank), fmt.Sprintf("[%d] and end\n", rank)} {
			if !strings.Contains(errOut, want) {
				t.Errorf("%q lacks %q", errOut, want)
			}
		}
		if told[rank] != strconv.Itoa(rank) {
			t.Errorf("process %d has told %s", rank, told[rank])
		}
	}
}

func TestLocalFails(t *testing.T) {
	if _, _, err := runLocal(t, "fail", nil); err == nil || err.Error() != "process 1 of 3: the disk is full" {
		t.Error(err)
	}
	for _, role := range []string{"die", "early"} { // when it has met the others, and before: they would wait for it for a minute
		begin := time.Now()
		if _, _, err := runLocal(t, role, nil); err == nil || err.Error() != "process 1 of 3 ended: signal: killed" || time.Since(begin) > 30*time.Second {
			t.Errorf("%s: %v after %v", role, err, time.Since(begin))
		}
	}
}

// TestLocalLeavesPrograms has a process end, or die, that has started a program of its own: nobody waits for that, though it has
// the process's standard error. What the process said is heard.
func TestLocalLeavesPrograms(t *testing.T) {
	for role, want := range map[string]string{"leave": "", "leave and die": "process 1 of 3 ended: signal: killed"} {
		var program int
		_, errOut, err := runLocal(t, role, func(_ int, data json.RawMessage) {
			if err := json.Unmarshal(data, &program); err != nil {
				t.Error(err)
			}
		})
		said := ""
		if err != nil {
			said = err.Error()
		}
		if said != want || errOut != "[1] I leave\n" {
			t.Errorf("%s: %v, %q", role, err, errOut)
		}
		if program == 0 || !alive(program) {
			t.Fatalf("%s: the program %d has ended before the job", role, program)
		}
		if err := syscall.Kill(program, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
}

// TestOutlet reads what a process has written that has ended, though somebody else has the pipe and writes on.
func TestOutlet(t *testing.T) {
	for _, pause := range []time.Duration{0, 20 * time.Millisecond} {
		t.Run(pause.String(), func(t *testing.T) { outletOf(t, pause) })
	}
}

// outletOf has somebody else write on after each pause.
func outletOf(t *testing.T, pause time.Duration) {
	var got bytes.Buffer
	o, err := newOutlet(func(r io.Reader) error { return copyTo(&got, r) })
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(o.theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	other := os.NewFile(uintptr(fd), "other")
	said := []byte(strings.Repeat("said\n", 8000)) // a pipe holds it
	if _, err := o.theirs.Write(said); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		for {
			if _, err := other.Write([]byte("written on\n")); err != nil {
				failed <- errors.Join(err, other.Close())
				return
			}
			time.Sleep(pause)
		}
	}()
	o.start()
	o.end()
	<-o.done
	if o.err != nil || !bytes.HasPrefix(got.Bytes(), said) {
		t.Errorf("%v, %d bytes", o.err, got.Len())
	}
	if err := <-failed; !errors.Is(err, syscall.EPIPE) {
		t.Error(err)
	}
}

// TestLocalDies kills the parent: its processes end, too.
func TestLocalDies(t *testing.T) {
	if os.Getenv("VERBENA_LAUNCH_PARENT") == "1" {
		_, _, err := runLocal(t, "orphans", func(_ int, data json.RawMessage) { fmt.Println("child", string(data)) })
		t.Fatal("the parent has survived: ", err)
	}
	cmd := exec.CommandContext(t.Context(), self(t), "-test.run=^TestLocalDies$")
	cmd.Env = append(os.Environ(), "VERBENA_LAUNCH_PARENT=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for range 3 {
		var pid int
		if _, err := fmt.Fscanf(out, "child %d\n", &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	deadline := time.Now().Add(30 * time.Second)
	for _, pid := range pids {
		for alive(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d lives on", pid)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// alive tells whether a process is there and no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// The directory in which a user's processes meet if nobody names a place lies where others may have made one of its name: process 0 does
// not listen there, and others do not dial.
func TestDirectoryOfOthers(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"it is the user's":      func(dir string) error { return os.Mkdir(dir, 0o700) },
		"others may write":      func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770)) },
		"others may enter":      func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o711)) },
		"it is a link":          func(dir string) error { return errors.Join(os.Mkdir(dir+"-", 0o700), os.Symlink(dir+"-", dir)) },
		"it is a file":          func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"it is another user's":  func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Lchown(dir, 4711, -1)) },
		"it is not there (yet)": func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			if err := make(ownDirectory()); errors.Is(err, os.ErrPermission) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			good := name == "it is the user's" || name == "it is not there (yet)"
			place := filepath.Join(ownDirectory(), "meet")
			if !good && name != "it is a file" { // somebody listens there, as process 0 would
				l, err := net.Listen("unix", place)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			errs := [2]error{}
			var all sync.WaitGroup
			for rank := range errs {
				all.Go(func() {
					m, err := Meet(ctx, Worker{Rank: rank, Size: 2, Rendezvous: unixPrefix + place}, ":1")
					if errs[rank] = err; err == nil {
						m.Done()
					}
				})
			}
			all.Wait()
			for rank, err := range errs {
				if good != (err == nil) || !good && !strings.Contains(err.Error(), "not a directory of this user alone") {
					t.Errorf("process %d: %v", rank, err)
				}
			}
		})
	}
}
