package rdmatest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma/rdmatest"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// mutantVariable names the bug of the fakes in a process of TestMutant.
const mutantVariable = "VERBENA_RDMATEST_MUTANT"

// mutants tell which cases must fail for a bug, in the class where it shows.
var mutants = map[fake.Bugs]struct {
	class string
	cases string // a pattern of the names of the cases to run
}{
	fake.BugBounds:              {"both", "OutOfBounds"},
	fake.BugBefore:              {"both", "OutOfBounds"},
	fake.BugWrap:                {"both", "OutOfBounds"},
	fake.BugForeignDomain:       {"both", "ForeignDomain"},
	fake.BugAllReadable:         {"both", "MissingRight"},
	fake.BugAllWritable:         {"both", "MissingRight"},
	fake.BugAllAtomic:           {"ib", "MissingRight"},
	fake.BugAnyKey:              {"both", "BadKey"},
	fake.BugStaleKey:            {"both", "Deregistered|DeregisterUnderWrites"},
	fake.BugDirtyMemory:         {"ib", "Memory"},
	fake.BugSequentialKeys:      {"ib", "Keys"},
	fake.BugLostCompletion:      {"ib", "SendsInOrder"},
	fake.BugDoubleCompletion:    {"ib", "SendsInOrder"},
	fake.BugSwappedCompletions:  {"ib", "PollBatches|ConcurrentPosts"},
	fake.BugCompletesUnsignaled: {"ib", "SelectiveSignalling"},
	fake.BugLostWakeup:          {"ib", "WaitRounds|WaitContext"},
	fake.BugWakesUnsolicited:    {"ib", "Solicited"},
	fake.BugDeafWait:            {"ib", "WaitContext"},
	fake.BugDeafDoorbell:        {"both", "HeldDoorbell"},
	fake.BugDeafConnect:         {"ib", "SilentTarget"},
	fake.BugNoFence:             {"both", "FencedSend"},
	fake.BugEarlyRead:           {"both", "ManyReads|Read"},
	fake.BugEarlySpace:          {"ib", "SendQueueFull"},
	fake.BugFullFails:           {"ib", "SendQueueFull"},
	fake.BugInvalidFails:        {"ib", "InvalidPosts"},
	fake.BugNoFlush:             {"ib", "SendsFlushed"},
	fake.BugNoReceiveFlush:      {"both", "Disconnect"},
	fake.BugFlushBackwards:      {"ib", "SendsFlushed"},
	fake.BugSilentEnd:           {"both", "Disconnect"},
	fake.BugDisconnectUnseen:    {"both", "Disconnect"},
	fake.BugInlineReference:     {"ib", "InlineReuse"},
	fake.BugNoImmediate:         {"ib", "WriteImmediate"},
	fake.BugCutsMessages:        {"both", "MessageTooLong"},
	fake.BugPatientSender:       {"ib", "ReceiverNeverReady"},
	fake.BugImpatientSender:     {"ib", "ReceiverLate"},
	fake.BugGap:                 {"ib", "ScatterGather"},
	fake.BugNoSwap:              {"ib", "CompareSwap"},
	fake.BugSum:                 {"ib", "FetchAdd"},
	fake.BugQuietOverrun:        {"ib", "Overrun"},
	fake.BugNoLimitEvent:        {"ib", "SharedReceiveLimit"},
	fake.BugCutsPrivateData:     {"ib", "PrivateData"},
	fake.BugLeaksGoroutine:      {"ib", "Connect"},
	fake.BugAllocates:           {"ib", "AllocationFree"},
	fake.BugStuckClose:          {"ib", "CloseIsSeen"},
	fake.BugLateWrite:           {"both", "WriteThenSend"},
	fake.BugPollForgets:         {"ib", "PollBatches"},
	fake.BugWrongLength:         {"ib", "Send"},
	fake.BugDeathUnseen:         {"both", "KilledWhileIdle"},
	fake.BugFlushesShared:       {"ib", "SharedReceiveSurvives"},
	fake.BugLeaksMemory:         {"ib", "Leaks"},
	fake.BugEarlyWrite:          {"ib", "MemoryReuse"},
	fake.BugUnaligned:           {"ib", "UnalignedAtomics"},
	fake.BugTakesAfterError:     {"both", "Disconnect"},
	fake.BugNoRevocation:        {"both", "SendInvalidate"},
	fake.BugAllRevocable:        {"both", "InvalidateRefused"},
	fake.BugLosesShared:         {"both", "SharedReceiveKeepsAll"},
	fake.BugDropsWaiting:        {"waiting", "ReceiverWaits|SharedReceiverWaits"},
	fake.BugSleepsOverClose:     {"both", "SharedReceiveSleeper"},
}

// TestMutants breaks the fake in every way that it knows. The suite must notice
// each, and end.
func TestMutants(t *testing.T) {
	if race.Enabled && testing.Short() {
		t.Skip("what the suite finds is the same under the race detector, and the fakes without faults run there")
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, bug := range fake.AllBugs() {
		m, ok := mutants[bug]
		if !ok {
			t.Errorf("%s: no case is said to find it", bug)
			continue
		}
		classes := []string{m.class}
		if m.class == "both" {
			classes = []string{"ib", "iwarp"}
		}
		for _, class := range classes {
			t.Run(fmt.Sprintf("%s/%s", bug, class), func(t *testing.T) {
				if race.Enabled && (bug == fake.BugAllocates || bug == fake.BugLeaksMemory) {
					t.Skip("neither allocations nor address space are measured under the race detector")
				}
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, executable, "-test.short", "-test.run=^TestMutant$/^("+m.cases+")$")
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", mutantVariable, class, bug))
				out, err := cmd.CombinedOutput()
				if ctx.Err() != nil {
					t.Fatalf("the suite hangs:\n%s", out)
				}
				if err == nil {
					t.Fatalf("the suite finds nothing:\n%s", out)
				}
				// It must be a case that failed, not the process.
				failed := regexp.MustCompile(`(?m)^    --- FAIL: TestMutant/(` + m.cases + `) `)
				if !failed.Match(out) || strings.Contains(string(out), "panic:") {
					t.Fatalf("no case fails, but the process ends with %v:\n%s", err, out)
				}
			})
		}
	}
}

// TestUnlistedLack runs without the table of what the fakes may lack.
func TestUnlistedLack(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(executable, "-test.short", "-test.run=^TestMutant$/^SendImmediate$")
	cmd.Env = append(os.Environ(), mutantVariable+"=unlisted 0")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "lacks send-immediate, and the table does not allow that") {
		t.Fatalf("a skip outside the table passes: %v\n%s", err, out)
	}
}

// TestMutant is the suite with a broken fake, in a process of its own.
func TestMutant(t *testing.T) {
	mutant, ok := os.LookupEnv(mutantVariable)
	if !ok {
		t.Skip("runs in the processes of TestMutants")
	}
	var class string
	var bug fake.Bugs
	if _, err := fmt.Sscan(mutant, &class, &bug); err != nil {
		t.Fatal(err)
	}
	config := fake.InfiniBand
	switch class {
	case "ib":
	case "waiting":
		config = waiting
	default:
		config = fake.IWARP
	}
	s := suite(config, class, func(c *fake.Config) { c.Bugs = bug })
	s.Bound = 500 * time.Millisecond
	s.Watchdog = 2 * time.Second
	if class == "unlisted" {
		s.MayLack = nil
	}
	rdmatest.Run(t, s)
}
