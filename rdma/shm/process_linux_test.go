package shm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

// Tests and benchmarks with two processes start this binary again; the child
// connects to the parent and then plays the part that the environment names.
const (
	partVariable    = "VERBENA_SHM_PART"
	addressVariable = "VERBENA_SHM_ADDRESS"
	allowVariable   = "VERBENA_SHM_ALLOW"
	// rotationVariable is how many buffers are received into in turn. Few stay in
	// the processors' caches.
	rotationVariable = "VERBENA_SHM_ROTATION"
	// playerVariable says how the player part plays, and pinVariable which processor the
	// child stays on.
	playerVariable = "VERBENA_SHM_PLAYER"
	pinVariable    = "VERBENA_SHM_PIN"
	// sharedVariable makes both ends receive by shared receive queues.
	sharedVariable = "VERBENA_SHM_SHARED"
	buffers        = 64
	bufferBytes    = 64 << 10
)

var parts = map[string]func(*side, rdma.Remote) error{
	"echo":     func(s *side, _ rdma.Remote) error { return echo(s, false) },
	"wait":     func(s *side, _ rdma.Remote) error { return echo(s, true) },
	"player":   func(s *side, _ rdma.Remote) error { return answer(s) },
	"futex":    func(*side, rdma.Remote) error { return handBack() },
	"sink":     func(s *side, _ rdma.Remote) error { return sink(s) },
	"flags":    flags,
	"scribble": scribble,
	"stuck":    func(s *side, _ rdma.Remote) error { return inside(s, syscall.SIGSTOP) },
	"killed":   func(s *side, _ rdma.Remote) error { return inside(s, syscall.SIGKILL) },
	"reader":   read,
	"flood":    func(s *side, _ rdma.Remote) error { return flood(s) },
	"busy":     busy,
	"lender":   func(s *side, _ rdma.Remote) error { return lend(s) },
}

func TestMain(m *testing.M) {
	rdmatest.RunChild(map[string]rdmatest.Opener{"shm": openForSuite})
	if part := os.Getenv(partVariable); part != "" {
		if err := child(parts[part], os.Getenv(addressVariable)); err != nil {
			fmt.Fprintln(os.Stderr, part+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func openSide(device rdma.Device) (*side, error) {
	s := &side{events: make(chan rdma.Event, 64), rotation: buffers}
	if n, err := strconv.ParseUint(os.Getenv(rotationVariable), 10, 8); err == nil {
		s.rotation = min(max(n, 1), buffers)
	}
	var err error
	if s.domain, err = device.OpenDomain(rdma.DomainConfig{OnEvent: s.onEvent}); err != nil {
		return nil, err
	}
	if s.cq, err = s.domain.NewCompletionQueue(4096); err != nil {
		return nil, err
	}
	if s.memory, err = s.domain.Allocate((buffers+1)*bufferBytes, everything); err != nil {
		return nil, err
	}
	config := rdma.QueuePairConfig{
		SendCompletions: s.cq, RecvCompletions: s.cq, SendDepth: 512, RecvDepth: buffers * 4, MaxSGE: 2, ReceiverNotReadyRetry: -1,
	}
	if os.Getenv(sharedVariable) != "" {
		if s.srq, err = s.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: buffers * 4, MaxSGE: 2}); err != nil {
			return nil, err
		}
		config.SharedReceive = s.srq
	}
	s.qp, err = s.domain.NewQueuePair(config)
	return s, err
}

// postBuffers posts the receives that the parts use. Those beyond the buffers
// share them.
func (s *side) postBuffers() error {
	for i := range buffers * 4 {
		if err := s.repost(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

func (s *side) repost(id uint64) error {
	if s.receive == nil {
		s.receive = []rdma.RecvRequest{{SGEs: []rdma.SGE{{Region: s.memory, Length: bufferBytes}}}}
	}
	s.receive[0].ID, s.receive[0].SGEs[0].Offset = id, int(id%s.rotation)*bufferBytes
	return s.postRecv(s.receive)
}

func (s *side) postRecv(receives []rdma.RecvRequest) error {
	if s.srq != nil {
		_, err := s.srq.PostRecv(receives)
		return err
	}
	_, err := s.qp.PostRecv(receives)
	return err
}

// place is what both ends tell each other of their memory.
func (s *side) describe() []byte {
	b := binary.LittleEndian.AppendUint64(nil, s.memory.Address())
	return binary.LittleEndian.AppendUint32(b, s.memory.Key())
}

func parseRemote(b []byte) rdma.Remote {
	return rdma.Remote{Address: binary.LittleEndian.Uint64(b), Key: binary.LittleEndian.Uint32(b[8:])}
}

func child(part func(*side, rdma.Remote) error, address string) error {
	if cpu, err := strconv.Atoi(os.Getenv(pinVariable)); err == nil {
		if err := pin(cpu); err != nil {
			return err
		}
	}
	if err := hideDirectory(address); err != nil {
		return err
	}
	var config Config
	if uid, err := strconv.Atoi(os.Getenv(allowVariable)); err == nil {
		config.AllowUIDs = []uint32{uint32(uid)}
	}
	devices, err := New(config).Devices(context.Background())
	if err != nil {
		return err
	}
	s, err := openSide(devices[0])
	if err != nil {
		return err
	}
	if err := s.postBuffers(); err != nil {
		return err
	}
	reply, err := s.qp.Connect(context.Background(), address, s.describe())
	if err != nil {
		return err
	}
	// The parent may use this to kill the child when it is done.
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	return part(s, parseRemote(reply))
}

// inside ends in the middle of an access to the peer's memory.
func inside(s *side, signal syscall.Signal) error {
	s.qp.(*queuePair).enter()
	if err := syscall.Kill(os.Getpid(), signal); err != nil {
		return err
	}
	select {} // the signal may reach another thread first
}

// lend shows memory to the peer, says so, and dies when it is told to.
func lend(s *side) error {
	fill(s.memory.Bytes()[:passSize], 9)
	if _, err := s.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpSend}}); err != nil {
		return err
	}
	var c [1]rdma.Completion
	for i := 0; ; i++ {
		n, err := s.cq.Poll(c[:])
		if err != nil {
			return err
		}
		if n == 1 && c[0].Op == rdma.OpRecv {
			break
		}
		pause(i)
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// floodMessage is the message number n of a flood: its length, and its bytes from
// the eighth on. The first eight are n.
func floodMessage(n uint64) (length int, seed byte) { return 8 + int(n*2654435761%6000), byte(n * 31) }

// flood sends as fast as it can.
func flood(s *side) error {
	var c [16]rdma.Completion
	m := s.memory.Bytes()
	for n := uint64(0); ; n++ {
		length, seed := floodMessage(n)
		binary.NativeEndian.PutUint64(m, n)
		fill(m[8:length], seed)
		request := []rdma.SendRequest{{ID: n, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: s.memory, Length: length}}}}
		if _, err := s.qp.PostSend(request); err != nil {
			return nil //nolint:nilerr // the parent has hung up
		}
		for done := false; !done; {
			got, err := s.cq.Poll(c[:])
			if err != nil {
				return err
			}
			for _, c := range c[:got] {
				if c.Status != rdma.StatusSuccess {
					return nil
				}
				done = done || c.Op == rdma.OpSend
			}
			if got == 0 {
				runtime.Gosched()
			}
		}
	}
}

const emulated = "this binary runs under an emulator and cannot start itself"

// startsItself tells whether this binary can be executed by the host.
var startsItself = sync.OnceValue(func() bool {
	executable, err := os.Executable()
	if err != nil {
		return false
	}
	err = exec.CommandContext(context.Background(), executable, "-test.run=^$").Run()
	return !errors.Is(err, syscall.ENOEXEC)
})

// with starts a child and connects to it.
func with(t testing.TB, part string) (s *side, remote rdma.Remote) {
	t.Helper()
	if !startsItself() {
		t.Skip(emulated)
	}
	s, err := openSide(openDevice(t, Config{}))
	if err != nil {
		t.Fatal(err)
	}
	s.t = t
	return s, s.start(part, nil)
}

// start starts a child and connects to it. The function may change how.
func (s *side) start(part string, change func(*exec.Cmd)) (remote rdma.Remote) {
	t := s.t
	t.Helper()
	device := s.domain.Device()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := device.Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(context.Background(), executable)
	command.Env = append(os.Environ(), partVariable+"="+part, addressVariable+"="+l.Address())
	command.Stderr = os.Stderr
	if change != nil {
		change(command)
	}
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if !startsItself() {
		t.Skip(emulated)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.domain.Close(); err != nil {
			t.Error(err)
		}
		stdin.Close()
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s.srq != nil || s.qp.(*queuePair).srq == nil {
		if err := s.postBuffers(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Accept(ctx, s.qp, s.describe()); err != nil {
		t.Fatal(err)
	}
	return parseRemote(r.PrivateData())
}

// read reads the beginning of the peer's memory, writes it back behind, and says
// so in a message.
func read(s *side, remote rdma.Remote) error {
	local := []rdma.SGE{{Region: s.memory, Length: 4096}}
	behind := remote
	behind.Address += 4096
	if _, err := s.qp.PostSend([]rdma.SendRequest{
		{Op: rdma.OpRead, SGEs: local, Remote: remote}, {Op: rdma.OpWrite, SGEs: local, Remote: behind}, {Op: rdma.OpSend, SGEs: local},
	}); err != nil {
		return err
	}
	<-s.qp.Done()
	return nil
}

// echo sends back what it gets.
func echo(s *side, wait bool) error {
	var c [16]rdma.Completion
	sends := []rdma.SendRequest{{Op: rdma.OpSend, SGEs: []rdma.SGE{{Region: s.memory}}}}
	for unsignalled, idle := 0, 0; ; {
		n, err := s.cq.Poll(c[:])
		if err != nil {
			return err
		}
		for _, c := range c[:n] {
			if c.Status != rdma.StatusSuccess {
				return nil
			}
			if c.Op != rdma.OpRecv {
				continue
			}
			sends[0].Flags = 0
			if unsignalled++; unsignalled%64 == 0 {
				sends[0].Flags = rdma.Signaled
			}
			sends[0].SGEs[0].Offset, sends[0].SGEs[0].Length = int(c.ID%s.rotation)*bufferBytes, int(c.Length)
			if _, err := s.qp.PostSend(sends); err != nil {
				return nil //nolint:nilerr // the parent has hung up
			}
			if err := s.repost(c.ID); err != nil {
				return nil //nolint:nilerr // the parent has hung up
			}
		}
		if n > 0 {
			idle = 0
			continue
		}
		if idle++; wait {
			if idle == 1 {
				if err := s.cq.Arm(false); err != nil {
					return err
				}
				continue
			}
			if err := s.cq.Wait(context.Background()); err != nil {
				return err
			}
			idle = 0
		} else if idle&1023 == 0 {
			runtime.Gosched()
		}
	}
}

// sink takes what it gets.
func sink(s *side) error {
	var c [64]rdma.Completion
	receives := make([]rdma.RecvRequest, len(c))
	entries := make([]rdma.SGE, len(c))
	for i := range receives {
		entries[i] = rdma.SGE{Region: s.memory, Length: bufferBytes}
		receives[i].SGEs = entries[i : i+1]
	}
	for idle := 0; ; {
		n, err := s.cq.Poll(c[:])
		if err != nil {
			return err
		}
		for i := range c[:n] {
			if c[i].Status != rdma.StatusSuccess {
				return nil
			}
			receives[i].ID = c[i].ID
			entries[i].Offset = int(c[i].ID%s.rotation) * bufferBytes
		}
		if n > 0 {
			if err := s.postRecv(receives[:n]); err != nil {
				return nil //nolint:nilerr // the parent has hung up
			}
			continue
		}
		if idle++; idle&1023 == 0 {
			runtime.Gosched()
		}
	}
}

// The last word of a message of the flags part, at the end of the memory.
func (s *side) flag(size int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&s.memory.Bytes()[size-8]))
}

// flags answers a Write whose last word counts with one of the same length.
func flags(s *side, remote rdma.Remote) error {
	first := s.memory.Bytes()
	flag := s.flag(8)
	for i, size := uint64(1), 0; ; i++ {
		// The length comes before the first message of it, in a message of 8 bytes.
		for idle := 0; ; idle++ {
			if size > 0 && flag.Load() == i {
				break
			}
			relax(1)
			if length := binary.LittleEndian.Uint64(first[buffers*bufferBytes:]); size == 0 && length != 0 {
				size = int(length)
				flag = s.flag(size)
			}
			if idle&1023 == 1023 {
				runtime.Gosched()
				if s.qp.State() != rdma.StateConnected {
					return nil
				}
			}
		}
		if err := s.write(remote, size, i); err != nil {
			return nil //nolint:nilerr // the parent has hung up
		}
	}
}

// write puts size bytes that end in value at the beginning of remote.
func (s *side) write(remote rdma.Remote, size int, value uint64) error {
	source := bufferBytes
	binary.NativeEndian.PutUint64(s.memory.Bytes()[source+size-8:], value)
	if s.request == nil {
		s.request = []rdma.SendRequest{{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: s.memory, Offset: source}}}}
		s.polled = make([]rdma.Completion, 1)
	}
	s.request[0].Remote, s.request[0].SGEs[0].Length = remote, size
	if _, err := s.qp.PostSend(s.request); err != nil {
		return err
	}
	for {
		n, err := s.cq.Poll(s.polled)
		if err != nil {
			return err
		}
		if n == 1 {
			if s.polled[0].Status != rdma.StatusSuccess {
				return io.ErrClosedPipe
			}
			return nil
		}
	}
}
