package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A short kill loop with our own client, over shared memory and over TCP: no read fails, no write that
// HDFS's client would have saved, and every acknowledged byte is there.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the verbena binary")
	}
	directory := t.TempDir()
	binary, report := filepath.Join(directory, "verbena"), filepath.Join(directory, "report.md")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../cmd/verbena").CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	defer func(w io.Writer) { progress = w }(progress)
	progress = io.Discard
	cmd := command()
	cmd.SetArgs([]string{"kill", "--kills", "6", "--pause", "300ms", "--writers", "2", "--transports", "shm,tcp",
		"--verbena", binary, "--dir", filepath.Join(directory, "data"), "--out", report})
	cmd.SetOut(&strings.Builder{})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{"Outcome: passed", "| kill -9 of datanode", "| files written, shm |", "| files written, tcp |", "| files read and compared, shm |", "| files read and compared, tcp |", "| files not as acknowledged | 0 |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
}
