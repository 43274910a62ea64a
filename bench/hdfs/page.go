package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/internal/maven"
)

// report prints the rows, and writes the page.
func (b *bench) report(rounds []figures) error {
	rows := b.rows(rounds)
	if b.clients != nil && !b.json {
		fmt.Print(b.table(rows)) // the page has all rows
		return nil
	}
	return publish(b, os.Stdout, "rows", b.table(rows), rows, func(r *results) { r.Rows = &rowResults{b.conditions(), b.size, rows} })
}

// publish prints a part of the page, and writes it and its figures; with --json it prints the rows
// of these, a line each, and writes nothing.
func publish[R any](b *bench, w io.Writer, part, text string, rows []R, set func(*results)) error {
	if b.json {
		return beside.Write(w, rows)
	}
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	if err := b.save(set); err != nil {
		return err
	}
	return b.replace(part, text)
}

// table shows rows in Markdown.
func (b *bench) table(rows []beside.Row) string {
	return fmt.Sprintf("%s. Files of %d MiB, %d files of 4 KiB, %d rounds after %d that warm up; medians, and in brackets the least and the greatest ratio of a round.\n\n",
		b.ran(), b.size, b.smallFiles(), b.rounds, warmRounds) + beside.Table(rows)
}

// ran tells what the figures were measured on.
func (b *bench) ran() string { return "Apache HDFS " + maven.Hadoop + "; " + beside.Ran(b.machine) }

// replace writes a part of the page anew.
func (b *bench) replace(part, text string) error {
	return beside.Replace(filepath.Join(b.out, "hdfs.md"), part, text)
}
