//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/verbena-data/verbena/rdma"
)

// labSpoils says that a test may take links down and devices away: it is the
// machine's last.
const labSpoils = "VERBENA_LAB_SPOIL"

func spoils(t *testing.T) {
	t.Helper()
	if yes, _ := strconv.ParseBool(os.Getenv(labSpoils)); !yes {
		t.Skipf("%s does not allow to spoil the machine: the lab runs this test (go run ./lab)", labSpoils)
	}
}

const patience = time.Minute

// An end is a side with one queue pair.
type end struct {
	t      *testing.T
	device *Device
	domain rdma.Domain
	queue  rdma.CompletionQueue
	qp     rdma.QueuePair
	memory rdma.Region

	mu     sync.Mutex
	events []rdma.Event
	raised chan struct{}
}

func newEnd(t *testing.T, device rdma.Device) *end {
	t.Helper()
	e := &end{t: t, device: device.(*Device), raised: make(chan struct{})}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	e.domain, err = device.OpenDomain(rdma.DomainConfig{OnEvent: func(event rdma.Event) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events = append(e.events, event)
		close(e.raised)
		e.raised = make(chan struct{})
	}})
	must(err)
	t.Cleanup(func() {
		if err := e.domain.Close(); err != nil {
			t.Error(err)
		}
	})
	e.queue, err = e.domain.NewCompletionQueue(256)
	must(err)
	e.qp, err = e.domain.NewQueuePair(rdma.QueuePairConfig{SendCompletions: e.queue, RecvCompletions: e.queue, SendDepth: 64, RecvDepth: 64})
	must(err)
	e.memory, err = e.domain.Allocate(64<<10, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	must(err)
	return e
}

// event waits for an event.
func (e *end) event(kind rdma.EventKind) rdma.Event {
	e.t.Helper()
	timeout := time.After(patience)
	for {
		e.mu.Lock()
		at := slices.IndexFunc(e.events, func(event rdma.Event) bool { return event.Kind == kind })
		if at >= 0 {
			event := e.events[at]
			e.mu.Unlock()
			return event
		}
		seen, raised := fmt.Sprint(e.events), e.raised
		e.mu.Unlock()
		select {
		case <-raised:
		case <-timeout:
			e.t.Fatalf("%s: no event %q; seen: %s", e.device.attributes.Name, kind, seen)
		}
	}
}

// completions takes n completions.
func (e *end) completions(n int) []rdma.Completion {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	defer cancel()
	var all []rdma.Completion
	into := make([]rdma.Completion, 16)
	for len(all) < n {
		got, err := e.queue.Poll(into)
		all = append(all, into[:got]...)
		if got > 0 {
			continue
		}
		if err != nil {
			e.t.Fatalf("%s: Poll after %d of %d completions: %v", e.device.attributes.Name, len(all), n, err)
		}
		if err := e.queue.Arm(false); err != nil && !errors.Is(err, rdma.ErrUnavailable) {
			e.t.Fatal(err)
		}
		if got, _ = e.queue.Poll(into); got > 0 {
			all = append(all, into[:got]...)
			continue
		}
		if err := e.queue.Wait(ctx); err != nil {
			e.t.Fatalf("%s: %d of %d completions: %v", e.device.attributes.Name, len(all), n, err)
		}
	}
	return all
}

func joinEnds(t *testing.T, a, b *end) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := b.device.Listen(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := a.qp.Connect(ctx, l.Address(), nil)
		if err != nil {
			cancel() // nobody is to be accepted
		}
		failed <- err
	}()
	request, err := l.Accept(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(<-failed, err)
		}
		t.Fatal(err)
	}
	if err := request.Accept(ctx, b.qp, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// write posts n Writes to the peer and returns how many were taken before the
// queue pair failed.
func (e *end) write(peer *end, n int) int {
	e.t.Helper()
	for i := range n {
		_, err := e.qp.PostSend([]rdma.SendRequest{{
			ID: uint64(i), Op: rdma.OpWrite, Flags: rdma.Signaled,
			Remote: rdma.Remote{Address: peer.memory.Address(), Key: peer.memory.Key()},
			SGEs:   []rdma.SGE{{Region: e.memory, Length: 4096}},
		}})
		if errors.Is(err, rdma.ErrState) {
			return i
		}
		if err != nil {
			e.t.Fatal(err)
		}
	}
	return n
}

func (e *end) done() {
	e.t.Helper()
	select {
	case <-e.qp.Done():
	case <-time.After(patience):
		e.t.Fatalf("%s: the queue pair has not failed", e.device.attributes.Name)
	}
}

// TestLabKeepAlive takes the link down under connections that say nothing. Probes
// do not disturb them before, and tell both ends afterwards.
func TestLabKeepAlive(t *testing.T) {
	initiator, target := lab(t)
	spoils(t)
	open := func(name string) rdma.Device {
		devices, err := New(Config{Device: name, KeepAlive: 100 * time.Millisecond}).Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return devices[0]
	}
	a, b := newEnd(t, open(initiator)), newEnd(t, open(target))
	joinEnds(t, a, b)
	for _, e := range []*end{a, b} {
		for began := time.Now(); e.device.provider.Stats().Probes < 5; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > patience {
				t.Fatalf("%d probes", e.device.provider.Stats().Probes)
			}
		}
		if state := e.qp.State(); state != rdma.StateConnected {
			t.Fatalf("probes end a connection that lives: %s: %v", state, e.qp.Err())
		}
	}
	if n := a.write(b, 4); n != 4 {
		t.Fatal("Writes behind probes are refused")
	}
	for _, c := range a.completions(4) {
		if c.Status != rdma.StatusSuccess {
			t.Errorf("a Write behind probes: %s", c.Status)
		}
	}
	link, err := netlink.LinkByName(interfaces(b.device.attributes.Name, 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	for _, e := range []*end{a, b} {
		e.done()
		t.Logf("%s: failed after %v: %v", e.device.attributes.Name, time.Since(down), e.qp.Err())
	}
	// The other's own link is down, of which its driver says something else.
	if !errors.Is(a.qp.Err(), rdma.ErrDisconnected) {
		t.Errorf("the queue pair failed with %v, want ErrDisconnected", a.qp.Err())
	}
}

// TestLabLinkDown takes the target's link down in the middle of Writes.
func TestLabLinkDown(t *testing.T) {
	initiator, target := lab(t)
	spoils(t)
	a, b := newEnd(t, openDevice(t, initiator)), newEnd(t, openDevice(t, target))
	joinEnds(t, a, b)
	name := interfaces(b.device.attributes.Name, 1)[0]
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	// Everything that is posted completes, well until the link goes and not for
	// ever: siw ends its connections with the link, rxe tries again for a while.
	const before, window = 20, 8
	var down time.Time
	cut := make(chan error, 1)
	succeeded, failed := 0, 0
	for round, deadline := 0, time.Now().Add(patience); failed == 0; round++ {
		if round == before {
			down = time.Now()
			go func() { cut <- netlink.LinkSetDown(link) }()
		}
		taken := a.write(b, window)
		for _, c := range a.completions(taken) {
			if c.Status == rdma.StatusSuccess {
				succeeded++
			} else {
				failed++
			}
		}
		if round < before && (failed > 0 || taken < window) {
			t.Fatalf("%d Writes are taken and %d fail before the link goes down: %v", taken, failed, a.qp.Err())
		}
		if taken < window {
			break // the queue pair has failed in between
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d Writes succeed, also without a link", succeeded)
		}
	}
	t.Logf("%d Writes succeeded and %d failed", succeeded, failed)
	if err := <-cut; err != nil {
		t.Fatal(err)
	}
	if event := b.event(rdma.EventPortDown); event.Err == nil {
		t.Error("the event of the port has no error")
	}
	t.Logf("port down told of after %v", time.Since(down))
	if b.device.provider.Stats().PortsDown == 0 {
		t.Error("no port down is counted")
	}
	if _, err := New(Config{Device: target}).Devices(t.Context()); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("devices while the link is down: error %v", err)
	} else {
		t.Logf("devices while the link is down: %v", err)
	}
	a.done()
	t.Logf("queue pair failed after %v: %v", time.Since(down), a.qp.Err())
	if err := b.qp.Disconnect(); err != nil {
		t.Error(err)
	}
	if a.device.attributes.Class == rdma.ClassIWARP {
		return // the driver waits for TCP and does not let go of the attempt
	}
	// A connection does not come about, and says so in its time.
	c := newEnd(t, a.device)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.qp.Connect(ctx, "10.9.0.2:7", nil); err == nil {
		t.Error("Connect without a link succeeds")
	} else {
		t.Logf("Connect without a link: %v", err)
	}
}

// TestLabRemoval removes the initiator's device under a connection.
func TestLabRemoval(t *testing.T) {
	initiator, target := lab(t)
	spoils(t)
	a, b := newEnd(t, openDevice(t, initiator)), newEnd(t, openDevice(t, target))
	joinEnds(t, a, b)
	l, err := a.device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept(t.Context())
		accepted <- err
	}()
	if _, err := a.qp.PostRecv([]rdma.RecvRequest{{ID: 1}, {ID: 2}}); err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	began := time.Now()
	go func() { removed <- netlink.RdmaLinkDel(initiator) }()
	event := a.event(rdma.EventDeviceError)
	if !errors.Is(event.Err, rdma.ErrUnavailable) {
		t.Errorf("the event's error is %v, want one that wraps ErrUnavailable", event.Err)
	}
	a.done()
	for i, c := range a.completions(2) {
		if c.ID != uint64(i+1) || c.Status != rdma.StatusFlushed {
			t.Errorf("receive %d: %s", c.ID, c.Status)
		}
	}
	select {
	case err := <-removed:
		if err != nil {
			t.Fatalf("remove %s: %v", initiator, err)
		}
		t.Logf("removed after %v", time.Since(began))
	case <-time.After(patience):
		t.Fatalf("%s is not removed after %v: something holds it open", initiator, patience)
	}
	b.done()
	if err := <-accepted; !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("Accept on a removed device: %v", err)
	}
	if _, err := a.domain.Allocate(4096, 0); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("Allocate on a removed device: %v", err)
	}
	if _, err := a.qp.PostRecv([]rdma.RecvRequest{{}}); !errors.Is(err, rdma.ErrState) {
		t.Errorf("PostRecv on a removed device: %v", err)
	}
	if err := a.queue.Arm(false); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("Arm on a removed device: %v", err)
	}
	if _, err := a.queue.Poll(make([]rdma.Completion, 1)); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("Poll on a removed device: %v", err)
	}
	a.memory.Bytes()[0] = 1 // stays mapped
	for what, closer := range map[string]interface{ Close() error }{"queue pair": a.qp, "region": a.memory, "listener": l} {
		if err := closer.Close(); err != nil {
			t.Errorf("close a %s: %v", what, err)
		}
	}
	if err := a.queue.Close(); err != nil {
		t.Errorf("close a completion queue: %v", err)
	}
	if _, err := New(Config{Device: initiator}).Devices(t.Context()); !errors.Is(err, rdma.ErrUnavailable) {
		t.Errorf("devices afterwards: error %v", err)
	}
	if n := a.device.provider.Stats().DevicesRemoved; n != 1 {
		t.Errorf("%d removed devices are counted", n)
	}
}
