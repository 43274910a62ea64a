package shuffle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/shuffle"
)

// Whichever process is killed, all others end, with an error that names it.
func TestProcessIsKilled(t *testing.T) {
	for _, w := range worlds {
		for rank := range 3 {
			if testing.Short() && rank > 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", w.name, rank), func(t *testing.T) {
				job := startJob(t, role{Size: 3, Threads: 2, Transport: w.transport, Mode: w.mode})
				if err := job[rank].cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				endLost(t, job, rank)
			})
		}
	}
}

// Whichever process is killed, and whenever, all others end, with an error that names it.
func TestProcessesAreKilledAtRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 3 {
		w, size := worlds[random.IntN(len(worlds))], 2+random.IntN(3)
		rank, after := random.IntN(size), time.Duration(random.IntN(int(200*time.Millisecond)))
		r := role{Size: size, Threads: 1 + random.IntN(3), Longest: 1 + random.IntN(2000), Transport: w.transport, Mode: w.mode}
		t.Logf("%s: process %d of %+v is killed after %v", w.name, rank, r, after)
		job := startJob(t, r)
		time.Sleep(after) // whatever happens meanwhile
		if err := job[rank].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		endLost(t, job, rank)
	}
}

// Jobs of processes end well, with short records and with such as are longer than a part.
func TestJobOfProcesses(t *testing.T) {
	jobs := []role{{Size: 4, Records: 2000}, {Size: 4, Records: 100, Longest: 20_000}}
	if testing.Short() {
		jobs = []role{{Size: 3, Records: 20, Longest: 12_000}}
	}
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			for _, r := range jobs {
				r.Threads, r.Transport, r.Mode = 2, w.transport, w.mode
				endWell(t, startJob(t, r), uint64(2*r.Size*2*r.Size*r.Records))
			}
		})
	}
}

// An abort ends all waits in all processes, and tells who and why.
func TestAbort(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		ctx := testContext(t)
		exchanges := w.join(t, 3, shuffle.Config{Threads: 2})
		waits := make(chan error, 100)
		n := 0
		wait := func(f func() error) {
			n++
			go func() { waits <- f() }()
		}
		for _, x := range exchanges {
			wait(func() error { _, err := x.Receiver(0).Next(ctx); return err })
			wait(func() error { return x.Wait(ctx) })
			wait(func() error { // to a receiver that takes nothing
				for {
					if err := x.Sender(0).Send(3, make([]byte, 1000)); err != nil {
						return err
					}
				}
			})
			wait(func() error { // by reference, likewise
				for {
					if err := x.Sender(1).Send(x.Rank()*2+1, make([]byte, 1000)); err != nil {
						return err
					}
				}
			})
			wait(func() error {
				if x.Rank() == 2 { // without it the collective waits
					<-x.Done()
					return x.Err()
				}
				_, err := x.AllGather(ctx, nil)
				return err
			})
		}
		exchanges[1].Abort(errors.New("no such column"))
		for range n {
			err := <-waits
			var process *shuffle.ProcessError
			if !errors.As(err, &process) || process.Rank != 1 || !errors.Is(err, shuffle.ErrAborted) || !strings.Contains(err.Error(), "no such column") {
				t.Errorf("a wait ended with: %v", err)
			}
		}
	})
}

// Who closes before the end is one who aborts.
func TestCloseBeforeTheEnd(t *testing.T) {
	exchanges := worlds[1].join(t, 2, shuffle.Config{})
	if err := exchanges[0].Close(); err != nil {
		t.Error(err)
	}
	if err := exchanges[1].Wait(testContext(t)); !errors.Is(err, shuffle.ErrAborted) {
		t.Error(err)
	}
	if err := exchanges[0].Sender(0).Send(0, nil); !errors.Is(err, shuffle.ErrAborted) {
		// A block is handed over first.
		if err = exchanges[0].Sender(0).Flush(); !errors.Is(err, shuffle.ErrAborted) {
			t.Error(err)
		}
	}
}

// A context ends a wait, and nothing else.
func TestContextEndsAWait(t *testing.T) {
	x, err := shuffle.Join(t.Context(), shuffle.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := x.Receiver(0).Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := x.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := errors.Join(x.Sender(0).Send(0, []byte("a")), x.Sender(0).Close()); err != nil {
		t.Fatal(err)
	}
	if b, err := x.Receiver(0).Next(t.Context()); err != nil || string(b) != "a" {
		t.Errorf("%q, %v", b, err)
	}
}

// The receivers take nothing before all senders have closed. Without a spill directory
// that would never come to an end.
func TestSpill(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		const records = 100
		exchanges := w.join(t, 2, shuffle.Config{Threads: 2, Memory: 64 << 10, Spill: t.TempDir()})
		ctx := testContext(t)
		var all sync.WaitGroup
		for _, x := range exchanges {
			for thread := range x.Threads() {
				all.Go(func() {
					s := x.Sender(thread)
					for n := range records {
						for to := range x.Partitions() {
							if err := s.Send(to, record(x.Rank()*2+thread, to, n, 3000)); err != nil {
								t.Errorf("send: %v", err)
								return
							}
						}
					}
					if err := s.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				})
			}
		}
		all.Wait()
		for _, x := range exchanges {
			for thread := range x.Threads() {
				all.Go(func() { checkAll(ctx, t, x, thread, records, 3000) })
			}
		}
		all.Wait()
		for _, x := range exchanges {
			if err := x.Wait(ctx); err != nil {
				t.Error(err)
			}
			if x.Stats().Spilt == 0 {
				t.Error("nothing was spilt")
			}
		}
	})
}

// One goroutine that sends and receives by turns gets through if it may spill.
func TestSpillWithOneGoroutine(t *testing.T) {
	exchanges := worlds[1].join(t, 2, shuffle.Config{Memory: 64 << 10, Spill: t.TempDir()})
	ctx := testContext(t)
	var all sync.WaitGroup
	for _, x := range exchanges {
		all.Go(func() {
			s, r := x.Sender(0), x.Receiver(0)
			for n := range 2000 {
				for to := range 2 {
					if err := s.Send(to, record(x.Rank(), to, n, 3000)); err != nil {
						t.Error(err)
						return
					}
				}
				if n%10 == 9 {
					if err := s.Flush(); err != nil {
						t.Error(err)
					}
					if _, err := r.Next(ctx); err != nil { // far fewer than are sent
						t.Error(err)
					}
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			n := 200
			for ; ; n++ {
				if _, err := r.Next(ctx); err == io.EOF {
					break
				} else if err != nil {
					t.Error(err)
					return
				}
			}
			if n != 4000 {
				t.Errorf("%d records", n)
			}
		})
	}
	all.Wait()
}

// A spill directory that is full fails the job with the reason.
func TestSpillDirectoryIsFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	restore := shuffle.SpillTo("/dev/full")
	defer restore()
	x, err := shuffle.Join(t.Context(), shuffle.Config{Memory: 64 << 10, Spill: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for err == nil {
		err = x.Sender(0).Send(0, make([]byte, 1000))
	}
	var process *shuffle.ProcessError
	if !errors.As(err, &process) || !strings.Contains(err.Error(), "no space left") {
		t.Error(err)
	}
}

// Half of all records go to one partition, whose thread takes some only when all senders of its process wait for it: memory
// stays what it is, as the processes count it and as the kernel does, and every record arrives.
func TestHotKeyWithBoundedMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the kernel is asked for what is resident")
	}
	const size, threads, memory, longest = 3, 2, 1 << 20, 4000
	records := 700
	if testing.Short() {
		records = 100
	}
	eachWorld(t, func(t *testing.T, w world) {
		job := startJob(t, role{Size: size, Threads: threads, Transport: w.transport, Mode: w.mode, Records: records, Longest: longest, Memory: memory, Hot: true})
		for rank, p := range job {
			if line := p.line(t); line != "full" {
				t.Fatalf("process %d: %q: %s", rank, line, p.err.String())
			}
		}
		fmt.Fprintln(job[0].in, "go on")
		for rank, r := range endWell(t, job, uint64(size*threads*size*threads*2*records)) {
			t.Logf("process %d: %d KiB of memory, %d KiB more resident", rank, r.Peak>>10, r.Grown>>10)
			if r.Peak == 0 || r.Peak > memory {
				t.Errorf("process %d: %d bytes of memory, %d are allowed", rank, r.Peak, memory)
			}
			// Beside it the collector lets the heap become twice as large, and the runtime has its own.
			if r.Grown > memory+16<<20 && !race.Enabled {
				t.Errorf("process %d: %d bytes more are resident, %d of memory are allowed", rank, r.Grown, memory)
			}
		}
	})
}

// Processes that do not agree say on what.
func TestDifferentConfigurations(t *testing.T) {
	for want, change := range map[string]func(*shuffle.Config){
		"Size is":                      func(c *shuffle.Config) { c.Size, c.Addresses = 2, c.Addresses[:2] },
		"Threads is":                   func(c *shuffle.Config) { c.Threads = 2 },
		"MaxRecord is":                 func(c *shuffle.Config) { c.MaxRecord = 1000 },
		"it makes the length of pages": func(c *shuffle.Config) { c.Memory = 16 << 10 },
		"it makes the number of pages": func(c *shuffle.Config) { c.Memory = 1<<20 + 100<<10 },
	} {
		t.Run(want, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			members := worlds[0].members(t, 3, shuffle.Config{Memory: 1 << 20})
			change(&members[1])
			joins := []joining{join(ctx, members[0]), join(ctx, members[1]), join(ctx, members[2])}
			said := ""
			for rank, j := range joins {
				err := <-j
				if err == nil || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("process %d: %v", rank, err)
					continue
				}
				said += err.Error()
			}
			if !strings.Contains(said, want) {
				t.Errorf("%s; want %q", said, want)
			}
		})
	}
}

// Collectives give all processes what each has given.
func TestAllGather(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		exchanges := w.join(t, 3, shuffle.Config{})
		var all sync.WaitGroup
		for _, x := range exchanges {
			all.Go(func() {
				for round := range 50 {
					big := bytes.Repeat([]byte{byte(x.Rank()), byte(round)}, 1+round*1000)
					got, err := x.AllGather(testContext(t), big)
					if err != nil {
						t.Error(err)
						return
					}
					for rank, b := range got {
						if !bytes.Equal(b, bytes.Repeat([]byte{byte(rank), byte(round)}, 1+round*1000)) {
							t.Errorf("round %d: process %d gave %d bytes", round, rank, len(b))
						}
					}
				}
			})
		}
		all.Wait()
	})
}
