package main

import (
	"path/filepath"
	"strings"
	"testing"
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
