package main

import (
	"fmt"
	"os"
	"path/filepath"

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
	if err := b.save(func(r *results) { r.Rows = &rowResults{b.conditions(), b.size, rows} }); err != nil {
		return err
	}
	return b.replace("rows", table)
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
