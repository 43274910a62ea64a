package rdmatest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma/rdmatest"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

const historyMutantVariable = "VERBENA_RDMATEST_HISTORY_MUTANT"

// historyMutants are the bugs that random histories find, by class. What is not
// here shows itself only by time (a patient sender), by cost (what leaks or
// allocates), in calls that links do not make, or not to a link: it cannot know
// whether its queue pair had taken a shared receive that is flushed.
var historyMutants = map[fake.Bugs]string{
	fake.BugBounds: "both", fake.BugBefore: "both", fake.BugWrap: "both", fake.BugForeignDomain: "both",
	fake.BugAllReadable: "both", fake.BugAllWritable: "both", fake.BugAllAtomic: "ib", fake.BugAnyKey: "both",
	fake.BugStaleKey: "both", fake.BugDirtyMemory: "both", fake.BugLostCompletion: "both", fake.BugDoubleCompletion: "both",
	fake.BugSwappedCompletions: "both", fake.BugCompletesUnsignaled: "both", fake.BugNoFence: "both", fake.BugEarlyRead: "both",
	fake.BugFullFails: "both", fake.BugInvalidFails: "both", fake.BugNoFlush: "both", fake.BugNoReceiveFlush: "both",
	fake.BugFlushBackwards: "both", fake.BugSilentEnd: "both", fake.BugDisconnectUnseen: "both", fake.BugInlineReference: "both",
	fake.BugNoImmediate: "ib", fake.BugCutsMessages: "both", fake.BugImpatientSender: "ib", fake.BugGap: "both", fake.BugNoSwap: "ib",
	fake.BugSum: "ib", fake.BugLeaksGoroutine: "both", fake.BugStuckClose: "both", fake.BugLateWrite: "both", fake.BugPollForgets: "both",
	fake.BugWrongLength: "both", fake.BugTakesAfterError: "both", fake.BugEarlyWrite: "both", fake.BugUnaligned: "ib",
	fake.BugNoRevocation: "both",
}

// TestHistoryMutants breaks the fake in the ways that a history shows. The
// seeds are fixed: each bug is found by them.
func TestHistoryMutants(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, bug := range fake.AllBugs() {
		classes := []string{"ib", "iwarp"}
		switch historyMutants[bug] {
		case "":
			continue
		case "ib":
			classes = classes[:1]
		}
		if testing.Short() || race.Enabled {
			classes = classes[:1]
		}
		for _, class := range classes {
			t.Run(fmt.Sprintf("%s/%s", bug, class), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, executable, "-test.run=^TestHistoryMutant$/^History$", "-rdmatest.seed=1000", "-rdmatest.links=400")
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", historyMutantVariable, class, bug))
				out, err := cmd.CombinedOutput()
				switch {
				case ctx.Err() != nil:
					t.Fatalf("the case hangs:\n%s", out)
				case err == nil:
					t.Fatalf("400 links find nothing:\n%s", out)
				case !strings.Contains(string(out), "--- FAIL: TestHistoryMutant/History") || strings.Contains(string(out), "panic:"):
					t.Fatalf("the case does not fail, but the process ends with %v:\n%s", err, out)
				}
			})
		}
	}
}

// TestHistoryMutant is the case with a broken fake, in a process of its own.
func TestHistoryMutant(t *testing.T) {
	mutant, ok := os.LookupEnv(historyMutantVariable)
	if !ok {
		t.Skip("runs in the processes of TestHistoryMutants")
	}
	var class string
	var bug fake.Bugs
	if _, err := fmt.Sscan(mutant, &class, &bug); err != nil {
		t.Fatal(err)
	}
	config := fake.InfiniBand
	if class != "ib" {
		config = fake.IWARP
	}
	s := suite(config, class, func(c *fake.Config) { c.Bugs = bug })
	s.Bound = time.Second
	if bug == fake.BugStuckClose {
		s.Watchdog = 2 * time.Second
	}
	rdmatest.Run(t, s)
}
