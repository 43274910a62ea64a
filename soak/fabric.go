package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/internal/patience"
	"github.com/verbena-data/verbena/internal/processes"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/history"
)

func fabricCommand(c *common) *cobra.Command {
	var f fabric
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "Random operations of all kinds between processes that are killed, compared with a model",
		Long: `This process and its peers do random Sends, Writes, Reads and atomics of all
sizes, post wrong requests, register and deregister memory, connect, disconnect
and ask for what must be refused, both ways, by a script that both know; every
completion, message and byte is compared with a model of it. All the while a peer
is killed with SIGKILL at random moments and replaced; one peer lives as long as
its run. Now and then everything is closed, and descriptors, goroutines, mappings
and memory are counted. A run that is too long for one go is done in slices:
--for ends one, --state keeps what it has done, and the last slice reports.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			c.binary = self // peers are this program
			f.self = self
			return c.run(cmd, func(ctx context.Context, dir string) error { return f.run(ctx, c, dir) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.transport, "transport", "shm", "the provider")
	flags.Uint64Var(&f.operations, "operations", 1_000_000, "requests of both sides to do")
	flags.IntVar(&f.peers, "peers", 3, "peer processes")
	flags.IntVar(&f.links, "links", 3, "connections to each peer at once")
	flags.IntVar(&f.rounds, "rounds", 100, "rounds of a connection, at most")
	flags.DurationVar(&f.pause, "pause", 2*time.Second, "mean time between kills")
	flags.DurationVar(&f.epoch, "epoch", 30*time.Second, "time between two counts")
	flags.Uint64Var(&f.seed, "seed", 1, "of the random choices")
	flags.DurationVar(&f.slice, "for", 0, "end this slice after so long; 0 means never")
	flags.DurationVar(&f.bound, "bound", time.Minute, "what must come and has not after so long is lost")
	flags.StringVar(&f.stateFile, "state", "", "file that carries what has been done from slice to slice")
	return cmd
}

// fabric is the soak of random operations.
type fabric struct {
	transport            string
	operations           uint64
	peers, links, rounds int
	pause, epoch, slice  time.Duration
	bound                time.Duration
	seed                 uint64
	stateFile, self      string

	device rdma.Device
	state  fabricState
	began  time.Time
	number atomic.Uint64 // of the next link
	killed atomic.Uint64
	side   atomic.Pointer[history.Side]
}

// fabricState is what has been done, over all slices.
type fabricState struct {
	Arguments string // slices of different runs must not be added up
	Slices    int
	Seconds   float64
	Links     uint64 // seeds that have been used
	Counts    counts // of this process
	Answered  uint64
	Peers     counts // of peers that ended in order
	Killed    uint64
	Processes uint64
	Epochs    []resources
	Elders    []peerReport
}

// counts are history.Stats that can be kept.
type counts struct {
	Ops                                                                [rdma.OpSendInvalidate + 1]uint64
	Bytes, Messages, Rounds, Links, Lost, Registrations, Wrong, Answer uint64
	Ended, Refused                                                     []uint64
}

func (c *counts) add(s *history.Stats) {
	for i := range c.Ops {
		c.Ops[i] += s.Ops[i].Load()
	}
	c.Bytes += s.Bytes.Load()
	c.Messages += s.Messages.Load()
	c.Rounds += s.Rounds.Load()
	c.Links += s.Links.Load()
	c.Lost += s.Lost.Load()
	c.Registrations += s.Registrations.Load()
	c.Wrong += s.WrongPosts.Load()
	c.Answer += s.Answered.Load()
	if c.Ended == nil {
		c.Ended, c.Refused = make([]uint64, len(s.Ended)), make([]uint64, len(s.Refused))
	}
	for i := range s.Ended {
		c.Ended[i] += s.Ended[i].Load()
	}
	for i := range s.Refused {
		c.Refused[i] += s.Refused[i].Load()
	}
}

func (c *counts) operations() uint64 {
	var n uint64
	for _, each := range c.Ops {
		n += each
	}
	return n
}

// resources are what a process holds.
type resources struct {
	Descriptors, Goroutines, Mappings int
	Resident                          int64 // bytes
	Operations                        uint64
}

// measure counts what this process holds. Mappings are of memory that regions
// and queues are made of, by their names.
func measure() (r resources, err error) {
	runtime.GC()
	debug.FreeOSMemory()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return r, err
	}
	r.Descriptors = len(entries)
	r.Goroutines = runtime.NumGoroutine()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return r, err
	}
	r.Mappings = strings.Count(string(maps), "memfd:")
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return r, err
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return r, fmt.Errorf("/proc/self/statm is %q", statm)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	r.Resident = pages * int64(os.Getpagesize())
	return r, err
}

// settled measures once what was closed is gone: goroutines that have reported
// their end may still be returning.
func settled(base resources) (resources, error) {
	end := time.Now().Add(10 * time.Second)
	for {
		r, err := measure()
		if err != nil || time.Now().After(end) || r.Descriptors <= base.Descriptors && r.Goroutines <= base.Goroutines && r.Mappings <= base.Mappings {
			return r, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// leaked compares two measurements of what should be equal.
func leaked(before, after resources) error {
	var errs []error
	for _, each := range []struct {
		what          string
		before, after int
	}{
		{"descriptors", before.Descriptors, after.Descriptors},
		{"goroutines", before.Goroutines, after.Goroutines},
		{"mappings of shared memory", before.Mappings, after.Mappings},
	} {
		if each.after > each.before {
			errs = append(errs, fmt.Errorf("LEAK: %d %s, %d before", each.after, each.what, each.before))
		}
	}
	return errors.Join(errs...)
}

func openFabric(ctx context.Context, transport string) (rdma.Device, error) {
	// Who polls looks at the kernel's account of those who wait for processors now and then.
	// It stays open, so it is opened before anything is counted.
	patience.Processors.Pressed(patience.Processors.Now())
	for _, p := range providers.Default() {
		if p.Name() != transport {
			continue
		}
		devices, err := p.Devices(ctx)
		if err != nil {
			return nil, err
		}
		return devices[0], nil
	}
	return nil, fmt.Errorf("no provider %q in this binary", transport)
}

func (f *fabric) options(seed uint64) history.Options {
	return history.Options{Seed: seed, Bound: f.bound}
}

func (f *fabric) done() uint64 {
	n := f.state.Counts.operations() + f.state.Answered
	if s := f.side.Load(); s != nil {
		n += s.Stats.Operations() + s.Stats.Answered.Load()
	}
	return n
}

func (f *fabric) run(ctx context.Context, c *common, dir string) error {
	f.began = time.Now()
	if err := f.load(); err != nil {
		return err
	}
	f.number.Store(f.state.Links)
	var err error
	if f.device, err = openFabric(ctx, f.transport); err != nil {
		return err
	}
	// The first epoch brings what stays, such as the poller's descriptor.
	if err := f.runEpoch(ctx, dir, min(f.epoch, 2*time.Second)); err != nil {
		return err
	}
	base, err := measure()
	if err != nil {
		return err
	}
	if base, err = settled(base); err != nil {
		return err
	}
	for f.done() < f.operations && !f.over() {
		if err := f.runEpoch(ctx, dir, f.epoch); err != nil {
			return err
		}
		after, err := settled(base)
		if err != nil {
			return err
		}
		after.Operations = f.done()
		f.state.Epochs = append(f.state.Epochs, after)
		if err := leaked(base, after); err != nil {
			return err
		}
	}
	f.state.Slices++
	f.state.Seconds += time.Since(f.began).Seconds()
	f.state.Links = f.number.Load()
	fmt.Fprintln(progress)
	if err := f.save(); err != nil {
		return err
	}
	f.print(c)
	return f.grown()
}

func (f *fabric) over() bool { return f.slice > 0 && time.Since(f.began) > f.slice }

// grown judges the memory of this process, measured with everything closed: the
// last third of a slice's epochs may not need much more than the first third. It
// judges nothing under the race detector, which keeps notes of all memory ever used.
func (f *fabric) grown() error {
	if n := len(f.state.Epochs); n >= 6 && !race.Enabled {
		least := func(list []resources) int64 {
			m := list[0].Resident
			for _, r := range list {
				m = min(m, r.Resident)
			}
			return m
		}
		first, last := least(f.state.Epochs[:n/3]), least(f.state.Epochs[n-n/3:])
		if last > first+first/4+16<<20 {
			return fmt.Errorf("LEAK: %d MB resident at the end, %d MB in the beginning", last/1e6, first/1e6)
		}
	}
	return nil
}

func (f *fabric) arguments() string {
	return fmt.Sprintf("--transport %s --operations %d --peers %d --links %d --rounds %d --pause %v --epoch %v --seed %d",
		f.transport, f.operations, f.peers, f.links, f.rounds, f.pause, f.epoch, f.seed)
}

func (f *fabric) load() error {
	f.state = fabricState{Arguments: f.arguments()}
	if f.stateFile == "" {
		return nil
	}
	b, err := os.ReadFile(f.stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &f.state); err != nil {
		return fmt.Errorf("%s: %w", f.stateFile, err)
	}
	if f.state.Arguments != f.arguments() {
		return fmt.Errorf("%s is of a run with %s: name another file, or remove it", f.stateFile, f.state.Arguments)
	}
	return nil
}

func (f *fabric) save() error {
	if f.stateFile == "" {
		return nil
	}
	b, err := json.Marshal(&f.state)
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.stateFile+".tmp", b, 0o644); err != nil {
		return err
	}
	return os.Rename(f.stateFile+".tmp", f.stateFile)
}

// A fabricPeer is a process that is connected to, and may be killed.
type fabricPeer struct {
	process *processes.Process
	result  string
	killed  atomic.Bool
}

// runEpoch opens everything, works, and closes everything.
func (f *fabric) runEpoch(ctx context.Context, dir string, duration time.Duration) (err error) {
	side, err := history.NewSide(f.device, f.options(f.seed))
	if err != nil {
		return err
	}
	f.side.Store(side)
	work, stop := context.WithTimeout(ctx, duration)
	defer stop()
	group, work := errgroup.WithContext(work)
	for i := range f.peers {
		group.Go(func() error { return f.keepPeer(work, ctx, dir, side, i) })
	}
	group.Go(func() error {
		f.report(work)
		stop()
		return nil
	})
	err = group.Wait()
	err = errors.Join(err, side.Close())
	f.side.Store(nil)
	f.state.Counts.add(&side.Stats)
	f.state.Answered += side.Stats.Answered.Load()
	f.state.Killed = f.state.Killed + f.killed.Swap(0)
	return err
}

// report tells what goes on until the epoch or the work is over.
func (f *fabric) report(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			n := f.done()
			fmt.Fprintf(progress, "\r%d of %d operations, %d links, %d killed ", n, f.operations, f.number.Load(), f.state.Killed+f.killed.Load())
			if n >= f.operations {
				return
			}
		}
	}
}

// keepPeer keeps a peer running until work ends; all but the first are killed
// now and then.
func (f *fabric) keepPeer(work, ctx context.Context, dir string, side *history.Side, index int) error {
	random := rand.New(rand.NewPCG(f.seed, uint64(index)<<32|f.number.Load()))
	for work.Err() == nil {
		peer, err := f.startPeer(ctx, dir, index)
		if err != nil {
			return err
		}
		life := time.Duration(1 << 62)
		if index > 0 {
			life = time.Duration(random.Int64N(int64(2*f.pause) * int64(max(1, f.peers-1))))
		}
		if err := f.usePeer(work, ctx, side, peer, life); err != nil {
			return fmt.Errorf("%w\n%s", err, peer.process.Log())
		}
	}
	return nil
}

func (f *fabric) startPeer(ctx context.Context, dir string, index int) (*fabricPeer, error) {
	address := filepath.Join(dir, fmt.Sprintf("fabric-%d.address", index))
	p := &fabricPeer{result: address + ".result"}
	for _, file := range []string{address, p.result} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	var err error
	p.process, err = processes.Start(ctx, fmt.Sprintf("peer-%d", index), address, f.self, "fabric-peer",
		"--transport", f.transport, "--seed", fmt.Sprint(f.seed+uint64(index)), "--bound", f.bound.String(), address)
	f.state.add(func(s *fabricState) { s.Processes++ })
	return p, err
}

var stateMutex sync.Mutex

func (s *fabricState) add(change func(*fabricState)) {
	stateMutex.Lock()
	defer stateMutex.Unlock()
	change(s)
}

// usePeer runs links to a peer until work ends or the peer's life is over.
func (f *fabric) usePeer(work, ctx context.Context, side *history.Side, peer *fabricPeer, life time.Duration) error {
	group, inner := errgroup.WithContext(ctx)
	over := make(chan struct{})
	for range f.links {
		group.Go(func() error {
			for {
				select {
				case <-over:
					return nil
				default:
				}
				if peer.killed.Load() {
					return nil
				}
				if err := f.runLink(inner, side, peer); err != nil {
					return err
				}
			}
		})
	}
	group.Go(func() error {
		timer := time.NewTimer(life)
		defer timer.Stop()
		select {
		case <-inner.Done():
		case <-work.Done():
			close(over)
		case <-peer.process.Exited():
			return fmt.Errorf("a peer ended by itself")
		case <-timer.C:
			peer.killed.Store(true)
			peer.process.Kill()
			f.killed.Add(1)
		}
		return nil
	})
	err := group.Wait()
	if peer.killed.Load() {
		<-peer.process.Exited()
		return err
	}
	if err != nil {
		peer.process.Kill()
		return err
	}
	if err := peer.process.Stop(); err != nil {
		return err
	}
	b, err := os.ReadFile(peer.result)
	if err != nil {
		return fmt.Errorf("the peer left no result: %w", err)
	}
	var report peerReport
	if err := json.Unmarshal(b, &report); err != nil {
		return err
	}
	f.state.add(func(s *fabricState) {
		s.Peers.merge(&report.Counts)
		report.Counts = counts{}
		s.Elders = append(s.Elders, report)
	})
	return leaked(report.Before, report.After)
}

func (c *counts) merge(o *counts) {
	for i := range c.Ops {
		c.Ops[i] += o.Ops[i]
	}
	c.Bytes, c.Messages, c.Rounds, c.Links = c.Bytes+o.Bytes, c.Messages+o.Messages, c.Rounds+o.Rounds, c.Links+o.Links
	c.Lost, c.Registrations, c.Wrong, c.Answer = c.Lost+o.Lost, c.Registrations+o.Registrations, c.Wrong+o.Wrong, c.Answer+o.Answer
}

// linkRequest is the private data of a connection.
type linkRequest struct {
	Seed   uint64
	Rounds int
}

func (f *fabric) runLink(ctx context.Context, side *history.Side, peer *fabricPeer) error {
	n := f.number.Add(1)
	request := linkRequest{Seed: f.seed<<32 + n, Rounds: f.rounds}
	private, err := json.Marshal(request)
	if err != nil {
		return err
	}
	link := history.Link{Seed: request.Seed, Rounds: request.Rounds, Died: peer.killed.Load}
	connected := false
	err = side.Run(ctx, history.Initiator, link, func(ctx context.Context, qp rdma.QueuePair) error {
		_, err := qp.Connect(ctx, peer.process.Address, private)
		connected = err == nil
		return err
	})
	switch {
	case err == nil, errors.Is(err, history.ErrLost) && peer.killed.Load(), !connected && peer.killed.Load():
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return err
}

func (f *fabric) print(c *common) {
	s := &f.state
	n := f.done()
	c.printf("# Random operations, %s\n\n`go run ./soak fabric %s`", f.transport, f.arguments())
	if s.Slices > 1 {
		c.printf(" in %d slices", s.Slices)
	}
	c.printf("; one process and %d peers, of which all but one are killed at random; both post.\n\n", f.peers)
	if n < f.operations {
		c.printf("**Not over: %d of %d operations.**\n\n", n, f.operations)
	}
	c.printf("| what | count |\n|---|---:|\n| operations, by this process and, in rounds that it compared, by its peers | %d |\n", n)
	for op, count := range s.Counts.Ops {
		c.printf("| %s, by this process | %d |\n", rdma.Opcode(op), count)
	}
	c.printf("| of its peers | %d |\n| bytes posted by this process | %d |\n| messages received and compared | %d |\n", s.Answered, s.Counts.Bytes, s.Counts.Messages)
	c.printf("| rounds after which all memory was compared | %d |\n| connections | %d |\n", s.Counts.Rounds, s.Counts.Links)
	for i, name := range history.EndingNames() {
		c.printf("| ended %s | %d |\n", name, s.Counts.Ended[i])
	}
	c.printf("| ended by the death of the peer | %d |\n", s.Counts.Lost)
	for i, name := range history.RefusalNames() {
		if i > 0 {
			c.printf("| refused: %s | %d |\n", name, s.Counts.Refused[i])
		}
	}
	c.printf("| wrong posts, refused at once | %d |\n| registrations of this process | %d |\n", s.Counts.Wrong, s.Counts.Registrations)
	c.printf("| peer processes | %d |\n| kill -9 of a peer | %d |\n| peers that ended in order and counted what they held | %d |\n", s.Processes, s.Killed, len(s.Elders))
	c.printf("| operations of those | %d |\n| operations a second | %.0f |\n", s.Peers.operations(), float64(n)/max(1, s.Seconds))
	if len(s.Epochs) > 0 {
		c.printf("\nWith everything closed, this process held:\n\n| after operations | descriptors | goroutines | mappings | resident MB |\n|---:|---:|---:|---:|---:|\n")
		step := max(1, (len(s.Epochs)+11)/12)
		for i, r := range s.Epochs {
			if i%step == 0 || i == len(s.Epochs)-1 {
				c.printf("| %d | %d | %d | %d | %.1f |\n", r.Operations, r.Descriptors, r.Goroutines, r.Mappings, float64(r.Resident)/1e6)
			}
		}
	}
	var most int64
	for _, e := range s.Elders {
		most = max(most, e.After.Resident)
	}
	c.printf("\nThe %d peers that ended in order held no more descriptors, goroutines and mappings than before their first connection, and %.1f MB at most.\n",
		len(s.Elders), float64(most)/1e6)
}

// peerReport is what a peer that ends in order leaves.
type peerReport struct {
	Before, After resources
	Counts        counts
}

// fabricPeerCommand is the other process of fabric.
func fabricPeerCommand() *cobra.Command {
	var transport string
	var seed uint64
	var bound time.Duration
	cmd := &cobra.Command{
		Use:    "fabric-peer ADDRESS-FILE",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return fabricPeerMain(cmd.Context(), transport, history.Options{Seed: seed, Bound: bound}, args[0])
		},
	}
	cmd.Flags().StringVar(&transport, "transport", "shm", "the provider")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "of its own choices")
	cmd.Flags().DurationVar(&bound, "bound", time.Minute, "as for fabric")
	return cmd
}

func fabricPeerMain(ctx context.Context, transport string, options history.Options, addressFile string) (err error) {
	device, err := openFabric(ctx, transport)
	if err != nil {
		return err
	}
	// The first listener brings what stays, such as the poller's descriptors.
	warm, err := device.Listen(ctx, "")
	if err != nil {
		return err
	}
	if err := warm.Close(); err != nil {
		return err
	}
	var report peerReport
	if report.Before, err = measure(); err != nil {
		return err
	}
	side, err := history.NewSide(device, options)
	if err != nil {
		return err
	}
	l, err := device.Listen(ctx, "")
	if err != nil {
		return err
	}
	if err := os.WriteFile(addressFile+".tmp", []byte(l.Address()), 0o644); err != nil {
		return err
	}
	if err := os.Rename(addressFile+".tmp", addressFile); err != nil {
		return err
	}
	var links errgroup.Group
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			break // the signal to end
		}
		links.Go(func() error {
			var request linkRequest
			if err := json.Unmarshal(r.PrivateData(), &request); err != nil {
				return errors.Join(err, r.Reject(nil))
			}
			// Links end with their peer, not with the signal.
			link := context.WithoutCancel(ctx)
			err := side.Run(link, history.Target, history.Link{Seed: request.Seed, Rounds: request.Rounds}, func(ctx context.Context, qp rdma.QueuePair) error {
				return r.Accept(ctx, qp, nil)
			})
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			return err
		})
	}
	err = links.Wait()
	if err := errors.Join(err, l.Close(), side.Close()); err != nil {
		return err
	}
	report.Counts.add(&side.Stats)
	if report.After, err = settled(report.Before); err != nil {
		return err
	}
	b, err := json.Marshal(&report)
	if err != nil {
		return err
	}
	return os.WriteFile(addressFile+".result", b, 0o644)
}
