package shm

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

// alarmsVariable makes the children of tests use alarms, whatever GOMAXPROCS.
const alarmsVariable = "VERBENA_SHM_ALARMS"

// withAlarms makes queues of this process, and of those it starts, have alarms or not.
func withAlarms(t *testing.T, use bool) {
	t.Helper()
	before := alarmsWhile
	alarmsWhile = alarms(use)
	t.Cleanup(func() { alarmsWhile = before })
	if use {
		t.Setenv(alarmsVariable, "1")
	}
}

func alarms(use bool) func(rdma.DomainConfig) func() bool {
	return func(rdma.DomainConfig) func() bool {
		if !use {
			return nil
		}
		return func() bool { return true }
	}
}

// eventually waits for a condition, for at most 10 s.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("in 10 s not:", what)
		}
	}
}

// peerAlarm is what the side's queue pair has of its peer's alarm.
func (s *side) peerAlarm() *peerAlarm {
	qp := s.qp.(*queuePair)
	qp.sendMu.Lock()
	defer qp.sendMu.Unlock()
	return qp.peerAlarm
}

func (s *side) queue() *completionQueue { return s.cq.(*completionQueue) }

// waits arms the side's queue and waits in the background, until it sleeps as told.
func (s *side) waits(ctx context.Context, how uint32) <-chan error {
	s.t.Helper()
	if err := s.cq.Arm(false); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.cq.Wait(ctx) }()
	eventually(s.t, "the waiter sleeps", func() bool { return s.queue().bell.armed().Load()&^armedAny == how })
	return ended
}

func ends(t *testing.T, ended <-chan error, want error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, want) {
			t.Errorf("Wait: %v, want %v", err, want)
		}
	case <-time.After(healInterval - time.Second): // before the agent looks by itself
		t.Fatal("nobody wakes the waiter")
	}
}

// A peer that has the alarm rings that, and not the agent. One that has not, rings the
// agent, which rings the alarm. So does the agent when it finds, by itself, that an event was not told.
func TestAlarm(t *testing.T) {
	withAlarms(t, true)
	a, b := newSides(t, 4096, nil)
	eventually(t, "the alarm has come", func() bool { return a.peerAlarm() != nil && b.peerAlarm() != nil })
	message := func(id uint64) {
		t.Helper()
		a.send(rdma.SendRequest{ID: id, Op: rdma.OpSend, SGEs: a.sge(0, 8)})
	}
	for id := range uint64(3) {
		b.recv(id, b.sge(0, 8)...)
	}
	rings := b.queue().domain.bell.agent().Load()
	ended := b.waits(t.Context(), armedAlarm|armedAgent)
	message(0)
	ends(t, ended, nil)
	b.expect(0, rdma.StatusSuccess)
	if now := b.queue().domain.bell.agent().Load(); now != rings {
		t.Errorf("the agent has been rung %d times, too", now-rings)
	}

	qp := a.qp.(*queuePair)
	qp.sendMu.Lock()
	kept := qp.peerAlarm
	qp.peerAlarm = nil
	qp.sendMu.Unlock()
	ended = b.waits(t.Context(), armedAlarm|armedAgent)
	message(1)
	ends(t, ended, nil)
	b.expect(1, rdma.StatusSuccess)
	if now := b.queue().domain.bell.agent().Load(); now == rings {
		t.Error("the agent has not been rung")
	}
	qp.sendMu.Lock()
	qp.peerAlarm = kept
	qp.sendMu.Unlock()

	// Some peer scribbles: nobody rings. The agent finds out when it looks.
	ended = b.waits(t.Context(), armedAlarm|armedAgent)
	b.queue().bell.armed().Store(0)
	b.queue().domain.ringAgent()
	ends(t, ended, nil)

	ended = b.waits(t.Context(), armedAlarm|armedAgent)
	if err := b.qp.Close(); err != nil { // what this side completes itself rings, too
		t.Fatal(err)
	}
	ends(t, ended, nil)
}

// A context and Close end a wait.
func TestAlarmEndsWaits(t *testing.T) {
	withAlarms(t, true)
	b := newSide(t, openDevice(t, Config{}), 4096)
	ctx, cancel := context.WithCancel(t.Context())
	ended := b.waits(ctx, armedAlarm|armedAgent)
	cancel()
	ends(t, ended, context.Canceled)
	ended = b.waits(context.Background(), armedAlarm|armedAgent)
	closed := make(chan error, 1)
	go func() { closed <- b.cq.Close() }() // which waits for the waiter
	ends(t, ended, rdma.ErrClosed)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if err := b.cq.Wait(t.Context()); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Wait after Close: %v", err)
	}
}

// Connections to one queue share its alarm's descriptor, and the last one closes it. The
// next queue in the same place has an alarm of its own.
func TestAlarmIsShared(t *testing.T) {
	withAlarms(t, true)
	device := openDevice(t, Config{})
	a, b := newSide(t, device, 4096), newSide(t, device, 4096)
	before := countDescriptors(t)
	const connections = 20
	froms, tos := connectMany(t, device, connections, func() rdma.QueuePair { return a.pair(nil) }, func() rdma.QueuePair { return b.pair(nil) })
	a.qp = froms[0]
	for _, qp := range append(froms, tos...) {
		s := side{qp: qp}
		eventually(t, "the alarm has come", func() bool { return s.peerAlarm() != nil })
	}
	peer := froms[0].(*queuePair).peer.Load()
	peer.mu.Lock()
	count, users := len(peer.alarms), a.peerAlarm().users
	peer.mu.Unlock()
	if count != 1 || users != connections {
		t.Errorf("%d alarms of the peer's queue, with %d users; want 1 with %d", count, users, connections)
	}
	// The sockets' two ends, and a descriptor for the alarm of each side.
	awaitDescriptors(t, before+2*connections+2)
	for _, qp := range append(froms, tos...) {
		if err := qp.Close(); err != nil {
			t.Error(err)
		}
	}
	awaitDescriptors(t, before)
	if err := b.cq.Close(); err != nil {
		t.Fatal(err)
	}
	awaitDescriptors(t, before-1)
}

// Where Go has more processors queues have no alarms, and while somebody polls waiters
// sleep in the futex all the same.
func TestAlarmsByDefault(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, each := range []struct {
		processors int
		unpolled   func() bool
		alarm      bool
		asleep     uint32
	}{
		{1, func() bool { return true }, true, armedAlarm | armedAgent},
		{1, func() bool { return false }, true, armedSleeping},
		{1, nil, false, armedSleeping},
		{2, func() bool { return true }, false, armedSleeping},
	} {
		runtime.GOMAXPROCS(each.processors)
		d, err := openDevice(t, Config{}).OpenDomain(rdma.DomainConfig{Unpolled: each.unpolled})
		if err != nil {
			t.Fatal(err)
		}
		s := &side{t: t, domain: d}
		if s.cq, err = d.NewCompletionQueue(16); err != nil {
			t.Fatal(err)
		}
		if got := s.queue().alarm != nil; got != each.alarm {
			t.Errorf("%+v: has an alarm: %v", each, got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := s.waits(ctx, each.asleep)
		cancel()
		ends(t, ended, context.Canceled)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Only so many queues of a domain have alarms, those that are open counted.
func TestMostAlarms(t *testing.T) {
	withAlarms(t, true)
	d := newSide(t, openDevice(t, Config{}), 4096).domain // has one
	var queues []rdma.CompletionQueue
	for range maxAlarms {
		cq, err := d.NewCompletionQueue(16)
		if err != nil {
			t.Fatal(err)
		}
		queues = append(queues, cq)
	}
	has := func(cq rdma.CompletionQueue) bool { return cq.(*completionQueue).alarm != nil }
	if !has(queues[maxAlarms-2]) || has(queues[maxAlarms-1]) {
		t.Errorf("the queues that are number %d and %d of the domain have alarms: %v, %v", maxAlarms, maxAlarms+1, has(queues[maxAlarms-2]), has(queues[maxAlarms-1]))
	}
	if err := queues[0].Close(); err != nil {
		t.Fatal(err)
	}
	if cq, err := d.NewCompletionQueue(16); err != nil || !has(cq) {
		t.Errorf("the queue after one was closed has no alarm: %v", err)
	}
}

// A queue that takes the place of one that was closed has an alarm of its own, also where
// a peer still has the one of before.
func TestAlarmOfTheNextQueue(t *testing.T) {
	withAlarms(t, true)
	a, b := newSides(t, 4096, nil)
	eventually(t, "the alarm has come", func() bool { return a.peerAlarm() != nil })
	if err := b.qp.Close(); err != nil {
		t.Fatal(err)
	}
	place := b.queue().index
	if err := b.cq.Close(); err != nil {
		t.Fatal(err)
	}
	b.domain.(*domain).nextBlock = place
	var err error
	if b.cq, err = b.domain.NewCompletionQueue(16); err != nil {
		t.Fatal(err)
	}
	if b.queue().index != place {
		t.Fatalf("the queue is in place %d, not %d", b.queue().index, place)
	}
	before := a.peerAlarm()
	b.qp, a.qp = b.pair(nil), a.pair(nil)
	connect(t, a.domain.Device(), a.qp, b.qp)
	eventually(t, "the alarm has come", func() bool { return a.peerAlarm() != nil })
	if a.peerAlarm() == before {
		t.Error("the alarm is that of the queue before")
	}
	b.recv(1, b.sge(0, 8)...)
	ended := b.waits(t.Context(), armedAlarm|armedAgent)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, SGEs: a.sge(0, 8)})
	ends(t, ended, nil)
}

// A queue waits by its futex while one of its peers takes no alarms: one of an older
// version, or of another user.
func TestNoAlarmForAll(t *testing.T) {
	withAlarms(t, true)
	device := openDevice(t, Config{})
	l, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newSide(t, device, 4096)
	s.qp = s.pair(nil)
	old := dialAttacker(t, l.Address())
	h, descriptors := old.hello()
	h.greatest = versionAlarms - 1
	old.send(h.append(packetHello, nil), descriptors...)
	old.send([]byte{byte(packetReady)})
	if err := accept(t.Context(), l, s.qp); err != nil {
		t.Fatal(err)
	}
	old.answer()
	old.send(want{value: 1}.append(nil))
	if got := old.answerOrAlarm(); got != "region" {
		t.Errorf("the older peer is sent a %s", got)
	}
	ended := s.waits(t.Context(), armedSleeping)
	old.close()
	ends(t, ended, nil) // the connection's end
	if err := s.qp.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended = s.waits(ctx, armedAlarm|armedAgent)
	cancel()
	ends(t, ended, context.Canceled)
}

func TestNoAlarmForOthers(t *testing.T) {
	withAlarms(t, true)
	device := openDevice(t, Config{AllowUIDs: []uint32{nobody}})
	l, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newSide(t, device, 4096)
	s.qp = s.pair(nil)
	asUser(t, nobody, func() {
		other := dialAttacker(t, l.Address())
		other.sendWith(-1, 0)
		other.send([]byte{byte(packetReady)})
		if err := accept(t.Context(), l, s.qp); err != nil {
			t.Error(err)
			return
		}
		other.answer()
		other.send(want{value: 1}.append(nil))
		if got := other.answerOrAlarm(); got != "region" {
			t.Errorf("another user's process is sent a %s", got)
		}
		other.send(appendAlarm(nil, 1), other.eventfd(unix.EFD_NONBLOCK))
	})
	select {
	case <-s.qp.Done():
	case <-time.After(10 * time.Second):
		t.Error("another user's alarm is taken")
	}
}

func TestWaitForAlarmAllocatesNothing(t *testing.T) {
	withAlarms(t, true)
	a, b := newSides(t, 4096, nil)
	eventually(t, "the alarm has come", func() bool { return a.peerAlarm() != nil })
	ctx := context.Background()
	request := []rdma.SendRequest{{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 8)}}
	receive := []rdma.RecvRequest{{SGEs: b.sge(0, 8)}}
	var c [1]rdma.Completion
	armed, waited := make(chan struct{}), make(chan error)
	go func() {
		defer close(waited)
		for range armed {
			err := b.cq.Arm(false)
			if err == nil {
				err = b.cq.Wait(ctx)
			}
			waited <- err
		}
	}()
	average := testing.AllocsPerRun(200, func() {
		if _, err := b.qp.PostRecv(receive); err != nil {
			t.Error(err)
		}
		armed <- struct{}{}
		for b.queue().bell.armed().Load() != armedAny|armedAlarm|armedAgent {
			pause(0)
		}
		if n, err := a.qp.PostSend(request); n != 1 || err != nil {
			t.Errorf("posted %d requests, %v", n, err)
		}
		if n, err := a.cq.Poll(c[:]); n != 1 || err != nil {
			t.Errorf("%d completions of sends, %v", n, err)
		}
		if err := <-waited; err != nil {
			t.Error(err)
		}
		if n, err := b.cq.Poll(c[:]); n != 1 || err != nil {
			t.Errorf("%d completions, %v", n, err)
		}
	})
	close(armed)
	if average != 0 {
		t.Errorf("%v allocations a wait", average)
	}
}

func init() {
	if os.Getenv(alarmsVariable) != "" {
		alarmsWhile = alarms(true)
	}
}
