package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Several processes send into one shared receive queue, and are killed while
// they do. Every message is whole and in order, and in the end every receive is
// there again.
func TestSharedReceiveKills(t *testing.T) {
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	const depth, length = 32, 8192
	device := openDevice(t, Config{})
	s := newSide(t, device, depth*length)
	srq, err := s.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: depth, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	post := func(id uint64) error {
		_, err := srq.PostRecv([]rdma.RecvRequest{{ID: id, SGEs: s.sge(int(id)*length, length)}})
		return err
	}
	for id := range uint64(depth) {
		if err := post(id); err != nil {
			t.Fatal(err)
		}
	}
	want := make([]byte, length)
	next := make(map[uint32]uint64)
	var c [16]rdma.Completion
	receive := func() (n int) {
		n, err := s.cq.Poll(c[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range c[:n] {
			if c.Op != rdma.OpRecv || c.Status != rdma.StatusSuccess {
				t.Fatalf("completion %+v", c)
			}
			message := s.memory.Bytes()[c.ID*length:][:c.Length]
			number := next[c.QueuePair]
			next[c.QueuePair]++
			size, seed := floodMessage(number)
			fill(want[8:size], seed)
			binary.NativeEndian.PutUint64(want, number)
			if !bytes.Equal(message, want[:size]) {
				t.Fatalf("message %d of queue pair %d: %d bytes, or others than were sent", number, c.QueuePair, c.Length)
			}
			if err := post(c.ID); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	deadline := time.Now().Add(60 * time.Second)
	for range rounds {
		var commands []*exec.Cmd
		var pairs []rdma.QueuePair
		for range 3 {
			s.qp = s.pair(func(c *rdma.QueuePairConfig) { c.SharedReceive = srq })
			s.start("flood", func(c *exec.Cmd) { commands = append(commands, c) })
			pairs = append(pairs, s.qp)
		}
		for i, qp := range pairs {
			for from := next[qp.Number()]; next[qp.Number()] < from+500; {
				if receive() == 0 {
					pause(1)
				}
				if time.Now().After(deadline) {
					t.Fatalf("queue pair %d has sent %d messages", qp.Number(), next[qp.Number()])
				}
			}
			if err := commands[i].Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		for _, qp := range pairs {
			<-qp.Done()
			for {
				select {
				case <-qp.(*queuePair).torn:
				default:
					receive()
					continue
				}
				break
			}
		}
		for receive() > 0 {
		}
		for _, qp := range pairs {
			if err := qp.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// All are outstanding: no more fit, and as many can be used.
	if err := post(0); !errors.Is(err, rdma.ErrQueueFull) {
		t.Fatalf("one more receive: %v", err)
	}
	other := newSide(t, device, 4096)
	other.qp = other.pair(nil)
	connect(t, device, other.qp, s.pair(func(c *rdma.QueuePairConfig) { c.SharedReceive = srq }))
	seen := make(map[uint64]bool)
	for i := range uint64(depth) {
		other.send(rdma.SendRequest{ID: i, Op: rdma.OpSend, Flags: rdma.Signaled})
		other.expect(i, rdma.StatusSuccess)
		seen[s.await().ID] = true
	}
	if len(seen) != depth {
		t.Fatalf("%d of %d receives are left", len(seen), depth)
	}
}

// A peer of before, whose queue pairs take shared receives by themselves, is told so,
// at either end. One with receives of its own is served.
func TestOlderPeer(t *testing.T) {
	device := openDevice(t, Config{})
	s := newSide(t, device, 4096)
	srq, err := s.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: 2})
	if err != nil {
		t.Fatal(err)
	}
	for name, each := range map[string]struct {
		shared, sharedHere bool
		refused            string
	}{
		"own":         {false, false, ""},
		"shared":      {true, false, "update the older program"},
		"shared here": {false, true, "update the older program"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := device.Listen(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			a := dialAttacker(t, l.Address())
			h, fds := a.hello()
			h.greatest, h.shared = versionLent-1, each.shared
			a.send(h.append(packetHello, nil), fds...)
			if !each.shared {
				if !each.sharedHere { // or closing would take the refusal along
					a.send([]byte{byte(packetReady)})
				}
				r, err := l.Accept(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				qp := s.pair(func(c *rdma.QueuePairConfig) {
					if each.sharedHere {
						c.SharedReceive = srq
					}
				})
				if err := r.Accept(t.Context(), qp, nil); (err == nil) != (each.refused == "") {
					t.Errorf("Accept: %v", err)
				}
			}
			got := a.answer()
			if each.refused == "" && got != "accept" || !strings.Contains(got, each.refused) {
				t.Errorf("the answer is %q, want %q", got, each.refused)
			}
		})
	}
}
