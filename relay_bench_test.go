package verbena

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/processes"
)

// BenchmarkRelay is what a message of 1 MiB costs that is received and sent on over a
// second endpoint: a source, a relay and a sink, each a process. It tells the
// processor time of all three beside that of two copies of the message (memcpy),
// which it measures before and after, and the ratio. "Here" is memcpy between memory
// that the transport uses, all by one process: on shared memory its pages are small.
//
//	go test . -run - -bench Relay -benchtime 2s
func BenchmarkRelay(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("the processor time of another process is known on Linux only")
	}
	for _, w := range worlds {
		if strings.HasPrefix(w.name, "fake") {
			continue // a network within one process
		}
		for _, way := range relayWays {
			b.Run(w.name+"/"+way, func(b *testing.B) { benchmarkRelay(b, w, way) })
		}
	}
}

// relayWays are how the relay sends on: the buffer itself, the same with more in
// flight and nobody polling, that with a sink that receives in place, that with a relay that
// does, whose messages the sink reads in the source's memory, and a copy of the bytes.
var relayWays = []string{"buffer", "buffer-quiet", "in-place-quiet", "passed-quiet", "bytes"}

func relayTuning(w world, way string) TuningTable {
	if !strings.HasSuffix(way, "-quiet") || w.transport == TransportTCP {
		return nil
	}
	return TuningTable{w.transport: {Window: 16, Chunks: 16, Spin: -1}}
}

const (
	relayVariable = "VERBENA_TEST_RELAY" // way of the relay; and, of the relay itself, the address of the sink
	relaySize     = 1 << 20
	relayBuffers  = 6 // that the source sends in turn
)

func benchmarkRelay(b *testing.B, w world, way string) {
	sink, sinkAddress := startPeer(b, w, relayVariable+"="+way)
	relay, relayAddress := startPeer(b, w, relayVariable+"="+way+" "+sinkAddress)
	client, _ := w.providers(b)
	r := newRuntime(b, Config{Tuning: relayTuning(w, way)}, client)
	ctx := context.Background()
	e, err := r.Dial(ctx, relayAddress, "relay/1", DialConfig{Transport: w.transport})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	var buffers [relayBuffers]*Buffer
	for i := range buffers {
		if buffers[i], err = e.Buffer(ctx, relaySize); err != nil {
			b.Fatal(err)
		}
		copy(buffers[i].Bytes(), pattern(relaySize, i))
		defer buffers[i].Release()
	}
	// send sends n messages and waits until the sink has the last one.
	send := func(n int) {
		for i := range n {
			buffer := buffers[i%relayBuffers]
			if err := e.Settled(ctx, buffer); err != nil {
				b.Fatal(err)
			}
			tag := uint32(0)
			if i == n-1 {
				tag = lastTag
			}
			buffer.Retain()
			if err := e.SendBuffer(ctx, tag, nil, buffer); err != nil {
				b.Fatal(err)
			}
		}
		m, err := e.Receive(ctx)
		if err != nil {
			b.Fatal(err)
		}
		m.Release()
	}
	used := func() (total time.Duration) {
		for _, pid := range []int{os.Getpid(), relay.Process.Pid, sink.Process.Pid} {
			total += cpuOf(b, pid)
		}
		return total
	}
	send(200)
	copied := copyTime(b)
	before := used()
	b.SetBytes(relaySize)
	b.ResetTimer()
	send(b.N)
	b.StopTimer()
	spent := float64(used()-before) / float64(b.N)
	copied = (copied + copyTime(b)) / 2
	registered := copyTimeIn(b, func() []byte {
		buffer, err := e.Buffer(ctx, relaySize)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(buffer.Release)
		return buffer.Bytes()
	})
	b.ReportMetric(spent, "cpu-ns/op")
	b.ReportMetric(2*registered, "two-memcpy-here-ns")
	b.ReportMetric(2*copied, "two-memcpy-ns")
	b.ReportMetric(spent/(2*copied), "ratio")
}

// touched keeps what touch has read.
var touched byte

// touch reads a byte of each line: a message that is received in place would otherwise cost
// its sink nothing.
func touch(b []byte) {
	for i := 0; i < len(b); i += 64 {
		touched += b[i]
	}
}

// lastTag asks the sink for an answer.
const lastTag = 1

// copyTime is the processor time in nanoseconds of a memcpy of a message, between
// as many buffers as the source sends and as many that a receiver may have.
func copyTime(b *testing.B) float64 {
	return copyTimeIn(b, func() []byte { return make([]byte, relaySize) })
}

// copyTimeIn is copyTime in memory of some kind.
func copyTimeIn(b *testing.B, memory func() []byte) float64 {
	var from, to [relayBuffers][]byte
	for i := range from {
		from[i], to[i] = memory(), memory()
		copy(from[i], pattern(relaySize, i))
	}
	const rounds = 2000
	var start time.Duration
	for i := range rounds + 100 {
		if i == 100 {
			start = cpuOf(b, os.Getpid())
		}
		copy(to[i%relayBuffers], from[i%relayBuffers])
	}
	return float64(cpuOf(b, os.Getpid())-start) / rounds
}

// serveRelay sends on what comes, to the sink, and the sink's answers back.
func serveRelay(w world, config Config, way, sink string) error {
	r, err := New(config)
	if err != nil {
		return err
	}
	ctx := context.Background()
	group, err := r.NewGroup(GroupConfig{Name: "relay", Relay: true})
	if err != nil {
		return err
	}
	out, err := r.Dial(ctx, sink, "answer/1", DialConfig{Transport: w.transport, Group: group, Trusted: true})
	if err != nil {
		return err
	}
	l, err := r.Listen(ctx, "127.0.0.1:0", ListenConfig{Group: group, InPlace: strings.HasPrefix(way, "passed")})
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	in, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	go func() {
		for {
			m, err := out.Receive(ctx)
			if err != nil {
				return
			}
			_ = in.SendBuffer(ctx, m.Tag, nil, &m.Buffer) // the source would notice
		}
	}()
	for {
		m, err := in.Receive(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if way != "bytes" {
			err = out.SendBuffer(ctx, m.Tag, nil, &m.Buffer)
		} else {
			err = out.Send(ctx, m.Tag, m.Bytes())
			m.Release()
		}
		if err != nil {
			return err
		}
	}
}

func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	t, err := processes.CPUTime(pid)
	if err != nil {
		b.Fatal(err)
	}
	return t
}
