package shm

import (
	"bytes"
	"errors"
	"os"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

// deaf connects a side to a peer that asks for something, and whose socket is full
// already. It never reads.
func deaf(t *testing.T, timeout time.Duration, asks func(*side) want) *side {
	t.Helper()
	device := openDevice(t, Config{AccessTimeout: timeout})
	l, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newSide(t, device, 4096)
	s.qp = s.pair(nil)
	a := dialAttacker(t, l.Address())
	a.sendWith(-1, 0)
	a.send([]byte{byte(packetReady)})
	if err := accept(t.Context(), l, s.qp); err != nil {
		t.Fatal(err)
	}
	c := s.qp.(*queuePair).conn
	for err == nil {
		err = c.try(grant{}.append(nil), nil)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	a.send(asks(s).append(nil))
	return s
}

func memoryOf(s *side) want { return want{value: s.memory.Key()} }

// awaitAnswer waits until the answer waits for room.
func awaitAnswer(t *testing.T) {
	t.Helper()
	var stacks bytes.Buffer
	for i := 0; !bytes.Contains(stacks.Bytes(), []byte("WriteMsgUnix")); i++ {
		pause(i)
		stacks.Reset()
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
			t.Fatal(err)
		}
	}
}

// inTime fails the test if f does not return.
func (s *side) inTime(f func() error) {
	s.t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			s.t.Error(err)
		}
	case <-time.After(20 * time.Second):
		s.t.Error("a peer that does not read holds others up")
		_ = s.qp.(*queuePair).conn.socket.Close()
		<-done
	}
}

// A peer that asks and does not read the answers is disconnected.
func TestDeafPeerIsDisconnected(t *testing.T) {
	s := deaf(t, 20*time.Millisecond, memoryOf)
	select {
	case <-s.qp.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("an answer has been left out, and the connection lives")
	}
	if err := s.qp.Err(); !errors.Is(err, rdma.ErrDisconnected) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if e := <-s.events; e.Kind != rdma.EventQueuePairError || e.QueuePair != s.qp {
		t.Errorf("event %+v", e)
	}
}

// While the answer to such a peer waits for room, who sends, closes a region or closes
// the queue pair does not.
func TestDeafPeerHoldsNobodyUp(t *testing.T) {
	s := deaf(t, maxTimeout, memoryOf)
	awaitAnswer(t)
	s.inTime(func() error {
		// The region of this key has to be asked for, and the other one is revoked.
		_, err := s.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: s.sge(0, 8), Remote: rdma.Remote{Key: 5}}})
		var c [1]rdma.Completion
		_, pollErr := s.cq.Poll(c[:])
		s.qp.(*queuePair).granted.Store(s.memory.(*region).handle, struct{}{})
		return errors.Join(err, pollErr, s.memory.Close(), s.qp.Close())
	})
}

// Nor does who ends the sharing of a file.
func TestDeafPeerKeepsNoFile(t *testing.T) {
	var file rdma.SharedFile
	s := deaf(t, maxTimeout, func(s *side) want {
		f := fileOf(t, []byte("contents"))
		var err error
		if file, err = s.qp.(rdma.FileQueuePair).ShareFile(int(f.Fd())); err != nil {
			t.Fatal(err)
		}
		return want{file: true, value: file.Key()}
	})
	awaitAnswer(t)
	s.inTime(file.Close)
}

// A peer is told for what the connection ends.
func TestFarewells(t *testing.T) {
	a, _ := twoSides(t)
	for _, test := range []struct {
		err  error
		says string
	}{
		{os.ErrDeadlineExceeded, "left no room in your socket"},
		{errPacket, "protocol error"},
		{unix.EMFILE, unix.EMFILE.Error()},
		{errors.New(strings.Repeat("x", 2*maxText)), "xxx"},
	} {
		kind, farewell, err := a.qp.(*queuePair).ended(test.err)
		if kind != rdma.EventQueuePairError || !errors.Is(err, test.err) || !errors.Is(err, rdma.ErrDisconnected) || !strings.Contains(farewell, test.says) || len(farewell) > maxText {
			t.Errorf("%v: %v, %v, %q", test.err, kind, err, farewell)
		}
	}
}
