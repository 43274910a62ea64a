package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/internal/testneed"
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

// Each system brings every record to the thread to which it belongs, as it was.
func TestSystems(t *testing.T) {
	t.Setenv(asCommand, "1")
	for name := range systems {
		t.Run(name, func(t *testing.T) {
			for _, l := range []load{{Record: 100, Records: 5000}, {Record: 65536, Records: 20, Zipf: true}} {
				l.System, l.Size, l.Threads, l.Checked = name, 3, 2, true
				if m, err := drive(t.Context(), l); err != nil || m.CPU <= 0 {
					t.Errorf("%+v: %v", l, err)
				}
			}
		})
	}
}

// misled is an exchange of two threads of one process, which delivers in three wrong ways.
type misled struct {
	threads [2]chan []byte
	deliver func(to, n int, record []byte) (int, []byte)
}

type misledSender struct {
	*misled
	n int
}

func (x *misled) sender(int) sender { return &misledSender{misled: x} }

func (x *misled) receive(thread int, f func([]byte)) error {
	for range 100 { // as many as are sent there
		f(<-x.threads[thread])
	}
	return nil
}

func (x *misled) finish() error    { return nil }
func (x *misled) describe(*result) {}

func (s *misledSender) Send(to int, record []byte) error {
	s.n++
	to, record = s.deliver(to, s.n, record)
	s.threads[to] <- record
	return nil
}

func (s *misledSender) Close() error { return nil }

// What is delivered to another thread, twice, or changed is found, although there are as many records of as many bytes.
func TestWrongDeliveryIsFound(t *testing.T) {
	l := load{System: "misled", Size: 1, Threads: 2, Record: 100, Records: 100, Checked: true}
	changed := func(n int, record []byte) []byte {
		if n == 50 {
			record = append([]byte{record[0] ^ 1}, record[1:]...)
		}
		return record
	}
	var last [2][]byte
	for name, c := range map[string]struct {
		deliver func(to, n int, record []byte) (int, []byte)
		found   bool
	}{
		"as it should":      {func(to, _ int, record []byte) (int, []byte) { return to, record }, false},
		"to another thread": {func(to, _ int, record []byte) (int, []byte) { return 1 - to, record }, true},
		"changed":           {func(to, n int, record []byte) (int, []byte) { return to, changed(n, record) }, true},
		"another one twice": {func(to, n int, record []byte) (int, []byte) {
			if before := last[to]; before != nil && n == 50 {
				return to, before
			}
			last[to] = record
			return to, record
		}, true},
	} {
		x := &misled{threads: [2]chan []byte{make(chan []byte, 200), make(chan []byte, 200)}, deliver: c.deliver}
		last = [2][]byte{}
		loads := l.prepare(0)
		for thread := range loads { // one sender for both: each thread gets 100 from it
			loads[thread].to = []uint16{uint16(thread)}
		}
		r, err := l.run(x, loads)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := new(measurement).sum(l, []string{string(text)}); (err != nil) != c.found {
			t.Errorf("%s: %v", name, err)
		}
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
		testneed.Missing(t, "network namespaces", "the superuser's rights to make some")
	}
	testneed.Tool(t, "ip", "apt-get install iproute2")
	t.Setenv(asCommand, "1")
	for _, system := range []string{"iwarp", "A", "B"} {
		l := load{System: system, Size: 4, Threads: 1, Record: 100, Records: 1000, Cable: true, Checked: true}
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
