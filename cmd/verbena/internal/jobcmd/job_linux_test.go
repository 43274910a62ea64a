package jobcmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// roleVariable makes the test binary a process of a job.
const roleVariable = "VERBENA_JOBCMD_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		if err := newJob(os.Stderr).Run(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// total is what all processes of the job have to do.
const total = 1000

// newJob is a job whose processes tell three times how much they have done: together half of the work, then 79 % and 80 % of it. Of two,
// process 0 has done two fifths of that.
func newJob(errors io.Writer) *Job {
	j := &Job{
		What: "test", Output: os.Stdout, Errors: errors,
		Divide: func(int64, int) (exchange, work int64, err error) { return 1 << 20, 0, nil },
		Work: func(ctx context.Context, p *Part) (any, error) {
			x := p.Exchange
			for _, done := range []int64{total / 2, total * 79 / 100, total * 4 / 5} {
				own := done / int64(x.Size())
				if x.Size() > 1 {
					own += int64(2*x.Rank()-1) * done / 10
				}
				p.Tell(own, total)
				time.Sleep(150 * time.Millisecond)               // oftener than each 100 nothing is told, nor shown
				if _, err := x.AllGather(ctx, nil); err != nil { // so that the bar has shown something before all tell the last
					return nil, err
				}
			}
			if err := x.Sender(0).Close(); err != nil {
				return nil, err
			}
			if _, err := x.Receiver(0).Next(ctx); err != io.EOF {
				return nil, err
			}
			return map[string]int{"size": x.Size()}, x.Wait(ctx)
		},
		Report: func(w io.Writer, result any) error {
			_, err := fmt.Fprintln(w, "reported", result)
			return err
		},
	}
	j.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError), "")
	return j
}

// terminal is a pseudo terminal. shown closes it and returns what was written to it.
func terminal(t *testing.T) (tty *os.File, shown func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		b, _ := io.ReadAll(master) // ends with an error when nobody has the terminal open
		read <- string(b)
	}()
	return tty, func() string {
		_ = tty.Close()
		return <-read
	}
}

// The bar shows what all processes have done together, and is gone at the end; with --quiet, with --json and where there is no
// terminal there is none.
func TestProgressBar(t *testing.T) {
	t.Setenv(roleVariable, "1")
	for _, c := range []struct {
		name        string
		workers     int
		quiet, json bool
		out         string
	}{
		{"one process", 1, false, false, "reported map[size:1]\n"},
		{"two processes", 2, false, false, "reported map[size:2]\n"},
		{"quiet", 1, true, false, "reported map[size:1]\n"},
		{"json", 1, false, true, `{"size":1}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tty, shown := terminal(t)
			j := newJob(tty)
			var out strings.Builder
			j.Output, j.job.Workers, j.Quiet, j.JSON = &out, c.workers, c.quiet, c.json
			err := j.Run(t.Context())
			text := shown()
			if err != nil || out.String() != c.out {
				t.Errorf("%v, %q, want %q; %q", err, out.String(), c.out, text)
			}
			if c.quiet || c.json {
				if text != "" {
					t.Errorf("%q is shown", text)
				}
				return
			}
			var percent []int
			for _, m := range regexp.MustCompile(`test +(\d+)%`).FindAllStringSubmatch(text, -1) {
				n, err := strconv.Atoi(m[1])
				if err != nil {
					t.Fatal(err)
				}
				percent = append(percent, n)
			}
			// One process of the two has done 60 % of what both have.
			if n := len(percent); n < 2 || percent[n-1] != 80 {
				t.Errorf("%d is shown: %q", percent, text)
			}
			lines := strings.Split(text, "\r")
			if last := lines[len(lines)-1]; strings.TrimSpace(strings.ReplaceAll(last, "\x1b[2K", "")) != "" {
				t.Errorf("%q stays in the end: %q", last, text)
			}
		})
	}
	var errors, out strings.Builder // no terminal
	j := newJob(&errors)
	j.Output, j.job.Workers = &out, 1
	if err := j.Run(t.Context()); err != nil || errors.String() != "" {
		t.Errorf("%v, %q", err, errors.String())
	}
}

// Where nobody says how many, there are as many processes as processors, but no more than have enough memory.
func TestProcessesByMemory(t *testing.T) {
	j := newJob(io.Discard)
	size := 0
	j.Work = func(_ context.Context, p *Part) (any, error) {
		size = p.Exchange.Size()
		return nil, nil
	}
	j.Report = func(io.Writer, any) error { return nil }
	j.Memory = 100
	j.Divide = func(memory int64, _ int) (exchange, work int64, err error) {
		if memory < 100 {
			return 0, 0, fmt.Errorf("%d bytes are too few", memory)
		}
		return 1 << 20, 7, nil
	}
	if err := j.Run(t.Context()); err != nil || size != 1 {
		t.Errorf("%d processes, %v", size, err)
	}
	j.job.Workers = 2
	if err := j.Run(t.Context()); err == nil || err.Error() != "50 bytes are too few" {
		t.Error(err)
	}
	j.Threads = 0
	if err := j.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--threads 0") {
		t.Error(err)
	}
}
