package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/shm"
)

// What a flood costs the others: a server with one worker spins on its processor. A
// client on the other processor calls on 63 endpoints in turn. For 200 us before each call
// it may flood the server by a 64th endpoint with notifications that take the server 2 us
// each: up to 256 of them wait there when the call comes. The one goroutine of the client
// does both, so that each of the two processors has one program that wants it, and a
// call's time is that of the runtime and not of the kernel's scheduler.

const (
	overSHM      = "shm"
	benchService = "verbena.bench/1"
	methodEcho   = 1
	methodCount  = 2
	floodPeers   = 63
	floodPause   = 200 * time.Microsecond // before a call
	floodTakes   = 2 * time.Microsecond   // of the server, a notification
)

// listen is a runtime that listens on loopback.
func listen(ctx context.Context) (*verbena.Runtime, *verbena.Listener, error) {
	r, err := verbena.New(verbena.Config{Providers: []rdma.Provider{shm.New(shm.Config{})}, Workers: 1})
	if err != nil {
		return nil, nil, err
	}
	ln, err := r.Listen(ctx, "127.0.0.1:0", verbena.ListenConfig{Services: []string{benchService}, Tuning: verbena.TuningTable{overSHM: {Spin: time.Second}}})
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return r, ln, nil
}

// floodCommand prints a quantile of the calls' times in nanoseconds.
func floodCommand() *cobra.Command {
	var (
		flood    bool
		quantile float64
		duration time.Duration
	)
	cmd := &cobra.Command{Use: "flood", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return besideFlood(cmd.Context(), flood, quantile, duration)
	}}
	cmd.Flags().BoolVar(&flood, "flood", false, "send notifications by a 64th endpoint before each call")
	cmd.Flags().Float64Var(&quantile, "quantile", 0.5, "of the calls' times, which is printed: 0.5 is the median")
	cmd.Flags().DurationVar(&duration, "duration", time.Second, "measure for so long, after a quarter of it to warm up")
	cmd.AddCommand(&cobra.Command{Use: "server", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return serveFlood(cmd.Context()) }})
	return cmd
}

func besideFlood(ctx context.Context, flood bool, quantile float64, duration time.Duration) (err error) {
	if err := host.PinProcess(host.ClientCPU); err != nil {
		return err
	}
	s, err := startServer("flood", "server")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	r, err := verbena.New(verbena.Config{Providers: []rdma.Provider{shm.New(shm.Config{})}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	var callers []*verbena.Caller
	for range floodPeers {
		c, err := dialCaller(ctx, r, s.address)
		if err != nil {
			return err
		}
		defer c.Close()
		callers = append(callers, c)
	}
	source, err := dialCaller(ctx, r, s.address)
	if err != nil {
		return err
	}
	defer source.Close()
	request, notification := payload(1<<10), payload(100)
	var times []time.Duration
	began := time.Now()
	warm := duration / 4
	for i := 0; ; i++ {
		start := time.Now()
		for end := start.Add(floodPause); start.Before(end); start = time.Now() {
			if !flood {
				continue
			}
			if err := source.Notify(ctx, methodCount, notification); err != nil {
				return err
			}
		}
		if start.Sub(began) > warm+duration {
			break
		}
		m, err := callers[i%floodPeers].Call(ctx, methodEcho, request)
		if err != nil {
			return err
		}
		m.Release()
		if start.Sub(began) > warm {
			times = append(times, time.Since(start))
		}
	}
	m, err := callers[0].Call(ctx, methodCount, nil)
	if err != nil {
		return err
	}
	notified, err := strconv.Atoi(string(m.Bytes()))
	m.Release()
	if err != nil {
		return err
	}
	if flood && notified < 10*len(times) || !flood && notified > 0 {
		return fmt.Errorf("the flood was of %d notifications beside %d calls", notified, len(times))
	}
	slices.Sort(times)
	fmt.Println(float64(times[int(float64(len(times))*quantile)]))
	return nil
}

func dialCaller(ctx context.Context, r *verbena.Runtime, address string) (*verbena.Caller, error) {
	e, err := r.Dial(ctx, address, benchService, verbena.DialConfig{Transport: overSHM})
	if err != nil {
		return nil, err
	}
	return verbena.NewCaller(e, nil)
}

func serveFlood(ctx context.Context) (err error) {
	if err := host.PinProcess(host.ServerCPU); err != nil {
		return err
	}
	r, ln, err := listen(ctx)
	if err != nil {
		return err
	}
	notified := 0 // by the one worker
	mux := verbena.NewMux(verbena.MuxConfig{})
	mux.Short(methodEcho, func(q verbena.Request) { _ = q.Reply(q.Payload()) }) // the caller tells
	mux.Short(methodCount, func(q verbena.Request) {
		if len(q.Payload()) > 0 {
			notified++
			for end := time.Now().Add(floodTakes); time.Now().Before(end); {
			}
			return
		}
		_ = q.Reply(fmt.Append(nil, notified)) // the caller tells
	})
	go func() {
		for {
			e, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			go func() { _ = mux.Serve(e) }() // it ends with its client
		}
	}()
	fmt.Println(ln.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, ln.Close(), r.Close())
}
