package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/verbena-data/verbena/bench/internal/beside"
)

// asCommand makes the test binary be the command, for the processes that it starts.
const asCommand = "VERBENA_TEST_AS_SHUFFLE"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		if err := root().ExecuteContext(context.Background()); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Each system brings every record to where it belongs: drive counts them.
func TestSystems(t *testing.T) {
	t.Setenv(asCommand, "1")
	for name := range systems {
		t.Run(name, func(t *testing.T) {
			for _, l := range []load{{Record: 100, Records: 5000}, {Record: 65536, Records: 20, Zipf: true}} {
				l.System, l.Size, l.Threads = name, 3, 2
				if m, err := drive(t.Context(), l); err != nil || m.CPU <= 0 {
					t.Errorf("%+v: %v", l, err)
				}
			}
		})
	}
}

// A job's row has wall and processor time; one that failed says why.
func TestJobRows(t *testing.T) {
	r := &jobRow{what: "a job", beside: "another", ours: []cost{{1, 2}, {3, 2}, {2, 2}}, theirs: []cost{{4, 8}, {4, 8}, {4, 8}}}
	wall := r.row("wall time", beside.AtMost(0.5), nil, func(c cost) float64 { return c.wall })
	if wall.What != "a job, wall time" || wall.Ours != 2e9 || wall.Ratio != 0.5 || !*wall.Met {
		t.Errorf("%+v", wall)
	}
	failed := r.row("wall time", beside.AtMost(0.5), errors.New("broken"), nil)
	if failed.Skipped != "broken" || failed.Met != nil || failed.Target != "at most 0.5" {
		t.Errorf("%+v", failed)
	}
	names := map[string]bool{}
	for _, r := range jobRows() {
		if names[r.what+r.beside] {
			t.Errorf("two rows %s beside %s", r.what, r.beside)
		}
		names[r.what+r.beside] = true
	}
}

// Half of the processes can be on the other side of a cable.
func TestCable(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need the superuser's rights")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	t.Setenv(asCommand, "1")
	for _, system := range []string{"iwarp", "A", "B"} {
		l := load{System: system, Size: 4, Threads: 1, Record: 100, Records: 1000, Cable: true}
		if m, err := drive(t.Context(), l); err != nil || m.CPU <= 0 {
			t.Errorf("%s: %v", system, err)
		}
	}
}

// The copy moves all bytes that it says.
func TestMemoryCopy(t *testing.T) {
	m, err := drive(t.Context(), load{System: "memcpy", Size: 1, Threads: 2, Record: 64 << 10, Records: 16})
	if err != nil || m.Wall <= 0 || m.bytes() != 2<<20 {
		t.Errorf("%+v, %v", m, err)
	}
}

// System calls are counted, also those of threads that are made meanwhile.
func TestCountCalls(t *testing.T) {
	calls := countCalls()
	defer calls.close()
	before := calls.read()
	for range 100 {
		_ = os.Getppid()
	}
	if n := calls.read() - before; n != 0 && n < 100 {
		t.Errorf("%d system calls, 100 at least were made", n)
	} else if n == 0 {
		t.Skip("there is no right to count system calls")
	}
}

// What is 0, such as system calls that may not be counted, gives no ratio but a reason.
func TestNoRatioToNothing(t *testing.T) {
	limit := func(mib float64) side { return side{system: limitSystem, mib: mib} }
	r := row{what: "calls", beside: "none", ours: limit(1), theirs: limit(0)}
	measured, err := r.measure(t.Context(), 3, 1)
	if err != nil || measured.Skipped == "" {
		t.Fatalf("%+v, %v", measured, err)
	}
	if err := beside.Write(io.Discard, []beside.Row{measured}); err != nil {
		t.Error(err)
	}
}
