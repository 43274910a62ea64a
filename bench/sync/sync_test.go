package main

import (
	"bytes"
	"strings"
	"testing"
)

// A short run does all parts and prints a row for each, as a table or as JSON.
func TestShortRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a cluster")
	}
	for flag, row := range map[string]string{"--json=false": " each", "--json": `"beside":"the same, not synced","ours":`} {
		var out bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"--dir", t.TempDir(), "--rounds", "1", "--each", "20ms", flag})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), row); n != 6 {
			t.Errorf("%s: %d rows:\n%s", flag, n, out.String())
		}
	}
}
