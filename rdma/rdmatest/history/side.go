package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Options configure a [Side]. The zero value is good.
type Options struct {
	// Seed is for choices that the peer need not know: how deep the queues are, which
	// of them links share, and how the side waits.
	Seed uint64
	// Bound is how long a side waits for what must come; 0 means 20 s.
	Bound time.Duration
	// Shallow says that the provider's statuses do not tell which end caused a
	// failure, as those of the kernel's software devices do not.
	Shallow bool
	// Lossy says that the network loses packets. If it loses the refusal of a request,
	// or the answers to Reads before it, the end that asked may see no more than that
	// the connection has ended.
	Lossy bool
	// LaxReads says that the provider refuses a peer's Reads late or not at all, and
	// carries out what stands behind one, as siw does. No link ends by a Read then.
	LaxReads bool
	// OneWayReads says that Reads of both ends at once may wait for each other for
	// ever, as those of siw do. Only the initiator reads then.
	OneWayReads bool
	// Without are capabilities of the device that no request uses.
	Without rdma.Capabilities
	// Unfenced fences nothing but the end of a round. It is for providers that do not
	// repeat a fenced request which the network has lost while Reads were behind it.
	Unfenced bool
	// Area is how many bytes an end exposes. It has as many that it does not expose.
	// It is a power of two from 8 KiB on; 0 means 32 KiB, and 1 MiB for one link in 16.
	Area int
}

// A Side runs one end of links, over one device. Its methods may be called
// concurrently.
type Side struct {
	Stats Stats

	attributes rdma.Attributes
	options    Options
	domain     rdma.Domain
	foreign    rdma.Domain // nothing of it is ever granted to a peer
	forbidden  memory
	links      atomic.Uint64

	mu     sync.Mutex
	shared *commons

	// Events have a lock of their own: a device may deliver an event from the
	// goroutine that a call under mu waits for.
	eventMu sync.Mutex
	events  map[uint32][]rdma.Event // by number of the queue pair
	raised  chan struct{}           // closed and replaced at every event
}

// Stats count what a side has done.
type Stats struct {
	Ops           [rdma.OpSendInvalidate + 1]atomic.Uint64 // requests posted and taken
	Bytes         atomic.Uint64                            // of their payload
	Messages      atomic.Uint64                            // received and compared
	Rounds        atomic.Uint64                            // of both directions, all memory compared
	Links         atomic.Uint64                            // connections made
	Ended         [endingKinds]atomic.Uint64
	Lost          atomic.Uint64 // links whose peer died
	Answered      atomic.Uint64 // requests of the peers, in rounds that were compared
	Registrations atomic.Uint64
	Refused       [refusals]atomic.Uint64
	WrongPosts    atomic.Uint64
}

// Operations is the number of all requests.
func (s *Stats) Operations() uint64 {
	var n uint64
	for i := range s.Ops {
		n += s.Ops[i].Load()
	}
	return n
}

// EndingNames are the names of the elements of [Stats.Ended].
func EndingNames() []string {
	var names []string
	for k := range endingKinds {
		names = append(names, k.String())
	}
	return names
}

// RefusalNames are the names of the elements of [Stats.Refused].
func RefusalNames() []string {
	var names []string
	for r := range refusals {
		names = append(names, r.String())
	}
	return names
}

// NewSide opens what all links of a side share.
func NewSide(device rdma.Device, options Options) (*Side, error) {
	if options.Bound == 0 {
		options.Bound = 20 * time.Second
	}
	s := &Side{attributes: device.Attributes(), options: options, events: map[uint32][]rdma.Event{}, raised: make(chan struct{})}
	var err error
	if s.domain, err = device.OpenDomain(rdma.DomainConfig{OnEvent: s.onEvent}); err != nil {
		return nil, fmt.Errorf("history: open domain: %w", err)
	}
	if s.foreign, err = device.OpenDomain(rdma.DomainConfig{}); err != nil {
		return nil, errors.Join(fmt.Errorf("history: open domain: %w", err), s.domain.Close())
	}
	region, err := s.foreign.Allocate(smallest, s.rights(partAll))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("history: %w", err), s.Close())
	}
	s.forbidden = memory{region, smallest}
	if err := s.forbidden.write(0, canary[:smallest]); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// smallest is the size of the region that nobody may reach, and of the smallest
// area.
const smallest = 8 << 10

// Close closes everything. No link may be running.
func (s *Side) Close() error {
	var errs []error
	if s.forbidden.region != nil {
		// No peer ever had a right to this memory, but links try to reach it.
		got, err := s.forbidden.read(0, smallest)
		if err == nil {
			err = same(got, canary[:smallest], "memory of a domain that no peer is connected to")
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, s.foreign.Close(), s.domain.Close())...)
}

func (s *Side) rights(part int) rdma.Access {
	return exposedRights(part, s.attributes.Has(rdma.CapAtomics))
}

func (s *Side) onEvent(event rdma.Event) {
	if event.QueuePair == nil {
		return
	}
	s.eventMu.Lock()
	defer s.eventMu.Unlock()
	number := event.QueuePair.Number()
	s.events[number] = append(s.events[number], event)
	close(s.raised)
	s.raised = make(chan struct{})
}

// event waits for an event that says that the queue pair has failed.
func (s *Side) event(ctx context.Context, number uint32) error {
	for {
		s.eventMu.Lock()
		events, raised := s.events[number], s.raised
		s.eventMu.Unlock()
		for _, e := range events {
			if e.Kind == rdma.EventQueuePairError || e.Kind == rdma.EventDisconnected {
				return nil
			}
		}
		select {
		case <-raised:
		case <-ctx.Done():
			return errors.New("the queue pair failed and no event said so")
		}
	}
}

func (s *Side) forget(number uint32) {
	s.eventMu.Lock()
	delete(s.events, number)
	s.eventMu.Unlock()
}

// A memory is a region wherever it is. The region of a device in another process has
// ReadAt and WriteAt instead of Bytes.
type memory struct {
	region rdma.Region
	size   int
}

type remoteMemory interface {
	io.ReaderAt
	io.WriterAt
}

func (s *Side) allocate(size int, access rdma.Access) (memory, error) {
	r, err := s.domain.Allocate(size, access)
	if err != nil {
		return memory{}, fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	s.Stats.Registrations.Add(1)
	return memory{r, size}, nil
}

func (m memory) read(at, length int) ([]byte, error) {
	if r, ok := m.region.(remoteMemory); ok {
		b := make([]byte, length)
		_, err := r.ReadAt(b, int64(at))
		return b, err
	}
	return m.region.Bytes()[at : at+length], nil
}

func (m memory) write(at int, b []byte) error {
	if r, ok := m.region.(remoteMemory); ok {
		_, err := r.WriteAt(b, int64(at))
		return err
	}
	copy(m.region.Bytes()[at:], b)
	return nil
}

// canary is what the memory of receives holds until a message comes.
var canary = func() []byte {
	b := make([]byte, 64<<10)
	for i := range b {
		b[i] = 0xC5
	}
	return b
}()

// same fails with the first byte that differs.
func same(got, want []byte, what string) error {
	if string(got) == string(want) {
		return nil
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("%s: byte %d of %d is %#x, want %#x", what, i, len(want), got[i], want[i])
		}
	}
	return fmt.Errorf("%s: %d bytes, want %d", what, len(got), len(want))
}

// completions is a completion queue that several links may share. A link that polls
// it puts the completions of other links into their boxes.
type completions struct {
	queue  rdma.CompletionQueue
	shared bool

	mu      sync.Mutex
	boxes   map[uint32]*box
	buffer  []rdma.Completion
	random  *rand.Rand
	arrived chan struct{} // closed and replaced when anything has come, or the waiter leaves
	waiting bool
	err     error
}

// A box holds the completions of a queue pair until its link takes them. A device may
// give the number of a closed queue pair to the next one before drop is called for
// the first. The box then has two users.
type box struct {
	list  []rdma.Completion
	users int
}

func (s *Side) newCompletions(depth int, shared bool, random *rand.Rand) (*completions, error) {
	q, err := s.domain.NewCompletionQueue(min(depth, s.attributes.MaxCompletions))
	if err != nil {
		return nil, fmt.Errorf("completion queue of %d: %w", depth, err)
	}
	return &completions{queue: q, shared: shared, boxes: map[uint32]*box{}, buffer: make([]rdma.Completion, 64),
		random: rand.New(rand.NewPCG(random.Uint64(), 0)), arrived: make(chan struct{})}, nil
}

func (c *completions) add(number uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.boxes[number]
	if b == nil {
		b = &box{}
		c.boxes[number] = b
	} else {
		c.pollAll() // what has come belongs to the one that is closed
		b.list = nil
	}
	b.users++
}

// drop comes after Close of the queue pair. It takes what Close left in the queue;
// whatever comes later is an error.
func (c *completions) drop(number uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pollAll()
	if b := c.boxes[number]; b.users > 1 {
		b.users--
	} else {
		delete(c.boxes, number)
	}
	return c.err
}

// empty puts everything in the queue into the boxes.
func (c *completions) empty() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pollAll()
	return c.err
}

// pollAll polls until the queue is empty, up to 4,096 times, because other links may
// keep a shared queue busy. It needs mu.
func (c *completions) pollAll() {
	for range 1 << 12 {
		if n, err := c.poll(); n == 0 || err != nil {
			return
		}
	}
}

// poll needs mu.
func (c *completions) poll() (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.queue.Poll(c.buffer[:1+c.random.IntN(len(c.buffer))])
	if err != nil {
		c.err = fmt.Errorf("polling: %w", err)
	}
	for i := range n {
		b := c.boxes[c.buffer[i].QueuePair]
		if b == nil {
			c.err = fmt.Errorf("a completion of queue pair %d, which is closed or was never made: %+v", c.buffer[i].QueuePair, c.buffer[i])
			break
		}
		b.list = append(b.list, c.buffer[i])
	}
	if n > 0 && c.shared {
		c.wake()
	}
	return n, c.err
}

func (c *completions) wake() {
	close(c.arrived)
	c.arrived = make(chan struct{})
}

// take appends what there is for a queue pair.
func (c *completions) take(number uint32, into []rdma.Completion) ([]rdma.Completion, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.poll()
	if b := c.boxes[number]; b != nil {
		into = append(into, b.list...)
		b.list = b.list[:0]
	}
	return into, err
}

// wait sleeps until there may be something for the queue pair. One link at a time
// waits for the queue's event; the others wait for that link.
func (c *completions) wait(ctx context.Context, number uint32, solicited bool) error {
	c.mu.Lock()
	if c.waiting {
		arrived := c.arrived
		c.mu.Unlock()
		select {
		case <-arrived:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.waiting = true
	err := c.queue.Arm(solicited && !c.shared)
	for err == nil {
		// What came before the arming raises no event, so it is taken here.
		var n int
		if n, err = c.poll(); n == 0 {
			break
		}
	}
	wait := err == nil && len(c.boxes[number].list) == 0
	c.mu.Unlock()
	if wait {
		err = c.queue.Wait(ctx)
	}
	c.mu.Lock()
	c.waiting = false
	c.wake()
	c.mu.Unlock()
	return err
}

// commons are queues that several links share.
type commons struct {
	queue    *completions
	receives *sharedReceives
	links    int // that may still come
	users    int
}

// sharedReceives is a shared receive queue and its memory.
type sharedReceives struct {
	queue rdma.SharedReceiveQueue
	slots memory
	slot  int

	mu   sync.Mutex
	free []int
}

const (
	commonLinks   = 6
	commonPosted  = maxMessages + controls
	commonSlot    = 2048
	commonEntries = 1
)

// acquireCommons joins the queues that links share now, or makes new ones.
func (s *Side) acquireCommons(random *rand.Rand) (*commons, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared == nil {
		c := &commons{links: commonLinks}
		var err error
		if c.queue, err = s.newCompletions(commonLinks*(4*deepest+2*commonPosted), true, random); err != nil {
			return nil, err
		}
		if s.attributes.Has(rdma.CapSharedReceive) {
			if c.receives, err = s.newSharedReceives(); err != nil {
				return nil, errors.Join(err, c.queue.queue.Close())
			}
		}
		s.shared = c
	}
	c := s.shared
	c.users++
	if c.links--; c.links == 0 {
		s.shared = nil
	}
	return c, nil
}

func (s *Side) newSharedReceives() (*sharedReceives, error) {
	n := commonLinks * commonPosted
	r := &sharedReceives{slot: commonSlot}
	var err error
	if r.slots, err = s.allocate(n*commonSlot, rdma.AccessLocalWrite); err != nil {
		return nil, err
	}
	if r.queue, err = s.domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: n, MaxSGE: commonEntries}); err != nil {
		return nil, errors.Join(fmt.Errorf("shared receive queue: %w", err), r.slots.region.Close())
	}
	for i := range n {
		r.free = append(r.free, i)
		if err := r.slots.write(i*commonSlot, canary[:commonSlot]); err != nil {
			return nil, errors.Join(err, r.queue.Close(), r.slots.region.Close())
		}
	}
	return r, nil
}

// releaseCommons closes them with their last link.
func (s *Side) releaseCommons(c *commons) error {
	s.mu.Lock()
	c.users--
	last := c.users == 0
	if last && s.shared == c {
		s.shared = nil
	}
	s.mu.Unlock()
	if !last {
		return nil
	}
	errs := []error{c.queue.queue.Close()}
	if c.receives != nil {
		errs = append(errs, c.receives.queue.Close(), c.receives.slots.region.Close())
	}
	return errors.Join(errs...)
}

// yield lets others run. After 1,000 vain polls it sleeps for 50 us each time: there
// may be fewer processors than goroutines that poll.
func yield(i int) {
	if i < 1000 {
		runtime.Gosched()
		return
	}
	time.Sleep(50 * time.Microsecond)
}
