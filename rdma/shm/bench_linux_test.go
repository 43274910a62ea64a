package shm

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

var sizes = []int{8, 1 << 10, 64 << 10}

// BenchmarkSendLatency plays ping-pong between two processes that spin. It
// reports one way, half of the round trip.
func BenchmarkSendLatency(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) { pingPong(b, "echo", size) })
	}
}

// BenchmarkEventLatency is that with an echo that sleeps on its queue.
func BenchmarkEventLatency(b *testing.B) {
	b.Run("1024", func(b *testing.B) { pingPong(b, "wait", 1024) })
}

func pingPong(b *testing.B, part string, size int) {
	b.Setenv(rotationVariable, "4")
	s, _ := with(b, part)
	sends := []rdma.SendRequest{{Op: rdma.OpSend, SGEs: []rdma.SGE{{Region: s.memory, Offset: buffers * bufferBytes, Length: size}}}}
	var c [4]rdma.Completion
	round := func(i int) {
		sends[0].Flags = 0
		if i%64 == 0 {
			sends[0].Flags = rdma.Signaled
		}
		if _, err := s.qp.PostSend(sends); err != nil {
			b.Fatal(err)
		}
		for idle := 0; ; idle++ {
			n, err := s.cq.Poll(c[:])
			if err != nil {
				b.Fatal(err)
			}
			back := false
			for j := range c[:n] {
				if c[j].Status != rdma.StatusSuccess {
					b.Fatal(c[j].Status, s.qp.Err())
				}
				if c[j].Op == rdma.OpRecv {
					back = true
					if err := s.repost(c[j].ID); err != nil {
						b.Fatal(err)
					}
				}
			}
			if back {
				return
			}
			if idle&1023 == 1023 {
				runtime.Gosched()
			}
		}
	}
	for i := range 1000 {
		round(i)
	}
	b.ReportAllocs()
	b.ResetTimer()
	m := newMedian(b.N)
	for i := range b.N {
		round(i)
		m.count()
	}
	b.StopTimer()
	m.report(b)
}

// A median tells what a round takes while both processes run, on machines where
// they often do not: the median over batches of rounds.
type median struct {
	batches []time.Duration
	rounds  int
	start   time.Time
}

const batch = 16

func newMedian(rounds int) *median {
	return &median{batches: make([]time.Duration, 0, rounds/batch), start: time.Now()}
}

func (m *median) count() {
	if m.rounds++; m.rounds%batch == 0 && len(m.batches) < cap(m.batches) {
		now := time.Now()
		m.batches = append(m.batches, now.Sub(m.start))
		m.start = now
	}
}

func (m *median) report(b *testing.B) {
	if len(m.batches) == 0 {
		return
	}
	slices.Sort(m.batches)
	for _, at := range []int{10, 50} {
		b.ReportMetric(float64(m.batches[len(m.batches)*at/100].Nanoseconds())/batch/2, fmt.Sprintf("ns-one-way-p%d", at))
	}
}

// BenchmarkWriteLatency plays ping-pong by Writes whose last word is polled.
func BenchmarkWriteLatency(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s, remote := with(b, "flags")
			var length [1]rdma.SGE
			length[0] = rdma.SGE{Region: s.memory, Offset: buffers * bufferBytes, Length: 8}
			binary.LittleEndian.PutUint64(s.memory.Bytes()[buffers*bufferBytes:], uint64(size))
			s.send(rdma.SendRequest{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: length[:],
				Remote: rdma.Remote{Address: remote.Address + buffers*bufferBytes, Key: remote.Key}})
			s.expect(0, rdma.StatusSuccess)
			flag := s.flag(size)
			b.ReportAllocs()
			b.ResetTimer()
			m := newMedian(b.N)
			for i := range uint64(b.N) {
				if err := s.write(remote, size, i+1); err != nil {
					b.Fatal(err, s.qp.Err())
				}
				for idle := 0; flag.Load() != i+1; idle++ {
					if idle&1023 == 1023 {
						runtime.Gosched()
					}
				}
				m.count()
			}
			b.StopTimer()
			m.report(b)
		})
	}
}

// BenchmarkSendRate streams to a process that takes everything, one in 64 signalled.
func BenchmarkSendRate(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.Setenv(rotationVariable, "4")
			s, _ := with(b, "sink")
			sends := []rdma.SendRequest{{Op: rdma.OpSend, SGEs: []rdma.SGE{{Region: s.memory, Offset: buffers * bufferBytes, Length: size}}}}
			var c [16]rdma.Completion
			outstanding := 0
			drain := func(most int) {
				for idle := 0; outstanding > most; idle++ {
					n, err := s.cq.Poll(c[:])
					if err != nil {
						b.Fatal(err)
					}
					for j := range c[:n] {
						if c[j].Status != rdma.StatusSuccess {
							b.Fatal(c[j].Status, s.qp.Err())
						}
						outstanding--
					}
					if idle&1023 == 1023 {
						runtime.Gosched()
					}
				}
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				sends[0].Flags = 0
				if i%64 == 63 || i == b.N-1 {
					sends[0].Flags = rdma.Signaled
					outstanding++
				}
				if _, err := s.qp.PostSend(sends); err != nil {
					b.Fatal(err)
				}
				drain(4)
			}
			drain(0)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "M/s")
		})
	}
}

// BenchmarkOneProcess is what the processor spends on a message: both ends in
// turn, in one goroutine, so that no other core matters.
func BenchmarkOneProcess(b *testing.B) {
	processor := func() time.Duration {
		var usage unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
			b.Fatal(err)
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	loop := func(b *testing.B, f func(i int)) {
		for i := range 100 {
			f(i)
		}
		b.ReportAllocs()
		b.ResetTimer()
		before := processor()
		for i := range b.N {
			f(i + 100)
		}
		b.ReportMetric(float64(processor()-before)/float64(b.N), "cpu-ns/op")
	}
	for _, size := range []int{8, 1 << 10} {
		b.Run(fmt.Sprint("send-", size), func(b *testing.B) {
			x, y := newSides(b, 1<<16, nil)
			sends := []rdma.SendRequest{{Op: rdma.OpSend, SGEs: x.sge(0, size)}}
			recvs := []rdma.RecvRequest{{SGEs: y.sge(0, 1024)}}
			var c [4]rdma.Completion
			y.recv(0, y.sge(0, 1024)...)
			x.send(rdma.SendRequest{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: x.sge(0, size)})
			x.expect(0, rdma.StatusSuccess)
			y.expect(0, rdma.StatusSuccess)
			loop(b, func(i int) {
				if _, err := y.qp.PostRecv(recvs); err != nil {
					b.Fatal(err)
				}
				sends[0].Flags = 0
				if i%32 == 0 {
					sends[0].Flags = rdma.Signaled
				}
				if _, err := x.qp.PostSend(sends); err != nil {
					b.Fatal(err)
				}
				if n, err := y.cq.Poll(c[:]); n != 1 || err != nil {
					b.Fatal(n, err)
				}
				if i%32 == 0 {
					if n, err := x.cq.Poll(c[:]); n != 1 || err != nil {
						b.Fatal(n, err)
					}
				}
			})
		})
	}
	b.Run("write-8", func(b *testing.B) {
		x, y := newSides(b, 1<<16, nil)
		sends := []rdma.SendRequest{{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: x.sge(0, 8), Remote: y.remote(0)}}
		x.send(sends...)
		x.expect(0, rdma.StatusSuccess)
		var c [4]rdma.Completion
		loop(b, func(int) {
			if _, err := x.qp.PostSend(sends); err != nil {
				b.Fatal(err)
			}
			if n, err := x.cq.Poll(c[:]); n != 1 || err != nil {
				b.Fatal(n, err)
			}
		})
	})
	b.Run("poll-empty", func(b *testing.B) {
		x, _ := newSides(b, 1<<16, nil)
		var c [4]rdma.Completion
		loop(b, func(int) {
			if n, err := x.cq.Poll(c[:]); n != 0 || err != nil {
				b.Fatal(n, err)
			}
		})
	})
}
