package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/internal/testneed"
)

// A server is stopped, killed and cut off in the middle of calls, over each transport. To be
// cut off it needs a network namespace.
func TestCalls(t *testing.T) {
	var out strings.Builder
	cmd := command()
	cmd.SetArgs([]string{"calls", "--quick", "--callers", "8", "--dir", filepath.Join(t.TempDir(), "data")})
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	wanted := func(lines ...string) {
		for _, want := range lines {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the report lacks %q:\n%s", want, out.String())
			}
		}
	}
	wanted("Outcome: passed", "| near server stopped (SIGSTOP) | shm |", "| near server stopped (SIGSTOP) | iwarp |", "| near server killed (SIGKILL) | tcp |")
	if _, left, _ := strings.Cut(out.String(), "Not run: "); left != "" && !t.Failed() {
		reason, _, _ := strings.Cut(left, "\n")
		testneed.Missing(t, reason, "the superuser's rights to make network namespaces, and apt-get install iproute2")
	}
	wanted("| far server stopped (SIGSTOP) | tcp |", "| far server cut off | iwarp |", "| far server cut off | tcp |")
}
