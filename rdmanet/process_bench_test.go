package rdmanet

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// What these benchmarks tell the processes that they start.
const (
	serverEager = "RDMANET_TEST_EAGER" // bytes, of the server's runtime
	serverSink  = "RDMANET_TEST_SINK"  // set: do not echo
	busyProcess = "RDMANET_TEST_BUSY"  // set: use a processor until killed
)

func processTuning(eager string) map[string]verbena.Tuning {
	n, _ := strconv.Atoi(eager) // empty: the built-in value
	tuning := map[string]verbena.Tuning{}
	for _, p := range providers.Default() {
		tuning[p.Name()] = verbena.Tuning{Eager: n}
	}
	return tuning
}

// busyLaps keeps the compiler and its critics from taking the loop away.
var busyLaps *uint64

func beBusy() {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0) // the benchmark has gone
	}()
	var laps uint64
	for busyLaps = &laps; ; laps++ {
	}
}

// disturb runs n processes that want a processor each.
func disturb(b *testing.B, n int) {
	for range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), busyProcess+"=1", "GOMAXPROCS=2")
		must[io.WriteCloser](b)(cmd.StdinPipe())
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
	}
}

// overProcesses connects to a process of its own, a server.
func overProcesses(b *testing.B, eager, chunk int, names []string, f func(b *testing.B, c net.Conn)) {
	b.Setenv(serverEager, strconv.Itoa(eager))
	address, kill := startServer(b, "127.0.0.1:0")
	defer kill()
	for _, name := range names {
		b.Run(name, func(b *testing.B) {
			if name == "plain" {
				c := must[net.Conn](b)(net.Dial("tcp", address))
				f(b, c)
				c.Close()
				return
			}
			rt, err := verbena.New(verbena.Config{Providers: providers.Default(), Tuning: processTuning(strconv.Itoa(eager))})
			if err != nil {
				b.Fatal(err)
			}
			d := &Dialer{Runtime: rt, Transport: name, Chunk: chunk}
			c := must[net.Conn](b)(d.Dial("tcp", address))
			f(b, c)
			c.Close()
			d.Close()
			rt.Close()
		})
	}
}

// An exchange of 1 KiB each way with another process, while so many others want
// the processors: go test ./rdmanet -run - -bench ProcessPingPong
func BenchmarkProcessPingPong(b *testing.B) {
	for _, busy := range []int{0, 2, 4} {
		b.Run(fmt.Sprintf("busy=%d", busy), func(b *testing.B) {
			disturb(b, busy)
			overProcesses(b, 0, 0, append([]string{"plain"}, transports()...), func(b *testing.B, c net.Conn) {
				buf := make([]byte, 1024)
				var took []time.Duration
				for b.Loop() {
					start := time.Now()
					if _, err := c.Write(buf); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(c, buf); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "µs-median")
				b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "µs-p99")
			})
		})
	}
}

// Writes of each size to another process, by what is sent eagerly and how much
// goes into a message: go test ./rdmanet -run - -bench ProcessStream
func BenchmarkProcessStream(b *testing.B) {
	b.Setenv(serverSink, "1")
	sizes := []int{16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20}
	write := func(b *testing.B, eager, chunk int, names []string) {
		for _, size := range sizes {
			b.Run(fmt.Sprintf("write=%dK", size>>10), func(b *testing.B) {
				overProcesses(b, eager, chunk, names, func(b *testing.B, c net.Conn) { benchmarkOneWay(b, c, size) })
			})
		}
	}
	var names []string
	for _, p := range providers.Default() {
		if _, err := p.Devices(context.Background()); err == nil {
			names = append(names, p.Name())
		}
	}
	b.Run("whole", func(b *testing.B) { write(b, 0, 512<<10, names) })
	b.Run("built-in", func(b *testing.B) { write(b, 0, 0, append([]string{"plain"}, transports()...)) })
	for _, eager := range []int{8 << 10, 16 << 10, 32 << 10, 64 << 10} {
		for _, chunk := range []int{eager, 512 << 10} {
			b.Run(fmt.Sprintf("eager=%dK,chunk=%dK", eager>>10, chunk>>10), func(b *testing.B) { write(b, eager+48, chunk, names) })
		}
	}
}

func benchmarkOneWay(b *testing.B, c net.Conn, size int) {
	b.SetBytes(int64(size))
	buf := make([]byte, size)
	sent := uint64(0)
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		sent += uint64(size)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		b.Fatal(err)
	}
	var got [8]byte
	if _, err := io.ReadFull(c, got[:]); err != nil || binary.BigEndian.Uint64(got[:]) != sent {
		b.Errorf("%d bytes arrived of %d, %v", binary.BigEndian.Uint64(got[:]), sent, err)
	}
}

// sink throws away what it gets and says how much it was.
func sink(c net.Conn) {
	buf := make([]byte, 1<<20)
	var total uint64
	for {
		n, err := c.Read(buf)
		total += uint64(n)
		if err != nil {
			_, _ = c.Write(binary.BigEndian.AppendUint64(nil, total)) // the client tells if it gets none
			return
		}
	}
}
