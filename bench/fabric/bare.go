package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/bench/internal/host"
)

// The bare peers are what could be had without Verbena: this program, twice, over
// a TCP connection or a word in shared memory. The child is bound to the server's
// processor, the parent, a process of its own too, to the client's.

// childCommand is the passive end of a bare peer.
func childCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "bare", Hidden: true}
	var (
		bytes    int
		duration time.Duration
	)
	add := func(name string, run func() error) {
		c := &cobra.Command{Use: name, Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return run() }}
		c.Flags().IntVar(&bytes, "bytes", 0, "size of a message")
		c.Flags().DurationVar(&duration, "duration", time.Second, "how long")
		cmd.AddCommand(c)
	}
	add("stream", func() error { return bareStream(bytes, duration) })
	add("stream-sink", func() error { return streamSink(bytes) })
	add("pingpong", func() error { return barePingPong(bytes, duration) })
	add("pingpong-echo", func() error { return pingPongEcho(bytes) })
	add("futex", func() error { return bareFutex(duration) })
	add("futex-echo", futexEcho)
	return cmd
}

// withEcho runs f with a connection to the other end, a child process.
func withEcho(echo string, bytes int, f func(net.Conn) error) (err error) {
	if err := host.PinProcess(host.ClientCPU); err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	child, err := host.StartSelf(nil, "bare", echo, "--bytes", fmt.Sprint(bytes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, child.Stop()) }()
	if _, err := fmt.Fprintln(child.Stdin, ln.Addr()); err != nil {
		return err
	}
	conn, err := ln.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(conn)
}

func dialParent() (net.Conn, error) {
	if err := host.PinProcess(host.ServerCPU); err != nil {
		return nil, err
	}
	var addr string
	if _, err := fmt.Fscanln(os.Stdin, &addr); err != nil {
		return nil, err
	}
	return net.Dial("tcp", addr)
}

// bareStream writes messages for a while and prints bytes per second, counted
// when the other end has read the last.
func bareStream(bytes int, duration time.Duration) error {
	return withEcho("stream-sink", bytes, func(conn net.Conn) error {
		message := make([]byte, bytes)
		var sent int64
		began := time.Now()
		for time.Since(began) < duration {
			n, err := conn.Write(message)
			if err != nil {
				return err
			}
			sent += int64(n)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, message[:1]); err != nil {
			return fmt.Errorf("the other end has not read everything: %w", err)
		}
		fmt.Println(float64(sent) / time.Since(began).Seconds())
		return nil
	})
}

// streamSink reads into a buffer of a message's size, as a program does that
// wants the data.
func streamSink(bytes int) error {
	conn, err := dialParent()
	if err != nil {
		return err
	}
	defer conn.Close()
	buffer := make([]byte, bytes)
	for {
		if _, err := conn.Read(buffer); err == io.EOF {
			_, err := conn.Write([]byte{1})
			return err
		} else if err != nil {
			return err
		}
	}
}

// spinRead reads without ever sleeping.
func spinRead(raw syscall.RawConn, into []byte) error {
	for done := 0; done < len(into); {
		var n int
		var err error
		if cerr := raw.Control(func(fd uintptr) { n, err = syscall.Read(int(fd), into[done:]) }); cerr != nil {
			return cerr
		}
		switch {
		case err == syscall.EAGAIN || err == syscall.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		}
		done += n
	}
	return nil
}

// barePingPong prints the median one way, in nanoseconds.
func barePingPong(bytes int, duration time.Duration) error {
	return withEcho("pingpong-echo", bytes, func(conn net.Conn) error {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		message, answer := make([]byte, bytes), make([]byte, bytes)
		m := newMedian()
		for m.more(duration) {
			if _, err := conn.Write(message); err != nil {
				return err
			}
			if err := spinRead(raw, answer); err != nil {
				return err
			}
			m.mark()
		}
		fmt.Println(m.oneWay())
		return nil
	})
}

func pingPongEcho(bytes int) error {
	conn, err := dialParent()
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	message := make([]byte, bytes)
	for {
		if err := spinRead(raw, message); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := conn.Write(message); err != nil {
			return err
		}
	}
}

// futexWord is the word of the shared page whose turn it is, futexStop ends it.
const (
	futexWord = 0
	futexStop = 64
)

// bareFutex hands a word over between two processes that sleep, and prints the
// median one way.
func bareFutex(duration time.Duration) (err error) {
	if err := host.PinProcess(host.ClientCPU); err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("bare-futex", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("memfd: %w", err)
	}
	file := os.NewFile(uintptr(fd), "bare-futex")
	defer file.Close()
	if err := file.Truncate(4096); err != nil {
		return err
	}
	page, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	child, err := host.StartSelf(file, "bare", "futex-echo")
	if err != nil {
		return err
	}
	word, stop := (*atomic.Uint32)(unsafe.Pointer(&page[futexWord])), (*atomic.Uint32)(unsafe.Pointer(&page[futexStop]))
	defer func() {
		stop.Store(1)
		word.Store(word.Load() | 1)
		futexWake(word)
		err = errors.Join(err, child.Stop())
	}()
	m := newMedian()
	for turn := uint32(0); m.more(duration); turn += 2 {
		word.Store(turn + 1)
		futexWake(word)
		if err := futexAwait(word, turn+2, nil); err != nil {
			return err
		}
		m.mark()
	}
	fmt.Println(m.oneWay())
	return nil
}

func futexEcho() error {
	if err := host.PinProcess(host.ServerCPU); err != nil {
		return err
	}
	page, err := unix.Mmap(3, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	word, stop := (*atomic.Uint32)(unsafe.Pointer(&page[futexWord])), (*atomic.Uint32)(unsafe.Pointer(&page[futexStop]))
	for turn := uint32(0); ; turn += 2 {
		if err := futexAwait(word, turn+1, stop); err != nil || stop.Load() != 0 {
			return err
		}
		word.Store(turn + 2)
		futexWake(word)
	}
}

const (
	futexWaitOp = 0
	futexWakeOp = 1
)

// futexAwait sleeps until the word has a value, or stop is set. It gives up after
// a while in which the other end is silent.
func futexAwait(word *atomic.Uint32, value uint32, stop *atomic.Uint32) error {
	timeout := unix.Timespec{Sec: 10}
	for {
		seen := word.Load()
		if seen == value || (stop != nil && stop.Load() != 0) {
			return nil
		}
		_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(seen), uintptr(unsafe.Pointer(&timeout)), 0, 0)
		if errno == unix.ETIMEDOUT {
			return errors.New("futex: the other end is silent")
		}
	}
}

func futexWake(word *atomic.Uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakeOp, 1, 0, 0, 0) // whether somebody sleeps or not
}

// A median collects round trips, after some that do not count.
type median struct {
	began, last time.Time
	rounds      int
	times       []time.Duration
}

const warmRounds = 200

func newMedian() *median {
	return &median{times: make([]time.Duration, 0, 1<<20), began: time.Now(), last: time.Now()}
}

func (m *median) more(duration time.Duration) bool {
	return m.rounds < warmRounds+16 || m.last.Sub(m.began) < duration
}

func (m *median) mark() {
	now := time.Now()
	if m.rounds++; m.rounds > warmRounds && len(m.times) < cap(m.times) {
		m.times = append(m.times, now.Sub(m.last))
	}
	m.last = now
}

func (m *median) oneWay() float64 {
	slices.Sort(m.times)
	return float64(m.times[len(m.times)/2].Nanoseconds()) / 2
}
