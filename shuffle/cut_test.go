package shuffle_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle"
)

// A relay hands on connections to an address until it is cut.
type relay struct {
	ln    net.Listener
	mu    sync.Mutex
	conns []net.Conn
	cut   bool
	loops sync.WaitGroup
}

func newRelay(t *testing.T, to string) *relay {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln}
	r.loops.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, in, out)
			if r.cut {
				_, _ = in.Close(), out.Close()
			}
			r.mu.Unlock()
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				r.loops.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_, _ = pair[0].Close(), pair[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		r.end()
		_ = ln.Close()
		r.loops.Wait()
	})
	return r
}

func (r *relay) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = true
	for _, c := range r.conns {
		_ = c.Close()
	}
}

// When the network between two of three processes is cut in the middle of everything, all
// three fail, and say that a process was lost.
func TestNetworkIsCut(t *testing.T) {
	for _, transport := range []string{verbena.TransportTCP, "iwarp"} {
		t.Run(transport, func(t *testing.T) {
			w := world{transport: transport}
			var between *relay
			exchanges := w.joinBy(t, 3, shuffle.Config{Threads: 2}, func(from, to int, address string) string {
				if from == 2 && to == 0 {
					between = newRelay(t, address)
					return between.ln.Addr().String()
				}
				return address
			})
			var all sync.WaitGroup
			var once sync.Once
			ctx := testContext(t)
			for _, x := range exchanges {
				for thread := range x.Threads() {
					all.Go(func() {
						s := x.Sender(thread)
						for n := 0; ; n++ {
							if err := s.Send(n%x.Partitions(), record(thread, 0, n, 300)); err != nil {
								return
							}
						}
					})
					all.Go(func() {
						for n := 0; ; n++ {
							if n == 5000 {
								once.Do(between.end)
							}
							if _, err := x.Receiver(thread).Next(ctx); err != nil {
								var process *shuffle.ProcessError
								if !errors.Is(err, shuffle.ErrPeerLost) || !errors.As(err, &process) || process.Rank == 1 {
									t.Errorf("process %d: %v", x.Rank(), err)
								}
								return
							}
						}
					})
				}
			}
			all.Wait()
		})
	}
}

// mapped counts the mappings of exchanges in this process.
func mapped(t *testing.T) int {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	return strings.Count(string(text), "verbena-mapping")
}

// After a failure nothing stays mapped: what a receiver was reading goes when it has
// learnt of the failure, or when its batch is released.
func TestFailureLeavesNothingMapped(t *testing.T) {
	before := mapped(t)
	exchanges := worlds[1].join(t, 2, shuffle.Config{Threads: 2})
	ctx := testContext(t)
	s := exchanges[0].Sender(0)
	for n := range 100 {
		for to := 2; to < 4; to++ {
			if err := s.Send(to, record(0, to, n, 300)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	x := exchanges[1]
	if _, err := x.Receiver(0).Next(ctx); err != nil {
		t.Fatal(err)
	}
	batch, err := x.Receiver(1).NextBatch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	exchanges[0].Abort(errors.New("enough"))
	<-x.Done()
	if err := errors.Join(exchanges[0].Close(), x.Close()); err != nil {
		t.Fatal(err)
	}
	if mapped(t) == before {
		t.Error("what is being read was unmapped")
	}
	n := 1
	for ; err == nil; n++ {
		_, err = x.Receiver(0).Next(ctx)
	}
	if !errors.Is(err, shuffle.ErrAborted) || n < 2 {
		t.Error(n, err)
	}
	if record, ok := batch.Next(); !ok || len(record) < 12 {
		t.Errorf("%q, %v", record, ok)
	}
	batch.Release()
	// The receiver has the batch's block still, until it has come to its end.
	for err = nil; err == nil; {
		_, err = x.Receiver(1).Next(ctx)
	}
	if !errors.Is(err, shuffle.ErrAborted) {
		t.Error(err)
	}
	if after := mapped(t); after != before {
		t.Errorf("%d mappings, there were %d", after, before)
	}
}
