package main

import (
	"bytes"
	"strings"
	"testing"
)

// A short run does all parts and prints a row for each.
func TestShortRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	var out bytes.Buffer
	cmd := root()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--dir", t.TempDir(), "--rounds", "1", "--each", "20ms"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), " each"); n != 6 {
		t.Errorf("%d rows:\n%s", n, out.String())
	}
}
