package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/processes"
	"github.com/verbena-data/verbena/providers"
)

const idleService = "soak-idle"

func idleCommand(c *common) *cobra.Command {
	var connections int
	var transports []string
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "idle",
		Short: "Measure what idle connections cost, of each kind",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error {
				return idle(ctx, c, dir, transports, connections, duration)
			})
		},
	}
	cmd.Flags().StringSliceVar(&transports, "transports", []string{"tcp", "shm", "iwarp"}, "which to measure")
	cmd.Flags().IntVar(&connections, "connections", 1000, "of each kind")
	cmd.Flags().DurationVar(&duration, "duration", 30*time.Second, "of the measurement")
	return cmd
}

func idle(ctx context.Context, c *common, dir string, transports []string, connections int, duration time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.printf("# Idle connections\n\n`go run ./soak idle --connections %d --duration %v`; endpoints between two processes, a message sent and answered on each before.\n\n", connections, duration)
	c.printf("| transport | connections | CPU of the server, %% of a core | its busiest tenth | CPU of the client | its busiest tenth | server's peak MB | registered by the client, KiB each | resident in both processes, KiB | each, with the first | each beyond the first |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, transport := range transports {
		var one int64
		for _, n := range slices.Compact([]int{1, min(fewIdle, connections), connections}) {
			if err := idleOver(ctx, c, self, dir, transport, n, &one, duration); err != nil {
				return fmt.Errorf("%s: %w", transport, err)
			}
		}
	}
	c.printf("\nThe processor's time is that of the measurement without its busiest tenth, which stands beside it: a collection of garbage, or a host that takes the processor away, falls into one. Registered are all regions of the pools for receives, messages and queues, also what of them nobody uses. Resident is what connecting has added, less what went again in %v; the first connection brings what all share: "+
		"pools' first regions, queues, heap. The soak fails above %v %% of a core, above %d KiB registered for a peer, and from %d connections on above %d KiB resident for each connection over shm beyond the first.\n",
		idleSettled, mostIdleShare, mostIdleRegistered>>10, fewIdle, mostIdleResident>>10)
	return nil
}

const (
	// fewIdle is the number of connections in a row of the table between one and all.
	fewIdle = 64
	// idleSettled is how long what setting up has taken needs to be given back.
	idleSettled = 20 * time.Second
)

// What idle connections may cost at most. What is resident is judged from fewIdle
// connections on: the first bring what all share.
const (
	mostIdleShare      = 0.1      // percent of a core, of either process
	mostIdleRegistered = 64 << 10 // bytes of a peer
	mostIdleResident   = 96 << 10 // bytes of a further connection over shm, in both processes
)

// idleOver measures so many connections. one is the resident memory that one of them
// has brought; the first call finds it out.
func idleOver(ctx context.Context, c *common, self, dir, transport string, connections int, one *int64, duration time.Duration) (err error) {
	file := filepath.Join(dir, "idle.address")
	server, err := processes.Start(ctx, "server", file, self, "idle-server", file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		return err
	}
	defer rt.Close()
	before, err := residentOf(server)
	if err != nil {
		return err
	}
	endpoints, err := idleEndpoints(ctx, rt, server.Address, transport, connections)
	defer closeTogether(endpoints)
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "%s: %d connections idle for %v\n", transport, connections, duration)
	own, theirs, err := idleShares(ctx, server, duration)
	if err != nil {
		return err
	}
	peak, err := peakMemory(server.Pid())
	if err != nil {
		return err
	}
	after, err := residentOf(server)
	if err != nil {
		return err
	}
	after -= before
	registered, further, furtherText := registeredBy(rt, transport)/int64(connections), int64(0), "–"
	if *one == 0 {
		*one = after
	} else if connections > 1 {
		further = (after - *one) / int64(connections-1)
		furtherText = strconv.FormatInt(further>>10, 10)
	}
	c.printf("| %s | %d | %.3f | %.3f | %.3f | %.3f | %d | %d | %d | %d | %s |\n", transport, connections, theirs.mean, theirs.busiest, own.mean, own.busiest, peak/1e6, registered>>10, after>>10, (after>>10)/int64(connections), furtherText)
	return judgeIdle(transport, connections, max(own.mean, theirs.mean), registered, further)
}

// judgeIdle tells what exceeds the limits: the share of a core in percent, and the bytes
// of each connection that are registered and resident.
func judgeIdle(transport string, connections int, share float64, registered, resident int64) error {
	var errs []error
	if share > mostIdleShare {
		errs = append(errs, fmt.Errorf("%.3f %% of a core while idle, more than %v", share, mostIdleShare))
	}
	if registered > mostIdleRegistered {
		errs = append(errs, fmt.Errorf("%d bytes are registered for each of %d peers, more than %d", registered, connections, mostIdleRegistered))
	}
	if connections >= fewIdle && transport == "shm" && resident > mostIdleResident {
		errs = append(errs, fmt.Errorf("%d bytes are resident for each of %d connections, more than %d", resident, connections, mostIdleResident))
	}
	return errors.Join(errs...)
}

// residentOf is the resident memory of this process and another, in bytes.
func residentOf(server *processes.Process) (int64, error) {
	debug.FreeOSMemory() // the runs before are no part of this one
	own, err := residentMemory(os.Getpid())
	theirs, serr := residentMemory(server.Pid())
	return own + theirs, errors.Join(err, serr)
}

// idleEndpoints dials, and has a message answered on each connection. The caller closes
// what it returns, also beside an error.
func idleEndpoints(ctx context.Context, rt *verbena.Runtime, address, transport string, connections int) ([]*verbena.Endpoint, error) {
	endpoints := make([]*verbena.Endpoint, connections)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range endpoints {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			ep, err := rt.Dial(ctx, address, idleService, verbena.DialConfig{Transport: transport})
			if err != nil {
				return err
			}
			endpoints[i] = ep
			if err := ep.Send(ctx, 1, []byte("hello")); err != nil {
				return err
			}
			m, err := ep.Receive(ctx)
			if err != nil {
				return err
			}
			m.Release()
			return nil
		})
	}
	return endpoints, group.Wait()
}

// closeTogether closes endpoints, of which some may be nil.
func closeTogether(endpoints []*verbena.Endpoint) {
	var closers sync.WaitGroup
	for _, ep := range endpoints {
		if ep != nil {
			closers.Go(func() { ep.Close() })
		}
	}
	closers.Wait()
}

// An idleShare is the part of a core that a process uses, in percent.
type idleShare struct {
	mean    float64 // without the busiest tenth of the time
	busiest float64 // in that tenth
}

// idleTenths is how many parts the time of a measurement has. The busiest one is told
// apart: a collection of garbage falls into one of them, and so does a host that takes
// the processor away for some 10 ms, which counts as time of the process. What comes
// more often than that falls into the others, too.
const idleTenths = 10

func shareOf(used []time.Duration, slice time.Duration) idleShare {
	var sum time.Duration
	for _, d := range used {
		sum += d
	}
	most := slices.Max(used)
	percent := func(d time.Duration, slices int) float64 {
		return 100 * d.Seconds() / (float64(slices) * slice.Seconds())
	}
	return idleShare{percent(sum-most, len(used)-1), percent(most, 1)}
}

// idleShares lets things settle, and measures what part of a core this process and the
// server use.
func idleShares(ctx context.Context, server *processes.Process, duration time.Duration) (own, theirs idleShare, err error) {
	if err := wait(ctx, idleSettled); err != nil {
		return own, theirs, err
	}
	slice := duration / idleTenths
	var ownUsed, theirUsed []time.Duration
	var ownBefore, theirsBefore time.Duration
	for i := range idleTenths + 1 {
		ownNow, err := processes.CPUTime(os.Getpid())
		if err != nil {
			return own, theirs, err
		}
		theirsNow, err := server.CPU()
		if err != nil {
			return own, theirs, err
		}
		if i > 0 {
			ownUsed, theirUsed = append(ownUsed, ownNow-ownBefore), append(theirUsed, theirsNow-theirsBefore)
		}
		if ownBefore, theirsBefore = ownNow, theirsNow; i == idleTenths {
			break
		}
		if err := wait(ctx, slice); err != nil {
			return own, theirs, err
		}
	}
	return shareOf(ownUsed, slice), shareOf(theirUsed, slice), nil
}

// idleServerCommand is the other process of idle: it answers every message.
func idleServerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "idle-server ADDRESS-FILE",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
			if err != nil {
				return err
			}
			defer rt.Close()
			l, err := rt.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{idleService}})
			if err != nil {
				return err
			}
			defer l.Close()
			if err := writeAddress(args[0], l.Addr()); err != nil {
				return err
			}
			for {
				ep, err := l.Accept(ctx)
				if err != nil {
					if ctx.Err() != nil {
						return nil
					}
					return err
				}
				go answer(ctx, ep)
			}
		},
	}
}

func answer(ctx context.Context, ep *verbena.Endpoint) {
	defer ep.Close()
	for {
		m, err := ep.Receive(ctx)
		if err != nil {
			return
		}
		err = ep.Send(ctx, m.Tag, m.Bytes())
		m.Release()
		if err != nil {
			return
		}
	}
}

func writeAddress(file string, address net.Addr) error {
	if err := os.WriteFile(file+".tmp", []byte(address.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".tmp", file)
}

// registeredBy is how many bytes of memory a runtime has registered over a transport,
// used or not.
func registeredBy(rt *verbena.Runtime, transport string) (registered int64) {
	for _, d := range rt.Stats().Devices {
		if d.Transport != transport || transport == verbena.TransportTCP {
			continue
		}
		for _, p := range d.Pools {
			registered += p.Registered
		}
	}
	return registered
}
