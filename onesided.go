package verbena

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// ExposeConfig says what is exposed.
type ExposeConfig struct {
	Size   int    // bytes, at least 1; with Memory, 0 or its length
	Rights Rights // of the peer, at least one
	// Until ends the exposure. Zero: it lasts until Revoke, Close, or the endpoint's
	// end.
	Until time.Time
	// Memory is the application's own, outside the Go heap, and stays its own: what is
	// exposed instead of new memory. It must stay mapped until Close. See
	// [Endpoint.Expose].
	Memory []byte
	// Buffer, of any endpoint, is exposed instead of new memory: what its Bytes are, with
	// a reference that the exposure has until Close. The caller's stays the caller's.
	// Over shared memory it has to be a Buffer of [Endpoint.Wrap] that lies in a
	// [Mapping]. A peer that may only read does not see what the caller writes at the
	// same time whole.
	Buffer *Buffer
}

// An Exposure is memory that the peer of an endpoint reaches by one-sided operations:
// it takes no message, and no goroutine of this side has to run on a device. It must
// be closed. Its methods may be called concurrently.
//
// The memory is nobody else's: it lies in a region of its own, which held nothing
// before, is zero at first, and is never used again, so that a key that has been
// revoked opens nothing. Memory of the application is what it is: see
// [Endpoint.Expose].
type Exposure struct {
	e      *Endpoint
	memory exposable
	token  Token
	timer  *time.Timer

	once   sync.Once    // the memory is given back
	mu     sync.RWMutex // held while the runtime serves an operation on the memory
	over   bool
	revoke sync.Once
	err    error // of revoking
	order  sync.Mutex
}

// exposable is memory as a carrier exposes it.
type exposable interface {
	bytes() []byte
	// remote is where a device finds it; without byDevice the runtime serves it.
	remote() (rdma.Remote, tokenWays)
	// withdraw ends all access. The bytes stay.
	withdraw() error
	free() error
}

// features are what both ends of an endpoint have.
type features hello.Features

func (f features) has(want hello.Features) bool { return hello.Features(f)&want == want }

// maxExposures is how many an endpoint has at most. A device holds a region for each.
const maxExposures = 1024

// Expose makes memory that the peer may use. What a group exposes on a device, and a
// runtime over TCP, is bounded by its SendMemory, and memory of the application by 1,024
// registrations, those of [Endpoint.Wrap] included. Expose waits while others have all of
// either.
//
// On a device the token holds the key of the region. The device admits whoever is
// connected to the group's domain and knows the key, which is random: so a peer that
// passes a token on to another peer of the group lets it in.
//
// An access that the device refuses, because the memory has been revoked or its time
// is over, ends the endpoint at both sides: so agree with the peer before you revoke
// what it may be using. Over TCP only the operation fails.
//
// An endpoint has at most 1,024 exposures at a time, of 1 to 2^40 bytes each; beyond that,
// and for more than all of SendMemory, Expose fails with [ErrTooLong]. Other errors are
// [ErrRights] for rights that do not exist or none, [ErrRevoked] for an Until that has
// passed, [ErrUnsupported] if the peer knows no one-sided operations, and the end of ctx or
// of the endpoint.
//
// Memory of the application that is exposed must not be the Go runtime's: of the
// heap, it is refused with [ErrMemory], as is a mapping of a file that may be
// truncated where this process copies from it. Over shared memory the peer maps the
// file behind the memory, so there it has to lie in a [Mapping]: other memory is refused
// with [ErrMemory], which wraps [rdma.ErrUnsupported] then. A peer that gets the
// key gets the whole file, and keeps it if it is malicious. On the other transports any
// mapping will do. With [MayAtomic] the memory, or the Buffer's bytes, must begin at a
// multiple of 8; otherwise the error is ErrMemory, too. The bytes of a Buffer are refused as Memory, since they go to others
// when it is released: the Buffer itself can be exposed. The key that the peer gets is
// one of these bytes alone, and ends with the exposure.
func (e *Endpoint) Expose(ctx context.Context, c ExposeConfig) (*Exposure, error) {
	x, err := e.expose(ctx, c)
	if err != nil {
		return nil, e.failure("expose memory to", err)
	}
	return x, nil
}

func (e *Endpoint) expose(ctx context.Context, c ExposeConfig) (*Exposure, error) {
	if c.Buffer != nil {
		if c.Memory != nil {
			return nil, fmt.Errorf("%w: a buffer and other memory at a time", ErrMemory)
		}
		c.Memory = c.Buffer.Bytes()
	}
	if c.Size == 0 {
		c.Size = len(c.Memory)
	}
	switch {
	case c.Memory != nil && c.Size != len(c.Memory):
		return nil, fmt.Errorf("%w: %d bytes, not %d", ErrMemory, len(c.Memory), c.Size)
	case c.Size <= 0 || c.Size > maxExposure:
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLong, c.Size)
	case c.Rights == 0 || c.Rights&^allRights != 0:
		return nil, fmt.Errorf("%w: rights %#02x", ErrRights, uint8(c.Rights))
	}
	if start, _ := extent(c.Memory); start%8 != 0 && c.Rights&MayAtomic != 0 {
		return nil, fmt.Errorf("%w: atomic operations want memory that begins at a multiple of 8", ErrMemory)
	}
	return e.exposeAs(ctx, c, c.Size, func() (exposable, error) { return e.carrier.expose(ctx, &c) })
}

// exposeAs makes an exposure of size bytes of what open returns.
func (e *Endpoint) exposeAs(ctx context.Context, c ExposeConfig, size int, open func() (exposable, error)) (*Exposure, error) {
	switch {
	case !e.features.has(hello.FeatureOneSided):
		return nil, ErrUnsupported
	case !c.Until.IsZero() && !c.Until.After(time.Now()):
		return nil, fmt.Errorf("%w: its time is over already", ErrRevoked)
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	memory, err := open()
	if err != nil {
		return nil, err
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // it cannot fail
	remote, ways := memory.remote()
	x := &Exposure{e: e, memory: memory, token: Token{
		rights: c.Rights, ways: ways, key: remote.Key, address: remote.Address, length: uint64(size),
		id: binary.BigEndian.Uint64(id[:]),
	}}
	if !c.Until.IsZero() {
		x.token.deadline = c.Until.UnixMilli()
	}
	if err := e.exposed.add(x); err != nil {
		return nil, errors.Join(err, memory.free())
	}
	if !c.Until.IsZero() {
		x.mu.Lock()
		x.timer = time.AfterFunc(time.Until(c.Until), func() { _ = x.Revoke() }) // Close tells of it
		x.mu.Unlock()
	}
	return x, nil
}

// borrow takes n bytes of what may be exposed. The endpoint's end ends the wait.
func (e *Endpoint) borrow(ctx context.Context, from *lending, n int64) error {
	if ok, err := from.tryTake(n); ok || err != nil {
		return err
	}
	ctx, stop := untilOver(ctx, e)
	defer stop()
	return from.take(ctx, n)
}

// Bytes is the memory, or nil for a file, which the peer may be using at the same time. It may be used
// until Close. When a notification of [Endpoint.PutNotify] has been received, what was
// put before it is there.
func (x *Exposure) Bytes() []byte { return x.memory.bytes() }

// Token is what the peer needs.
func (x *Exposure) Token() Token { return x.token }

// Revoke ends the exposure. When it returns no access of the peer is under way and
// none will begin; the memory stays the caller's until Close. Over TCP a peer's
// operation that is refused fails with [ErrRevoked]; on a device it ends the endpoint.
func (x *Exposure) Revoke() error {
	x.revoke.Do(func() {
		x.e.exposed.remove(x)
		x.mu.Lock()
		x.over = true
		timer := x.timer
		x.mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		x.err = x.memory.withdraw()
	})
	return x.err
}

// Close revokes the exposure and gives the memory back: nobody may use Bytes any
// more.
func (x *Exposure) Close() error {
	err := x.Revoke()
	x.once.Do(func() { err = errors.Join(err, x.memory.free()) })
	return err
}

// serve calls f with the memory unless it is not exposed any more.
func (x *Exposure) serve(f func(memory []byte)) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.over {
		return false
	}
	if race.Enabled {
		x.passed()
		defer x.passed()
	}
	f(x.memory.bytes())
	return true
}

// passed tells the race detector that the peer has made its operations in turn. The
// network orders them, which it does not see, and a Buffer may lie in the Go heap.
func (x *Exposure) passed() {
	x.order.Lock()
	defer x.order.Unlock()
}

// exposures are those of an endpoint.
type exposures struct {
	mu   sync.Mutex
	byID map[uint64]*Exposure
	over bool // the endpoint has ended

	watch sync.WaitGroup // ends them with the endpoint
}

func (s *exposures) add(x *Exposure) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return ErrClosed
	case len(s.byID) >= maxExposures:
		return fmt.Errorf("%w: the endpoint has %d exposures already; expose more memory at a time", ErrTooLong, len(s.byID))
	case s.byID == nil:
		s.byID = map[uint64]*Exposure{}
		s.watch.Go(func() { s.endWith(x.e) })
	}
	s.byID[x.token.id] = x
	return nil
}

func (s *exposures) remove(x *Exposure) {
	s.mu.Lock()
	delete(s.byID, x.token.id)
	s.mu.Unlock()
}

func (s *exposures) find(id uint64) *Exposure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// endWith revokes all when the endpoint ends, but for one that this side closes: there
// the peer's last operations must not cut off what was sent, so close does it.
func (s *exposures) endWith(e *Endpoint) {
	<-e.done
	if e.err != ErrClosed {
		s.end()
	}
}

// close revokes all and returns when that is done.
func (s *exposures) close() {
	s.end()
	s.watch.Wait()
}

// end revokes all.
func (s *exposures) end() {
	s.mu.Lock()
	s.over = true
	all := make([]*Exposure, 0, len(s.byID))
	for _, x := range s.byID {
		all = append(all, x)
	}
	s.mu.Unlock()
	for _, x := range all {
		_ = x.Revoke() // Close tells of it
	}
}
