package shuffle

import (
	"sync"

	"github.com/verbena-data/verbena/internal/crc32c"
	"github.com/verbena-data/verbena/shuffle/internal/flow"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// An outgoing is the stream from this process to a thread of another one. All threads add
// their parts to its open block, which goes out when it is long enough, when somebody
// waits for room, by Flush, and when nothing has been added for a while.
type outgoing struct {
	p        *peer
	receiver int // that thread

	mu       sync.Mutex
	ring     flow.Out
	sequence uint32    // of the open block
	parts    uint32    // in it
	grown    bool      // since the last look of the idle
	closed   bool      // the memory has gone
	waiting  []*Sender // for room
	header   [wire.HeaderSize]byte
}

// add puts a part, which is head and then body, into the open block, or begins one. It
// reports false if there is no room; then all that was added goes out soon, and who waits,
// unless nil, is woken when room comes. The bytes may be reused.
func (o *outgoing) add(head, body []byte, who *Sender) (ok bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false, ErrClosed
	}
	n := len(head) + len(body)
	at, ok := o.ring.Extend(n)
	if !ok {
		if err := o.seal(); err != nil {
			return false, err
		}
		if at, ok = o.ring.Begin(wire.HeaderSize + n); !ok {
			if who != nil {
				o.waiting = append(o.waiting, who)
			}
			return false, nil
		}
		at += wire.HeaderSize
	}
	if err := o.write(at, head); err != nil {
		return false, err
	}
	if len(body) > 0 {
		if err := o.write(at+len(head), body); err != nil {
			return false, err
		}
	}
	o.parts++
	o.grown = true
	if o.ring.Open() >= o.p.x.c.full {
		return true, o.seal()
	}
	o.p.x.idle.arm()
	return true, nil
}

// write writes to the ring: that of the peer, or what this process has in its place. mu is held.
func (o *outgoing) write(at int, b []byte) error {
	at += o.receiver * o.p.x.c.ring
	if !o.p.direct {
		copy(o.p.rings[at:], b)
		return nil
	}
	return o.p.ep.Put(o.p.x.ctx, o.p.token, at, b)
}

// seal lets the open block go out, if there is one. mu is held.
func (o *outgoing) seal() error {
	if o.ring.Open() == 0 {
		return nil
	}
	offset, length := o.ring.Seal()
	h := wire.Header{
		Length: uint32(length - wire.HeaderSize), Sequence: o.sequence, Offset: uint32(offset), Receiver: uint16(o.receiver), Parts: o.parts,
		Summed: !o.p.direct,
	}
	o.sequence++
	o.parts = 0
	e := wire.Entry{Kind: wire.Filled, Receiver: uint16(o.receiver), Offset: uint32(offset), Length: uint32(length)}
	if !o.p.direct {
		at := o.receiver*o.p.x.c.ring + offset
		block := o.p.rings[at : at+length]
		h.Put(block)
		wire.SetSum(block, crc32c.Update(0, block[4:]))
		o.p.post(e)
		return nil
	}
	h.Put(o.header[:])
	wire.SetSum(o.header[:], crc32c.Update(0, o.header[4:]))
	if err := o.write(offset, o.header[:]); err != nil {
		return err
	}
	o.p.note(e)
	return nil
}

// free says that the peer has freed n bytes. Who waits is woken when it is worth while.
func (o *outgoing) free(n int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.ring.Free(n); err != nil || !o.ring.Roomy() {
		return err
	}
	for i, s := range o.waiting {
		s.sleeper.wake()
		o.waiting[i] = nil
	}
	o.waiting = o.waiting[:0]
	return nil
}

// flush lets what was added go out.
func (o *outgoing) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ErrClosed
	}
	return o.seal()
}

// look lets the open block go out if nothing was added since the last look, and tells
// whether there is one still.
func (o *outgoing) look() (open bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.grown && !o.closed {
		return false, o.seal()
	}
	o.grown = false
	return !o.closed && o.ring.Open() > 0, nil
}

// close ends all writing.
func (o *outgoing) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
}
