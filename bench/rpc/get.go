package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/shm"
)

// A one-sided Get beside memcpy: the owner, a process on the other processor, writes to
// every line of some memory, and then this process reads that memory, so that it comes
// out of the other processor's cache. Get reads memory that the owner has exposed,
// memcpy reads a page that both processes have mapped. Each operation is timed by
// itself; what reading the clock costs is measured in the same way and subtracted.

// Words of the shared page, each on a line of its own; behind it lies memcpy's memory.
const (
	wordAsked   = 0   // number of the round that the owner is to write; negative: it is over
	wordWritten = 128 // number of the round that it has written
	wordWay     = 256 // which memory: 0 what is exposed, 1 the shared page's
	sharedPage  = 4096
)

// shared is the memory of both processes.
type shared []byte

func (s shared) word(offset int) *atomic.Int64 { return (*atomic.Int64)(unsafe.Pointer(&s[offset])) }

func mapShared(fd, size int) (shared, error) {
	m, err := unix.Mmap(fd, 0, sharedPage+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return m, nil
}

// getCommand prints the median of a Get, or of a memcpy, in nanoseconds.
func getCommand() *cobra.Command {
	var (
		size     int
		duration time.Duration
		copies   bool
	)
	cmd := &cobra.Command{Use: "get", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return get(cmd.Context(), size, duration, copies)
	}}
	cmd.PersistentFlags().IntVar(&size, "size", 4096, "bytes that are read at a time")
	cmd.Flags().DurationVar(&duration, "duration", time.Second, "measure for so long")
	cmd.Flags().BoolVar(&copies, "memcpy", false, "copy out of memory of both processes instead")
	cmd.AddCommand(&cobra.Command{Use: "owner", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return own(cmd.Context(), size) }})
	return cmd
}

func get(ctx context.Context, size int, duration time.Duration, copies bool) (err error) {
	if err := host.PinProcess(host.ClientCPU); err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("bench-get", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd: %w", err)
	}
	file := os.NewFile(uintptr(fd), "bench-get")
	defer file.Close()
	if err := file.Truncate(int64(sharedPage + size)); err != nil {
		return err
	}
	page, err := mapShared(fd, size)
	if err != nil {
		return err
	}
	r, ln, err := listen(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ln.Close(), r.Close()) }()
	owner, err := host.StartSelf(file, "get", "owner", "--size", fmt.Sprint(size))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, owner.Stop()) }()
	if _, err := fmt.Fprintln(owner.Stdin, ln.Addr()); err != nil {
		return err
	}
	e, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	m, err := e.Receive(ctx)
	if err != nil {
		return err
	}
	token, err := verbena.ParseToken(m.Bytes())
	m.Release()
	if err != nil {
		return err
	}
	into, err := e.Buffer(ctx, size)
	if err != nil {
		return err
	}
	defer into.Release()
	asked, written := page.word(wordAsked), page.word(wordWritten)
	defer asked.Store(-1)
	var round int64
	timed := func(operation func() error) (time.Duration, error) {
		round++
		asked.Store(round)
		for written.Load() < round {
		}
		start := time.Now()
		err := operation()
		return time.Since(start), err
	}
	operation := func() error { return e.GetBuffer(ctx, token, 0, into, 0, size) }
	if copies {
		page.word(wordWay).Store(1)
		operation = func() error { copy(into.Bytes(), page[sharedPage:]); return nil }
	}
	var times, clock []time.Duration
	for end := time.Now().Add(duration); time.Now().Before(end) || len(times) < 1000; {
		t, err := timed(operation)
		if err != nil {
			return err
		}
		if into.Bytes()[0] != byte(round) || into.Bytes()[size-1] != byte(round) {
			return errors.New("what was read is not what the owner has just written")
		}
		c, _ := timed(func() error { return nil })
		times, clock = append(times, t), append(clock, c)
	}
	slices.Sort(times)
	slices.Sort(clock)
	fmt.Println(float64(times[len(times)/2] - clock[len(clock)/2]))
	return nil
}

// own exposes memory and writes to what it is asked to write.
func own(ctx context.Context, size int) (err error) {
	if err := host.PinProcess(host.ServerCPU); err != nil {
		return err
	}
	page, err := mapShared(3, size)
	if err != nil {
		return err
	}
	var address string
	if _, err := fmt.Fscanln(os.Stdin, &address); err != nil {
		return err
	}
	r, err := verbena.New(verbena.Config{Providers: []rdma.Provider{shm.New(shm.Config{})}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	e, err := r.Dial(ctx, address, benchService, verbena.DialConfig{Transport: overSHM})
	if err != nil {
		return err
	}
	x, err := e.Expose(ctx, verbena.ExposeConfig{Size: size, Rights: verbena.MayRead})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close(), e.Close()) }()
	if err := e.Send(ctx, 0, x.Token().Append(nil)); err != nil {
		return err
	}
	asked, written := page.word(wordAsked), page.word(wordWritten)
	const line = 64
	for n := int64(1); ; n++ {
		for asked.Load() < n {
			if asked.Load() < 0 {
				return nil
			}
		}
		memory := x.Bytes()
		if page.word(wordWay).Load() == 1 {
			memory = page[sharedPage:]
		}
		for i := 0; i < size; i += line {
			memory[i] = byte(n)
		}
		memory[size-1] = byte(n)
		written.Store(n)
	}
}
