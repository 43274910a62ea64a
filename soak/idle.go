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
	c.printf("| transport | connections | CPU of the server, %% of a core | CPU of the client | server's peak MB | registered by the client, KiB each | resident in both processes, KiB | each beyond the first |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, transport := range transports {
		var one int64
		for _, n := range slices.Compact([]int{1, min(fewIdle, connections), connections}) {
			if err := idleOver(ctx, c, self, dir, transport, n, &one, duration); err != nil {
				return fmt.Errorf("%s: %w", transport, err)
			}
		}
	}
	c.printf("\nRegistered is what is in use of the pools for receives, messages and queues. Resident is what connecting has added, less what went again in %v; the first connection brings what all share: "+
		"pools' first regions, queues, heap.\n", idleSettled)
	return nil
}

const (
	// fewIdle is the number of connections in a row of the table between one and all.
	fewIdle = 64
	// idleSettled is how long what setting up has taken needs to be given back.
	idleSettled = 20 * time.Second
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
	resident := func() (int64, error) {
		debug.FreeOSMemory() // the runs before are no part of this one
		own, err := residentMemory(os.Getpid())
		theirs, serr := residentMemory(server.Pid())
		return own + theirs, errors.Join(err, serr)
	}
	before, err := resident()
	if err != nil {
		return err
	}
	endpoints := make([]*verbena.Endpoint, connections)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range endpoints {
		group.Go(func() error {
			dctx, cancel := context.WithTimeout(gctx, 30*time.Second)
			defer cancel()
			ep, err := rt.Dial(dctx, server.Address, idleService, verbena.DialConfig{Transport: transport})
			if err != nil {
				return err
			}
			endpoints[i] = ep
			if err := ep.Send(dctx, 1, []byte("hello")); err != nil {
				return err
			}
			m, err := ep.Receive(dctx)
			if err != nil {
				return err
			}
			m.Release()
			return nil
		})
	}
	err = group.Wait()
	defer func() {
		var closers sync.WaitGroup
		for _, ep := range endpoints {
			if ep != nil {
				closers.Go(func() { ep.Close() })
			}
		}
		closers.Wait()
	}()
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "%s: %d connections idle for %v\n", transport, connections, duration)
	wait := func(d time.Duration) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
	if err := wait(idleSettled); err != nil {
		return err
	}
	measure := func() (own, theirs time.Duration, err error) {
		own, err = processes.CPUTime(os.Getpid())
		theirs, serr := server.CPU()
		return own, theirs, errors.Join(err, serr)
	}
	own, theirs, err := measure()
	if err != nil {
		return err
	}
	if err := wait(duration); err != nil {
		return err
	}
	ownAfter, theirsAfter, err := measure()
	if err != nil {
		return err
	}
	peak, err := peakMemory(server.Pid())
	if err != nil {
		return err
	}
	after, err := resident()
	if err != nil {
		return err
	}
	after -= before
	further := "–"
	if *one == 0 {
		*one = after
	} else if connections > 1 {
		further = strconv.FormatInt((after-*one)/int64(connections-1)>>10, 10)
	}
	share := func(d time.Duration) float64 { return 100 * d.Seconds() / duration.Seconds() }
	c.printf("| %s | %d | %.3f | %.3f | %d | %d | %d | %s |\n", transport, connections, share(theirsAfter-theirs), share(ownAfter-own), peak/1e6,
		registeredBy(rt, transport)/int64(connections)>>10, after>>10, further)
	if s := max(share(theirsAfter-theirs), share(ownAfter-own)); s > 0.1 {
		return fmt.Errorf("%.3f %% of a core while idle, more than 0.1", s)
	}
	return nil
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

// registeredBy is how many bytes of registered memory a runtime uses over a transport.
func registeredBy(rt *verbena.Runtime, transport string) (used int64) {
	for _, d := range rt.Stats().Devices {
		if d.Transport != transport || transport == verbena.TransportTCP {
			continue
		}
		for _, p := range d.Pools {
			used += p.Used
		}
	}
	return used
}
