package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/internal/maven"
)

// report prints the rows, and writes the page.
func (b *bench) report(rounds []figures) error {
	rows := b.rows(rounds)
	if b.json {
		return beside.Write(os.Stdout, rows)
	}
	table := b.table(rows)
	fmt.Print(table)
	if b.clients != nil {
		return nil // the page has all rows
	}
	return b.replace("rows", table)
}

// table shows rows in Markdown.
func (b *bench) table(rows []beside.Row) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s. Files of %d MiB, %d files of 4 KiB, %d rounds after %d that warm up; medians, and in brackets the least and the greatest ratio of a round.\n\n",
		b.ran(), b.size, b.smallFiles(), b.rounds, warmRounds)
	fmt.Fprintln(&s, "| what | beside | ours | theirs | ours / theirs | target | |\n|---|---|---:|---:|---:|---|---|")
	for _, r := range rows {
		if r.Skipped != "" {
			fmt.Fprintf(&s, "| %s | %s | | | | %s | not measured: %s |\n", r.What, r.Beside, r.Target, r.Skipped)
			continue
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s | %.2f (%.2f to %.2f) | %s | %s |\n", r.What, r.Beside, show(r.Ours, r.Unit), show(r.Theirs, r.Unit), r.Ratio, r.Low, r.High, r.Target, r.Mark())
	}
	return s.String()
}

// show writes seconds where nanoseconds are very many.
func show(v float64, unit string) string {
	if unit == beside.Nanoseconds && v >= 1e8 {
		return fmt.Sprintf("%.2f s", v/1e9)
	}
	return beside.Show(v, unit)
}

// ran tells what the figures were measured on.
func (b *bench) ran() string {
	changed := ""
	if b.machine.Changed {
		changed = " with changes"
	}
	return fmt.Sprintf("Apache HDFS %s; %s, %s, %d processors, %s, commit %s%s, load before %.1f",
		maven.Hadoop, b.machine.Date, b.machine.Processor, b.machine.Processors, b.machine.Go, b.machine.Commit, changed, b.machine.Load)
}

// replace puts text between the marks of a part of the page; what people have written
// around it stays.
func (b *bench) replace(part, text string) error {
	file := filepath.Join(b.out, "hdfs.md")
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	out, err := between(string(page), part, text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(out), 0o644)
}

// between replaces what is between the marks of a part.
func between(page, part, text string) (string, error) {
	begin, end := "<!-- "+part+": written by the command -->\n", "<!-- end of "+part+" -->"
	head, rest, ok := strings.Cut(page, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("it lacks the lines %q and %q", strings.TrimSpace(begin), end)
	}
	return head + begin + text + end + tail, nil
}
