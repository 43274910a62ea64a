package shm

import (
	"bytes"
	"errors"
	"os"
	"runtime/pprof"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

// deaf connects a side to a peer that asks for a region, and whose socket is full
// already. It never reads.
func deaf(t *testing.T, timeout time.Duration) *side {
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
	a.send(want{value: s.memory.Key()}.append(nil))
	return s
}

// A peer that asks and does not read the answers is disconnected.
func TestDeafPeerIsDisconnected(t *testing.T) {
	s := deaf(t, 20*time.Millisecond)
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

// While the answer to such a peer waits for room, nobody else does.
func TestDeafPeerHoldsNobodyUp(t *testing.T) {
	s := deaf(t, maxTimeout)
	var stacks bytes.Buffer
	for i := 0; !bytes.Contains(stacks.Bytes(), []byte("WriteMsgUnix")); i++ {
		pause(i)
		stacks.Reset()
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() {
		// The region of this key has to be asked for, and the other one is revoked.
		_, err := s.qp.PostSend([]rdma.SendRequest{{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: s.sge(0, 8), Remote: rdma.Remote{Key: 5}}})
		var c [1]rdma.Completion
		_, pollErr := s.cq.Poll(c[:])
		s.qp.(*queuePair).granted.Store(s.memory.(*region).handle, struct{}{})
		done <- errors.Join(err, pollErr, s.memory.Close(), s.qp.Close())
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a peer that does not read holds up who sends, closes a region or closes the queue pair")
		_ = s.qp.(*queuePair).conn.socket.Close()
		<-done
	}
}
