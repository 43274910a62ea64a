package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A server is stopped, killed and, where a network namespace can be made, cut off in the
// middle of calls, over each transport.
func TestCalls(t *testing.T) {
	var out strings.Builder
	cmd := command()
	cmd.SetArgs([]string{"calls", "--quick", "--callers", "8", "--dir", filepath.Join(t.TempDir(), "data")})
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		"Outcome: passed", "| near server stopped (SIGSTOP) | shm |", "| near server stopped (SIGSTOP) | iwarp |", "| near server killed (SIGKILL) | tcp |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}
