package shm

import (
	"bufio"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/rdma"
)

// busy opens and closes everything that the provider has, over and over, while
// it also sends to its peer: it is there to be killed.
func busy(s *side, remote rdma.Remote) error {
	directory := filepath.Dir(os.Getenv(addressVariable))
	for {
		l, err := s.domain.Device().Listen(context.Background(), filepath.Join(directory, "of-the-child"))
		if err != nil {
			return err
		}
		other, err := openSide(s.domain.Device())
		if err != nil {
			return err
		}
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(context.Background())
			if err == nil {
				err = r.Accept(context.Background(), other.qp, nil)
			}
			accepted <- err
		}()
		own, err := openSide(s.domain.Device())
		if err != nil {
			return err
		}
		if _, err := own.qp.Connect(context.Background(), l.Address(), nil); err != nil {
			return err
		}
		if err := <-accepted; err != nil {
			return err
		}
		for range 20 {
			if err := s.write(remote, 4096, 1); err != nil {
				return nil //nolint:nilerr // the parent has hung up
			}
		}
		for _, c := range []interface{ Close() error }{own.domain, other.domain, l} {
			if err := c.Close(); err != nil {
				return err
			}
		}
	}
}

// left lists what processes leave that die: files of shared memory, abstract
// sockets, and memory of dead processes mapped here.
func left(t *testing.T) map[string]int {
	t.Helper()
	found := map[string]int{}
	for _, pattern := range []string{"/dev/shm/*", filepath.Join(os.TempDir(), "verbena-shm*"), "/dev/hugepages/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.Contains(name, "verbena") {
				found[name]++
			}
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	found["mappings"] = strings.Count(string(maps), "memfd:verbena")
	found["descriptors"] = countDescriptors(t)
	return found
}

// abstractSockets counts those of the provider in this network namespace.
func abstractSockets(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "@verbena-")
}

// A process that is killed at any moment of set-up and traffic leaves nothing
// but, in a directory, its socket, which the next to listen there takes over.
func TestNothingStaysBehind(t *testing.T) {
	if !startsItself() {
		t.Skip(emulated)
	}
	rounds := 25
	if testing.Short() {
		rounds = 6
	}
	directory := t.TempDir()
	device := openDevice(t, Config{SocketDirectory: directory})
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	var before map[string]int
	for round := range rounds {
		s, err := openSide(device)
		if err != nil {
			t.Fatal(err)
		}
		s.t = t
		l, err := device.Listen(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		command := exec.CommandContext(t.Context(), "/proc/self/exe")
		command.Env = append(os.Environ(), partVariable+"=busy", addressVariable+"="+l.Address())
		stderr, err := command.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdin, err := command.StdinPipe() // it ends with that, too
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		killed := make(chan struct{})
		kill := time.AfterFunc(time.Duration(random.IntN(60))*time.Millisecond, func() {
			defer close(killed)
			_ = command.Process.Kill()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		over := make(chan struct{})
		go func() { // the child may die before it connects
			defer close(over)
			for lines := bufio.NewScanner(stderr); lines.Scan(); {
				t.Error("the child says:", lines.Text())
			}
			_ = command.Wait()
			stdin.Close()
			cancel()
		}()
		r, err := l.Accept(ctx)
		if err == nil {
			err = s.postBuffers()
			if err == nil {
				err = r.Accept(ctx, s.qp, s.describe())
			}
			if err == nil {
				select {
				case <-s.qp.Done():
				case <-time.After(20 * time.Second):
					t.Error("the death of the peer goes unnoticed")
				}
			}
		}
		<-over
		if !kill.Stop() {
			<-killed // until then it may hold the descriptor of the process
		}
		cancel()
		if err := s.domain.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if round == 0 {
			before = left(t)
		}
		for what, n := range left(t) {
			if n > before[what] {
				t.Fatalf("round %d: %d %s are left, %d before", round, n, what, before[what])
			}
		}
		next, err := device.Listen(t.Context(), filepath.Join(directory, "of-the-child"))
		if err != nil {
			t.Fatal("the socket of a dead process is in the way:", err)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left in the directory of the sockets", e.Name())
	}
}

// Abstract sockets go with their process.
func TestAbstractSocketGoes(t *testing.T) {
	l, err := openDevice(t, Config{}).Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if n := abstractSockets(t); n == 0 {
		t.Error("a listener is not seen: the count counts nothing")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), l.Address()) {
		t.Error("the socket is still there")
	}
}

// resident returns the bytes that this process has in memory, shared memory
// counted once for each mapping.
func resident(t *testing.T) (rss int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && (fields[0] == "RssAnon:" || fields[0] == "RssShmem:") {
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			rss += n << 10
		}
	}
	return rss
}

// Thousands of connections fit: what each takes, with both its ends here, is
// bounded, and given back. Shared memory counts once for each mapping.
func TestMemoryOfConnections(t *testing.T) {
	t.Run("receives of their own", func(t *testing.T) {
		testMemoryOfConnections(t, 64<<10, func(c *rdma.QueuePairConfig) { c.SendDepth, c.RecvDepth = 16, 16 }, false)
	})
	// As many sends as an endpoint has.
	t.Run("a shared receive queue", func(t *testing.T) {
		testMemoryOfConnections(t, 64<<10, func(c *rdma.QueuePairConfig) { c.SendDepth = 96 }, true)
	})
}

func testMemoryOfConnections(t *testing.T, most int, change func(*rdma.QueuePairConfig), shared bool) {
	n := 2000
	if testing.Short() {
		n = 200
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if int(limit.Cur) < 2*n+200 {
		n = (int(limit.Cur) - 200) / 2
		t.Logf("%d connections, for there are %d descriptors", n, limit.Cur)
	}
	device := openDevice(t, Config{})
	a, b := newSide(t, device, 4096), newSide(t, device, 4096)
	pair := func(s *side) func() rdma.QueuePair {
		var srq rdma.SharedReceiveQueue
		if shared {
			var err error
			if srq, err = s.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: 4096}); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				if _, err := srq.PostRecv([]rdma.RecvRequest{{ID: uint64(i), SGEs: s.sge(0, 64)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		return func() rdma.QueuePair {
			return s.pair(func(c *rdma.QueuePairConfig) {
				change(c)
				c.MaxSGE, c.MaxInline, c.SharedReceive = 1, 64, srq
			})
		}
	}
	from, to := pair(a), pair(b)
	connectMany(t, device, 1, from, to)
	debug.FreeOSMemory()
	before := resident(t)
	descriptors := countDescriptors(t)
	froms, tos := connectMany(t, device, n, from, to)
	for i, qp := range tos {
		if shared {
			break
		}
		if _, err := qp.PostRecv([]rdma.RecvRequest{{ID: uint64(i), SGEs: b.sge(0, 64)}}); err != nil {
			t.Fatal(err)
		}
	}
	for i, qp := range froms {
		if _, err := qp.PostSend([]rdma.SendRequest{{ID: uint64(i), Op: rdma.OpSend, SGEs: a.sge(0, 64)}}); err != nil {
			t.Fatal(err)
		}
		if c := b.await(); c.ID != uint64(i) && !shared || c.Status != rdma.StatusSuccess {
			t.Fatalf("%+v", c)
		}
	}
	debug.FreeOSMemory()
	each := (resident(t) - before) / n
	t.Logf("%d connections: %d bytes resident for each, both ends and both mappings; %d descriptors", n, each, countDescriptors(t)-descriptors)
	// Each end touches a page of its own inbox and of the peer's; its queues, its
	// socket's buffers and a goroutine's stack are in the heap.
	if each > most && !race.Enabled {
		t.Errorf("a connection takes %d bytes", each)
	}
	for _, s := range []*side{a, b} {
		if err := s.domain.Close(); err != nil {
			t.Error(err)
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if mapped := strings.Count(string(maps), "memfd:verbena"); mapped > 0 {
		t.Errorf("%d mappings are left", mapped)
	}
}

// Large regions are of huge pages while there are any, and of others when there
// are none; a peer sees no difference.
func TestHugePages(t *testing.T) {
	const reserved = "/proc/sys/vm/nr_hugepages"
	was, err := os.ReadFile(reserved)
	if err != nil {
		t.Skip("this kernel has no huge pages")
	}
	use := func(t *testing.T) (huge bool) {
		device := openDevice(t, Config{HugePages: true})
		a, b := newSide(t, device, 4<<20), newSide(t, device, 4<<20)
		a.qp, b.qp = a.pair(nil), b.pair(nil)
		connect(t, device, a.qp, b.qp)
		fill(a.memory.Bytes(), 3)
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: a.sge(0, 4<<20), Remote: b.remote(0)})
		a.expect(1, rdma.StatusSuccess)
		b.recv(2)
		a.send(rdma.SendRequest{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled})
		a.expect(2, rdma.StatusSuccess)
		b.expect(2, rdma.StatusSuccess)
		if string(b.memory.Bytes()) != string(a.memory.Bytes()) {
			t.Error("what was written differs")
		}
		smaps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		inside := false
		for line := range strings.Lines(string(smaps)) {
			if strings.Contains(line, "memfd:verbena-region") {
				inside = true
			} else if inside && strings.HasPrefix(line, "KernelPageSize:") {
				huge = huge || strings.Contains(line, "2048 kB")
				inside = false
			}
		}
		for _, s := range []*side{a, b} {
			if err := s.domain.Close(); err != nil {
				t.Error(err)
			}
		}
		return huge
	}
	t.Run("none", func(t *testing.T) {
		if strings.TrimSpace(string(was)) != "0" {
			t.Skip("some are reserved")
		}
		if use(t) {
			t.Error("huge pages where none are reserved")
		}
	})
	t.Run("some", func(t *testing.T) {
		if err := os.WriteFile(reserved, []byte("16"), 0o644); err != nil { //nolint:gosec // a setting of the kernel
			testneed.Missing(t, "huge pages: "+err.Error(), "the superuser's rights to reserve some")
		}
		defer os.WriteFile(reserved, was, 0o644) //nolint:gosec // as above
		now, err := os.ReadFile(reserved)
		if err != nil {
			t.Fatal(err)
		}
		if pages, err := strconv.Atoi(strings.TrimSpace(string(now))); err != nil || pages < 8 {
			t.Skipf("the kernel has reserved only %s of 16 pages", now)
		}
		// An emulator shows maps of its own making.
		if !use(t) && startsItself() {
			t.Error("no huge pages where some are reserved")
		}
	})
}
