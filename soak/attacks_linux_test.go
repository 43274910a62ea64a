package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/internal/race"
)

// A short attack is measured, over each transport and in the server.
func TestAttacks(t *testing.T) {
	var out strings.Builder
	cmd := command()
	cmd.SetArgs([]string{"attacks", "--quick", "--duration", "300ms", "--only", "offers", "--dir", filepath.Join(t.TempDir(), "data")})
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"Outcome: passed", "| offers of long messages, 4 KiB of each | shm |", "| offers of long messages, 4 KiB of each | tcp |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

// Whoever attacks a DataNode's native service gets nothing, and files are written and read meanwhile.
func TestAttacksOnFiles(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes more memory than the server may")
	}
	var out strings.Builder
	cmd := command()
	cmd.SetArgs([]string{"attacks", "--quick", "--only", "hdfs-data", "--dir", filepath.Join(t.TempDir(), "data")})
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"Outcome: passed", "`the set-up was refused`", "`the read was refused: ", "`the ring was refused: ", "| hdfs-data-calls/1: readers of rings killed (SIGKILL) | iwarp |", "| hdfs-data/1: breaches of the protocol | iwarp |", "| hdfs-data/1: hellos and set-ups without end, and answers never received | shm |", "| hdfs-data/1: writers killed (SIGKILL) | tcp |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}
