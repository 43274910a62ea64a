package iwarp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// The benchmarks of this file run over two processes, beside a bare Go TCP
// connection between the same two, in turns:
//
//	go test -run '^$' -bench Beside -benchtime 1x ./rdma/iwarp
//
// Each reports the medians of [besideRounds] rounds and, as their ratio, ours
// divided by theirs: of throughput more is better, of latency less.

const (
	besideVariable = "VERBENA_IWARP_BENCH"
	besideRounds   = 7
	besideMemory   = 4 << 20
	besideReceives = 256
	besideCredit   = 32 // receives that one credit message gives back
)

// task is what the other process has to do on a connection.
type task struct {
	kind  byte // see besideTasks
	spin  bool
	size  int
	count int // operations of a round
}

const (
	taskSink   = 's' // takes count messages of size, then says so
	taskEcho   = 'e' // sends back each of count messages of size
	taskTarget = 't' // is written to or read from; a last Send says that it is over
)

const taskSize = 10

func (t task) append(b []byte) []byte {
	b = append(b, t.kind, 0)
	if t.spin {
		b[len(b)-1] = 1
	}
	b = binary.BigEndian.AppendUint32(b, uint32(t.size))
	return binary.BigEndian.AppendUint32(b, uint32(t.count))
}

func parseTask(b []byte) task {
	return task{b[0], b[1] == 1, int(binary.BigEndian.Uint32(b[2:])), int(binary.BigEndian.Uint32(b[6:]))}
}

// besideChild serves tasks if this process was started for that.
func besideChild() {
	if os.Getenv(besideVariable) == "" {
		return
	}
	if err := besideServe(); err != nil {
		fmt.Fprintln(os.Stderr, "the benchmark's other process:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func besideServe() error {
	ctx := context.Background()
	d := New(Config{Logger: slog.New(slog.DiscardHandler)}).device
	fabric, err := d.Listen(ctx, "")
	if err != nil {
		return err
	}
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	go func() {
		for {
			request, err := fabric.Accept(ctx)
			if err == nil {
				err = besideAccept(ctx, d, request)
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	go func() {
		for {
			conn, err := bare.Accept()
			if err == nil {
				err = besideBare(conn.(*net.TCPConn))
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	fmt.Println(fabric.Address(), bare.Addr())
	return <-failed
}

// besideBare does a task on a bare connection.
func besideBare(conn *net.TCPConn) error {
	defer conn.Close()
	var head [taskSize]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	t := parseTask(head[:])
	buffer := make([]byte, t.size)
	in, out := besideReader(conn, t.spin), io.Writer(conn)
	if t.spin {
		out = besideWriter(conn)
	}
	for range t.count {
		if _, err := io.ReadFull(in, buffer); err != nil {
			return err
		}
		if t.kind == taskEcho {
			if _, err := out.Write(buffer); err != nil {
				return err
			}
		}
	}
	if t.kind == taskSink {
		if _, err := conn.Write([]byte{1}); err != nil {
			return err
		}
	}
	_, err := conn.Read(head[:]) // the other end closes first
	if err == io.EOF {
		err = nil
	}
	return err
}

// spinReader reads without waiting until something is there.
type spinReader struct{ raw syscall.RawConn }

// besideReader is conn or a reader of it that spins.
func besideReader(conn *net.TCPConn, spin bool) io.Reader {
	if !spin {
		return conn
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		panic(err)
	}
	return spinReader{raw}
}

func (s spinReader) Read(b []byte) (n int, err error) {
	cerr := s.raw.Control(func(fd uintptr) {
		for i := 1; ; i++ {
			n, err = syscall.Read(int(fd), b)
			if err != syscall.EAGAIN {
				return
			}
			if i%64 == 0 {
				runtime.Gosched()
			}
		}
	})
	if cerr != nil {
		return 0, cerr
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

type spinWriter struct{ raw syscall.RawConn }

func besideWriter(conn *net.TCPConn) io.Writer {
	raw, err := conn.SyscallConn()
	if err != nil {
		panic(err)
	}
	return spinWriter{raw}
}

func (s spinWriter) Write(b []byte) (n int, err error) {
	cerr := s.raw.Control(func(fd uintptr) {
		for n < len(b) && err == nil {
			var k int
			k, err = syscall.Write(int(fd), b[n:])
			n += max(k, 0)
			if err == syscall.EAGAIN {
				err = nil
			}
		}
	})
	if cerr != nil {
		return n, cerr
	}
	return n, err
}

// besideEnd is one end of a connection over the provider.
type besideEnd struct {
	domain rdma.Domain
	memory rdma.Region
	sends  rdma.CompletionQueue
	recvs  rdma.CompletionQueue
	qp     rdma.QueuePair
	spin   bool
	batch  [64]rdma.Completion
}

func newBesideEnd(d *device, spin bool) (*besideEnd, error) {
	e := &besideEnd{spin: spin}
	var err error
	if e.domain, err = d.OpenDomain(rdma.DomainConfig{}); err != nil {
		return nil, err
	}
	if e.memory, err = e.domain.Allocate(besideMemory, everything); err != nil {
		return nil, err
	}
	fill(e.memory.Bytes(), 1) // touches all pages
	if e.sends, err = e.domain.NewCompletionQueue(1024); err != nil {
		return nil, err
	}
	if e.recvs, err = e.domain.NewCompletionQueue(1024); err != nil {
		return nil, err
	}
	e.qp, err = e.domain.NewQueuePair(rdma.QueuePairConfig{SendCompletions: e.sends, RecvCompletions: e.recvs,
		SendDepth: besideReceives, RecvDepth: besideReceives, MaxSGE: 1})
	return e, err
}

func (e *besideEnd) sge(offset, length int) []rdma.SGE {
	return []rdma.SGE{{Region: e.memory, Offset: offset, Length: length}}
}

// take waits for completions of a queue.
func (e *besideEnd) take(q rdma.CompletionQueue) (int, error) {
	for i := 1; ; i++ {
		n, err := q.Poll(e.batch[:])
		if err != nil {
			return 0, err
		}
		if n > 0 {
			for _, c := range e.batch[:n] {
				if c.Status != rdma.StatusSuccess {
					return 0, fmt.Errorf("%s: %s: %w", c.Op, c.Status, e.qp.Err())
				}
			}
			return n, nil
		}
		switch {
		case e.spin && i%64 == 0:
			runtime.Gosched()
		case !e.spin && i%2 == 1:
			err = q.Arm(false)
		case !e.spin:
			err = q.Wait(context.Background())
		}
		if err != nil {
			return 0, err
		}
	}
}

func (e *besideEnd) receive(count, size int) error {
	request := []rdma.RecvRequest{{SGEs: e.sge(besideMemory/2, size)}}
	for range count {
		if _, err := e.qp.PostRecv(request); err != nil {
			return err
		}
	}
	return nil
}

// besideAccept does a task on a connection of the provider.
func besideAccept(ctx context.Context, d *device, request rdma.ConnectRequest) error {
	t := parseTask(request.PrivateData())
	e, err := newBesideEnd(d, t.spin)
	if err != nil {
		return err
	}
	defer e.domain.Close()
	if err := e.receive(besideReceives, t.size); err != nil {
		return err
	}
	var where []byte
	where = binary.BigEndian.AppendUint64(where, e.memory.Address())
	where = binary.BigEndian.AppendUint32(where, e.memory.Key())
	if err := request.Accept(ctx, e.qp, where); err != nil {
		return err
	}
	var pending int
	send := func(size int) error {
		if pending++; pending == besideReceives/2 {
			n, err := e.take(e.sends)
			if err != nil {
				return err
			}
			pending -= n
		}
		_, err := e.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: e.sge(0, size)}})
		return err
	}
	if t.kind == taskTarget {
		t.count, t.size = 1, 0
	}
	for done := 0; done < t.count; {
		n, err := e.take(e.recvs)
		if err != nil {
			return err
		}
		if err := e.receive(n, t.size); err != nil {
			return err
		}
		for range n {
			done++
			switch {
			case t.kind == taskEcho:
				err = send(t.size)
			case done%besideCredit == 0, t.kind == taskTarget:
				err = send(0)
			}
			if err != nil {
				return err
			}
		}
	}
	<-e.qp.Done() // the other end closes first
	return nil
}

// beside is the other process.
type beside struct {
	fabric, bare string
	pid          int
	life         io.Closer // its standard input: it ends when that does
}

var besideOnce = sync.OnceValues(func() (*beside, error) {
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), besideVariable+"=1")
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	in, err := child.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := child.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(line)
	if len(fields) != 2 {
		return nil, fmt.Errorf("the other process says %q", line)
	}
	return &beside{fields[0], fields[1], child.Process.Pid, in}, nil
})

// round does a task over the bare connection and returns how long it took.
func (p *beside) bareRound(t task) (time.Duration, error) {
	c, err := net.Dial("tcp", p.bare)
	if err != nil {
		return 0, err
	}
	conn := c.(*net.TCPConn)
	defer conn.Close()
	if _, err := conn.Write(t.append(nil)); err != nil {
		return 0, err
	}
	buffer := make([]byte, t.size)
	fill(buffer, 1)
	in, out := besideReader(conn, t.spin), io.Writer(conn)
	if t.spin {
		out = besideWriter(conn)
	}
	start := time.Now()
	for range t.count {
		if _, err := out.Write(buffer); err != nil {
			return 0, err
		}
		if t.kind == taskEcho {
			if _, err := io.ReadFull(in, buffer); err != nil {
				return 0, err
			}
		}
	}
	if t.kind == taskSink {
		if _, err := io.ReadFull(conn, buffer[:1]); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// round does a task over the provider. Reads and Writes have the kind taskTarget.
func (p *beside) round(t task, op rdma.Opcode, window int) (time.Duration, error) {
	d := New(Config{Logger: slog.New(slog.DiscardHandler)}).device
	e, err := newBesideEnd(d, t.spin)
	if err != nil {
		return 0, err
	}
	defer e.domain.Close()
	if err := e.receive(besideReceives, t.size); err != nil {
		return 0, err
	}
	reply, err := e.qp.Connect(context.Background(), p.fabric, t.append(nil))
	if err != nil {
		return 0, err
	}
	remote := rdma.Remote{Address: binary.BigEndian.Uint64(reply), Key: binary.BigEndian.Uint32(reply[8:])}
	request := []rdma.SendRequest{{Op: op, Flags: rdma.Signaled, Remote: remote, SGEs: e.sge(0, t.size)}}
	if op == rdma.OpRead {
		request[0].SGEs = e.sge(besideMemory/2, t.size)
	}
	start := time.Now()
	credits, pending := besideReceives, 0
	for range t.count {
		for pending == window {
			n, err := e.take(e.sends)
			if err != nil {
				return 0, err
			}
			pending -= n
		}
		for op == rdma.OpSend && credits == 0 {
			n, err := e.take(e.recvs)
			if err != nil {
				return 0, err
			}
			if err := e.receive(n, t.size); err != nil {
				return 0, err
			}
			credits += n * besideCredit
		}
		if _, err := e.qp.PostSend(request); err != nil {
			return 0, err
		}
		pending++
		credits--
		if t.kind == taskEcho {
			if _, err := e.take(e.recvs); err != nil {
				return 0, err
			}
			if err := e.receive(1, t.size); err != nil {
				return 0, err
			}
			credits = besideReceives
		}
	}
	switch {
	case t.kind == taskSink:
		for credits < besideReceives {
			n, err := e.take(e.recvs)
			if err != nil {
				return 0, err
			}
			credits += n * besideCredit
		}
	case op == rdma.OpWrite:
		// What was written is there once a Send has been delivered.
		for pending > window-1 {
			n, err := e.take(e.sends)
			if err != nil {
				return 0, err
			}
			pending -= n
		}
		if _, err := e.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend}}); err != nil {
			return 0, err
		}
		if _, err := e.take(e.recvs); err != nil {
			return 0, err
		}
	default:
		for pending > 0 {
			n, err := e.take(e.sends)
			if err != nil {
				return 0, err
			}
			pending -= n
		}
	}
	took := time.Since(start)
	if op == rdma.OpRead {
		_, err = e.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend}})
		if err == nil {
			_, err = e.take(e.recvs)
		}
	}
	return took, err
}

// load tells the processor time, in clock ticks, that the two processes and the
// whole machine have used so far.
func (p *beside) load(b *testing.B) (ours, all int) {
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	for _, pid := range []int{os.Getpid(), p.pid} {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest) // from the third on, by proc(5)
		ours += number(fields[14-3]) + number(fields[15-3])
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	for _, field := range strings.Fields(line)[1:4] { // user, nice, system
		all += number(field)
	}
	return ours, all
}

func BenchmarkBeside(b *testing.B) {
	for _, c := range []struct {
		name   string
		task   task // of the bare connection
		kind   byte // of ours
		op     rdma.Opcode
		window int
	}{
		{"write 1MiB", task{taskSink, false, 1 << 20, 1024}, taskTarget, rdma.OpWrite, 16},
		{"write 1MiB spinning", task{taskSink, true, 1 << 20, 1024}, taskTarget, rdma.OpWrite, 16},
		{"read 1MiB", task{taskSink, false, 1 << 20, 1024}, taskTarget, rdma.OpRead, 16},
		{"read 64KiB", task{taskSink, false, 64 << 10, 8192}, taskTarget, rdma.OpRead, 16},
		{"send 64KiB", task{taskSink, false, 64 << 10, 8192}, taskSink, rdma.OpSend, 32},
		{"send 64KiB spinning", task{taskSink, true, 64 << 10, 8192}, taskSink, rdma.OpSend, 32},
		{"ping-pong 1KiB", task{taskEcho, false, 1 << 10, 10 << 10}, taskEcho, rdma.OpSend, 32},
		{"ping-pong 1KiB spinning", task{taskEcho, true, 1 << 10, 20 << 10}, taskEcho, rdma.OpSend, 32},
		{"read 4KiB alone", task{taskEcho, false, 4 << 10, 5 << 10}, taskTarget, rdma.OpRead, 1},
		{"read 4KiB alone spinning", task{taskEcho, true, 4 << 10, 10 << 10}, taskTarget, rdma.OpRead, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, err := besideOnce()
			if err != nil {
				b.Fatal(err)
			}
			ours := c.task
			ours.kind = c.kind
			for range b.N {
				// Rounds in which others used the processors do not count, while there is
				// hope of better ones.
				var mine, theirs []float64
				var cpu [2]int
				measured := func(which int, into *[]float64, round func() (time.Duration, error)) bool {
					ours, all := p.load(b)
					took, err := round()
					if err != nil {
						b.Fatal(err)
					}
					ours2, all2 := p.load(b)
					*into = append(*into, float64(took))
					cpu[which] += ours2 - ours
					return all2-all-(ours2-ours) <= (all2-all)/10+1
				}
				for try := range 3 * besideRounds {
					kept := len(mine)
					was := cpu
					ok := measured(0, &mine, func() (time.Duration, error) { return p.round(ours, c.op, c.window) })
					ok = measured(1, &theirs, func() (time.Duration, error) { return p.bareRound(c.task) }) && ok
					if !ok && try < 2*besideRounds+kept {
						mine, theirs, cpu = mine[:kept], theirs[:kept], was
					} else if kept+1 == besideRounds {
						b.ReportMetric(float64(try+1-besideRounds), "disturbed")
						break
					}
				}
				slices.Sort(mine)
				slices.Sort(theirs)
				half := besideRounds / 2
				per := func(took float64) float64 {
					if c.task.kind == taskEcho {
						return took / float64(c.task.count) / 2e3 // us, one way
					}
					return float64(c.task.count*c.task.size) / took // GB/s
				}
				unit, ratio := "GB/s", theirs[half]/mine[half]
				if c.task.kind == taskEcho {
					unit, ratio = "us", mine[half]/theirs[half]
				}
				b.ReportMetric(per(mine[half]), unit)
				b.ReportMetric(per(theirs[half]), "tcp-"+unit)
				b.ReportMetric(ratio, "ratio")
				b.ReportMetric((mine[besideRounds-1]-mine[0])/mine[half], "spread")
				b.ReportMetric((theirs[besideRounds-1]-theirs[0])/theirs[half], "tcp-spread")
				b.ReportMetric(float64(cpu[0])*1e7/float64(besideRounds*c.task.count), "cpu-ns/op")
				b.ReportMetric(float64(cpu[1])*1e7/float64(besideRounds*c.task.count), "tcp-cpu-ns/op")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// ucx runs a test of ucx_perftest over TCP between two processes and returns
// what it tells of the whole: microseconds one way and bytes per second.
func ucx(b *testing.B, test string, size, count int) (latency, bandwidth float64) {
	const port = "13477"
	start := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		c, out := exec.Command("ucx_perftest", append([]string{"-p", port}, args...)...), new(bytes.Buffer)
		c.Env = append(os.Environ(), "UCX_TLS=tcp")
		c.Stdout, c.Stderr = out, out
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		return c, out
	}
	server, _ := start()
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	for begin := time.Now(); ; {
		client, out := start("-t", test, "-s", strconv.Itoa(size), "-n", strconv.Itoa(count), "127.0.0.1")
		err := client.Wait()
		for line := range strings.Lines(out.String()) {
			fields := strings.Fields(line)
			if err != nil || len(fields) < 7 || fields[0] != "Final:" {
				continue
			}
			latency, err = strconv.ParseFloat(fields[4], 64)
			if err == nil {
				bandwidth, err = strconv.ParseFloat(fields[6], 64)
			}
			if err != nil {
				b.Fatalf("ucx_perftest says %q: %v", line, err)
			}
			return latency, bandwidth * (1 << 20)
		}
		if time.Since(begin) > within { // it refuses while the server is not there yet
			b.Fatalf("ucx_perftest: %v\n%s", err, out)
		}
	}
}

// BenchmarkBesideUCX stands beside ucx_perftest over TCP, if there is one. Both
// spin.
func BenchmarkBesideUCX(b *testing.B) {
	if _, err := exec.LookPath("ucx_perftest"); err != nil {
		b.Skip("no ucx_perftest; Debian has it in ucx-utils")
	}
	for _, c := range []struct {
		name, test string
		task       task
		count      int // of ucx_perftest
	}{
		{"ping-pong 1KiB", "ucp_am_lat", task{taskEcho, true, 1 << 10, 20 << 10}, 50_000},
		{"send 64KiB", "ucp_am_bw", task{taskSink, true, 64 << 10, 8192}, 16_384},
		{"send 64KiB waiting", "ucp_am_bw", task{taskSink, false, 64 << 10, 8192}, 16_384},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, err := besideOnce()
			if err != nil {
				b.Fatal(err)
			}
			for range b.N {
				var mine, theirs []float64
				for range besideRounds {
					took, err := p.round(c.task, rdma.OpSend, 32)
					if err != nil {
						b.Fatal(err)
					}
					latency, bandwidth := ucx(b, c.test, c.task.size, c.count)
					if c.task.kind == taskEcho {
						mine = append(mine, float64(took)/float64(c.task.count)/2e3)
						theirs = append(theirs, latency)
					} else {
						mine = append(mine, float64(c.task.count*c.task.size)/float64(took))
						theirs = append(theirs, bandwidth/1e9)
					}
				}
				slices.Sort(mine)
				slices.Sort(theirs)
				half, unit := besideRounds/2, "GB/s"
				if c.task.kind == taskEcho {
					unit = "us"
				}
				b.ReportMetric(mine[half], unit)
				b.ReportMetric(theirs[half], "ucx-"+unit)
				b.ReportMetric(mine[half]/theirs[half], "ratio")
				b.ReportMetric((mine[besideRounds-1]-mine[0])/mine[half], "spread")
				b.ReportMetric((theirs[besideRounds-1]-theirs[0])/theirs[half], "ucx-spread")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
