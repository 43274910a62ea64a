package iwarp

import (
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// The benchmarks stand beside a bare Go TCP stream that moves the same sizes in
// the same process:
//
//	go test -bench . -count 5 ./rdma/iwarp

const streamed = 1 << 20

// processor reports the processor time of an operation, which a loaded machine
// changes less than the time it takes.
func processor(b *testing.B) {
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.ResetTimer()
	b.Cleanup(func() {
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
		used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
	})
}

func BenchmarkStream1MiB(b *testing.B) {
	b.Run("tcp", func(b *testing.B) {
		from, to := tcpPair(b)
		defer from.Close()
		defer to.Close()
		b.SetBytes(streamed)
		done := make(chan error, 1)
		go func() {
			buffer := make([]byte, streamed)
			for range b.N {
				if _, err := io.ReadFull(to, buffer); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		buffer := make([]byte, streamed)
		processor(b)
		for range b.N {
			if _, err := from.Write(buffer); err != nil {
				b.Fatal(err)
			}
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	})
	for name, op := range map[string]rdma.Opcode{"write": rdma.OpWrite, "read": rdma.OpRead, "send": rdma.OpSend} {
		b.Run(name, func(b *testing.B) { benchmarkStream(b, op, streamed, Config{}) })
	}
	b.Run("write segment-sized", func(b *testing.B) { benchmarkStream(b, rdma.OpWrite, streamed, Config{SegmentSized: true}) })
}

func BenchmarkStream64KiB(b *testing.B) {
	b.Run("send", func(b *testing.B) { benchmarkStream(b, rdma.OpSend, 64<<10, Config{}) })
}

func BenchmarkStream1KiB(b *testing.B) {
	b.Run("send", func(b *testing.B) { benchmarkStream(b, rdma.OpSend, 1<<10, Config{}) })
}

// benchmarkStream keeps some requests outstanding.
func benchmarkStream(b *testing.B, op rdma.Opcode, size int, config Config) {
	const window = 16
	d := testDevice(b, config)
	from, to := newSide(b, d, size, nil), newSide(b, d, size, nil)
	joinListener(b, from, to)
	fill(from.memory.Bytes(), 1) // touch all pages
	fill(to.memory.Bytes(), 2)
	request := []rdma.SendRequest{{Op: op, Flags: rdma.Signaled, SGEs: from.sge(0, size), Remote: to.at(0)}}
	receive := []rdma.RecvRequest{{SGEs: to.sge(0, size)}}
	received := make(chan struct{})
	credits := make(chan struct{}, 2*window)
	if op == rdma.OpSend {
		for range 2 * window {
			to.recv(0, 0, size)
		}
		go func() {
			defer close(received)
			for range b.N {
				next(b, to.recvs)
				_, _ = to.qp.PostRecv(receive)
				credits <- struct{}{}
			}
		}()
	} else {
		close(received)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	processor(b)
	for i := range b.N + window {
		if i >= window {
			if c := next(b, from.sends); c.Status != rdma.StatusSuccess {
				b.Fatal(c.Status, from.qp.Err())
			}
			if op == rdma.OpSend {
				<-credits // the peers keep count: iWARP does not wait for receives
			}
		}
		if i < b.N {
			if _, err := from.qp.PostSend(request); err != nil {
				b.Fatal(err)
			}
		}
	}
	<-received
	if op == rdma.OpWrite {
		// What is written is there once a Send has been delivered.
		to.recv(1, 0, 0)
		from.send(rdma.SendRequest{Op: rdma.OpSend})
		next(b, to.recvs)
	}
}

func BenchmarkPingPong1KiB(b *testing.B) {
	b.Run("tcp", func(b *testing.B) {
		from, to := tcpPair(b)
		defer from.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{to})
			to.Close()
		}()
		buffer := make([]byte, 1<<10)
		processor(b)
		for range b.N {
			if _, err := from.Write(buffer); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(from, buffer); err != nil {
				b.Fatal(err)
			}
		}
		from.(*net.TCPConn).CloseWrite()
		<-done
	})
	b.Run("send, waiting", func(b *testing.B) { benchmarkPingPong(b, next) })
	b.Run("send, spinning", func(b *testing.B) {
		benchmarkPingPong(b, func(t testing.TB, q rdma.CompletionQueue) rdma.Completion {
			var c [1]rdma.Completion
			for i := 0; ; i++ {
				if n, err := q.Poll(c[:]); err != nil {
					t.Fatal(err)
				} else if n == 1 {
					return c[0]
				}
				if i%16 == 15 {
					runtime.Gosched()
				}
			}
		})
	})
}

func benchmarkPingPong(b *testing.B, take func(testing.TB, rdma.CompletionQueue) rdma.Completion) {
	const size = 1 << 10
	d := testDevice(b, Config{})
	from, to := newSide(b, d, 2*size, nil), newSide(b, d, 2*size, nil)
	joinListener(b, from, to)
	bounce := func(s *side, first bool, rounds int) {
		send := []rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: s.sge(0, size)}}
		receive := []rdma.RecvRequest{{SGEs: s.sge(size, size)}}
		post := func() {
			if _, err := s.qp.PostSend(send); err != nil {
				b.Error(err)
			}
		}
		if first {
			post()
		}
		for i := range rounds {
			take(b, s.recvs)
			_, _ = s.qp.PostRecv(receive)
			if !first || i < rounds-1 {
				post()
			}
			if first || i > 0 {
				take(b, s.sends)
			}
		}
	}
	from.recv(0, size, size)
	to.recv(0, size, size)
	b.ReportAllocs()
	processor(b)
	done := make(chan struct{})
	go func() {
		defer close(done)
		bounce(to, false, b.N)
	}()
	bounce(from, true, b.N)
	<-done
}

// BenchmarkIdle keeps 1,000 connections (both ends of each) and does nothing; an
// operation is a second of that.
func BenchmarkIdle(b *testing.B) {
	const connections = 1000
	d := testDevice(b, Config{})
	for range connections {
		from, to := newSide(b, d, 4096, nil), newSide(b, d, 4096, nil)
		joinListener(b, from, to)
	}
	processor(b)
	time.Sleep(time.Duration(b.N) * time.Second)
}
