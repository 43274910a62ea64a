package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// results are what the page shows: shuffle.json beside it, to which each run adds.
type results struct {
	Rows   []measuredRow     `json:"rows"`
	Growth map[string]growth `json:"growth"`
}

// A measuredRow is a row with what it was measured on.
type measuredRow struct {
	beside.Row
	Rounds   int          `json:"rounds"`
	Measured host.Machine `json:"measured"`
}

func read(file string) (r results, err error) {
	r.Growth = map[string]growth{}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// add puts rows in the place of those that they measure anew. What could not be measured
// replaces nothing.
func (r *results) add(rows []beside.Row, rounds int, m host.Machine) {
	for _, row := range rows {
		same := func(old measuredRow) bool { return old.What == row.What && old.Beside == row.Beside }
		i := slices.IndexFunc(r.Rows, same)
		switch {
		case i < 0:
			r.Rows = append(r.Rows, measuredRow{row, rounds, m})
		case row.Skipped == "" || r.Rows[i].Skipped != "":
			r.Rows[i] = measuredRow{row, rounds, m}
		}
	}
}

// write puts the raw figures, the plots and the parts of the page into a folder.
func (r *results) write(dir string) error {
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "shuffle.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	page := filepath.Join(dir, "shuffle.md")
	if err := beside.Replace(page, "rows", r.table()); err != nil {
		return err
	}
	var parts strings.Builder
	for _, s := range sweeps() {
		g, ok := r.Growth[s.name]
		if !ok {
			continue
		}
		if err := s.plot(&g, dir); err != nil {
			return err
		}
		parts.WriteString(s.page(&g))
	}
	return beside.Replace(page, "growth", parts.String())
}

// table shows rows with targets first, each group in the order of the command, and tells
// what they were measured on.
func (r *results) table() string {
	var runs, notes []string
	groups := [2][]beside.Row{}
	for _, row := range r.Rows {
		run := beside.Ran(row.Measured)
		i := slices.Index(runs, run)
		if i < 0 {
			i = len(runs)
			runs = append(runs, run)
		}
		shown := row.Row
		shown.What = fmt.Sprintf("%s [%d]", row.What, i+1)
		group := 0
		if row.Target == "" {
			group = 1
		}
		groups[group] = append(groups[group], shown)
	}
	for i, run := range runs {
		notes = append(notes, fmt.Sprintf("[%d]: %s", i+1, run))
	}
	var s strings.Builder
	for i, title := range []string{"With a target", "Beside, without a target"} {
		if len(groups[i]) > 0 {
			fmt.Fprintf(&s, "%s:\n\n%s\n", title, beside.Table(groups[i]))
		}
	}
	for _, n := range notes {
		fmt.Fprintf(&s, "- %s\n", n)
	}
	return s.String()
}
