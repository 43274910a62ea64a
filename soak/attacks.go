package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/processes"
	"github.com/verbena-data/verbena/providers"
)

const (
	attackService  = "soak-attacks"
	controlService = "soak-attacks-control"
)

// The server's memory, for each device and each purpose, so that bounds can be seen.
const (
	attackReceiveMemory = 256 << 20
	attackSendMemory    = 128 << 20
)

func attacksCommand(c *common) *cobra.Command {
	s := &siege{c: c}
	cmd := &cobra.Command{
		Use:   "attacks",
		Short: "What others notice while a server is flooded, starved, stopped and cut off",
		Long: `A server answers messages over every transport of this host, and has a NameNode and a
DataNode. A bystander has round trips and dials with it at a fixed pace, while
attackers follow one another, each in a process of its own; while they attack
hdfs-data/1, files are written and read over each transport. The report tells what
the bystander saw, by attack and transport, and what the server held before, at most
and after. The run fails if the server's memory exceeds the bound, if the bystander
sees an error that it should not, if an attacker gets what it has no token for, or if
something stays when the attackers have gone. All attacks are repeated, since what only
a leak does is to grow again; the report's other tables tell of the first time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			c.binary, s.self = self, self // server and attackers are this program
			return c.run(cmd, s.run)
		},
	}
	cmd.Flags().DurationVar(&s.duration, "duration", 3*time.Second, "of each attack")
	cmd.Flags().BoolVar(&s.quick, "quick", false, "at most 0.7 s for each, and nothing that takes half a minute to notice or to give back")
	cmd.Flags().IntVar(&s.passes, "passes", 2, "how often all attacks are run; with --quick once")
	cmd.Flags().StringVar(&s.profiles, "profiles", "", "folder for profiles of the server's heap and goroutines, from the beginning and after each pass (GODEBUG=memprofilerate=8192 has them see more)")
	cmd.Flags().StringVar(&s.only, "only", "", "run the attacks whose name contains this")
	return cmd
}

// A siege is one run.
type siege struct {
	c           *common
	self, dir   string
	only        string
	duration    time.Duration
	quick       bool
	passes      int
	profiles    string // folder, or ""
	cable       *cable // to a network namespace, or nil
	transports  []string
	server      *processes.Process
	bystanders  []*bystander
	control     *verbena.Endpoint
	rt          *verbena.Runtime
	addressLock sync.Mutex
	addresses   []string // of the server: loopback's, and the cable's
	nameNode    string   // of the server's files
	dataNode    string

	first    serverState
	rests    []serverState // after each pass
	again    bool          // a pass of which the report has the state alone
	rows     []bystanderRow
	fileRows []filesRow
	states   []serverRow
	told     []string
	left     []string // attacks that could not be run, and why
	wrong    []error
}

type bystanderRow struct {
	attack string
	measured
	unexpected, expected int
}

type serverRow struct {
	attack              string
	done                uint64
	before, after       serverState
	descriptors, memory int64 // at most
	bound               int64 // of memory
	back                time.Duration
	last                error // what was there until then
}

// A serverState is what a server says of itself.
type serverState struct {
	Goroutines, Descriptors, Mappings int
	Endpoints                         int
	Resident, Registered, Used        int64
	// Where Go's runtime has memory, in bytes. What it knows of goroutines and spans it keeps
	// for good, as many as there ever were at a time.
	Heap, HeapHoles, Stacks, GoRecords int64
}

// An attack is one way of doing harm.
type attack struct {
	name       string
	kind       string // of the attackers
	count      int    // connections at a time
	transports []string
	uid        int
	near       bool  // from the bystander's own address
	inside     bool  // the network namespace
	files      bool  // of the DataNode, while others write and read files
	memory     int64 // bytes that it may make the server take
	// during does something to the attackers, or the server; nil waits.
	during func(ctx context.Context, p *processes.Process) error
	// expected are the errors that the bystander may see.
	expected func(error) bool
	// strict wants memory back that the server keeps for a while for the next load.
	strict bool
	// than is what the server had after the pass before, or nil.
	than *serverState
}

// perHandshake and perEndpoint are bytes that a server may take for each
// connection, the kernel's excluded.
const (
	perHandshake = 64 << 10
	perEndpoint  = 320 << 10
	slack        = 64 << 20 // of the collector, and of what the bystander uses
)

func (s *siege) attacks() []attack {
	all := s.transports
	const half = attackReceiveMemory / 2 // for long messages, and for those that arrive eagerly
	devices := int64(len(all))
	stop := func(ctx context.Context, p *processes.Process) error {
		if err := syscall.Kill(p.Pid(), syscall.SIGSTOP); err != nil {
			return err
		}
		err := wait(ctx, s.duration)
		return errors.Join(err, syscall.Kill(p.Pid(), syscall.SIGCONT))
	}
	kill := func(ctx context.Context, p *processes.Process) error {
		err := wait(ctx, s.duration/4)
		p.Kill()
		return errors.Join(err, wait(ctx, s.duration/4))
	}
	list := []attack{
		{name: "nothing"},
		{name: "connections that say nothing", kind: "silent", count: 3000, memory: 3000 * perHandshake},
		{name: "silence from the bystander's own address", kind: "silent", count: 3000, near: true, memory: 3000 * perHandshake},
		{name: "half hellos", kind: "half-hello", count: 3000, transports: all, memory: 3000 * perHandshake},
		{name: "hellos, and nothing after the answer", kind: "accepted", count: 3000, transports: all, memory: 3000 * (perHandshake + perEndpoint)},
		{name: "hellos from the bystander's own address", kind: "accepted", count: 3000, transports: all, near: true, memory: 3000 * (perHandshake + perEndpoint)},
		{name: "storm of dials", kind: "storm", count: 200, memory: 400 * perEndpoint},
		{name: "offers of long messages, 4 KiB of each", kind: "offers", count: 96, transports: all, memory: 96*perEndpoint + devices*half},
		{name: "endpoints that never receive", kind: "deaf", count: 48, transports: all, memory: 48*perEndpoint + devices*(attackReceiveMemory+attackSendMemory)},
		{name: "client stopped (SIGSTOP)", kind: "traffic", count: 24, transports: all, memory: 24*perEndpoint + devices*(attackReceiveMemory+attackSendMemory), during: stop},
		{name: "client killed (SIGKILL)", kind: "traffic", count: 24, transports: all, memory: 24*perEndpoint + devices*(attackReceiveMemory+attackSendMemory), during: kill},
	}
	if slices.Contains(all, "shm") {
		list = append(list, attack{name: "silent sockets at shm's port", kind: "shm-silent", count: 500, memory: 500 * perHandshake})
	}
	const window = 8 << 20 // of a writer, and what the DataNode has received of it
	// dataOwed is what a DataNode holds for a peer that does not receive: 1 MiB, in a queue that
	// grows to twice its length by copies, 4 MiB in all, and as much again, since the collector
	// lets come as much garbage as there is in use. (With GOGC=20 half of it suffices.)
	const dataOwed = 8 << 20
	list = append(list,
		attack{name: "hdfs-data/1: breaches of the protocol", kind: "data-breach", count: 48, transports: all, files: true, memory: 48 * perEndpoint},
		attack{name: "hdfs-data/1: blocks without a token, windows of 64 MiB", kind: "data-untrusted", count: 24, transports: all, files: true, memory: 24*2*perEndpoint + devices*half},
		attack{name: "hdfs-data/1: hellos and set-ups without end, and answers never received", kind: "data-deaf", count: 24, transports: all, files: true, memory: 24 * (2*perEndpoint + dataOwed)},
		attack{name: "hdfs-data/1: writers stopped (SIGSTOP)", kind: "data-writes", count: 12, transports: all, files: true, memory: 12 * (2*perEndpoint + window), during: stop},
		attack{name: "hdfs-data/1: writers killed (SIGKILL)", kind: "data-writes", count: 12, transports: all, files: true, memory: 12 * (2*perEndpoint + window), during: kill},
		attack{name: "hdfs-data-calls/1: readers of rings stopped (SIGSTOP)", kind: "data-reads", count: 12, transports: all, files: true, memory: 12 * (2*perEndpoint + window), during: stop},
		attack{name: "hdfs-data-calls/1: readers of rings killed (SIGKILL)", kind: "data-reads", count: 12, transports: all, files: true, memory: 12 * (2*perEndpoint + window), during: kill})
	switch {
	case os.Getuid() != 0:
		s.left = append(s.left, "peers of another user: this needs the superuser, to become one")
	default:
		list = append(list,
			attack{name: "another user: storm of dials", kind: "storm", count: 200, uid: nobody, memory: 400 * perEndpoint})
		if slices.Contains(all, "shm") {
			list = append(list, attack{name: "another user: silent sockets at shm's port", kind: "shm-silent", count: 500, uid: nobody, memory: 500 * perHandshake})
		}
	}
	switch {
	case s.quick:
		s.left = append(s.left, "client partitioned: it takes the half minute that --quick does not have")
	case s.cable != nil:
		list = append(list, attack{name: "client partitioned", kind: "traffic", count: 16, transports: s.remote(), inside: true,
			memory: 16*perEndpoint + devices*(attackReceiveMemory+attackSendMemory),
			during: func(ctx context.Context, _ *processes.Process) error {
				err := wait(ctx, s.duration/4)
				return errors.Join(err, s.cable.cut(), s.notice(ctx))
			}})
	}
	return list
}

// A resting server has let go of what it keeps for the next load: that is swept every 10 s, and
// goes when two sweeps have found it unused.
const resting = 25 * time.Second

// rest has the server do nothing but serve the bystanders, and finds what stays.
func (s *siege) rest(ctx context.Context) error {
	a := attack{name: "nothing, afterwards", strict: true, during: func(ctx context.Context, _ *processes.Process) error { return wait(ctx, resting) }}
	if len(s.rests) > 0 {
		a.than = &s.rests[len(s.rests)-1]
	}
	state, err := s.assault(ctx, a)
	s.rests = append(s.rests, state)
	return errors.Join(err, s.profile(ctx, fmt.Sprintf("pass-%d", len(s.rests))))
}

// ends are what is done to the server itself, the last of which it does not survive.
func (s *siege) ends() []attack {
	return []attack{
		{name: "server stopped for 3 s (SIGSTOP)", during: func(ctx context.Context, _ *processes.Process) error {
			if err := syscall.Kill(s.server.Pid(), syscall.SIGSTOP); err != nil {
				return err
			}
			err := wait(ctx, 3*time.Second)
			return errors.Join(err, syscall.Kill(s.server.Pid(), syscall.SIGCONT), wait(ctx, time.Second))
		}},
		{name: "server killed (SIGKILL) and started again", expected: diedOrRefused, during: func(ctx context.Context, _ *processes.Process) error {
			s.server.Kill()
			if err := wait(ctx, s.duration/4); err != nil {
				return err
			}
			return errors.Join(s.startServer(ctx), s.openControl(ctx), wait(ctx, s.duration/4))
		}},
	}
}

const nobody = 65534

// diedOrRefused says of an error that it tells truly of a server that was killed.
func diedOrRefused(err error) bool {
	return errors.Is(err, verbena.ErrPeerDied) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
}

// remote are the transports that reach other network namespaces.
func (s *siege) remote() []string {
	return slices.DeleteFunc(slices.Clone(s.transports), func(t string) bool { return t == "shm" })
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (s *siege) run(ctx context.Context, dir string) (err error) {
	s.dir = dir
	if s.quick {
		s.duration, s.passes = min(s.duration, 700*time.Millisecond), 1
	}
	if s.profiles != "" {
		if err := os.MkdirAll(s.profiles, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil { // another user's attackers write nothing there
		return err
	}
	if !s.quick {
		var missing error
		if s.cable, missing = newCable(); missing != nil {
			s.left = append(s.left, "client partitioned: "+missing.Error())
		} else {
			defer func() { err = errors.Join(err, s.cable.remove()) }()
		}
	}
	if s.rt, err = verbena.New(verbena.Config{Providers: providers.Default()}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.rt.Close()) }()
	for _, name := range append(providers.Names(), verbena.TransportTCP) {
		if name != verbena.TransportTCP {
			if _, err := openFabric(ctx, name); err != nil {
				continue
			}
		}
		s.transports = append(s.transports, name)
	}
	if err := s.startServer(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.server.Stop()) }()
	if err := s.openControl(ctx); err != nil {
		return err
	}
	defer func() { _ = s.control.Close() }() // the server stops next

	work, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, transport := range s.transports {
		b := &bystander{rt: s.rt, address: func() string { return s.address(0) }, transport: transport}
		s.bystanders = append(s.bystanders, b)
		wg.Go(func() { b.run(work) })
	}
	err = s.assaults(ctx)
	end()
	wg.Wait()
	s.print()
	return errors.Join(append([]error{err}, s.wrong...)...)
}

func (s *siege) assaults(ctx context.Context) error {
	if err := wait(ctx, 2*time.Second); err != nil { // until everybody is connected
		return err
	}
	for _, b := range s.bystanders {
		if m := b.take(); len(m.shorts) == 0 {
			return fmt.Errorf("the bystander over %s got no answer: %w", b.transport, errors.Join(m.errs...))
		}
	}
	var err error
	if s.first, err = s.ask(ctx); err != nil {
		return err
	}
	if err := s.profile(ctx, "beginning"); err != nil {
		return err
	}
	attacks := s.attacks()
	for pass := range s.passes {
		s.again = pass > 0
		if err := s.assaultAll(ctx, attacks); err != nil {
			return err
		}
		if !s.quick {
			if err := s.rest(ctx); err != nil {
				return err
			}
		}
	}
	s.again = false
	return s.assaultAll(ctx, s.ends())
}

func (s *siege) assaultAll(ctx context.Context, attacks []attack) error {
	for _, a := range attacks {
		if strings.Contains(a.name, s.only) {
			if _, err := s.assault(ctx, a); err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
		}
	}
	return nil
}

// assault runs one attack, and waits until the server is as it was before the
// first. It returns what the server has then.
func (s *siege) assault(ctx context.Context, a attack) (after serverState, err error) {
	fmt.Fprintf(progress, "%s\n", a.name)
	before, err := s.ask(ctx)
	if err != nil {
		return after, err
	}
	row := serverRow{attack: a.name, before: before, bound: before.Resident + a.memory + slack}
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { row.memory, row.descriptors = s.watch(watching) })
	for _, b := range s.bystanders {
		b.take()
	}
	noFiles := func() []filesRow { return nil }
	files := noFiles
	if a.files {
		if files, err = s.files(ctx, a.name); err != nil {
			files = noFiles
		}
	}
	if err == nil {
		err = s.execute(ctx, a, &row)
	}
	s.judgeFiles(files())
	for _, b := range s.bystanders {
		s.judge(a, b.take())
	}
	stop()
	watcher.Wait()
	if err != nil {
		return after, err
	}
	began := time.Now()
	const patience = time.Minute
	for {
		if row.after, err = s.ask(ctx); err != nil {
			return after, err
		}
		kept := row.after.kept(s.first, a.strict)
		if a.than != nil {
			kept = errors.Join(kept, row.after.grown(*a.than))
		}
		if kept == nil {
			break
		}
		row.last = kept
		if time.Since(began) > patience {
			s.wrong = append(s.wrong, fmt.Errorf("%v after %q: %w", patience, a.name, kept))
			break
		}
		if err := wait(ctx, 200*time.Millisecond); err != nil {
			return after, err
		}
	}
	row.back = time.Since(began)
	fmt.Fprintf(progress, "  back after %.1f s: %v\n", row.back.Seconds(), row.last)
	if row.memory > row.bound {
		s.wrong = append(s.wrong, fmt.Errorf("%q: the server took %d MB, more than the %d MB that it may", a.name, row.memory>>20, row.bound>>20))
	}
	if !s.again {
		s.states = append(s.states, row)
	}
	return row.after, nil
}

// Before and after, the bystanders' dials come and go; each has a few descriptors,
// goroutines and regions.
const (
	passingEndpoints = 8
	passingEach      = 8
)

const (
	// mostKept is how much more resident memory than in the beginning a server that rests may
	// have, beside registered memory and Go's records, which have bounds of their own. A healthy
	// one has 12 to 16 MB: 5 MB of objects, among them the structures of 3,000 goroutines, which
	// Go does not free, and those of as many receives as there were at a time; 4 MB that fragments
	// the heap; and code and tables that the attacks are the first to use. One that kept closed
	// queue pairs had 26 MB.
	mostKept = 20 << 20
	// mostGrown is how much more memory in objects and stacks it may have after a pass than
	// after the one before. What is as large as the most that there ever was at a time is large
	// after the first pass already: a healthy server has 0.3 to 1.2 MB more, and one that kept closed
	// queue pairs had 3 MB. A pass has some 80,000 connections, half of which get an answer to
	// their hello: to leave 26 bytes of each, or 52 of each of these, is to fail.
	mostGrown = 2 << 20
)

// lasting are the bytes that live objects and goroutines' stacks have.
func (s serverState) lasting() int64 { return s.Heap + s.Stacks }

// grown tells what a server that rests has more than after the pass before, which did the same.
func (s serverState) grown(before serverState) error {
	if s.lasting() > before.lasting()+mostGrown {
		return fmt.Errorf("the server has %d bytes in objects and stacks, %d after the pass before: that is a leak", s.lasting(), before.lasting())
	}
	return nil
}

// kept tells what a server still has that it had not in the beginning.
func (s serverState) kept(first serverState, strict bool) error {
	var errs []error
	resident, registered := int64(slack), int64(attackReceiveMemory+attackSendMemory)
	if strict {
		resident, registered = mostKept, 8<<20
	}
	// Go never gives back what it knows of goroutines, spans and pages of the heap: 1 MB for each
	// 20 MB that the heap ever had. The bounds on the attacks' memory bound that, too.
	s.Resident, first.Resident = s.Resident-s.GoRecords, first.Resident-first.GoRecords
	if strict {
		s.Resident, first.Resident = s.Resident-s.Registered, first.Resident-first.Registered
	}
	for _, each := range []struct {
		what                string
		first, now, passing int64
	}{
		{what: "endpoints", first: int64(first.Endpoints), now: int64(s.Endpoints), passing: passingEndpoints},
		{what: "descriptors", first: int64(first.Descriptors), now: int64(s.Descriptors), passing: passingEndpoints * passingEach},
		{what: "goroutines", first: int64(first.Goroutines), now: int64(s.Goroutines), passing: passingEndpoints * passingEach},
		{what: "mappings of shared memory", first: int64(first.Mappings), now: int64(s.Mappings), passing: passingEndpoints * passingEach},
		{what: "bytes of registered memory in use", first: first.Used, now: s.Used, passing: 8 << 20},
		{what: "bytes of resident memory beside Go's records", first: first.Resident, now: s.Resident, passing: resident},
		{what: "bytes of registered memory", first: first.Registered, now: s.Registered, passing: registered},
	} {
		if each.now > each.first+each.passing {
			errs = append(errs, fmt.Errorf("the server has %d %s, %d in the beginning", each.now, each.what, each.first))
		}
	}
	if s.Resident > first.Resident+resident {
		errs = append(errs, fmt.Errorf("of its memory Go's heap has %d bytes in objects (%d in the beginning) and %d between them (%d), stacks have %d (%d), and Go's records %d (%d)",
			s.Heap, first.Heap, s.HeapHoles, first.HeapHoles, s.Stacks, first.Stacks, s.GoRecords, first.GoRecords))
	}
	return errors.Join(errs...)
}

func (s *siege) execute(ctx context.Context, a attack, row *serverRow) error {
	if a.kind == "" {
		if a.during == nil {
			return wait(ctx, s.duration)
		}
		return a.during(ctx, nil)
	}
	p, err := s.startAttacker(ctx, a)
	if err != nil {
		return err
	}
	if a.during != nil {
		if err = wait(ctx, s.duration/2); err == nil {
			err = a.during(ctx, p)
		}
	} else {
		err = wait(ctx, s.duration)
	}
	if s.cable != nil {
		err = errors.Join(err, s.cable.heal())
	}
	err = errors.Join(err, p.Stop())
	var report attackerReport
	if _, line, ok := strings.Cut(p.Log(), reportMark); ok {
		line, _, _ = strings.Cut(line, "\n")
		err = errors.Join(err, json.Unmarshal([]byte(line), &report))
	}
	row.done = report.Done
	for text := range report.Told {
		if strings.HasPrefix(text, breached) {
			s.wrong = append(s.wrong, fmt.Errorf("%q: %s", a.name, text))
		}
	}
	s.tell("- **%s**: %s", a.name, report.most(8))
	return err
}

// tell adds to the report what was told, the first time.
func (s *siege) tell(format string, args ...any) {
	if !s.again {
		s.told = append(s.told, fmt.Sprintf(format, args...))
	}
}

// most are the commonest things that attackers were told.
func (r attackerReport) most(n int) string {
	type pair struct {
		text  string
		count int
	}
	var list []pair
	for text, count := range r.Told {
		list = append(list, pair{text, count})
	}
	slices.SortFunc(list, func(a, b pair) int { return cmp.Or(b.count-a.count, strings.Compare(a.text, b.text)) })
	var texts []string
	for _, p := range list[:min(n, len(list))] {
		texts = append(texts, fmt.Sprintf("%d times `%s`", p.count, strings.ReplaceAll(p.text, "`", "'")))
	}
	if len(texts) == 0 {
		return "nothing, as long as it lived"
	}
	return strings.Join(texts, "; ")
}

func (s *siege) judge(a attack, m measured) {
	row := bystanderRow{attack: a.name, measured: m}
	for _, err := range m.errs {
		if a.expected != nil && a.expected(err) {
			row.expected++
			continue
		}
		if row.unexpected++; row.unexpected <= 3 {
			s.wrong = append(s.wrong, fmt.Errorf("%q: the bystander over %s: %w", a.name, m.transport, err))
		}
	}
	if len(m.shorts) == 0 {
		s.wrong = append(s.wrong, fmt.Errorf("%q: the bystander over %s had no round trip", a.name, m.transport))
	}
	if !s.again {
		s.rows = append(s.rows, row)
	}
}

// notice waits until the server has noticed that clients are gone.
func (s *siege) notice(ctx context.Context) error {
	const most = 45 * time.Second // it says 35 s
	began := time.Now()
	for {
		state, err := s.ask(ctx)
		if err != nil {
			return err
		}
		took := time.Since(began).Round(time.Second / 10)
		switch {
		case state.Endpoints <= s.first.Endpoints+passingEndpoints:
			s.tell("- **the server** noticed the partition of all its clients after %v", took)
			return nil
		case took > most:
			return fmt.Errorf("%v after the partition the server still has %d endpoints, %d in the beginning", took, state.Endpoints, s.first.Endpoints)
		}
		if err := wait(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// watch looks how much the server holds, and tells the most when ctx ends.
func (s *siege) watch(ctx context.Context) (memory, descriptors int64) {
	for wait(ctx, 100*time.Millisecond) == nil {
		pid := s.server.Pid()
		if m, err := residentMemory(pid); err == nil { // it may have been killed
			memory = max(memory, m)
		}
		if d, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
			names, _ := d.Readdirnames(-1) // as many as there are
			_ = d.Close()                  // was read only
			descriptors = max(descriptors, int64(len(names)))
		}
	}
	return memory, descriptors
}

func residentMemory(pid int) (int64, error) {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm is %q", pid, statm)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

func (s *siege) address(i int) string {
	s.addressLock.Lock()
	defer s.addressLock.Unlock()
	return s.addresses[i]
}

// startServer starts the server, the second time at the addresses of the first.
func (s *siege) startServer(ctx context.Context) error {
	file := filepath.Join(s.dir, "attacks.address")
	listen := s.addresses
	if listen == nil {
		listen = []string{"127.0.0.1:0"}
		if s.cable != nil {
			listen = append(listen, s.cable.near+":0")
		}
	}
	p, err := processes.Start(ctx, "server", file, s.self, append([]string{"attacks-server", "--files", filepath.Join(s.dir, "files"), "--profiles", s.profiles, file}, listen...)...)
	if err != nil {
		return err
	}
	all := strings.Fields(p.Address)
	at := len(all) - 2
	s.addressLock.Lock()
	defer s.addressLock.Unlock()
	s.server, s.addresses, s.nameNode, s.dataNode = p, all[:at:at], all[at], all[at+1]
	return nil
}

func (s *siege) startAttacker(ctx context.Context, a attack) (*processes.Process, error) {
	ready := filepath.Join(s.dir, "attacker.ready")
	address, executable := s.address(0), s.self
	if a.files {
		address = s.dataNode
	}
	args := []string{"attacker", a.kind, "", "--namenode", s.nameNode, "--count", strconv.Itoa(a.count), "--ready", ready, "--uid", strconv.Itoa(a.uid)}
	if len(a.transports) > 0 {
		args = append(args, "--transports", strings.Join(a.transports, ","))
	}
	if !a.near && !a.inside && runtime.GOOS == "linux" {
		args = append(args, "--from", "127.0.0.2") // where all of 127.0.0.0/8 is this host's
	}
	if a.inside {
		address = s.address(1)
		args = append(args, "--remote")
		executable = "ip"
	}
	args[2] = address
	if a.inside {
		args = append([]string{"netns", "exec", s.cable.name, s.self}, args...)
	}
	return processes.Start(ctx, "attacker", ready, executable, args...)
}

// openControl opens the endpoint over which the server tells of itself.
func (s *siege) openControl(ctx context.Context) (err error) {
	if s.control != nil {
		_ = s.control.Close() // that server is gone
	}
	dctx, cancel := context.WithTimeout(ctx, bystanderPatience)
	defer cancel()
	s.control, err = s.rt.Dial(dctx, s.address(0), controlService, verbena.DialConfig{Transport: verbena.TransportTCP})
	return err
}

func (s *siege) ask(ctx context.Context) (serverState, error) { return s.askFor(ctx, "") }

// profile has the server write profiles, if there is a folder for them.
func (s *siege) profile(ctx context.Context, name string) error {
	if s.profiles == "" {
		return nil
	}
	_, err := s.askFor(ctx, name)
	return err
}

// askFor asks for the server's account, and for profiles of that name, if it is not empty.
func (s *siege) askFor(ctx context.Context, profiles string) (state serverState, err error) {
	actx, cancel := context.WithTimeout(ctx, bystanderPatience)
	defer cancel()
	if err := s.control.Send(actx, 1, []byte(profiles)); err != nil {
		return state, err
	}
	m, err := s.control.Receive(actx)
	if err != nil {
		return state, fmt.Errorf("the server's own account: %w\n%s", err, s.server.Log())
	}
	defer m.Release()
	return state, json.Unmarshal(m.Bytes(), &state)
}

func attacksServerCommand() *cobra.Command {
	var files, profiles string
	cmd := &cobra.Command{
		Use:    "attacks-server ADDRESS-FILE LISTEN...",
		Hidden: true,
		Args:   cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			list, err := attackProviders(len(args) > 2)
			if err != nil {
				return err
			}
			rt, err := verbena.New(verbena.Config{
				Providers: list, ReceiveMemory: attackReceiveMemory, SendMemory: attackSendMemory,
			})
			if err != nil {
				return err
			}
			defer rt.Close()
			var addresses []string
			for _, at := range args[1:] {
				l, err := rt.Listen(ctx, at, verbena.ListenConfig{Services: []string{attackService}})
				if err != nil {
					return err
				}
				defer l.Close()
				control, err := l.Service(controlService, verbena.ServiceConfig{})
				if err != nil {
					return err
				}
				addresses = append(addresses, l.Addr().String())
				go serveEach(ctx, l.Accept, func(ep *verbena.Endpoint) { answer(ctx, ep) })
				go serveEach(ctx, control.Accept, func(ep *verbena.Endpoint) { account(ctx, rt, ep, profiles) })
			}
			up, err := hdfs.StartCluster(ctx, hdfs.ClusterConfig{Runtime: rt, Logger: slog.New(slog.DiscardHandler), Dir: files, Host: "127.0.0.1", DataNodes: 1})
			if err != nil {
				return err
			}
			defer up.Close()
			text := strings.Join(append(addresses, up.NameNode.Addr(), up.DataNodes[0].Addr()), " ")
			if err := writeAddress(args[0], stringAddress(text)); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&profiles, "profiles", "", "folder for profiles")
	cmd.Flags().StringVar(&files, "files", "", "directory of a NameNode and a DataNode, whose addresses follow the others")
	return cmd
}

// stringAddress is the text of addresses.
type stringAddress string

func (stringAddress) Network() string  { return "tcp" }
func (a stringAddress) String() string { return string(a) }

func serveEach(ctx context.Context, accept func(context.Context) (*verbena.Endpoint, error), serve func(*verbena.Endpoint)) {
	for {
		ep, err := accept(ctx)
		if err != nil {
			return // the server stops
		}
		go serve(ep)
	}
}

// account tells what the server holds, whenever it is asked. A message that is not empty names
// profiles to write into the folder.
func account(ctx context.Context, rt *verbena.Runtime, ep *verbena.Endpoint, folder string) {
	defer ep.Close()
	for {
		m, err := ep.Receive(ctx)
		if err != nil {
			return
		}
		name := filepath.Base(string(m.Bytes())) // of nothing: .
		m.Release()
		runtime.GC()
		debug.FreeOSMemory()
		state, err := stateOf(rt)
		if err != nil || name != "." && writeProfiles(filepath.Join(folder, name)) != nil {
			return
		}
		out, err := json.Marshal(state)
		if err != nil || ep.Send(ctx, 1, out) != nil {
			return
		}
	}
}

// writeProfiles writes what "go tool pprof" reads. The heap's is that of the last collection.
func writeProfiles(path string) (err error) {
	for _, kind := range []string{"heap", "goroutine"} {
		f, ferr := os.Create(path + "." + kind)
		if ferr != nil {
			return errors.Join(err, ferr)
		}
		err = errors.Join(err, pprof.Lookup(kind).WriteTo(f, 0), f.Close())
	}
	return err
}

// stateOf tells what this process holds.
func stateOf(rt *verbena.Runtime) (state serverState, err error) {
	own, err := measure()
	state = serverState{Goroutines: own.Goroutines, Descriptors: own.Descriptors, Mappings: own.Mappings, Resident: own.Resident}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	state.Heap, state.HeapHoles, state.Stacks = int64(m.HeapAlloc), int64(m.HeapInuse-m.HeapAlloc), int64(m.StackInuse)
	state.GoRecords = int64(m.MSpanSys + m.MCacheSys + m.GCSys + m.OtherSys + m.BuckHashSys)
	for _, d := range rt.Stats().Devices {
		state.Endpoints += d.Endpoints
		for _, pool := range d.Pools {
			state.Registered += pool.Registered
			state.Used += pool.Used
		}
	}
	return state, err
}

func (s *siege) print() {
	c := s.c
	c.printf("# Attacks\n\n`go run ./soak attacks%s`; a server, a bystander and attackers in processes of their own, on one host.\n", s.arguments())
	c.printf(`
Over each transport the bystander has a round trip of %d bytes every %v, one of %d KiB every %v, and every %v a new dial with a first round
trip. It shares the processors with those who attack. "Long" is the worst round trip of %d KiB.

| attack | transport | round trips | median us | worst ms | long ms | dials | median ms | worst ms | errors |
|---|---|---:|---:|---:|---:|---:|---:|---:|---|
`, shortSize, shortPace, longSize>>10, longPace, dialPace, longSize>>10)
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for _, r := range s.rows {
		verdict := "none"
		switch {
		case r.unexpected > 0:
			verdict = fmt.Sprintf("**%d**", r.unexpected)
		case r.expected > 0:
			verdict = fmt.Sprintf("%d, as it must be", r.expected)
		}
		c.printf("| %s | %s | %d | %d | %.1f | %.1f | %d | %.1f | %.1f | %s |\n", r.attack, r.transport, len(r.shorts), median(r.shorts).Microseconds(),
			milliseconds(worst(r.shorts)), milliseconds(worst(r.longs)), len(r.dial), milliseconds(median(r.dial)), milliseconds(worst(r.dial)), verdict)
	}
	c.printf(`
The server has %d MiB of ReceiveMemory and %d MiB of SendMemory for each device. What it may take at most is what it had, %d MB, and for each connection of the
attackers %d KiB during the hello and %d KiB from then on; beside that half of its ReceiveMemory on each device for long messages, and all
memory for clients with traffic. "Back" is how long after the attack everything was as in the beginning.

| attack | connections, dials or messages | MB resident: before | at most | bound | after | descriptors: before | at most | after | MB registered after | back s |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
`, attackReceiveMemory>>20, attackSendMemory>>20, slack/1000000, perHandshake>>10, perEndpoint>>10)
	for _, r := range s.states {
		c.printf("| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %.1f |\n", r.attack, r.done, r.before.Resident/1e6, r.memory/1e6, r.bound/1e6, r.after.Resident/1e6,
			r.before.Descriptors, r.descriptors, r.after.Descriptors, r.after.Registered/1e6, r.back.Seconds())
	}
	s.printRests()
	s.printFiles()
	c.printf("\nWhat the attackers were told (# stands for a number):\n\n%s\n", strings.Join(s.told, "\n"))
	for _, left := range s.left {
		c.printf("\nNot run: %s.\n", left)
	}
}

func (s *siege) printRests() {
	if len(s.rests) == 0 {
		return
	}
	s.c.printf(`
All attacks were run %d times, each with its bounds. %v after each of these passes the server had this, in MB. Go does not give its own records back. Beside them and
registered memory, which may be 8 MiB more, the resident memory may be %.1f MB more than in the beginning. What grows with each pass is a leak: objects and stacks may together have %.1f MB more after a pass than after the
one before.

| after | resident | Go's records | objects | between them | stacks | registered | goroutines | descriptors |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
`, len(s.rests), resting, float64(mostKept)/1e6, float64(mostGrown)/1e6)
	for i, r := range append([]serverState{s.first}, s.rests...) {
		name := "the beginning"
		if i > 0 {
			name = fmt.Sprintf("pass %d", i)
		}
		mb := func(n int64) float64 { return float64(n) / 1e6 }
		s.c.printf("| %s | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %d | %d |\n", name, mb(r.Resident), mb(r.GoRecords), mb(r.Heap), mb(r.HeapHoles), mb(r.Stacks), mb(r.Registered), r.Goroutines, r.Descriptors)
	}
}

func (s *siege) arguments() string {
	if s.quick {
		return " --quick"
	}
	return " --duration " + s.duration.String()
}

// A cable leads to a network namespace.
type cable struct{ name, device, near, far, nearMAC, farMAC string }

// newCable needs the superuser's rights and the command ip.
func newCable() (*cable, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("a network namespace needs the superuser")
	}
	n := os.Getpid() % 250
	k := &cable{
		name: fmt.Sprintf("verbena%d", os.Getpid()), device: fmt.Sprintf("vs%d", os.Getpid()),
		near: fmt.Sprintf("10.98.%d.1", n), far: fmt.Sprintf("10.98.%d.2", n),
		nearMAC: fmt.Sprintf("02:00:01:%02x:00:01", n), farMAC: fmt.Sprintf("02:00:01:%02x:00:02", n),
	}
	if err := ip("netns", "add", k.name); err != nil {
		return nil, err
	}
	for _, command := range [][]string{
		{"link", "add", k.device, "address", k.nearMAC, "type", "veth", "peer", "name", "cable", "address", k.farMAC, "netns", k.name},
		{"addr", "add", k.near + "/24", "dev", k.device},
		{"link", "set", k.device, "up"},
		{"-n", k.name, "addr", "add", k.far + "/24", "dev", "cable"},
		{"-n", k.name, "link", "set", "cable", "up"},
		{"-n", k.name, "link", "set", "lo", "up"},
	} {
		if err := ip(command...); err != nil {
			return nil, errors.Join(err, k.remove())
		}
	}
	return k, nil
}

// cut has every packet vanish. Neither end is told.
func (k *cable) cut() error { return k.neighbours("02:00:00:00:ff:ff", "02:00:00:00:ff:ff") }

func (k *cable) heal() error { return k.neighbours(k.nearMAC, k.farMAC) }

func (k *cable) neighbours(near, far string) error {
	return errors.Join(
		ip("neigh", "replace", k.far, "lladdr", far, "nud", "permanent", "dev", k.device),
		ip("-n", k.name, "neigh", "replace", k.near, "lladdr", near, "nud", "permanent", "dev", "cable"))
}

func (k *cable) remove() error { return ip("netns", "del", k.name) } // the device goes with it

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
