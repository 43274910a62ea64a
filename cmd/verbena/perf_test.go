package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/cmd/verbena/internal/perf"
)

// Without a server, perf starts one in a process of its own.
func TestPerfAlone(t *testing.T) {
	t.Setenv(asVerbena, "1")
	plot := filepath.Join(t.TempDir(), "plot.svg")
	out, err := run(t, "", "perf", "--level", "verbs,runtime", "--size", "8,64", "--iterations", "50", "--warmup", "5", "--wait", "adaptive", "--json", "--plot", plot)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	transports := map[string]int{}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "{") {
			continue // on standard error: a transport that is not here
		}
		var row struct {
			Transport  string `json:"transport"`
			Iterations int    `json:"iterations"`
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(line, err)
		}
		if row.Iterations != 50 {
			t.Error(line)
		}
		transports[row.Transport]++
	}
	for _, name := range []string{"shm", "iwarp"} {
		if transports[name] != 4 {
			t.Errorf("%d rows of %s in\n%s", transports[name], name, out)
		}
	}
	f, err := os.Open(plot)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := xml.NewDecoder(f); err == nil; {
		_, err = d.Token()
	}
	if err != io.EOF {
		t.Error("the plot is not XML:", err)
	}
}

func TestPerfTable(t *testing.T) {
	t.Setenv(asVerbena, "1")
	out, err := run(t, "", "perf", "--iterations", "20", "--warmup", "2", "--wait", "event")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"p99.99", "shm    verbs    send   lat", "iwarp    verbs   write    bw", "tcp  runtime"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// The server that a measurement has started ends when the measurement is killed, also
// where both sleep.
func TestPerfServerEndsWithItsClient(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, transport := range []string{"shm", "iwarp"} {
		t.Run(transport, func(t *testing.T) {
			// It is killed after the first of many rows.
			sizes := strings.Repeat(",8", 10_000)[1:]
			cmd := exec.Command(self, "perf", "--json", "--transport", transport, "--wait", "event", "--shared-receives", "--size", sizes, "--iterations", "10")
			cmd.Env = append(os.Environ(), asVerbena+"=1")
			rows, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			// The server inherits it: it ends when both have.
			both, theirs, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer both.Close()
			cmd.Stderr = theirs
			if err := errors.Join(cmd.Start(), theirs.Close()); err != nil {
				t.Fatal(err)
			}
			if _, err := rows.Read(make([]byte, 1)); err != nil {
				t.Error("no row was measured:", err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			said, err := io.ReadAll(both)
			if err != nil {
				t.Error(err)
			}
			// It may warn of its client. Errors, as of a measurement that did not end, and
			// what is no log at all are wrong.
			for line := range strings.Lines(string(said)) {
				if !strings.Contains(line, "level=WARN") {
					t.Error(line)
				}
			}
			if err := cmd.Wait(); err == nil {
				t.Error("it ended before it was killed")
			}
		})
	}
}

func TestDurationAndIterations(t *testing.T) {
	for _, c := range []struct {
		duration   time.Duration
		iterations int
		taken      bool
	}{{0, 0, false}, {0, 1, true}, {-1, 1, false}, {1, 0, true}} {
		amount := perf.Amount{Duration: c.duration, Iterations: c.iterations}
		tune := tuneOptions{amount: amount}
		measure := perfOptions{amount: amount, timeout: 1, connections: []int{1}, posters: []int{1}}
		if a, b := tune.check(), measure.check(); (a == nil) != c.taken || (b == nil) != c.taken {
			t.Errorf("%+v: tune says %v, perf %v", c, a, b)
		}
	}
}

func TestPerfSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--size", "none"}, "is not between"},
		{[]string{"127.0.0.1:1"}, "connection refused"},
		{[]string{"127.0.0.1:1", "--server-cpu", "1"}, "give --cpu to"},
		{[]string{"--details"}, "--json"},
		{[]string{"--duration", "0s"}, "--duration 0s: want more than 0"},
		{[]string{"--timeout", "-1s"}, "--timeout -1s: want more than 0"},
		{[]string{"--iterations", "-5"}, "--iterations -5: want 0 or more"},
		{[]string{"--connections", "1,0"}, "--connections 0: want 1 or more"},
		{[]string{"--posters", "-1"}, "--posters -1: want 1 or more"},
		{[]string{"--window", "-1"}, "--window -1: want 0 or more"},
		{[]string{"--inline", "-2"}, "--inline -2: want -1 or more"},
		{[]string{"127.0.0.1:1", "--cpu", "5000"}, "no processor 5000"},
		{[]string{"127.0.0.1:1", "--plot", "/nonexistent/x.svg"}, "no such file"},
	} {
		out, err := run(t, "", append([]string{"perf"}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("perf %v: %v\n%s", c.args, err, out)
		}
	}
}

// A device that no transport has is refused when the server starts, not with its clients.
func TestPerfServeOfNoDevice(t *testing.T) {
	if out, err := run(t, "", "perf", "serve", "--listen", "127.0.0.1:0", "--device", "nope"); err == nil || !strings.Contains(err.Error(), `no device "nope"`) {
		t.Errorf("%v\n%s", err, out)
	}
}
