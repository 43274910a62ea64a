package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// bench is a run of the command.
type bench struct {
	quick, json  bool
	dir, out     string
	size         int64 // MiB
	rounds       int
	clients      *regexp.Regexp // only these, by their names in entries; nil: all
	root, binary string
	self         string // this program
	user         string
	work         string // directory of this run, on the file system in memory
	log          *os.File
	machine      host.Machine
}

// run prepares the place and calls f.
func (b *bench) run(ctx context.Context, f func(context.Context) error) (err error) {
	if b.size == 0 {
		b.size = 1024
		if b.quick {
			b.size = 256
		}
	}
	if b.rounds == 0 {
		b.rounds = 5
		if b.quick {
			b.rounds = 2
		}
	}
	if b.size < 1 || b.rounds < 1 {
		return fmt.Errorf("%d rounds with %d MiB: want 1 or more of each", b.rounds, b.size)
	}
	if err := b.locate(ctx); err != nil {
		return err
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	b.machine = host.Describe(ctx, b.root, nil)
	b.machine.Short = b.quick
	u, err := user.Current()
	if err != nil {
		return err
	}
	b.user = u.Username
	if b.work, err = os.MkdirTemp(b.dir, "verbena-hdfs-"); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(b.work)
		} else {
			fmt.Fprintln(os.Stderr, "logs are kept in", b.work)
		}
	}()
	if b.log, err = os.Create(filepath.Join(b.work, "clients.log")); err != nil {
		return err
	}
	defer b.log.Close()
	b.binary = filepath.Join(b.work, "verbena")
	if err := host.Build(ctx, b.root, b.binary, []string{"build"}, "./cmd/verbena"); err != nil {
		return err
	}
	return f(ctx)
}

// locate finds the tree, and the folder of the page.
func (b *bench) locate(ctx context.Context) (err error) {
	if b.root, err = host.ModuleRoot(ctx); err == nil && b.out == "" {
		b.out = filepath.Join(b.root, "docs", "benchmarks")
	}
	return err
}

// An operation is one of the things a client does in a round.
type operation struct {
	name string
	args func(b *bench) []any // behind the path
	// path is what it works on, below the client's directory.
	path string
}

const (
	smallFiles, smallSize, smallWriters = 2000, 4096, 8
	readSize                            = 4096
	// calls is how many small reads and questions one after the other make a median. Who
	// polls pauses for up to 100 ms after other work: fewer calls would be over before.
	calls = 2000
	// hotSpan is how many bytes a hot range has.
	hotSpan = 16 << 20
)

// hotCalls is how many reads of a hot range make a median.
func (b *bench) hotCalls() int {
	if b.quick {
		return 5000
	}
	return 20_000
}

var operations = []operation{
	{"write", func(b *bench) []any { return []any{b.size << 20, dataNodes} }, "large"},
	{"read", func(b *bench) []any { return []any{b.size << 20} }, "large"},
	{"pread", func(*bench) []any { return []any{calls, readSize, 1} }, "large"},
	{"hot", func(b *bench) []any { return []any{b.hotCalls(), readSize, 1} }, "large"},
	{"small", func(b *bench) []any { return []any{b.smallFiles(), smallSize, smallWriters} }, "small"},
	{"stat", func(*bench) []any { return []any{calls} }, "large"},
	{"block", func(*bench) []any { return []any{stagedFiles, stagedSize, 1} }, "blocks"},
}

func (b *bench) smallFiles() int {
	if b.quick {
		return smallFiles / 4
	}
	return smallFiles
}

// A contender is a client on a system, and what it does there. It reads the file of
// another client, if it writes none.
type contender struct {
	*client
	does   []string
	reads  string
	system *system
}

// figure is what one operation came to: numbers[0] is the time of all, or the median, in
// nanoseconds.
type figure struct {
	numbers []int64
	cpu     float64 // nanoseconds of all processes
	servers float64 // of those, the servers'
	stages  stages  // of a block, where DataNodes tell
}

// figures are by client and operation.
type figures map[string]figure

var everything = []string{"write", "read", "pread", "small", "stat"}

// A field is all that is compared: the systems, and the clients by system.
type field struct {
	sockets string // directory of Apache's sockets
	systems []*system
	clients [][]*contender
}

func (f *field) stop() error {
	var errs []error
	for _, list := range f.clients {
		for _, c := range list {
			errs = append(errs, c.Stop())
		}
	}
	for _, s := range f.systems {
		errs = append(errs, s.stop())
	}
	return errors.Join(append(errs, os.RemoveAll(f.sockets))...)
}

// known are all operations of all clients, as comparisons name them.
func (f *field) known() map[string]bool {
	out := map[string]bool{"floor": true}
	for _, list := range f.clients {
		for _, c := range list {
			for _, op := range c.does {
				out[c.name+"/"+op] = true
			}
		}
	}
	return out
}

// An entry is a client on a system, and what it does there.
type entry struct {
	name, system string // a system is "apache", or ours by its transport
	java         bool   // Apache's client, else ours
	transport    string // of ours; empty is the system's
	short        bool   // Java's short-circuit reads
	flags        []string
	reads        string // whose file, if not its own
	does         []string
}

var entries = []entry{
	{name: "java", system: "apache", java: true, does: append(everything, "hot")},
	{name: "java short-circuit", system: "apache", java: true, short: true, reads: "java", does: []string{"read", "pread"}},
	{name: "our client on Apache", system: "apache", transport: verbena.TransportTCP, does: []string{"write", "read", "pread", "stat"}},
	{name: "shm", system: "shm", flags: []string{"--no-windows"}, does: append(everything, "hot", "block")},
	{name: "shm get", system: "shm", reads: "shm", does: []string{"hot"}},
	{name: "java on ours", system: "shm", java: true, does: everything},
	{name: "java short-circuit on ours", system: "shm", java: true, short: true, reads: "java on ours", does: []string{"read", "pread"}},
	{name: "shm legacy", system: "shm", flags: []string{"--legacy"}, does: []string{"write", "read", "pread"}},
	{name: "tcp", system: verbena.TransportTCP, flags: []string{"--no-windows"}, does: append(everything, "hot", "block")},
	{name: "descriptor", system: verbena.TransportTCP, flags: []string{"--local"}, reads: "tcp", does: []string{"read", "pread"}},
	{name: "tcp native", system: verbena.TransportTCP, flags: []string{"--native"}, does: []string{"write", "read", "pread", "hot", "block"}},
	{name: "iwarp", system: "iwarp", flags: []string{"--no-windows"}, does: append(everything, "hot", "block")},
	{name: "iwarp get", system: "iwarp", reads: "iwarp", does: []string{"hot"}},
}

// wants tells whether a client has a name like that in b.clients, or writes what such a one
// reads.
func (b *bench) wants(name string) bool {
	return b.clients == nil || slices.ContainsFunc(entries, func(e entry) bool {
		return (e.name == name || e.reads == name) && b.clients.MatchString(e.name)
	})
}

// start brings up what b.clients wants, all if it is nil.
func (b *bench) start(ctx context.Context) (f *field, err error) {
	f = &field{}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	if f.sockets, err = os.MkdirTemp(cache, "verbena-dn-"); err != nil {
		return nil, err
	}
	h, err := fetchHadoop(ctx, b.work, b.user)
	if err != nil {
		return nil, err
	}
	places := map[string]int{} // in f, by system
	for _, e := range entries {
		if !b.wants(e.name) {
			continue
		}
		at, ok := places[e.system]
		if !ok {
			s, err := b.startSystem(ctx, h, e.system, f.sockets)
			if err != nil {
				return nil, err
			}
			at = len(f.systems)
			places[e.system] = at
			f.systems, f.clients = append(f.systems, s), append(f.clients, nil)
		}
		c, err := b.startClient(ctx, h, &e, f.systems[at])
		if err != nil {
			return nil, err
		}
		f.clients[at] = append(f.clients[at], c)
	}
	if len(f.systems) == 0 {
		return nil, fmt.Errorf("no client has a name like %q", b.clients)
	}
	return f, nil
}

func (b *bench) startSystem(ctx context.Context, h *hadoop, name, sockets string) (*system, error) {
	dir := filepath.Join(b.work, name)
	if name == "apache" {
		return startApache(ctx, h, dir, sockets)
	}
	socket := filepath.Join(sockets, name+"._PORT")
	s, err := startOurs(ctx, b.binary, dir, name, b.user, "--domain-socket", socket)
	if err == nil {
		s.socket = socket
	}
	return s, err
}

func (b *bench) startClient(ctx context.Context, h *hadoop, e *entry, s *system) (*contender, error) {
	out := &contender{does: e.does, reads: e.reads, system: s}
	if out.reads == "" {
		out.reads = e.name
	}
	var err error
	if e.java {
		var properties []string
		if e.short {
			properties = []string{"dfs.client.read.shortcircuit=true", "dfs.domain.socket.path=" + s.socket}
		}
		out.client, err = javaClient(ctx, e.name, h, b.work, s.nameNode, b.log, properties...)
		return out, err
	}
	transport := e.transport
	if transport == "" {
		transport = e.system
	}
	out.client, err = ourClient(ctx, b.self, e.name, s.nameNode, transport, b.user, 0, b.log, e.flags...)
	return out, err
}

// round has each client do all that it does, once; from is the system that begins.
func (b *bench) round(ctx context.Context, f *field, from int) (figures, error) {
	out := figures{}
	for i := range f.systems {
		at := (from + i) % len(f.systems)
		for n, c := range f.clients[at] {
			for _, op := range operations {
				if !slices.Contains(c.does, op.name) {
					continue
				}
				fig, err := b.measure(ctx, c, op)
				if err != nil {
					return nil, err
				}
				out[c.name+"/"+op.name] = fig
				fmt.Fprintf(os.Stderr, "%-22s %-6s %10.2f ms, %8.2f CPU s\n", c.name, op.name, float64(fig.numbers[0])/1e6, fig.cpu/1e9)
			}
			if err := f.systems[at].forget(ctx, f.clients[at], n); err != nil {
				return nil, err
			}
		}
	}
	ours := slices.IndexFunc(entries, func(e entry) bool { return !e.java && out[e.name+"/write"].numbers != nil })
	if ours < 0 {
		return out, nil
	}
	floor, err := b.measure(ctx, f.contender(entries[ours].name), operation{name: "floor", args: func(b *bench) []any { return []any{b.size << 20} }})
	out["floor"] = floor
	return out, err
}

// forget deletes what clients[n] was the last to read, and waits until it is gone. So all
// clients find about as much memory in use: where a hypervisor takes free memory back, pages
// beyond what was in use before cost several times as much.
func (s *system) forget(ctx context.Context, clients []*contender, n int) error {
	reads := func(c *contender) bool { return c.reads == clients[n].reads }
	if slices.ContainsFunc(clients[n+1:], reads) {
		return nil
	}
	owner := clients[slices.IndexFunc(clients, reads)]
	if _, err := owner.ask("delete", directory(owner.name)); err != nil {
		return err
	}
	return s.settle(ctx)
}

// contender is the one of that name.
func (f *field) contender(name string) *contender {
	for _, list := range f.clients {
		for _, c := range list {
			if c.name == name {
				return c
			}
		}
	}
	return nil
}

// directory is where a client's files are.
func directory(name string) string {
	dir := []byte("/" + name)
	for i, c := range dir {
		if c == ' ' {
			dir[i] = '-'
		}
	}
	return string(dir)
}

func (b *bench) measure(ctx context.Context, c *contender, op operation) (figure, error) {
	owner := c.name
	if op.path == "large" {
		owner = c.reads
	}
	path := directory(owner) + "/" + op.path
	if op.name == "floor" {
		path = b.work
	}
	args := append([]any{op.name, path}, op.args(b)...)
	if op.name == "hot" {
		if _, err := c.ask(append([]any{"warm"}, args[1:]...)...); err != nil {
			return figure{}, err
		}
	}
	if op.name == "block" {
		return b.measureBlocks(ctx, c, args)
	}
	before, err := c.system.cpu(c)
	if err != nil {
		return figure{}, err
	}
	own, err := c.CPU()
	if err != nil {
		return figure{}, err
	}
	numbers, err := c.ask(args...)
	if err != nil {
		return figure{}, err
	}
	after, err := c.system.cpu(c)
	if err != nil {
		return figure{}, err
	}
	ownAfter, err := c.CPU()
	return figure{numbers: numbers, cpu: float64(after - before), servers: float64(after - before - (ownAfter - own))}, err
}

// compare is the command without a subcommand.
func (b *bench) compare(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	if err := check(f.known()); err != nil && b.clients == nil {
		return err
	}
	// Java compiles what it runs often: these rounds do not count.
	warm := *b
	warm.quick, warm.size = true, min(b.size, 256)
	for n := range warmRounds {
		fmt.Fprintf(os.Stderr, "warming up, %d of %d\n", n+1, warmRounds)
		if _, err := warm.round(ctx, f, 0); err != nil {
			return err
		}
	}
	var measured []figures
	for n := range b.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", n+1, b.rounds)
		fs, err := b.round(ctx, f, n)
		if err != nil {
			return errors.Join(err, b.rescue(measured))
		}
		measured = append(measured, fs)
	}
	return b.report(measured)
}

// rescue prints the rows of the rounds before one that failed, and writes nothing.
func (b *bench) rescue(measured []figures) error {
	if b.rounds = len(measured); b.rounds == 0 {
		return nil
	}
	rows := b.rows(measured)
	if b.json {
		return beside.Write(os.Stdout, rows)
	}
	_, err := fmt.Print(b.table(rows))
	return err
}

// warmRounds are how many rounds come before those that count.
const warmRounds = 2
