package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/tally"
)

// A load is what is exchanged: each of Threads threads in each of Size processes sends
// Records records to partitions drawn at random.
type load struct {
	System  string
	Size    int // processes
	Threads int // of each
	Record  int // bytes
	Records int // that each thread sends
	Zipf    bool
	Checked bool   // what arrives is compared with what was sent, which costs time
	Cable   bool   // half of the processes are in another network namespace
	Address string // of a worker: the host's
}

// listenOn is where a worker listens.
func (l load) listenOn() string {
	if l.Address == "" {
		return "127.0.0.1:0"
	}
	return l.Address + ":0"
}

// bytes of all records.
func (l load) bytes() float64 {
	return float64(l.Size) * float64(l.Threads) * float64(l.Records) * float64(l.Record)
}

func (l load) partitions() int { return l.Size * l.Threads }

// A result is what a worker tells of its part.
type result struct {
	CPU        float64 // seconds
	Received   uint64  // records
	Bytes      uint64
	Registered int64
	Resident   int64 // at the end
	Stalled    float64
	Waited     float64
	Stalls     uint64
	Waits      uint64
	Messages   uint64
	Calls      uint64 // of the system; 0 if they could not be counted

	// If the load is checked: what was sent to each partition, and what its thread has received.
	SentTo, ReceivedBy []tally.Tally
}

// A checkedSender notes what it sends.
type checkedSender struct {
	sender
	to []tally.Tally // by partition
}

func (s checkedSender) Send(to int, record []byte) error {
	s.to[to].Add(record)
	return s.sender.Send(to, record)
}

// An exchange is one process's part in a shuffle by a system.
type exchange interface {
	// sender returns what a thread sends by.
	sender(thread int) sender
	// receive calls f with the records of a thread until all have come.
	receive(thread int, f func(record []byte)) error
	// finish waits until all processes have received all, and frees everything.
	finish() error
	// describe adds what the system tells of itself.
	describe(r *result)
}

type sender interface {
	Send(to int, record []byte) error
	Close() error
}

// A system begins an exchange in two steps: listen gives the address, which all processes
// are told, connect is called with all of them.
type system interface {
	listen(ctx context.Context, l load, rank int) (address string, err error)
	connect(ctx context.Context, addresses []string) (exchange, error)
}

var systems = map[string]func() system{
	"shm":             func() system { return &ours{transport: "shm"} },
	"iwarp":           func() system { return &ours{transport: "iwarp"} },
	"tcp":             func() system { return &ours{transport: "tcp"} },
	"shm two-sided":   func() system { return &ours{transport: "shm", twoSided: true} },
	"iwarp two-sided": func() system { return &ours{transport: "iwarp", twoSided: true} },
	"A":               func() system { return &baselineA{} },
	"B":               func() system { return &baselineB{} },
	"grpc":            func() system { return &grpcStreams{} },
	"grpc batched":    func() system { return &grpcStreams{batch: batchBytes} },
	"flight":          func() system { return &flightStreams{} },
}

func workerCommand() *cobra.Command {
	var text, address string
	var rank int
	cmd := &cobra.Command{
		Use: "worker", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var l load
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				return err
			}
			l.Address = address
			err := work(cmd.Context(), l, rank, os.Stdin, os.Stdout)
			if err != nil {
				fmt.Fprintf(os.Stderr, "worker %d: %v\n", rank, err)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&text, "load", "", "what is shuffled, as `JSON`")
	cmd.Flags().IntVar(&rank, "rank", 0, "of this worker, from 0")
	cmd.Flags().StringVar(&address, "address", "", "where this worker listens")
	return cmd
}

// work is a worker: it prints its address, reads all addresses, prints a line when it is
// connected, another one when it has been told to go and is done, and its result when all are.
func work(ctx context.Context, l load, rank int, in io.Reader, out io.Writer) error {
	make, ok := systems[l.System]
	if !ok {
		return fmt.Errorf("no system %q", l.System)
	}
	s := make()
	address, err := s.listen(ctx, l, rank)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, address)
	lines := bufio.NewReader(in)
	all, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	x, err := s.connect(ctx, strings.Fields(all))
	if err != nil {
		return err
	}
	loads := l.prepare(rank)
	calls := countCalls() // to begin and to end it takes tens of milliseconds, which are not the exchange's
	stop, err := profile(rank)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	if _, err := lines.ReadString('\n'); err != nil {
		return err
	}
	enteredBefore, before := calls.read(), processorTime()
	r, err := l.run(x, loads)
	if err != nil {
		return err
	}
	r.CPU = processorTime() - before
	r.Calls = calls.read() - enteredBefore
	fmt.Fprintln(out, "done")
	if _, err := lines.ReadString('\n'); err != nil {
		return err
	}
	calls.close()
	stop()
	r.Resident = resident()
	x.describe(&r)
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return err
	}
	if _, err := lines.ReadString('\n'); err != nil { // all are done
		return err
	}
	return x.finish()
}

// run sends and receives all of a process's records.
func (l load) run(x exchange, loads []threadLoad) (r result, err error) {
	var all sync.WaitGroup
	var failure atomic.Pointer[error]
	fail := func(err error) {
		if err != nil {
			failure.CompareAndSwap(nil, &err)
		}
	}
	var received, bytes atomic.Uint64
	sent := make([]checkedSender, l.Threads)
	if l.Checked {
		r.SentTo, r.ReceivedBy = make([]tally.Tally, l.partitions()), make([]tally.Tally, l.Threads)
	}
	for thread := range l.Threads {
		s := x.sender(thread)
		if l.Checked {
			sent[thread] = checkedSender{s, make([]tally.Tally, l.partitions())}
			s = sent[thread]
		}
		all.Go(func() { fail(l.send(s, loads[thread])) })
		all.Go(func() {
			var n, size, sum uint64
			take := func(b []byte) {
				n++
				size += uint64(len(b))
				sum += uint64(b[0]) + uint64(b[len(b)-1]) // somebody looks at it
			}
			if look := take; l.Checked {
				take = func(b []byte) {
					r.ReceivedBy[thread].Add(b)
					look(b)
				}
			}
			fail(x.receive(thread, take))
			received.Add(n)
			bytes.Add(size)
			sink.Add(sum)
		})
	}
	all.Wait()
	if e := failure.Load(); e != nil {
		return r, *e
	}
	r.Received, r.Bytes = received.Load(), bytes.Load()
	for _, s := range sent {
		for to, t := range s.to {
			r.SentTo[to].Merge(t)
		}
	}
	return r, nil
}

var sink atomic.Uint64

// A threadLoad is what a thread sends, made before anything is measured.
type threadLoad struct {
	payload []byte
	to      []uint16
}

func (l load) prepare(rank int) []threadLoad {
	loads := make([]threadLoad, l.Threads)
	for thread := range loads {
		random := rand.New(rand.NewPCG(uint64(rank*l.Threads+thread), 1))
		payload := make([]byte, l.Record+1<<16)
		for i := range payload {
			payload[i] = byte(random.Uint32())
		}
		loads[thread] = threadLoad{payload, l.partition(random)}
	}
	return loads
}

// send sends a thread's records.
func (l load) send(s sender, t threadLoad) error {
	at := 0
	for i := range l.Records {
		if err := s.Send(int(t.to[i&(len(t.to)-1)]), t.payload[at:at+l.Record]); err != nil {
			return err
		}
		if at += 64; at >= 1<<16 {
			at = 0
		}
	}
	return s.Close()
}

// draws is how many partitions are drawn before they come again.
const draws = 1 << 14

// partition draws partitions, evenly or so that partition n gets a share in proportion to
// 1/(n+1).
func (l load) partition(random *rand.Rand) []uint16 {
	n := l.partitions()
	to := make([]uint16, draws)
	var zipf *rand.Zipf
	if l.Zipf {
		zipf = rand.NewZipf(random, 1.0001, 1, uint64(n-1))
	}
	for i := range to {
		if zipf != nil {
			to[i] = uint16(zipf.Uint64())
		} else {
			to[i] = uint16(random.IntN(n))
		}
	}
	return to
}

// profileVariable names a folder that gets a profile of each worker's processor time.
const profileVariable = "VERBENA_SHUFFLE_PROFILE"

func profile(rank int) (stop func(), err error) {
	dir := os.Getenv(profileVariable)
	if dir == "" {
		return func() {}, nil
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("worker-%d.pprof", rank)))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

func processorTime() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

func resident() int64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	_, _ = fmt.Sscan(string(raw), &size, &pages)
	return pages * int64(os.Getpagesize())
}
