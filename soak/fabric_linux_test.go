package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The peers of the soak are this binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"fabric-peer", "attacks-server", "attacker", "calls-server"}, os.Args[1]) {
		main()
		return
	}
	os.Exit(m.Run())
}

// A short soak over each transport, in two slices, ends with a report that says
// what was done and that nothing was left.
func TestFabric(t *testing.T) {
	for _, transport := range []string{"shm", "iwarp"} {
		t.Run(transport, func(t *testing.T) {
			directory := t.TempDir()
			report := filepath.Join(directory, "report.md")
			run := func(more ...string) string {
				t.Helper()
				cmd := command()
				cmd.SetArgs(append([]string{"fabric", "--transport", transport, "--operations", "60000", "--epoch", "500ms", "--pause", "200ms",
					"--rounds", "10", "--state", filepath.Join(directory, "state"), "--dir", filepath.Join(directory, "data"), "--out", report}, more...))
				cmd.SetOut(&strings.Builder{})
				if err := cmd.ExecuteContext(t.Context()); err != nil {
					t.Fatal(err)
				}
				b, err := os.ReadFile(report)
				if err != nil {
					t.Fatal(err)
				}
				return string(b)
			}
			if text := run("--for", "1ns"); !strings.Contains(text, "Not over") {
				t.Errorf("a slice that ends at once says it is over:\n%s", text)
			}
			text := run()
			for _, want := range []string{"Outcome: passed", "in 2 slices", "| ended by a refused access |", "| kill -9 of a peer |"} {
				if !strings.Contains(text, want) {
					t.Errorf("the report lacks %q:\n%s", want, text)
				}
			}
			if strings.Contains(text, "Not over") {
				t.Errorf("not over:\n%s", text)
			}
		})
	}
}
