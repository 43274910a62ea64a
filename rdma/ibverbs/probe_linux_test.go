//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"testing"
	"time"
	"unsafe"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// completesProbe has the device complete the last probe.
func (s *stubbed) completesProbe(t *testing.T, status verbs.Status) {
	t.Helper()
	s.waiting[0] = verbs.WC{ID: s.last(0).ID, Status: status, QPNumber: s.number}
	s.onCQ.Source, s.onCQ.Available = uintptr(unsafe.Pointer(&s.waiting[0])), 1
	var into [4]rdma.Completion
	if n, err := s.queue.Poll(into[:]); n != 0 || err != nil {
		t.Errorf("Poll: %d, %v; the application knows of no request", n, err)
	}
}

// An idle queue pair asks for a sign of life, one at a time, and a busy one does not.
func TestProbe(t *testing.T) {
	s := newStubbed(t, 4, rdma.ClassInfiniBand)
	s.queue.mostProbes = 1
	if !s.domain.device.probes() {
		t.Fatal("a device of InfiniBand does not probe by default")
	}
	s.probeIfIdle()
	wr := s.last(0)
	if s.onQP.Taken != 1 || wr.Opcode != verbs.WRWrite || wr.Flags != verbs.SendSignaled || wr.NumSGE != 0 {
		t.Fatalf("%d requests, the last %+v; want one signalled Write of nothing", s.onQP.Taken, wr)
	}
	if s.sends.outstanding() != 0 || s.queue.probes.Load() != 1 {
		t.Errorf("%d requests of the application and %d probes are outstanding", s.sends.outstanding(), s.queue.probes.Load())
	}
	s.probeIfIdle()
	if s.onQP.Taken != 1 {
		t.Error("a second probe is posted before the first has completed")
	}
	s.completesProbe(t, verbs.StatusSuccess)
	if s.queue.probes.Load() != 0 || s.State() != rdma.StateConnected {
		t.Errorf("%d probes are outstanding, the queue pair is %s", s.queue.probes.Load(), s.State())
	}
	// What is posted tells by itself.
	if _, err := s.PostSend([]rdma.SendRequest{s.write(7, rdma.Signaled)}); err != nil {
		t.Fatal(err)
	}
	s.probeIfIdle()
	if s.onQP.Taken != 2 {
		t.Error("a queue pair that is not idle is probed")
	}
	s.probeIfIdle()
	if s.onQP.Taken != 3 {
		t.Error("a queue pair that has become idle is not probed")
	}
	// The probe's completion says nothing of the application's request.
	s.completesProbe(t, verbs.StatusSuccess)
	if s.sends.outstanding() != 1 {
		t.Errorf("%d requests are outstanding, want 1", s.sends.outstanding())
	}
	// A queue without room for a probe's completion gets none.
	s.queue.mostProbes = 0
	s.probeIfIdle()
	if s.onQP.Taken != 3 || s.queue.probes.Load() != 0 {
		t.Error("a probe whose completion has no room")
	}
	// Nor has one that has failed.
	s.queue.mostProbes = 1
	s.state.Store(uint32(rdma.StateError))
	s.probeIfIdle()
	if s.onQP.Taken != 3 || s.queue.probes.Load() != 0 {
		t.Error("a queue pair that has failed is probed")
	}
}

// A probe that fails is the end of the connection, and no other completion of its kind is.
// The lab has one that a device repeats in vain.
func TestProbeFails(t *testing.T) {
	s := newStubbed(t, 4, rdma.ClassInfiniBand)
	s.queue.mostProbes = 1
	close(s.done) // nothing is left to be done about the failure
	s.probeIfIdle()
	s.completesProbe(t, verbs.StatusFlushed)
	if !s.suspected.Load() {
		t.Error("a probe that fails harms nothing")
	}
	s.suspected.Store(false)
	s.completesProbe(t, verbs.StatusFlushed)
	if s.suspected.Load() || s.queue.probes.Load() != 0 {
		t.Error("a completion counts twice")
	}
}

// iWARP has TCP's timers, and a configuration can do without.
func TestNoProbes(t *testing.T) {
	if s := newStubbed(t, 4, rdma.ClassIWARP); s.domain.device.probes() {
		t.Error("a device of iWARP probes")
	}
	s := newStubbed(t, 4, rdma.ClassInfiniBand)
	s.domain.device.provider = New(Config{KeepAlive: -time.Second})
	if s.domain.device.probes() {
		t.Error("a device probes although it is told not to")
	}
}
