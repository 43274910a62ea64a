package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// The page gets rows and growth, keeps what others have measured, and its text.
func TestPage(t *testing.T) {
	dir := t.TempDir()
	const text = "text\n<!-- rows: written by the command -->\n<!-- end of rows -->\n<!-- growth: written by the command -->\n<!-- end of growth -->\n"
	if err := os.WriteFile(filepath.Join(dir, "shuffle.md"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &bench{out: dir}
	row := func(what string, ours float64) beside.Row {
		return beside.Medians(what, "them", beside.Nanoseconds, []float64{ours}, []float64{4e9}, beside.AtMost(0.5))
	}
	g := growth{Rows: map[string]map[int]measurement{"shm": {2: {load: load{Size: 1, Threads: 1, Record: 1 << 20, Records: 1 << 10}, Wall: 1, CPU: 2, Registered: 3 << 20, Resident: 5 << 20, Stalled: 0.25, Calls: 3 << 9}}}, Failed: []string{"A at 2: it is broken"}}
	for _, change := range []func(*results){
		func(r *results) {
			r.add([]beside.Row{row("first", 1e9), row("second", 1e9)}, 1, host.Machine{Commit: "one"})
		},
		func(r *results) {
			failed := row("second", 1e9)
			failed.Skipped = "it is broken"
			r.add([]beside.Row{row("first", 3e9), failed}, 1, host.Machine{Commit: "two"})
		},
		func(r *results) { r.Growth["threads"] = g },
	} {
		if err := b.update(change); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "shuffle.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"text\n", "| first [1] | them | 3.00 s | 4.00 s | 0.75 ", "| second [2] | them | 1.00 s | 4.00 s | 0.25 ", "commit two", "commit one",
		"| 2 | 1 GiB/s |", "| 2 | 2.00 s |", "| 2 | 3 MiB |", "| 2 | 5 MiB |", "| 2 | 1.5 |", "| 2 | 25 |", "- not measured: A at 2: it is broken", "shuffle-threads-cost.svg"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if strings.Contains(string(page), "broken |") {
		t.Error("a failed measurement has replaced a row")
	}
	for _, name := range []string{"shuffle-threads-rate.svg", "shuffle-threads-cost.svg"} {
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.HasPrefix(string(raw), "<svg") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, s := range sweeps() {
		for _, x := range s.xs {
			if l := s.load(x); l.Size < 1 || l.Threads < 1 || l.Record < 1 || s.mib(x) <= 0 {
				t.Errorf("%s at %d: %+v", s.name, x, l)
			}
		}
	}
}

// A name that no row has is a mistake, not a run without rows.
func TestRowsThatDoNotExist(t *testing.T) {
	for _, quick := range []bool{false, true} {
		b := &bench{only: "no such row", quick: quick}
		if err := b.run(t.Context()); err == nil || !strings.Contains(err.Error(), b.only) {
			t.Errorf("quick %v: %v", quick, err)
		}
	}
}
