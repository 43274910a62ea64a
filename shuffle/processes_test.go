package shuffle_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/tally"
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
	Longest             int // bytes of a record, beside 12; 0: 300
	Memory              int64
	PeerTimeout         string // of iwarp
	Host                string // to listen on
	Hold                bool   // half of the records are sent when a line has come, which "half" asks for
	// Hot has as many records more go to partition 0. Its thread takes nothing before a line has come, which "full" asks for when all
	// senders of the process wait, and then takes some whenever they do again.
	Hot bool
}

// A report is what a process tells when all has gone well.
type report struct {
	Sent, Received tally.Tally
	Peak           int64 // bytes of Stats().Memory, the most that was seen
	Grown          int64 // bytes that were resident, the most, beside those when it had joined
}

// playRole is the process. It prints its address, reads those of all, prints "joined", and at the end its report, if it has ended
// well, and what it has failed with, or nothing.
func playRole(text string) {
	p := playing{ctx: context.Background(), goOn: make(chan struct{})}
	if err := json.Unmarshal([]byte(text), &p.role); err != nil {
		panic(err)
	}
	err := p.play()
	if err == nil {
		b, _ := json.Marshal(p.report)
		fmt.Printf("%s\n", b)
	}
	fmt.Printf("end %v\n", err)
}

// playing is a process that plays a role.
type playing struct {
	role
	ctx     context.Context
	x       *shuffle.Exchange
	goOn    chan struct{} // closed when a line has come
	sending atomic.Int32  // senders that have not closed
	half    sync.WaitGroup

	mu     sync.Mutex
	report report
}

func (p *playing) play() error {
	settings := map[string]string{"iwarp.remote": "true"}
	maps.Copy(settings, hostOf(p.Rank).settings)
	if p.PeerTimeout != "" {
		settings["iwarp.peer-timeout"] = p.PeerTimeout
	}
	all, err := providers.New(providers.Config{Settings: settings})
	if err != nil {
		return err
	}
	rt, err := verbena.New(verbena.Config{Providers: all})
	if err != nil {
		return err
	}
	defer rt.Close()
	ln, err := rt.Listen(p.ctx, p.Host+":0", verbena.ListenConfig{Services: []string{}})
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	go func() { // until the process ends
		if _, err := in.ReadString('\n'); err == nil {
			close(p.goOn)
			_, _ = in.ReadString('\n')
		}
		os.Exit(1) // the test has ended
	}()
	p.x, err = shuffle.Join(p.ctx, shuffle.Config{
		Runtime: rt, Listener: ln, Rank: p.Rank, Size: p.Size, Threads: p.Threads, Addresses: strings.Fields(line),
		Transport: p.Transport, Mode: p.Mode, Memory: p.Memory,
	})
	if err != nil {
		return err
	}
	joined, err := resident("VmRSS")
	if err != nil {
		return err
	}
	fmt.Println("joined")
	var threads sync.WaitGroup
	p.half.Add(p.Threads)
	p.sending.Store(int32(p.Threads))
	switch {
	case p.Hold:
		threads.Go(func() {
			p.half.Wait()
			fmt.Println("half")
		})
	case p.Hot:
		threads.Go(func() {
			untilFull(p.x, &p.sending, 50)
			fmt.Println("full")
		})
	}
	for thread := range p.Threads {
		threads.Go(func() {
			_ = p.send(thread) // Wait tells of errors
			p.sending.Add(-1)
		})
		threads.Go(func() {
			if err := p.receive(thread); err != io.EOF {
				p.x.Abort(err) // it may have failed already
			}
		})
	}
	threads.Wait()
	err = p.x.Wait(p.ctx)
	p.measure()
	peak, e := resident("VmHWM")
	p.report.Grown = peak - joined
	return errors.Join(err, e, p.x.Close())
}

func (p *playing) send(thread int) error {
	s := p.x.Sender(thread)
	from := p.Rank*p.Threads + thread
	longest := p.Longest
	if longest == 0 {
		longest = 300
	}
	var sent tally.Tally
	next := make([]int, p.x.Partitions())
	one := func(to int) error {
		b := record(from, to, next[to], longest)
		next[to]++
		sent.Add(b)
		return s.Send(to, b)
	}
	for n := 0; p.Records == 0 || n < p.Records; n++ {
		if p.Hold && n == p.Records/2 {
			p.half.Done()
			<-p.goOn
		}
		for to := range p.x.Partitions() {
			if err := one(to); err != nil {
				return err
			}
			if p.Hot {
				if err := one(0); err != nil {
					return err
				}
			}
		}
	}
	p.mu.Lock()
	p.report.Sent.Merge(sent)
	p.mu.Unlock()
	return s.Close()
}

// step is how many records the thread of a hot partition takes at a time.
const step = 150

// receive takes all records for a thread, and returns io.EOF. Those of each sender must come without gaps, in their order.
func (p *playing) receive(thread int) error {
	partition := p.Rank*p.Threads + thread
	hot := p.Hot && partition == 0
	if hot {
		<-p.goOn
	}
	var received tally.Tally
	next := make([]uint32, p.x.Partitions())
	for n := 1; ; n++ {
		if hot && n%step == 0 {
			untilFull(p.x, &p.sending, 3)
			p.measure()
		}
		b, err := p.x.Receiver(thread).Next(p.ctx)
		if err != nil {
			p.mu.Lock()
			p.report.Received.Merge(received)
			p.mu.Unlock()
			return err
		}
		if len(b) < 12 {
			return fmt.Errorf("partition %d: a record of %d bytes", partition, len(b))
		}
		from, to, number := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
		if int(from) >= len(next) || int(to) != partition || number != next[from] {
			return fmt.Errorf("partition %d: record %d from thread %d to partition %d came, want %v", partition, number, from, to, next)
		}
		next[from]++
		received.Add(b)
	}
}

// measure notes how much memory the exchange has now.
func (p *playing) measure() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report.Peak = max(p.report.Peak, p.x.Stats().Memory)
}

// untilFull returns when all of the senders that have not closed have waited for room, for so many looks on end.
func untilFull(x *shuffle.Exchange, sending *atomic.Int32, looks int) {
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	for still := 0; still < looks; {
		<-tick.C
		if still++; x.Waiting() < int(sending.Load()) {
			still = 0
		}
	}
}

// resident reads a number of bytes from /proc/self/status, where there is one.
func resident(name string) (int64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var kib int64
	_, after, _ := strings.Cut(string(text), "\n"+name+":")
	_, err = fmt.Sscan(after, &kib)
	return kib << 10, err
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
	return startJobOn(t, r, func(rank int) (string, func(func())) { return hostOf(rank).address, func(do func()) { do() } })
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
		p.cmd.Env = append(os.Environ(), roleVariable+"="+string(text), "GORACE=atexit_sleep_ms=0") // the race detector waits for a second, and that is waited for
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

// endWell waits until the processes of a job have ended, of which none may have failed, and compares what all have sent with
// what all have received.
func endWell(t *testing.T, job []*process, records uint64) (reports []report) {
	t.Helper()
	var sent, received tally.Tally
	for rank, p := range job {
		line := p.line(t)
		var r report
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("process %d: %q: %s", rank, line, p.err.String())
		}
		if line := p.line(t); line != "end <nil>" {
			t.Fatalf("process %d: %q: %s", rank, line, p.err.String())
		}
		if err := p.cmd.Wait(); err != nil { // also of races
			t.Errorf("process %d: %v: %s", rank, err, p.err.String())
		}
		sent.Merge(r.Sent)
		received.Merge(r.Received)
		reports = append(reports, r)
	}
	if sent != received || sent.Records != records {
		t.Errorf("%+v was sent, and %+v received; %d records were due", sent, received, records)
	}
	return reports
}

// endLost waits until the others of a job have ended, because a process was lost.
func endLost(t *testing.T, job []*process, rank int) {
	t.Helper()
	for other, p := range job {
		if other == rank {
			continue
		}
		want := fmt.Sprintf("end process %d: %v", rank, shuffle.ErrPeerLost)
		if line := p.line(t); !strings.HasPrefix(line, want) {
			t.Errorf("process %d: %q, want %q", other, line, want)
		}
	}
}
