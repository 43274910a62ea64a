package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/verbena-data/verbena/lab/internal/job"
	"github.com/verbena-data/verbena/lab/internal/world"
)

// A boot is a group of cases that share a virtual machine. Separate machines
// keep one driver's crash from the others' results, and two run at a time.
type boot struct {
	name  string
	pkg   string         // whose tests they are, relative to the module
	tests *regexp.Regexp // of the package's top-level tests
	world string         // links that are there before they begin
	loss  int            // percent of packets that the two hosts' link loses
	env   []string
	// skip leaves tests out, as go test's -skip.
	skip string
	// below is which of their subtests run unless --run says so, with its slash.
	below string
	// brief is which of their subtests run with --brief, with its slash.
	brief string
	// verbena brings the binary, which takes a while to build.
	verbena bool
	// limit is when it is killed unless --timeout says something else; 0 means the
	// default of that.
	limit time.Duration
}

// quickLimit is the limit of machines whose cases take seconds.
const quickLimit = 2 * time.Minute

const (
	// casesPackage has the cases that are the lab's own.
	casesPackage = "./lab/cases"
	// The others are tests of packages that want a device.
	ibverbsPackage = "./rdma/ibverbs"
	verbsPackage   = "./rdma/ibverbs/internal/verbs"
	// providersPackage has the test that squeezes a process in a small cgroup.
	providersPackage = "./providers"
	// livenessPackage has the tests that want a kernel before 6.15.
	livenessPackage = "./internal/liveness"
	runtimePackage  = "."
	shufflePackage  = "./shuffle"
	filesPackage    = "./hdfs"
)

// onAdapters are those of the runtime's tests over all transports that run over
// adapters, too: what endpoints have beside messages, which TestRuntime has.
var onAdapters = regexp.MustCompile("^(" + strings.Join([]string{
	"TestOneSided", "TestPutNotifyOrder", "TestRevokeUnderWay", "TestForeignToken", "TestOneSidedPeerDies",
	"TestExposeFile", "TestFileTruncated", "TestExposeAnonymous", "TestWrap", "TestUserMemoryRefused",
	"TestBuffersAreSent", "TestRelay", "TestBufferOfCancelledSend",
	"TestCallsWithBuffers", "TestCallGivenUp", "TestCallsWhenTheEndpointEnds", "TestCallsOfAPeerThatEnds",
	"TestStreamAdapters", "TestStreamGivenUp", "TestStreamThatFails", "TestStreamsWhenTheEndpointEnds",
	"TestPoolStreams", "TestPoolCalls", "TestPoolCallsOfKilledServers",
}, "|") + ")$")

// exchanges are those of the shuffle's tests in every world that run between hosts with adapters, where blocks are put and
// where they are sent: what is chosen, that every record arrives, and a process that is killed in the middle.
var exchanges = regexp.MustCompile("^(TestWays|TestJobOfProcesses|TestProcessIsKilled)$")

// hosts tells the tests of the runtime and of the shuffle which devices they have, at which address each host is, and so where to listen.
func hosts(driver string) []string {
	return ibverbsOn(driver, "VERBENA_LAB_ADDRESS="+world.Address0, "VERBENA_LAB_LISTEN="+world.Address1)
}

// ibverbsOn tells the provider's conformance tests which devices they have.
func ibverbsOn(driver string, more ...string) []string {
	return append(more, "VERBENA_LAB_DEVICE="+driver+"0", "VERBENA_LAB_PEER_DEVICE="+driver+"1")
}

// The cases that take whatever driver's links are there.
var (
	foreignPrograms = regexp.MustCompile(`^TestIbverbs`)
	driverOnly      = regexp.MustCompile(`^(TestSmoke|TestRuntime|TestDemo)$`)
)

// manyConnections are the cases that set up connections by the hundred, which
// under loss takes many minutes and tells nothing that the others do not.
const manyConnections = "Leaks|ManyConnections|ConnectAllAtOnce"

// killedPeers are the cases that kill a peer. The kernel tells the other side of
// a dead process by one message, which it does not repeat (Linux 6.1, cm.c,
// cm_destroy_id), and a peer on rxe that has to outlast losses repeats its requests
// for ever: under loss one case in fifty would wait in vain.
const killedPeers = "Killed.*"

// patientPeers are the cases in which siw waits ten seconds for a peer that says
// nothing. Its own machine has them.
const patientPeers = "Stopped|SilentTarget"

// losses are the cases that say most about lost packets: data in order and whole, under
// every operation, and the ends of connections.
const losses = "/^(Connect|Reject|Disconnect|Send|Write|Read|ScatterGather|ManyReads|SendsInOrder|WriteThenSend|BothWays|" +
	"SelectiveSignalling|WaitRounds|SharedReceiveKeepsAll|OutOfBounds|TargetClosesUnderLoad|CloseWhilePosting|Killed.*|History)$"

// without is a pattern for go test's -skip.
func without(cases ...string) string {
	return "Conformance$/^(" + strings.Join(cases, "|") + ")$"
}

// boots are all cases, long ones first.
var boots = []boot{
	{name: "ibverbs-rxe", pkg: ibverbsPackage, tests: regexp.MustCompile(`^(TestConformance|TestLabSignals)$`), world: "rxe", env: ibverbsOn("rxe")},
	{name: "ibverbs-siw", pkg: ibverbsPackage, tests: regexp.MustCompile(`^(TestConformance|TestLabSignals)$`), world: "siw", env: ibverbsOn("siw")},
	{name: "ibverbs-rxe-loss", pkg: ibverbsPackage, tests: regexp.MustCompile(`^TestConformance$`), world: "rxe", loss: 2, brief: losses, skip: without(manyConnections, killedPeers), env: ibverbsOn("rxe", "VERBENA_LAB_LOSSY=1")},
	{name: "ibverbs-siw-loss", pkg: ibverbsPackage, tests: regexp.MustCompile(`^TestConformance$`), world: "siw", loss: 2, brief: losses, skip: without(manyConnections), env: ibverbsOn("siw", "VERBENA_LAB_LOSSY=1")},
	{name: "verbs-rxe", pkg: verbsPackage, tests: regexp.MustCompile(`^TestLab`), world: "rxe", limit: quickLimit},
	{name: "verbs-siw", pkg: verbsPackage, tests: regexp.MustCompile(`^TestLab`), world: "siw", limit: quickLimit},
	// Each of these leaves its machine without a link or a device.
	{name: "down-rxe", pkg: ibverbsPackage, tests: regexp.MustCompile(`^TestLabLinkDown$`), world: "rxe", env: ibverbsOn("rxe", "VERBENA_LAB_SPOIL=1"), limit: quickLimit},
	{name: "down-siw", pkg: ibverbsPackage, tests: regexp.MustCompile(`^TestLabLinkDown$`), world: "siw", env: ibverbsOn("siw", "VERBENA_LAB_SPOIL=1"), limit: quickLimit},
	{name: "keepalive-rxe", pkg: ibverbsPackage, tests: regexp.MustCompile(`^TestLabKeepAlive$`), world: "rxe", env: ibverbsOn("rxe", "VERBENA_LAB_SPOIL=1"), limit: quickLimit},
	{name: "removal-rxe", pkg: ibverbsPackage, tests: regexp.MustCompile(`^TestLabRemoval$`), world: "rxe", env: ibverbsOn("rxe", "VERBENA_LAB_SPOIL=1"), limit: quickLimit},
	{name: "removal-siw", pkg: ibverbsPackage, tests: regexp.MustCompile(`^TestLabRemoval$`), world: "siw", env: ibverbsOn("siw", "VERBENA_LAB_SPOIL=1"), limit: quickLimit},
	{name: "iwarp", pkg: casesPackage, tests: regexp.MustCompile(`^TestIWARP`)},
	{name: "split-accepts", pkg: casesPackage, tests: regexp.MustCompile(`^TestSplitAcceptsConformance$`), skip: without(patientPeers)},
	{name: "split-connects", pkg: casesPackage, tests: regexp.MustCompile(`^TestSplitConnectsConformance$`), skip: without(patientPeers)},
	{name: "rxe", pkg: casesPackage, tests: driverOnly, world: "rxe", env: []string{job.DriverVariable + "=rxe"}, verbena: true},
	{name: "siw", pkg: casesPackage, tests: driverOnly, world: "siw", env: []string{job.DriverVariable + "=siw"}, verbena: true},
	{name: "runtime-rxe", pkg: runtimePackage, tests: onAdapters, world: "rxe", below: "/^ibverbs$", env: hosts("rxe")},
	{name: "runtime-siw", pkg: runtimePackage, tests: onAdapters, world: "siw", below: "/^ibverbs$", env: hosts("siw")},
	{name: "shuffle-rxe", pkg: shufflePackage, tests: exchanges, world: "rxe", env: hosts("rxe"), limit: quickLimit},
	{name: "shuffle-siw", pkg: shufflePackage, tests: exchanges, world: "siw", env: hosts("siw"), limit: quickLimit},
	{name: "files-rxe", pkg: filesPackage, tests: regexp.MustCompile(`^TestLab`), world: "rxe", env: hosts("rxe")},
	{name: "files-siw", pkg: filesPackage, tests: regexp.MustCompile(`^TestLab`), world: "siw", env: hosts("siw")},
	{name: "programs-rxe", pkg: casesPackage, tests: foreignPrograms, world: "rxe", env: []string{job.DriverVariable + "=rxe"}},
	{name: "partition", pkg: livenessPackage, tests: regexp.MustCompile(`.`), limit: quickLimit},
	{name: "squeeze", pkg: providersPackage, tests: regexp.MustCompile(`^TestSqueezedProcess$`), env: []string{"VERBENA_SQUEEZE=1"}},
	{name: "programs-siw", pkg: casesPackage, tests: foreignPrograms, world: "siw", env: []string{job.DriverVariable + "=siw"}},
}

// An allowedSkip is a skip that is no failure.
type allowedSkip struct {
	test    *regexp.Regexp // "boot/TestName/subtest"
	because *regexp.Regexp // what the test must say
	reason  string
}

// allowedSkips is all that may be skipped.
var allowedSkips = []allowedSkip{
	{
		regexp.MustCompile(`Conformance/`), regexp.MustCompile(` lacks [a-z-]+: `),
		"the conformance suite asks by a device's class and capabilities, and has a table of its own of what may be lacking",
	},
}

type casesOptions struct {
	run, machine  string
	verbose, list bool
	brief         bool
	tries         int
	json, keep    bool
	patient       bool // no machine has a limit of its own
	parallel      int
}

func casesCommand(o *options) *cobra.Command {
	c := &casesOptions{}
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Test Verbena against the Linux kernel's RDMA drivers in a virtual machine",
		Long: dedent(`
	The lab boots Debian's kernel with Soft-RoCE (rxe) and Soft-iWARP (siw) in a virtual
	machine and runs Verbena's tests in it, beside rping and perftest, programs that
	others wrote. It needs Debian 12 on amd64, the packages that it names when they are
	missing, and no right. KVM is used where it works.

	The first run fetches 223 MB of kernel packages and builds an image, in 20 seconds;
	it is kept in the user's cache directory until a package of it changes. A boot then
	takes some three seconds.

	Without a command it runs all cases; a case that skips has failed unless the table
	in lab/cases.go allows it. Latencies measured here tell nothing about hardware.`),
		Example: `  go run ./lab                              all cases
  go run ./lab --list                       their names
  go run ./lab --run 'IWARP/rping' -v       some, as "go test -run" names them
  go run ./lab --run IWARP --keep           and a shell in the machine when one fails
  go run ./lab exec -- rping -h             any program
  go run ./lab shell                        look around`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.patient = c.keep || cmd.Flags().Changed("timeout")
			return runCases(cmd.Context(), o, c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.run, "run", "", "run the cases that match, a pattern as go test's: Top/sub/subsub")
	f.StringVar(&c.machine, "machine", "", "run the cases of the machines whose names match, a regular expression")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "show all output, not that of failures alone")
	f.BoolVar(&c.list, "list", false, "list the cases by the machine that they run in")
	f.BoolVar(&c.json, "json", false, "print the events of go test -json")
	f.BoolVar(&c.keep, "keep", false, "when a case fails, open a shell in its machine before that goes (one machine at a time)")
	f.BoolVar(&c.brief, "brief", false, "repeat less within the cases of the conformance suite, and leave out most of it where packets are lost: two thirds of the time")
	f.IntVar(&c.tries, "tries", 1, "how often a case may run until it passes, each time in a fresh machine; the summary names those that needed more than one")
	f.IntVarP(&c.parallel, "parallel", "j", 2, "machines at a time")
	return cmd
}

func runCases(ctx context.Context, o *options, c *casesOptions) error {
	if c.keep {
		c.parallel = 1
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return errors.New("--keep opens a shell and needs a terminal")
		}
	}
	scratch, err := os.MkdirTemp("", "verbena-lab-")
	if err != nil {
		return err
	}
	defer remove(scratch)
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	built := o.progress().step("building the test binaries")
	machines, err := regexp.Compile(c.machine)
	if err != nil {
		return fmt.Errorf("--machine: %w", err)
	}
	binaries, err := buildTests(ctx, root, scratch, machines)
	if err != nil {
		return err
	}
	built()
	plan, err := choose(ctx, binaries, c.run, machines)
	if err != nil {
		return err
	}
	if c.list {
		for _, p := range plan {
			for _, t := range p.names {
				fmt.Printf("%-22s %s\n", p.name, t)
			}
		}
		return nil
	}
	if len(plan) == 0 {
		return errors.New("no case matches; --list shows them")
	}
	m, _, err := o.newMachine(ctx, scratch)
	if err != nil {
		return err
	}
	verbena := filepath.Join(scratch, "verbena")
	if slices.ContainsFunc(plan, func(p planned) bool { return p.verbena }) {
		if err := buildGuest(ctx, root, verbena, "./cmd/verbena", false); err != nil {
			return err
		}
	}

	report := &report{out: bufio.NewWriter(os.Stdout), verbose: c.verbose, json: c.json, prefix: c.parallel > 1 && len(plan) > 1}
	began := time.Now()
	turns := make(chan struct{}, max(1, c.parallel))
	var running sync.WaitGroup
	for _, p := range plan {
		running.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if ctx.Err() != nil {
				return
			}
			for try := 1; ctx.Err() == nil; try++ {
				copied := *m
				copied.limit = o.timeout
				if p.limit > 0 && !c.patient {
					copied.limit = p.limit
				}
				copied.job = job.Job{
					World: p.world, Loss: p.loss, Dir: "/root", ShellOnFailure: c.keep,
					Env:  append([]string{requireVariable + "=1", "GOTRACEBACK=all"}, p.env...),
					Argv: append([]string{guestPath(p.pkg)}, p.arguments(copied.limit, c.brief)...),
				}
				copied.terminal = c.keep
				copied.files = []file{{guestPath(p.pkg), binaries[p.pkg]}}
				if p.verbena {
					copied.files = append(copied.files, file{job.Files + "/verbena", verbena})
				}
				var final bool
				if p, final = report.boot(ctx, p, &copied, try >= c.tries); final {
					return
				}
			}
		})
	}
	running.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	return report.summary(time.Since(began))
}

// guestPath is where a package's test binary is in the virtual machine.
func guestPath(pkg string) string {
	name := strings.ReplaceAll(strings.TrimPrefix(pkg, "./"), "/", "-")
	if pkg == runtimePackage {
		name = "runtime"
	}
	return job.Files + "/" + name + ".test"
}

// buildTests builds the test binary of each package of boots.
func buildTests(ctx context.Context, root, scratch string, machines *regexp.Regexp) (map[string]string, error) {
	binaries := map[string]string{}
	for _, b := range boots {
		if binaries[b.pkg] != "" || !machines.MatchString(b.name) {
			continue
		}
		out := filepath.Join(scratch, filepath.Base(guestPath(b.pkg)))
		if err := buildGuest(ctx, root, out, b.pkg, true); err != nil {
			return nil, err
		}
		binaries[b.pkg] = out
	}
	return binaries, nil
}

// planned is a boot with the tests that it is to run.
type planned struct {
	boot
	names []string
	below string // the part of --run that names subtests, with its slash
}

// again is the plan of what failed alone: of failed, which has a test's parents, too,
// at least the deepest names.
func (p planned) again(failed []string) planned {
	var levels [][]string
	for _, name := range failed {
		if slices.ContainsFunc(failed, func(other string) bool { return strings.HasPrefix(other, name+"/") }) {
			continue
		}
		parts := strings.Split(name, "/")
		if levels == nil {
			levels = make([][]string, len(parts))
		}
		// A pattern has one set of names a level, and a name that is a leaf runs whole.
		levels = levels[:min(len(levels), len(parts))]
		for i := range levels {
			if !slices.Contains(levels[i], parts[i]) {
				levels[i] = append(levels[i], parts[i])
			}
		}
	}
	if levels == nil {
		return p // the machine failed, not a case
	}
	p.names = levels[0]
	if len(levels) > 1 {
		p.below = ""
	}
	for _, names := range levels[1:] {
		quoted := make([]string, len(names))
		for i, name := range names {
			quoted[i] = regexp.QuoteMeta(name)
		}
		p.below += "/^(" + strings.Join(quoted, "|") + ")$"
	}
	return p
}

func (p planned) arguments(limit time.Duration, brief bool) []string {
	below := p.below
	if below == "" && brief {
		below = p.boot.brief
	}
	if below == "" {
		below = p.boot.below
	}
	pattern := "^(" + strings.Join(p.names, "|") + ")$" + below
	// The test's own limit comes first and shows the stacks. Cases that are parallel
	// wait more than they compute.
	arguments := []string{"-test.parallel=4", "-test.v=test2json", "-test.run=" + pattern, "-test.timeout=" + (limit * 9 / 10).String(), "-test.paniconexit0", "-test.short", "-test.skip=" + p.skip}
	if brief && slices.ContainsFunc(p.names, func(n string) bool { return strings.HasSuffix(n, "Conformance") }) {
		arguments = append(arguments, "-rdmatest.brief")
	}
	return arguments
}

// choose lists the tests and deals those that match to the boots.
func choose(ctx context.Context, binaries map[string]string, run string, machines *regexp.Regexp) ([]planned, error) {
	top, below := splitPattern(run)
	match, err := regexp.Compile(top)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	tests := map[string][]string{}
	for pkg, binary := range binaries {
		out, err := command(ctx, "", binary, "-test.list=^Test")
		if err != nil {
			return nil, err
		}
		tests[pkg] = strings.Fields(out)
	}
	for pkg, names := range tests {
		for _, t := range names {
			// In other packages these names are those of the lab's tests.
			if pkg != casesPackage && !strings.HasPrefix(t, "TestLab") {
				continue
			}
			if !slices.ContainsFunc(boots, func(b boot) bool { return b.pkg == pkg && b.tests.MatchString(t) }) {
				return nil, fmt.Errorf("%s of %s belongs to no machine: add it to the table in lab/cases.go", t, pkg)
			}
		}
	}
	var plan []planned
	for _, b := range boots {
		if !machines.MatchString(b.name) {
			continue
		}
		p := planned{boot: b, below: below}
		for _, t := range tests[b.pkg] {
			if match.MatchString(t) && b.tests.MatchString(t) {
				p.names = append(p.names, t)
			}
		}
		if len(p.names) > 0 {
			plan = append(plan, p)
		}
	}
	return plan, nil
}

// splitPattern splits a pattern of go test at its first slash outside brackets.
func splitPattern(run string) (top, below string) {
	depth := 0
	for i, r := range run {
		switch r {
		case '[', '(':
			depth++
		case ']', ')':
			depth--
		case '/':
			if depth == 0 {
				return run[:i], run[i:]
			}
		}
	}
	return run, ""
}

// An event is one of test2json's.
type event struct {
	Time    *time.Time `json:",omitempty"`
	Action  string
	Package string   `json:",omitempty"`
	Test    string   `json:",omitempty"`
	Elapsed *float64 `json:",omitempty"`
	Output  string   `json:",omitempty"`
}

// A report collects what the machines say.
type report struct {
	mu      sync.Mutex
	out     *bufio.Writer
	verbose bool
	json    bool
	prefix  bool

	passed, skipped []string // some twice: their neighbour ran once more
	failures        []string
	again           []string // what did not count, because it may run once more
}

// flush shows what was written. Whoever has gone and does not read it any more
// has no use for an error.
func (r *report) flush() { _ = r.out.Flush() }

// boot runs a machine's cases and takes in what came of them. It tells whether
// that is final: they passed, or it was the last try. If not, rest is what to run again.
func (r *report) boot(ctx context.Context, p planned, m *machine, last bool) (rest planned, final bool) {
	began := time.Now()
	fromMachine, output := io.Pipe()
	var complaint ring
	complaint.size = 16 << 10
	m.stdout, m.stderr = output, &complaint
	if r.verbose {
		m.stderr = io.MultiWriter(&complaint, &prefixed{r: r, name: p.name})
	}
	seen := &bootResult{report: r, name: p.name, output: map[string][]string{}}
	var converting sync.WaitGroup
	var convertError error
	converting.Go(func() {
		convertError = convert(fromMachine, p.name, seen.event)
		_, _ = io.Copy(io.Discard, fromMachine) // the machine must not block
	})
	status, err := m.run(ctx)
	output.Close()
	converting.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.flush()
	failed := len(seen.failures) > 0
	before := len(r.failures)
	defer func() {
		rest, final = p, last || !failed
		if final {
			return
		}
		r.again = append(r.again, r.failures[before:]...)
		r.failures = r.failures[:before]
		rest = p.again(seen.failed)
		if !r.json {
			fmt.Fprintf(r.out, "%s: once more, in a fresh machine (--tries): %s\n", p.name, strings.Join(rest.names, ", "))
		}
	}()
	r.failures = append(r.failures, seen.failures...)
	r.passed = append(r.passed, seen.passed...)
	r.skipped = append(r.skipped, seen.skipped...)
	fail := func(format string, args ...any) {
		failed = true
		text := fmt.Sprintf(format, args...)
		r.failures = append(r.failures, p.name+": "+text)
		if !r.json {
			fmt.Fprintf(r.out, "%s: %s\n", p.name, text)
		}
	}
	for _, t := range p.names {
		if ctx.Err() == nil && !seen.ended[t] {
			fail("%s did not end", t)
			seen.failed = append(seen.failed, t)
		}
	}
	switch {
	case err != nil:
		fail("%v", err)
	case status != 0 && !failed:
		fail("the tests ended with status %d", status)
	case convertError != nil:
		fail("test2json: %v", convertError)
	case len(seen.passed) == 0:
		fail("no test passed: none matched, or all were skipped")
	}
	if r.json {
		return // the deferred function says
	}
	if failed && !r.verbose {
		fmt.Fprint(r.out, strings.Join(seen.output[""], ""))
		fmt.Fprint(r.out, complaint.String())
	}
	word := "ok  "
	if failed {
		word = "FAIL"
	}
	fmt.Fprintf(r.out, "%s %-18s %d passed, %d skipped as allowed, %.1f s on %s\n", word, p.name, len(seen.passed), len(seen.skipped), time.Since(began).Seconds(), m.accelerator)
	return // the deferred function says
}

// convert turns a test binary's output into events.
func convert(in io.Reader, name string, take func(event, []byte)) error {
	cmd := exec.Command("go", "tool", "test2json", "-t", "-p", name)
	cmd.Stdin = in
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if err := json.Unmarshal(line, &e); err != nil {
				return errors.Join(fmt.Errorf("%q: %w", line, err), cmd.Process.Kill(), cmd.Wait())
			}
			take(e, line)
		}
		if errors.Is(err, io.EOF) {
			// With what it reads broken off by a killed machine it ends with an error
			// or not; that the tests ended is checked by their names.
			_ = cmd.Wait()
			return nil
		}
		if err != nil {
			return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		}
	}
}

// bootResult is what one machine's tests came to.
type bootResult struct {
	report   *report
	name     string
	output   map[string][]string // by test, while it runs
	ended    map[string]bool
	passed   []string // with the machine's name
	skipped  []string
	failures []string // the same, in words
	failed   []string // names of tests
}

func (b *bootResult) event(e event, line []byte) {
	r := b.report
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.flush()
	if r.json {
		_, _ = r.out.Write(line) // Flush tells
	}
	show := func(lines ...string) {
		if r.json {
			return
		}
		for _, l := range lines {
			if r.prefix {
				l = b.name + "| " + l
			}
			fmt.Fprint(r.out, l)
		}
	}
	switch e.Action {
	case "output":
		b.output[e.Test] = append(b.output[e.Test], e.Output)
		if r.verbose {
			show(e.Output)
		}
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	if e.Test == "" {
		return
	}
	if b.ended == nil {
		b.ended = map[string]bool{}
	}
	b.ended[e.Test] = true
	said := b.output[e.Test]
	delete(b.output, e.Test)
	what := b.name + "/" + e.Test
	switch e.Action {
	case "pass":
		b.passed = append(b.passed, what)
		if !r.verbose && !strings.Contains(e.Test, "/") {
			show(said[max(0, len(said)-1):]...)
		}
		return
	case "skip":
		text := strings.Join(said, "")
		if slices.ContainsFunc(allowedSkips, func(a allowedSkip) bool { return a.test.MatchString(what) && a.because.MatchString(text) }) {
			b.skipped = append(b.skipped, what)
			return
		}
		b.failures = append(b.failures, what+" was skipped, which the table in lab/cases.go does not allow")
		b.failed = append(b.failed, e.Test)
	case "fail":
		b.failures = append(b.failures, what)
		b.failed = append(b.failed, e.Test)
	}
	if !r.verbose {
		show(said...)
	}
}

// prefixed shows standard error of a machine as it comes.
type prefixed struct {
	r    *report
	name string
	rest string
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if p.r.json {
		return len(b), nil
	}
	p.rest += string(b)
	for {
		line, rest, ok := strings.Cut(p.rest, "\n")
		if !ok {
			return len(b), p.r.out.Flush()
		}
		p.rest = rest
		fmt.Fprintf(p.r.out, "%s! %s\n", p.name, line)
	}
}

// summary is the last word.
func (r *report) summary(took time.Duration) error {
	if len(r.failures) == 0 {
		if !r.json {
			fmt.Printf("lab: %d passed, %d skipped as allowed, %.0f s\n", different(r.passed), different(r.skipped), took.Seconds())
			if len(r.again) > 0 {
				fmt.Printf("lab: what needed another try:\n  %s\n", strings.Join(r.again, "\n  "))
			}
		}
		return nil
	}
	return fmt.Errorf("%d failures, %d passed, %.0f s:\n  %s", len(r.failures), different(r.passed), took.Seconds(), strings.Join(r.failures, "\n  "))
}

// different counts names, each once.
func different(names []string) int {
	return len(slices.Compact(slices.Sorted(slices.Values(names))))
}
