package verbena

import (
	"cmp"
	"context"
	"encoding/binary"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/rdma"
)

// operator is what carries out an endpoint's one-sided operations over its queue pair.
type operator struct {
	*queuePair
	asks   asker                // for what no device carries out
	device rdma.PromptQueuePair // nil: the device carries nothing out within a call

	operated Operations // mu guards it
}

func (s *operator) operate(ctx context.Context, b *Batch) error {
	var ways [MaxBatch]operationWay
	mixed := false
	for i := range b.ops[:b.count] {
		way, err := s.way(&b.ops[i])
		if err != nil {
			return err
		}
		ways[i] = way
		mixed = mixed || way != wayDevice
	}
	if mixed {
		return s.operateMixed(ctx, b, &ways)
	}
	return s.fly(ctx, b)
}

// fly carries out a batch of operations of the device.
func (s *operator) fly(ctx context.Context, b *Batch) error {
	f, posted, err := s.begin(b)
	if err != nil {
		return err
	}
	if !posted {
		if err = s.stage(ctx, f, b); err == nil {
			err = s.launch(ctx, f, b)
		}
		if err != nil {
			s.putFlight(f)
			return err
		}
	}
	s.w.settle()
	told := f.told
	if err := s.land(ctx, f); err != nil {
		return err
	}
	for i := range b.ops[:b.count] {
		switch o := &b.ops[i]; {
		case o.kind == opGet && f.buffers[i] == nil:
			copy(o.local, f.bytes[i])
		case o.atomic() && o.result != nil:
			*o.result = binary.NativeEndian.Uint64(f.bytes[i])
		}
	}
	s.putFlight(f)
	if b.notify && !told { // it waits without memory that others may wait for
		return s.e.notified(ctx, b.tag, b.message)
	}
	return nil
}

// oneSided is what the selection says.
func (s *operator) oneSided() string {
	switch {
	case !s.e.features.has(hello.FeatureOneSided):
		return oneSidedUnknown
	case !s.n.attributes.Has(rdma.CapAtomics) && s.servesOperations():
		return oneSidedMixed
	case !s.n.attributes.Has(rdma.CapAtomics):
		return oneSidedNoAtomics
	}
	return oneSidedByDevice
}

// begin makes a flight of the batch, and posts it at once if it needs no memory and
// nothing holds it up.
func (s *operator) begin(b *Batch) (f *flight, posted bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flights == nil {
		s.flights = &flights{}
	}
	fl := s.flights
	if s.life.reached(stageGrounded) || s.e.over() || s.queue.broken {
		return nil, false, cmp.Or(s.e.Err(), ErrClosed)
	}
	if s.m.PeerSaidGoodbye() {
		return nil, false, ErrPeerClosed // its exposures end
	}
	fl.Enter()
	if f = fl.take(); f == nil {
		f = newFlight(s.e, s.w.spinner(s.t.Spin))
	}
	f.size = b.count
	for i := range b.ops[:b.count] {
		if !f.inPlace(s.n, i, &b.ops[i]) {
			return f, false, nil
		}
	}
	if _, waits := fl.Next(); waits || !s.m.MayOperate(f.size) {
		return f, false, nil
	}
	return f, true, s.post(f, b)
}

// putFlight frees the memory of a flight that no device uses.
func (s *operator) putFlight(f *flight) {
	f.freeStaged(s.n.sendPool, false)
	s.mu.Lock()
	s.flights.park(f)
	s.flights.Exit()
	s.mu.Unlock()
}

// launch posts the operations, by one doorbell, when there is room for all of them.
func (s *operator) launch(ctx context.Context, f *flight, b *Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for waits := false; ; waits = true {
		err := s.e.Err()
		switch {
		case err != nil:
		case s.m.PeerSaidGoodbye():
			err = ErrPeerClosed
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case s.flights.Turn(f) && s.m.MayOperate(f.size):
			s.leaveLine(f, waits)
			return s.post(f, b)
		}
		if err != nil {
			s.leaveLine(f, waits)
			return err
		}
		if !waits {
			s.flights.Wait(f)
		}
		s.mu.Unlock()
		began := s.asks.messages.wait.begin()
		s.w.sleep()
		select {
		case <-f.wake:
		case <-ctx.Done():
		case <-s.e.done:
		}
		s.w.awake()
		s.asks.messages.wait.end(began)
		s.mu.Lock()
	}
}

// leaveLine takes a flight out of the line of those who wait for room. mu is held.
func (s *operator) leaveLine(f *flight, waits bool) {
	if waits {
		s.flights.Leave(f)
		s.tellLine()
	}
}

// tellLine lets the first in the line look whether there is room. mu is held.
func (s *operator) tellLine() {
	if f, ok := s.flights.Next(); ok {
		notify(f.wake)
	}
}

// post hands the operations to the device, and the notification if nothing holds that up: on the same queue pair it
// follows them, so the peer gets it behind them. If it returns no error the worker's settle is due
// when mu, which is held, has been let go.
func (s *operator) post(f *flight, b *Batch) error {
	if s.queue.broken {
		return cmp.Or(s.e.Err(), ErrClosed)
	}
	s.w.hold()
	fl := s.flights
	seq := s.m.Operate(f.size)
	for i := range b.ops[:f.size] {
		o := &b.ops[i]
		r, entry := &fl.requests[i], fl.entries[i:i+1:i+1]
		*r = rdma.SendRequest{
			ID: idSend | uint64(seq), Op: operationCodes[o.kind], SGEs: entry,
			Remote: rdma.Remote{Address: o.token.address + uint64(o.offset), Key: o.token.key}, CompareAdd: o.operand, Swap: o.swap,
		}
		entry[0] = rdma.SGE{Region: f.places[i].region, Offset: f.places[i].offset, Length: o.length()}
		s.operated.add(o.kind, o.length())
		seq++
	}
	fl.requests[f.size-1].Flags |= rdma.Signaled
	fl.Post(f, seq-1)
	if err := s.queue.post(fl.requests[:f.size]); err != nil {
		s.postFailed(err) // the flight ends with the endpoint
	}
	f.told = b.notify && s.asks.messages.sendAlong(b.tag, b.message)
	return nil
}

var operationCodes = [...]rdma.Opcode{opPut: rdma.OpWrite, opGet: rdma.OpRead, opCompareSwap: rdma.OpCompareSwap, opFetchAdd: rdma.OpFetchAdd}

// arriveUntil ends the flights whose last operation is before seq in the send queue.
// mu is held.
func (s *operator) arriveUntil(seq uint32) {
	for {
		f, ok := s.flights.Land(seq)
		if !ok {
			break
		}
		if s.buffers.settling.any() {
			s.settleFlight(f)
		}
		if f.abandoned {
			s.dropBuffers(f)
			f.freeStaged(s.n.sendPool, false)
			s.flights.park(f)
			continue
		}
		f.done.Set()
		if f.asleep {
			notify(f.wake)
		}
	}
	s.tellLine()
}

// settleFlight tells those who wait for the buffers of a flight that has left the ring.
// mu is held.
func (s *operator) settleFlight(f *flight) {
	for _, b := range f.buffers[:f.size] {
		if b != nil && !s.uses(b) {
			s.buffers.settling.settled(b)
		}
	}
}

// dropBuffers drops the references of an abandoned flight. mu is held; whoever holds
// it calls dropLoose when it has let go of that.
func (s *operator) dropBuffers(f *flight) {
	for _, b := range f.buffers[:f.size] {
		if b != nil {
			s.buffers.dropped(b)
		}
	}
}

// land waits until a flight is done. If it fails, the flight is not the caller's any
// more.
func (s *operator) land(ctx context.Context, f *flight) error {
	for !f.done.Load() {
		if s.w.drive(&f.spin, f.ready) {
			if f.done.Load() {
				break
			}
		} else if ctx.Err() == nil {
			s.sleepForFlight(ctx, f)
		}
		over, cut := s.e.over(), ctx.Err() != nil
		if !over && !cut {
			continue
		}
		if over {
			s.w.drain() // it may be done all the same
		}
		s.mu.Lock()
		abandoned := !f.done.Load()
		if f.abandoned = abandoned; abandoned {
			for _, b := range f.buffers[:f.size] {
				if b != nil {
					b.Retain() // the caller has one reference now
				}
			}
			s.flights.Exit()
		}
		s.mu.Unlock()
		switch {
		case abandoned && over:
			return s.e.err
		case abandoned:
			return context.Cause(ctx)
		}
	}
	return nil
}

func (s *operator) sleepForFlight(ctx context.Context, f *flight) {
	s.mu.Lock()
	f.asleep = true
	s.mu.Unlock()
	s.w.sleep()
	if !f.ready() {
		select {
		case <-f.wake:
		case <-ctx.Done():
		case <-s.e.done:
		}
	}
	s.w.awake()
}

// groundFlights lets no further operation begin, and waits until no call uses the
// shell's memory. The endpoint has ended, which ends their waits.
func (s *operator) groundFlights() {
	s.mu.Lock()
	s.life.advance(stageGrounded)
	var deserted <-chan struct{}
	if s.flights != nil {
		deserted = s.flights.Deserted()
	}
	s.mu.Unlock()
	if deserted != nil {
		<-deserted
	}
}

// freeFlights frees what the device was given for operations. The queue pair is
// closed, and all callers have gone. mu is held.
func (s *operator) freeFlights(stuck bool) {
	fl := s.flights
	if fl == nil {
		return
	}
	for f, ok := fl.Take(); ok; f, ok = fl.Take() {
		if !stuck { // otherwise they stay in use
			s.dropBuffers(f)
		}
		f.freeStaged(s.n.sendPool, stuck)
		f.free(s.n.sendPool, stuck)
	}
	for _, f := range fl.idle {
		f.free(s.n.sendPool, false)
	}
	fl.idle = nil
}
