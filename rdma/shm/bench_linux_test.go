package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/futex"
	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

var sizes = []int{8, 1 << 10, 64 << 10}

// The two processes run where the scheduler puts them, or each on a processor of
// its own.
func placements(b *testing.B, f func(b *testing.B)) {
	b.Run("unpinned", f)
	b.Run("pinned", func(b *testing.B) {
		all := processors(b)
		if len(all) < 2 {
			b.Skip("two processors are needed")
		}
		b.Setenv(pinVariable, strconv.Itoa(all[1]))
		if err := pin(all[0]); err != nil {
			b.Fatal(err)
		}
		defer func() {
			if err := pin(all...); err != nil {
				b.Error(err)
			}
		}()
		f(b)
	})
}

// BenchmarkSendLatency plays ping-pong between two processes that spin. It
// reports one way, half of the round trip. The receives' payload is not looked
// at, or every line of it is read and the next message written anew.
func BenchmarkSendLatency(b *testing.B) {
	placements(b, func(b *testing.B) {
		for _, size := range sizes {
			b.Run(fmt.Sprint(size), func(b *testing.B) { pingPong(b, player{size: size}) })
		}
		for _, size := range sizes {
			b.Run(fmt.Sprint("read-", size), func(b *testing.B) { pingPong(b, player{size: size, touch: true}) })
		}
	})
}

// bothReceives runs a benchmark with receives of the queue pairs' own and with
// shared ones, in turns.
func bothReceives(b *testing.B, f func(b *testing.B)) {
	b.Run("own", f)
	b.Run("shared", func(b *testing.B) {
		b.Setenv(sharedVariable, "1")
		f(b)
	})
}

// BenchmarkSharedReceives compares shared receives with a queue pair's own, of one
// connection that is alone: ping-pong and stream, both ends spinning.
func BenchmarkSharedReceives(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint("latency-", size), func(b *testing.B) {
			bothReceives(b, func(b *testing.B) { pingPong(b, player{size: size}) })
		})
	}
	for _, size := range sizes {
		b.Run(fmt.Sprint("rate-", size), func(b *testing.B) {
			bothReceives(b, func(b *testing.B) { stream(b, size) })
		})
	}
}

// BenchmarkSendWindow has several messages on their way, each of which is answered,
// and sends the next when an answer comes. It reports what a message and its answer
// take.
func BenchmarkSendWindow(b *testing.B) {
	placements(b, func(b *testing.B) {
		for _, window := range []int{1, 4, 16} {
			for _, touch := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d/read=%t", window, touch), func(b *testing.B) {
					p := player{size: 1024, touch: touch}
					b.Setenv(rotationVariable, "16")
					b.Setenv(playerVariable, p.String())
					s, _ := with(b, "player")
					for i := range window + 2000 + b.N {
						if i == window+2000 {
							b.ResetTimer()
						}
						if i < window {
							if err := p.send(s); err != nil {
								b.Fatal(err)
							}
							continue
						}
						if err := p.turn(s); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	})
}

// BenchmarkEventLatency is that with two processes that sleep.
func BenchmarkEventLatency(b *testing.B) {
	placements(b, func(b *testing.B) { pingPong(b, player{size: 1024, sleep: true}) })
}

// BenchmarkFutexLatency is what two processes need that hand over to each other
// by a word and a futex alone.
func BenchmarkFutexLatency(b *testing.B) {
	placements(b, func(b *testing.B) {
		file, err := memfd.Create("verbena-test", 4096, memfd.Reserved)
		if err != nil {
			b.Fatal(err)
		}
		defer file.Close()
		number, err := unix.Dup(file.FD())
		if err != nil {
			b.Fatal(err)
		}
		descriptor := os.NewFile(uintptr(number), "memfd")
		defer descriptor.Close()
		s, err := openSide(openDevice(b, Config{}))
		if err != nil {
			b.Fatal(err)
		}
		s.t = b
		s.start("futex", func(c *exec.Cmd) { c.ExtraFiles = []*os.File{descriptor} })
		there, back := futexWords(file.Bytes())
		m := newMedian(b.N)
		b.ResetTimer()
		m.start = time.Now()
		for i := range uint32(b.N) {
			handOver(there, i+1)
			awaitHandOver(back, i+1)
			m.count()
		}
		b.StopTimer()
		m.report(b)
		handOver(there, ^uint32(0))
	})
}

func futexWords(memory []byte) (there, back *atomic.Uint32) {
	return (*atomic.Uint32)(unsafe.Pointer(&memory[0])), (*atomic.Uint32)(unsafe.Pointer(&memory[128]))
}

func handOver(word *atomic.Uint32, value uint32) {
	word.Store(value)
	wake(word)
}

// awaitHandOver sleeps until the word has the value, or one that ends it all.
func awaitHandOver(word *atomic.Uint32, value uint32) bool {
	for {
		seen := word.Load()
		if seen == value || seen == ^uint32(0) {
			return seen == value
		}
		if futex.Wait((*uint32)(unsafe.Pointer(word)), seen, time.Second) != nil {
			return false
		}
	}
}

// handBack is the other process of BenchmarkFutexLatency.
func handBack() error {
	memory, err := memfd.Adopt(3, 4096, memfd.Terms{Writable: true})
	if err != nil {
		return err
	}
	there, back := futexWords(memory)
	for i := uint32(1); awaitHandOver(there, i); i++ {
		handOver(back, i)
	}
	return nil
}

func pingPong(b *testing.B, p player) {
	b.Setenv(rotationVariable, "4")
	b.Setenv(playerVariable, p.String())
	s, _ := with(b, "player")
	m := newMedian(b.N)
	round := func() {
		if err := p.send(s); err != nil {
			b.Fatal(err)
		}
		if err := p.receive(s); err != nil {
			b.Fatal(err)
		}
	}
	for range 2000 {
		round()
	}
	b.ReportAllocs()
	b.ResetTimer()
	m.start = time.Now()
	for range b.N {
		round()
		m.count()
	}
	b.StopTimer()
	m.report(b)
}

// A player sends messages and waits for the answers.
type player struct {
	size  int
	touch bool // reads and writes every line of the payload
	sleep bool // waits for events

	sent     int
	line     byte
	requests []rdma.SendRequest
	polled   [4]rdma.Completion
	took     int // messages that were polled and not told of yet
}

func (p *player) String() string { return fmt.Sprintf("%d %t %t", p.size, p.touch, p.sleep) }

// answer is the part of the process that does not measure.
func answer(s *side) error {
	var p player
	if _, err := fmt.Sscanf(os.Getenv(playerVariable), "%d %t %t", &p.size, &p.touch, &p.sleep); err != nil {
		return err
	}
	for {
		if err := p.turn(s); err != nil {
			return nil //nolint:nilerr // the parent has hung up
		}
	}
}

// turn takes one message and sends one.
func (p *player) turn(s *side) error {
	if err := p.receive(s); err != nil {
		return err
	}
	return p.send(s)
}

func (p *player) send(s *side) error {
	const offset = buffers * bufferBytes
	if p.requests == nil {
		p.requests = []rdma.SendRequest{{Op: rdma.OpSend, SGEs: []rdma.SGE{{Region: s.memory, Offset: offset, Length: p.size}}}}
	}
	if p.touch {
		p.line++
		source := s.memory.Bytes()[offset:][:p.size]
		for i := 0; i < len(source); i += 64 {
			source[i] = p.line
		}
	}
	p.requests[0].Flags = 0
	if p.sent++; p.sent%64 == 0 {
		p.requests[0].Flags = rdma.Signaled
	}
	_, err := s.qp.PostSend(p.requests)
	return err
}

// receive waits for one message.
func (p *player) receive(s *side) error {
	for idle := 1; ; idle++ {
		if p.took > 0 {
			p.took--
			return nil
		}
		n, err := s.cq.Poll(p.polled[:])
		if err != nil {
			return err
		}
		for i := range p.polled[:n] {
			c := &p.polled[i]
			if c.Status != rdma.StatusSuccess {
				return fmt.Errorf("%s: %w", c.Status, s.qp.Err())
			}
			if c.Op != rdma.OpRecv {
				continue
			}
			p.took++
			if p.touch {
				if err := p.read(s, c); err != nil {
					return err
				}
			}
			if err := s.repost(c.ID); err != nil {
				return err
			}
		}
		switch {
		case n > 0:
		case p.sleep && idle&1 == 1:
			if err := s.cq.Arm(false); err != nil {
				return err
			}
		case p.sleep:
			if err := s.cq.Wait(context.Background()); err != nil {
				return err
			}
		case idle&1023 == 0:
			runtime.Gosched()
		}
	}
}

func (p *player) read(s *side, c *rdma.Completion) error {
	message := s.memory.Bytes()[int(c.ID%s.rotation)*bufferBytes:][:c.Length]
	first := message[0]
	for i := 0; i < len(message); i += 64 {
		if message[i] != first {
			return fmt.Errorf("line %d of %d bytes is %d, and the first is %d", i/64, len(message), message[i], first)
		}
	}
	return nil
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
func BenchmarkWriteLatency(b *testing.B) { placements(b, writeLatency) }

func writeLatency(b *testing.B) {
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
					relax(1)
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
func BenchmarkSendRate(b *testing.B) { placements(b, sendRate) }

func sendRate(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) { stream(b, size) })
	}
}

func stream(b *testing.B, size int) {
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
	b.Run("stream-8", func(b *testing.B) {
		const lot = 16
		x, y := newSides(b, 1<<16, nil)
		sends, recvs := make([]rdma.SendRequest, lot), make([]rdma.RecvRequest, lot)
		for i := range lot {
			sends[i] = rdma.SendRequest{Op: rdma.OpSend, SGEs: x.sge(64*i, 8)}
			recvs[i].SGEs = y.sge(64*i, 8)
		}
		sends[lot-1].Flags = rdma.Signaled
		var c [lot]rdma.Completion
		post := func(qp rdma.QueuePair) {
			if n, err := qp.PostRecv(recvs); n != lot || err != nil {
				b.Fatal(n, err)
			}
		}
		post(y.qp)
		post(y.qp)
		loop(b, func(i int) {
			if i%lot != 0 {
				return
			}
			if n, err := x.qp.PostSend(sends); n != lot || err != nil {
				b.Fatal(n, err)
			}
			if n, err := y.cq.Poll(c[:]); n != lot || err != nil {
				b.Fatal(n, err)
			}
			post(y.qp)
			if n, err := x.cq.Poll(c[:]); n != 1 || err != nil {
				b.Fatal(n, err)
			}
		})
	})
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

// processors lists those that this process may use.
func processors(b *testing.B) []int {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		b.Fatal(err)
	}
	var list []int
	for cpu := range len(allowed) * 64 {
		if allowed.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list
}

// pin binds every thread of this process, and those that they start, to
// processors.
func pin(to ...int) error {
	var mask unix.CPUSet
	for _, cpu := range to {
		mask.Set(cpu)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return err
		}
		// A thread may have ended meanwhile.
		if err := unix.SchedSetaffinity(id, &mask); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
