package shuffle_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/shuffle"
)

// The test binary is a process of a job when this is set.
const roleVariable = "VERBENA_SHUFFLE_TEST_ROLE"

// A role is what such a process does.
type role struct {
	Rank, Size, Threads int
	Transport           string
	Mode                shuffle.Mode
	Records             int // that each thread sends to each partition; 0: without end
	Spill               string
	Host                string // to listen on
	Hold                bool   // half of the records are sent when a line has come, which "half" asks for
}

// playRole is the process. It prints its address, reads those of all, prints "joined",
// and at the end what it has failed with, or nothing.
func playRole(text string) {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		panic(err)
	}
	fmt.Printf("end %v\n", r.play())
}

func (role role) play() error {
	ctx := context.Background()
	all, err := providers.New(providers.Config{Settings: map[string]string{"iwarp.remote": "true"}})
	if err != nil {
		return err
	}
	rt, err := verbena.New(verbena.Config{Providers: all})
	if err != nil {
		return err
	}
	defer rt.Close()
	ln, err := rt.Listen(ctx, role.Host+":0", verbena.ListenConfig{Services: []string{}})
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	goOn := make(chan struct{})
	go func() { // until the process ends
		if _, err := in.ReadString('\n'); err == nil {
			close(goOn)
			_, _ = in.ReadString('\n')
		}
		os.Exit(1) // the test has ended
	}()
	x, err := shuffle.Join(ctx, shuffle.Config{
		Runtime: rt, Listener: ln, Rank: role.Rank, Size: role.Size, Threads: role.Threads, Addresses: strings.Fields(line),
		Transport: role.Transport, Mode: role.Mode, Spill: role.Spill,
	})
	if err != nil {
		return err
	}
	fmt.Println("joined")
	var threads, half sync.WaitGroup
	half.Add(role.Threads)
	if role.Hold {
		threads.Go(func() {
			half.Wait()
			fmt.Println("half")
		})
	}
	for thread := range role.Threads {
		threads.Go(func() { // Wait tells of errors
			_ = role.send(x, thread, func() {
				if role.Hold {
					half.Done()
					<-goOn
				}
			})
		})
		threads.Go(func() {
			for {
				if _, err := x.Receiver(thread).Next(ctx); err != nil {
					return
				}
			}
		})
	}
	threads.Wait()
	return errors.Join(x.Wait(ctx), x.Close())
}

func (role role) send(x *shuffle.Exchange, thread int, half func()) error {
	s := x.Sender(thread)
	for n := 0; role.Records == 0 || n < role.Records; n++ {
		if role.Records > 0 && n == role.Records/2 {
			half()
		}
		for to := range x.Partitions() {
			if err := s.Send(to, record(thread, to, n, 300)); err != nil {
				return err
			}
		}
	}
	return s.Close()
}

// A process of a job.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err bytes.Buffer
}

// startJob starts processes and waits until they have joined.
func startJob(t *testing.T, r role) []*process {
	t.Helper()
	return startJobOn(t, r, func(int) (string, func(func())) { return "127.0.0.1", func(do func()) { do() } })
}

// startJobOn is startJob on several hosts: on tells the address of a process's host, and how something is done there.
func startJobOn(t *testing.T, r role, on func(rank int) (address string, do func(func()))) []*process {
	t.Helper()
	job := make([]*process, r.Size)
	var addresses []string
	for rank := range job {
		var there func(func())
		r.Rank = rank
		r.Host, there = on(rank)
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		p := &process{cmd: exec.Command(os.Args[0])}
		p.cmd.Env = append(os.Environ(), roleVariable+"="+string(text))
		p.cmd.Stderr = &p.err
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		p.out = bufio.NewReader(out)
		there(func() { err = p.cmd.Start() })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = p.cmd.Process.Kill() // it may have ended
			_ = p.cmd.Wait()
		})
		job[rank] = p
		addresses = append(addresses, p.line(t))
	}
	for _, p := range job {
		fmt.Fprintln(p.in, strings.Join(addresses, " "))
	}
	for _, p := range job {
		if line := p.line(t); line != "joined" {
			t.Fatalf("a process said %q: %s", line, p.err.String())
		}
	}
	return job
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("a process said %q: %v: %s", line, err, p.err.String())
	}
	return strings.TrimSpace(line)
}

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
				for other, p := range job {
					if other == rank {
						continue
					}
					want := fmt.Sprintf("end process %d: %v", rank, shuffle.ErrPeerLost)
					if line := p.line(t); !strings.HasPrefix(line, want) {
						t.Errorf("process %d: %q, want %q", other, line, want)
					}
				}
			})
		}
	}
}

// Jobs of processes end well, again and again.
func TestJobOfProcesses(t *testing.T) {
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			for range 2 {
				for rank, p := range startJob(t, role{Size: 4, Threads: 2, Transport: w.transport, Mode: w.mode, Records: 2000}) {
					if line := p.line(t); line != "end <nil>" {
						t.Errorf("process %d: %q: %s", rank, line, p.err.String())
					}
				}
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

// Half of all records go to one partition, whose thread is slow: memory stays what it is.
func TestHotKeyWithBoundedMemory(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		exchanges := w.join(t, 3, shuffle.Config{Threads: 2, Memory: 256 << 10})
		ctx := testContext(t)
		var all sync.WaitGroup
		const records = 20000
		var total atomic.Int64
		for _, x := range exchanges {
			for thread := range x.Threads() {
				all.Go(func() {
					s := x.Sender(thread)
					for n := range records {
						to := 0
						if n%2 == 0 {
							to = n / 2 % x.Partitions()
						}
						if err := s.Send(to, record(x.Rank()*2+thread, to, n, 100)); err != nil {
							t.Error(err)
							return
						}
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
				all.Go(func() {
					n := 0
					for ; ; n++ {
						if _, err := x.Receiver(thread).Next(ctx); err == io.EOF {
							break
						} else if err != nil {
							t.Error(err)
							return
						}
					}
					total.Add(int64(n))
					if hot := x.Rank()*2+thread == 0; hot != (n >= 3*records) {
						t.Errorf("partition %d: %d records", x.Rank()*2+thread, n)
					}
				})
			}
		}
		all.Wait()
		for _, x := range exchanges {
			if n := x.Stats().Memory; n > 256<<10 {
				t.Errorf("%d bytes of memory, 256 KiB are allowed", n)
			}
		}
		if n := total.Load(); n != 3*2*records {
			t.Errorf("%d records, want %d", n, 3*2*records)
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
