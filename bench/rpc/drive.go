package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/processes"
)

// A load is what a client's process does with a server.
type load struct {
	callers, size int
	iterations    int           // of one caller: at most, of which the first half warms up; 0: the first half of limit does
	limit         time.Duration // of one caller: at most; of several: how long
	warm          time.Duration // of several: before
	pause         time.Duration // of one caller: before each call
	free          bool          // neither end is bound to a processor
}

// driveCommand is the client's process, for every system that is not measured by verbena
// perf. It prints a row.
func driveCommand() *cobra.Command {
	var l load
	var pid int
	cmd := &cobra.Command{Use: "drive SYSTEM ADDRESS", Hidden: true, Args: cobra.ExactArgs(2), RunE: func(cmd *cobra.Command, args []string) (err error) {
		if !l.free {
			if err := host.PinProcess(host.ClientCPU); err != nil {
				return err
			}
		}
		dial := dialHadoop
		if args[0] != java {
			dial = systems[args[0]].dial
		}
		c, err := dial(args[1])
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		measure := l.throughput
		if l.callers == 1 {
			measure = l.latency
		}
		r, err := measure(cmd.Context(), c, pid)
		if err != nil {
			return err
		}
		r.Level, r.Transport, r.Test, r.Size, r.Posters, r.Connections = "rpc", args[0], "call", l.size, l.callers, 1
		return json.NewEncoder(cmd.OutOrStdout()).Encode(r)
	}}
	flags := cmd.Flags()
	flags.IntVar(&l.callers, "callers", 1, "callers at a time: one measures latency, several calls a second")
	flags.IntVar(&l.size, "size", 1<<10, "bytes of a request and of its answer")
	flags.IntVar(&l.iterations, "iterations", 0, "calls of one caller at most, of which the first half warms up (default: all that --limit allows, and the first half of it warms up)")
	flags.DurationVar(&l.limit, "limit", 0, "how long one caller calls at most, or how long several are measured; at least 20 calls")
	flags.DurationVar(&l.warm, "warm", 0, "how long several callers call before they are measured")
	flags.DurationVar(&l.pause, "pause", 0, "sleep of one caller before each call")
	flags.BoolVar(&l.free, "free", false, "bind this process to no processor")
	flags.IntVar(&pid, "server", 0, "the server's process `id`, whose processor time is told")
	return cmd
}

// drive runs it.
func (l load) drive(ctx context.Context, system string, s *server) (host.PerfRow, error) {
	out, err := host.OutputSelf(ctx, "drive", system, s.address, "--server", strconv.Itoa(s.cmd.Process.Pid),
		"--callers", strconv.Itoa(l.callers), "--size", strconv.Itoa(l.size), "--iterations", strconv.Itoa(l.iterations),
		"--limit", l.limit.String(), "--warm", l.warm.String(), "--pause", l.pause.String(), fmt.Sprintf("--free=%t", l.free))
	var r host.PerfRow
	if err == nil {
		err = json.NewDecoder(strings.NewReader(out)).Decode(&r)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", system, err)
	}
	return r, nil
}

// latency makes calls one after the other. Processor time is the server's alone.
func (l load) latency(ctx context.Context, c caller, pid int) (r host.PerfRow, err error) {
	call := c.call(payload(l.size))
	times := make([]time.Duration, 0, l.iterations)
	half := 0 // calls that ended in the first half of the time
	began := time.Now()
	before, err := processes.CPUTime(pid)
	if err != nil {
		return r, err
	}
	for (l.iterations == 0 || len(times) < l.iterations) && (time.Since(began) < l.limit || len(times) < 20) {
		if l.pause > 0 {
			time.Sleep(l.pause)
		}
		start := time.Now()
		if err := call(ctx); err != nil {
			return r, err
		}
		end := time.Now()
		times = append(times, end.Sub(start))
		if end.Sub(began) < l.limit/2 {
			half = len(times)
		}
	}
	took := time.Since(began)
	after, err := processes.CPUTime(pid)
	r.Iterations = int64(len(times))
	r.OpsPerS, r.CPU = float64(len(times))/took.Seconds(), (after - before).Seconds()
	if l.iterations > 0 {
		half = len(times) / 2
	}
	times = times[min(half, len(times)-1):] // the others warmed up
	slices.Sort(times)
	r.RoundP50, r.RoundP99 = float64(times[len(times)/2]), float64(times[len(times)*99/100])
	return r, err
}

// throughput lets several callers call for a while, and until at least 20 calls have ended.
// It does not take the single calls' times. Processor time is the server's alone.
func (l load) throughput(ctx context.Context, c caller, pid int) (host.PerfRow, error) {
	var (
		calls, over atomic.Int64
		wg          sync.WaitGroup
		mu          sync.Mutex
		failed      error
	)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range l.callers {
		call := c.call(payload(l.size))
		wg.Go(func() {
			for over.Load() == 0 {
				if err := call(ctx); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					cancel()
					return
				}
				calls.Add(1)
			}
		})
	}
	wait(ctx, l.warm)
	before, err := processes.CPUTime(pid)
	began, first := time.Now(), calls.Load()
	wait(ctx, l.limit)
	for calls.Load()-first < 20 && ctx.Err() == nil {
		wait(ctx, time.Millisecond)
	}
	n, took := calls.Load()-first, time.Since(began)
	after, err2 := processes.CPUTime(pid)
	over.Store(1)
	wg.Wait()
	return host.PerfRow{Iterations: n, OpsPerS: float64(n) / took.Seconds(), CPU: (after - before).Seconds()}, errors.Join(failed, err, err2)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
