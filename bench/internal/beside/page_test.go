package beside

import (
	"strings"
	"testing"

	"github.com/verbena-data/verbena/bench/internal/host"
)

func TestMedians(t *testing.T) {
	r := Medians("a", "b", Nanoseconds, []float64{3, 1, 2}, []float64{1, 4, 4}, AtMost(0.5))
	if r.Ours != 2 || r.Theirs != 4 || r.Ratio != 0.5 || r.Low != 0.25 || r.High != 3 || !*r.Met {
		t.Errorf("%+v", r)
	}
}

func TestTable(t *testing.T) {
	rows := []Row{Medians("a", "b", Nanoseconds, []float64{2e9}, []float64{4e9}, AtLeast(1.5)), {What: "c", Skipped: "why"}}
	table := Table(rows)
	if strings.Count(table, "\n") != 4 || !strings.Contains(table, "| 2.00 s | 4.00 s | 0.50 (0.50 to 0.50) | at least 1.5 | **missed** |") || !strings.Contains(table, "not measured: why") {
		t.Error(table)
	}
}

func TestRanTellsTheSpeed(t *testing.T) {
	m := host.Machine{Date: "today", Processor: "P", Processors: 2, Go: "go1", Commit: "abc", Load: 1}
	if got, want := Ran(m), "today, P, 2 processors, go1, commit abc, load before 1.0"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	m.Multiply, m.Changed = 0.875, true
	if got, want := Ran(m), "today, P, 2 processors, 0.88 ns a multiplication of 3 cycles, go1, commit abc with changes, load before 1.0"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestPageKeepsWhatPeopleWrote(t *testing.T) {
	const page = "before\n<!-- rows: written by the command -->\nold\n<!-- end of rows -->\nbehind\n"
	got, err := Between(page, "rows", "new\n")
	if err != nil || got != strings.Replace(page, "old", "new", 1) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Between(page, "packets", ""); err == nil {
		t.Error("a page without the part's marks is taken")
	}
}
