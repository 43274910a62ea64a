package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

func callsCommand(c *common) *cobra.Command {
	r := &callsRun{c: c}
	cmd := &cobra.Command{
		Use:   "calls",
		Short: "Stop, kill and cut off servers in the middle of thousands of calls",
		Long: `Callers with deadlines call two servers over every transport, one of them in another
network namespace where this user may make one, by pools. All the while a server is
stopped (SIGSTOP), killed and started again, or cut off, for a random time. Each
caller has to get its own answer, or an error that says what became of the call, by
its deadline; no server may carry a call out twice that is not marked idempotent;
all transports have to come back; and at the end of each epoch nothing may be left in
this process or in a server.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			c.binary, r.self = self, self // servers are this program
			return c.run(cmd, r.run)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&r.epochs, "epochs", 2, "runtimes, one after the other")
	flags.IntVar(&r.faults, "faults", 24, "faults in an epoch")
	flags.IntVar(&r.callers, "callers", 16, "callers over each transport to each server")
	flags.Uint64Var(&r.seed, "seed", 1, "of the random choices")
	flags.BoolVar(&r.quick, "quick", false, "one epoch, a fault of each kind, nothing that takes half a minute to notice")
	return cmd
}

// callsRun is one run.
type callsRun struct {
	c                       *common
	self, dir               string
	epochs, faults, callers int
	seed                    uint64
	quick                   bool
	rng                     *rand.Rand
	cable                   *cable // to the second server's network namespace, or nil
	servers                 []*callsServer
	first                   map[*callsServer]callsState

	rows  map[string]*callsRow // by fault and transport
	wrong []error
	left  []string
}

// callsRow is what became of calls around the faults of a kind, over a transport.
type callsRow struct {
	faults  int
	outcome outcomes
	back    time.Duration // the longest until the first answer after a fault
}

const (
	// callsPatience is how long anything may take to come back.
	callsPatience = time.Minute
	// lateMost is how late a caller may hear beside other programs on busy processors.
	lateMost = 10 * time.Second
	// betweenFaults is how many calls each lane has to answer before the next fault.
	betweenFaults = 200
)

// A fault happens to a server.
type fault struct {
	name     string
	server   *callsServer
	begin    func(context.Context) error
	end      func(context.Context) error
	duration time.Duration
}

func (r *callsRun) kinds() (list []fault) {
	for _, s := range r.servers {
		list = append(list,
			fault{name: s.name + " server stopped (SIGSTOP)", server: s,
				begin: func(context.Context) error { return syscall.Kill(s.process.Pid(), syscall.SIGSTOP) },
				end:   func(context.Context) error { return syscall.Kill(s.process.Pid(), syscall.SIGCONT) }},
			fault{name: s.name + " server killed (SIGKILL)", server: s,
				begin: func(context.Context) error { s.process.Kill(); return nil },
				end:   s.start})
		if s.inside != "" {
			list = append(list, fault{name: s.name + " server cut off", server: s,
				begin: func(context.Context) error { return r.cable.cut() },
				end:   func(context.Context) error { return r.cable.heal() }})
		}
	}
	return list
}

func (r *callsRun) run(ctx context.Context, dir string) (err error) {
	r.dir, r.rows, r.first = dir, map[string]*callsRow{}, map[*callsServer]callsState{}
	r.rng = rand.New(rand.NewPCG(r.seed, 0))
	near := &callsServer{name: "near", self: r.self, dir: dir, listen: "127.0.0.1:0"}
	r.servers = []*callsServer{near}
	var missing error
	if r.cable, missing = newCable(); missing != nil {
		r.left = append(r.left, "a server that is cut off: "+missing.Error())
	} else {
		defer func() { err = errors.Join(err, r.cable.remove()) }()
		r.servers = append(r.servers, &callsServer{name: "far", self: r.self, dir: dir, listen: r.cable.far + ":0", inside: r.cable.name})
	}
	for _, s := range r.servers {
		if err := os.Remove(s.book()); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a run before
			return err
		}
		if err := s.start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.process.Stop()) }()
	}
	if r.quick {
		r.epochs, r.faults = 1, len(r.kinds())
	}
	warm := r.epochs + 1 // what a process keeps for its lifetime is there after the first epoch
	var base resources
	for epoch := range warm {
		faults := r.faults
		if epoch == 0 {
			faults = 0
		}
		if err := r.epoch(ctx, epoch, faults); err != nil {
			return err
		}
		if epoch == 0 {
			if base, err = measure(); err != nil {
				return err
			}
			continue
		}
		now, err := settled(base)
		if err != nil {
			return err
		}
		if err := leaked(base, now); err != nil {
			r.wrong = append(r.wrong, fmt.Errorf("epoch %d: this process: %w", epoch, err))
		}
	}
	r.print()
	return errors.Join(r.wrong...)
}

// epoch has a runtime of its own.
func (r *callsRun) epoch(ctx context.Context, number, faults int) (err error) {
	list, err := attackProviders(len(r.servers) > 1)
	if err != nil {
		return err
	}
	rt, err := verbena.New(verbena.Config{Providers: list})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	var lanes []*callsLane
	for _, s := range r.servers {
		if err := s.connect(ctx, rt); err != nil {
			return err
		}
		defer s.disconnect()
		if number == 0 {
			if r.first[s], err = s.ask(ctx); err != nil {
				return err
			}
		}
		for _, transport := range append(providers.Names(), verbena.TransportTCP) {
			if transport != verbena.TransportTCP {
				if _, err := openFabric(ctx, transport); err != nil || s.inside != "" && transport == "shm" {
					continue
				}
			}
			l := &callsLane{server: s, transport: transport}
			l.pool, err = rt.NewCallPool(verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{
				Service: callsService, Name: s.name + " " + transport, Dial: verbena.DialConfig{Transport: transport},
			}})
			if err != nil {
				return err
			}
			lanes = append(lanes, l)
		}
	}
	work, stop := context.WithCancel(ctx)
	var callers sync.WaitGroup
	for _, l := range lanes {
		for i := range r.callers {
			seed := [2]uint64{r.rng.Uint64(), uint64(i)}
			callers.Go(func() { l.call(work, rand.New(rand.NewPCG(seed[0], seed[1]))) })
		}
	}
	err = r.trouble(ctx, lanes, faults)
	stop()
	callers.Wait()
	for _, l := range lanes {
		r.wrong = append(r.wrong, l.wrong...)
		if l.late > lateMost {
			r.wrong = append(r.wrong, fmt.Errorf("over %s to the %s server a caller heard %v after its deadline", l.transport, l.server.name, l.late))
		}
		_ = l.pool.Close() // nothing is under way
	}
	if err != nil {
		return err
	}
	for _, s := range r.servers {
		if err := s.settles(ctx, r.first[s]); err != nil {
			r.wrong = append(r.wrong, fmt.Errorf("epoch %d: %w", number, err))
		}
	}
	return nil
}

// trouble makes one fault after the other while callers call.
func (r *callsRun) trouble(ctx context.Context, lanes []*callsLane, faults int) error {
	if err := answered(ctx, lanes, betweenFaults); err != nil {
		return err
	}
	kinds := r.kinds()
	for i := range faults {
		if i%len(kinds) == 0 {
			r.rng.Shuffle(len(kinds), func(a, b int) { kinds[a], kinds[b] = kinds[b], kinds[a] })
		}
		f := kinds[i%len(kinds)]
		f.duration = time.Duration(50+r.rng.IntN(2000)) * time.Millisecond
		switch {
		case r.quick:
			f.duration /= 4
		case strings.Contains(f.name, "cut off") && i < len(kinds):
			f.duration = 45 * time.Second // until both ends have noticed
		}
		fmt.Fprintf(progress, "%d: %s for %v\n", i+1, f.name, f.duration)
		if err := r.happen(ctx, f, lanes); err != nil {
			return fmt.Errorf("fault %d, %s for %v: %w", i+1, f.name, f.duration, err)
		}
	}
	return nil
}

func (r *callsRun) happen(ctx context.Context, f fault, lanes []*callsLane) error {
	lanes = slices.DeleteFunc(slices.Clone(lanes), func(l *callsLane) bool { return l.server != f.server })
	before := map[*callsLane]outcomes{}
	for _, l := range lanes {
		before[l] = l.take()
	}
	err := f.begin(ctx)
	if err == nil {
		err = wait(ctx, f.duration)
	}
	if err = errors.Join(err, f.end(ctx)); err != nil {
		return err
	}
	began := time.Now()
	backs := make([]time.Duration, len(lanes))
	var all sync.WaitGroup
	for i, l := range lanes {
		all.Go(func() { backs[i] = l.back(ctx, began) })
	}
	all.Wait()
	err = answered(ctx, lanes, betweenFaults)
	for i, l := range lanes {
		key := f.name + " | " + l.transport
		row := r.rows[key]
		if row == nil {
			row = &callsRow{}
			r.rows[key] = row
		}
		row.faults++
		row.outcome.add(l.take())
		row.back = max(row.back, backs[i])
	}
	return err
}

// answered waits until each lane has had so many more answers.
func answered(ctx context.Context, lanes []*callsLane, n uint64) error {
	for _, l := range lanes {
		from := l.answers.Load()
		began := time.Now()
		for l.answers.Load() < from+n {
			if time.Since(began) > callsPatience {
				return fmt.Errorf("over %s to the %s server %d calls were answered in %v; the last error: %w",
					l.transport, l.server.name, l.answers.Load()-from, callsPatience, l.lastError())
			}
			if err := wait(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *callsRun) print() {
	c := r.c
	arguments := fmt.Sprintf("--epochs %d --faults %d --callers %d --seed %d", r.epochs, r.faults, r.callers, r.seed)
	if r.quick {
		arguments = "--quick"
	}
	c.printf("# Calls\n\n`go run ./soak calls %s`; servers in processes of their own, %d callers over each transport to each of them.\n", arguments, r.callers)
	c.printf(`
Each call has a deadline of its own, %v to %v from its beginning. A caller gets its own answer, which is compared, or an error that tells
what became of the call: the peer's (most: the deadline passed before a handler was free), "not sent", or "outcome unknown". "Late" is by how much the
worst caller heard after its deadline. "Back" is the longest time from the end of a fault to the next answer. A server that was killed is started again
at the end of the fault.

| fault | transport | faults | calls | answered | peer's error | not sent | unknown | late ms | back s |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
`, leastDeadline, mostDeadline)
	for _, key := range slices.SortedFunc(maps.Keys(r.rows), func(a, b string) int { return cmp.Compare(a, b) }) {
		row := r.rows[key]
		o := row.outcome
		c.printf("| %s | %d | %d | %d | %d | %d | %d | %.1f | %.2f |\n", key, row.faults, o.calls(), o.answered, o.told, o.unsent, o.unknown,
			float64(o.late.Microseconds())/1000, row.back.Seconds())
	}
	carried := uint64(0)
	for _, s := range r.servers {
		carried += s.carried
	}
	c.printf("\nThe servers carried out %d calls that must not be carried out twice", carried)
	if len(r.wrong) > 0 {
		c.printf(".\n\nWRONG, %d times, on %s.\n", len(r.wrong), runtime.GOOS)
	} else {
		c.printf(", none of them twice, those included that were killed. After each epoch the servers and this process had what they had before: " +
			"goroutines, descriptors, mappings, endpoints and registered memory in use.\n")
	}
	for _, left := range r.left {
		c.printf("\nNot run: %s.\n", left)
	}
}
