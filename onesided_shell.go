package verbena

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/onesided"
	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/internal/slab"
	"github.com/verbena-data/verbena/internal/usermem"
	"github.com/verbena-data/verbena/rdma"
)

// operator is what carries out an endpoint's one-sided operations over its queue pair, and
// serves those of the peer that no device does.
type operator struct {
	*queuePair
	messages *outbound // operations that are messages go out between the others
	served   served
}

// flights are a shell's one-sided operations that are under way, and who waits for
// room. There are none before the first operation. mu of the shell guards them.
type flights struct {
	onesided.Flights[*flight]
	idle []*flight

	requests [MaxBatch]rdma.SendRequest
	entries  [MaxBatch]rdma.SGE
}

// A flight is a batch on its way. It belongs to its caller until it is abandoned.
type flight struct {
	size      int // operations
	done      release.Flag
	ready     func() bool
	wake      chan struct{} // one token when done, or when there may be room
	asleep    bool
	abandoned bool // whoever lands it frees it
	spin      spinner
	staged    slab.Slab         // memory of all operations that have none, given to the device
	results   slab.Slab         // likewise 8 bytes for each atomic operation, kept for the next batch
	bytes     [MaxBatch][]byte  // of an operation, in one of these
	buffers   [MaxBatch]*Buffer // memory of the application, given to the device
	places    [MaxBatch]place   // where in the region an operation's memory is
}

// A place is where in a region the memory of an operation begins.
type place struct {
	region rdma.Region
	offset int
}

// wholeFlight is how many bytes the results of a flight need.
const wholeFlight = 8 * MaxBatch

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
	// Behind the Puts on the same queue pair, and the peer gets it behind them. If it
	// has to wait, it does so when it holds no memory that others may wait for.
	told := b.notify && s.messages.sendNow(b.tag, b.message)
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
	if b.notify && !told {
		if err := s.e.Send(ctx, b.tag, b.message); err != nil {
			return fmt.Errorf("the notification was not sent: %w", err)
		}
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
	if n := len(fl.idle); n > 0 {
		f = fl.idle[n-1]
		fl.idle = fl.idle[:n-1]
	} else {
		f = s.newFlight()
	}
	f.size = b.count
	for i := range b.ops[:b.count] {
		if !s.inPlace(f, i, &b.ops[i]) {
			return f, false, nil
		}
	}
	if _, waits := fl.Next(); waits || !s.m.MayOperate(f.size) {
		return f, false, nil
	}
	return f, true, s.post(f, b)
}

func (s *operator) newFlight() *flight {
	f := &flight{wake: make(chan struct{}, 1), spin: newSpinner(s.t.Spin)}
	f.ready = func() bool { return f.done.Load() || s.e.over() }
	return f
}

// inPlace uses the memory that there is already for an operation, and reports false if
// there is none.
func (s *operator) inPlace(f *flight, i int, o *operation) bool {
	if o.atomic() {
		if f.results.None() {
			return false
		}
		f.lay(i, f.results, 8*i, 8)
		return true
	}
	if o.buffer == nil {
		return false
	}
	at := o.buffer.owner.location()
	if !s.n.reaches(&at) {
		return false
	}
	f.buffers[i] = o.buffer
	f.places[i] = place{at.region(), at.place() + o.from}
	return true
}

// putFlight frees the memory of a flight that no device uses.
func (s *operator) putFlight(f *flight) {
	s.freeStaged(f)
	s.mu.Lock()
	s.park(f)
	s.flights.Exit()
	s.mu.Unlock()
}

// park keeps a flight for the next batch. mu is held.
func (s *operator) park(f *flight) {
	f.done.Clear()
	f.asleep, f.abandoned = false, false
	select {
	case <-f.wake:
	default:
	}
	s.flights.idle = append(s.flights.idle, f)
}

// lay places an operation in memory of the flight.
func (f *flight) lay(i int, memory slab.Slab, offset, n int) {
	f.places[i] = place{memory.Region(), memory.Offset() + offset}
	f.bytes[i] = memory.Bytes()[offset : offset+n]
}

// stagingUnit is what the offsets of operations in staged memory are multiples of.
const stagingUnit = 64

// stage gets registered memory for the operations, with what is to be written. It takes
// all of it at once: who waits for memory holds none that others wait for.
func (s *operator) stage(ctx context.Context, f *flight, b *Batch) (err error) {
	var offsets [MaxBatch]int
	size, atomics, copies := 0, false, false
	for i := range b.ops[:b.count] {
		o := &b.ops[i]
		if offsets[i] = -1; s.inPlace(f, i, o) {
			continue
		}
		offsets[i] = (size + stagingUnit - 1) / stagingUnit * stagingUnit
		size = offsets[i] + o.length()
		atomics, copies = atomics || o.atomic(), copies || !o.atomic()
	}
	switch {
	case copies:
		if f.staged, err = s.takeStaged(ctx, size); err != nil {
			return err
		}
	case atomics:
		if f.results, err = s.take(ctx, s.n.sendPool, wholeFlight); err != nil {
			return err
		}
	}
	for i, offset := range offsets[:b.count] {
		switch o := &b.ops[i]; {
		case offset < 0:
		case !copies:
			s.inPlace(f, i, o) // there is memory for results now
		default:
			f.lay(i, f.staged, offset, o.length())
			if o.kind == opPut {
				copy(f.bytes[i], o.local)
			}
		}
	}
	return nil
}

// takeStaged waits for memory, and refuses at once what there will never be.
func (s *operator) takeStaged(ctx context.Context, size int) (slab.Slab, error) {
	if size > MaxOperation { // that is a region of its own
		most := s.n.sendPool.LargeLimit()
		if m := s.n.attributes.MaxRegion; m > 0 {
			most = min(most, m)
		}
		if n := slab.RegionFor(size); int64(n) > most {
			return slab.Slab{}, fmt.Errorf("%w: a batch that copies %d bytes takes %d of memory, and SendMemory and the device allow %d", ErrTooLong, size, n, most)
		}
	}
	memory, err := s.take(ctx, s.n.sendPool, size)
	if errors.Is(err, slab.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", ErrTooLong, err)
	}
	return memory, err
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
		s.w.sleep()
		select {
		case <-f.wake:
		case <-ctx.Done():
		case <-s.e.done:
		}
		s.w.awake()
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

// post hands the operations to the device. mu is held.
func (s *operator) post(f *flight, b *Batch) error {
	if s.queue.broken {
		return s.e.Err()
	}
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
		seq++
	}
	fl.requests[f.size-1].Flags |= rdma.Signaled
	fl.Post(f, seq-1)
	if err := s.queue.post(fl.requests[:f.size]); err != nil {
		s.postFailed(err) // the flight ends with the endpoint
	}
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
			s.freeStaged(f)
			s.park(f)
			continue
		}
		f.done.Set()
		if f.asleep {
			notify(f.wake)
		}
	}
	s.tellLine()
}

// use tells whether a buffer is that of an operation under way.
func (fl *flights) use(b *Buffer) bool {
	return fl.Under(func(f *flight) bool { return slices.Contains(f.buffers[:f.size], b) })
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

// freeStaged frees the memory of a flight's operations.
func (s *operator) freeStaged(f *flight) {
	clear(f.buffers[:f.size])
	clear(f.bytes[:f.size])
	s.freeMemory(&f.staged, false)
}

func (s *operator) dropFlight(f *flight, spoilt bool) { s.freeMemory(&f.results, spoilt) }

// freeMemory gives memory back. spoilt tells that the device may still use it.
func (s *operator) freeMemory(memory *slab.Slab, spoilt bool) {
	giveBack(s.n.sendPool, *memory, spoilt)
	*memory = slab.Slab{}
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
		if stuck { // its buffers stay in use
			s.freeMemory(&f.staged, true)
		} else {
			s.dropBuffers(f)
			s.freeStaged(f)
		}
		s.dropFlight(f, stuck)
	}
	for _, f := range fl.idle {
		s.dropFlight(f, false)
	}
	fl.idle = nil
}

// An exposedRegion is memory of a device that peers may be given the key of.
type exposedRegion struct {
	n      *domain
	region rdma.Region
	size   int
	ways   tokenWays
}

func (s *queuePair) expose(ctx context.Context, c *ExposeConfig) (exposable, error) {
	n, size := s.n, c.Size
	if m := n.attributes.MaxRegion; m > 0 && int64(size) > m {
		return nil, fmt.Errorf("%w: %d bytes, a region of the device has %d at most", ErrTooLong, size, m)
	}
	access, ways := n.opens(c.Rights)
	if c.Buffer != nil {
		return s.exposeBuffer(ctx, c, access, ways)
	}
	if c.Memory != nil {
		return s.exposeUser(ctx, c, access, ways)
	}
	access |= rdma.AccessLocalWrite
	if err := s.e.borrow(ctx, n.exposed, int64(size)); err != nil {
		return nil, err
	}
	if err := n.hold(); err != nil {
		n.exposed.give(int64(size))
		return nil, err
	}
	region, err := n.domain.Allocate(size, access)
	if err != nil {
		n.exposed.give(int64(size))
		n.cameBack()
		return nil, fmt.Errorf("register %d bytes: %w", size, err)
	}
	usermem.Own(region.Bytes())
	return &exposedRegion{n: n, region: region, size: size, ways: ways}, nil
}

// opens tells what a region must let peers do that have rights, and how they reach it.
func (n *domain) opens(rights Rights) (access rdma.Access, ways tokenWays) {
	ways = byDevice
	if rights&MayRead != 0 {
		access |= rdma.AccessRemoteRead
	}
	if rights&MayWrite != 0 {
		access |= rdma.AccessRemoteWrite
	}
	if n.attributes.Has(rdma.CapAtomics) {
		ways |= atomicsByDevice
		if rights&MayAtomic != 0 {
			access |= rdma.AccessRemoteAtomic
		}
	}
	return access, ways
}

func (r *exposedRegion) bytes() []byte { return r.region.Bytes() }

func (r *exposedRegion) remote() (rdma.Remote, tokenWays) {
	return rdma.Remote{Address: r.region.Address(), Key: r.region.Key()}, r.ways
}

func (r *exposedRegion) withdraw() error { return r.n.withdraw(r.region) }

func (n *domain) withdraw(region rdma.Region) error {
	if w, ok := region.(rdma.WithdrawableRegion); ok {
		return w.Withdraw()
	}
	return fmt.Errorf("%w: provider %s cannot end access to a region and keep it", rdma.ErrUnsupported, n.attributes.Provider)
}

func (r *exposedRegion) free() error {
	usermem.Disown(r.region.Bytes())
	err := r.region.Close()
	if err == nil { // otherwise the device may still reach it
		r.n.exposed.give(int64(r.size))
	}
	r.n.cameBack()
	return err
}

// word is the 8 bytes of memory at offset, aligned to them, for atomic operations of
// this side.
func word(memory []byte, offset int) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(memory[offset : offset+8])))
}
