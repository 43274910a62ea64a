package shuffle

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/shuffle/internal/flow"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// A peer is a process of the exchange, as this one sees it: the streams to it and from
// it. This process is one of its own peers, whose parts are handed over by reference.
type peer struct {
	x     *Exchange
	rank  int
	local bool

	ep       *verbena.Endpoint
	exposure *verbena.Exposure // of incoming
	incoming []byte            // the slab that the peer fills
	oneSided bool              // blocks are put, not sent
	direct   bool              // the thread that sends writes into the peer's memory: this process's processor copies
	sums     bool              // blocks have a checksum of all that they contain: nothing below compares any
	token    verbena.Token     // of the slab that this side fills
	mirror   []byte            // what blocks for it are put together in, each where it will lie, unless direct
	buffer   *verbena.Buffer   // the same, registered, where blocks are put
	board    board             // where the peer leaves entries, if direct

	out  []*outgoing // by thread of the peer
	slab *slab       // that they share

	// Of the goroutine that receives: which threads have got something by the message.
	gets []bool // by thread
	got  []*Receiver

	mu      sync.Mutex
	in      *flow.In
	posts   fifo.Queue[wire.Entry] // blocks that go out
	notes   []wire.Entry           // notifications that wait
	untold  int                    // bytes of blocks that they tell of
	bye     bool                   // the peer has to be told that all has arrived here
	windows []window               // of parts within this process: by lane, by receiving thread
	lanes   int                    // of the peer

	saidBye atomic.Bool // the peer has all
	hung    atomic.Bool // this side is done with the endpoint

	messages atomic.Uint64 // that have gone there

	reading sync.Mutex // held by who takes entries from the board
	reader  reader
	seen    atomic.Uint64 // entries of the board that were taken
	known   atomic.Uint64 // of those, the ones that the peer has been told of

	sending sync.Mutex    // held by who sends what waits
	writer  writer        // of the peer's board
	word    [8]byte       // for it
	control []byte        // entries that have been taken for a message, which was not sent
	work    chan struct{} // one token when there is something to do for poster
}

// start begins to serve the streams.
func (p *peer) start() {
	p.x.loops.Go(p.receive)
	p.x.loops.Go(p.poster)
}

// urge lets go out what waits. Where that takes no time the caller does it.
func (p *peer) urge() {
	if p.direct {
		p.leave()
		return
	}
	p.poke()
}

// waits tells whether there are notifications to send.
func (p *peer) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.notes) > 0
}

// takeNotes takes notifications, as many as most. mu and sending are held.
func (p *peer) takeNotes(most int) {
	n := min(len(p.notes), most)
	for _, e := range p.notes[:n] {
		p.control = e.Append(p.control)
	}
	p.notes = p.notes[:copy(p.notes, p.notes[n:])]
	p.untold = 0
}

// poke wakes the poster.
func (p *peer) poke() {
	select {
	case p.work <- struct{}{}:
	default:
	}
}

// lost ends the exchange because of an error of the endpoint, unless it was time for
// one, and returns what calls fail with.
func (p *peer) lost(err error) error {
	if p.hung.Load() || p.saidBye.Load() && errors.Is(err, verbena.ErrPeerClosed) {
		if failed := p.x.Err(); failed != nil {
			return failed
		}
		return &ProcessError{Rank: p.rank, Err: ErrClosed}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, verbena.ErrPeerClosed) {
		err = errors.New("it left before the end")
	}
	return p.x.fail(&ProcessError{Rank: p.rank, Err: fmt.Errorf("%w: %w", ErrPeerLost, err)})
}

// undone is lost for what was sent. If the endpoint has ended, receive tells why: the
// peer may have said it before.
func (p *peer) undone(err error) error {
	select {
	case <-p.ep.Done():
		if !p.saidBye.Load() {
			<-p.x.failed
			return p.x.err
		}
	default:
	}
	return p.lost(err)
}

// broke is the failure that a breach of the protocol means.
func (p *peer) broke(err error) {
	_ = p.x.fail(&ProcessError{Rank: p.rank, Err: fmt.Errorf("%w: %w", ErrCorrupt, err)})
}

// receive takes the peer's messages. It never waits for anything else, so that the peer's
// sends never wait for what this process's threads do.
func (p *peer) receive() {
	for {
		m, err := p.ep.Receive(p.x.ctx)
		if err != nil {
			if !(errors.Is(err, io.EOF) && p.saidBye.Load()) {
				_ = p.lost(err)
			}
			return
		}
		err = p.message(m)
		m.Release()
		if err != nil {
			p.broke(err)
			return
		}
	}
}

func (p *peer) message(m *verbena.Message) error {
	b := m.Bytes()
	switch m.Tag {
	case wire.TagControl:
		if p.direct {
			if len(b) > 0 {
				return fmt.Errorf("%w: entries in a message, beside the board", flow.ErrBreach)
			}
			p.x.idle.arm()
			select {
			case <-p.x.joined:
				p.x.turn()
			default: // others are being met; then it will look
			}
			return nil
		}
		return p.entries(b)
	case wire.TagBlock:
		h, _, _, err := wire.ParseHeader(b)
		if err != nil {
			return err
		}
		defer p.wakeReceivers()
		return p.filled(int(h.Receiver), int(h.Offset), len(b), b)
	case wire.TagAbort:
		a, err := wire.ParseAbort(b)
		if err != nil {
			return err
		}
		_ = p.x.fail(aborted(a))
		return nil
	case wire.TagGather:
		round, data, err := wire.ParseGather(b)
		if err != nil {
			return err
		}
		return p.x.gather.arrived(p.rank, round, data)
	case wire.TagBye:
		if len(b) != 0 || p.saidBye.Swap(true) {
			return fmt.Errorf("%w: a second goodbye", flow.ErrBreach)
		}
		p.x.processFinished()
		return nil
	}
	return fmt.Errorf("%w: a message with tag %d", flow.ErrBreach, m.Tag)
}

// entries carries out entries.
func (p *peer) entries(b []byte) error {
	defer p.wakeReceivers()
	for len(b) > 0 {
		e, rest, err := wire.ParseEntry(b)
		if err != nil {
			return err
		}
		b = rest
		receiver := int(e.Receiver)
		switch {
		case e.Kind == wire.Free && receiver < len(p.out):
			err = p.slab.free(receiver, int(e.Offset), int(e.Length))
		case e.Kind == wire.Filled && p.oneSided:
			err = p.filled(receiver, int(e.Offset), int(e.Length), nil)
		default:
			err = fmt.Errorf("%w: an entry of kind %d about thread %d", flow.ErrBreach, e.Kind, receiver)
		}
		if err != nil {
			return fmt.Errorf("thread %d: %w", receiver, err)
		}
	}
	return nil
}

// filled hands a block on to its receiver. data is copied into the slab, unless it lies
// there.
func (p *peer) filled(receiver, offset, length int, data []byte) error {
	p.mu.Lock()
	err := p.in.Filled(receiver, offset, length)
	pressing := err == nil && p.in.Pressing()
	p.mu.Unlock()
	if err != nil {
		return err
	}
	memory := p.incoming[offset : offset+length : offset+length]
	if data != nil {
		copy(memory, data)
	}
	r := p.x.receivers[receiver]
	r.push(item{data: memory, from: p, offset: offset}, pressing)
	if !p.gets[receiver] {
		p.gets[receiver] = true
		p.got = append(p.got, r)
	}
	return nil
}

// wakeReceivers wakes those that have got something by a message: when all of it has been
// handed on, so that they take it together.
func (p *peer) wakeReceivers() {
	for _, r := range p.got {
		p.gets[r.thread] = false
		r.sleeper.wake()
	}
	p.got = p.got[:0]
}

// freed gives back the room of an item that has been read.
func (p *peer) freed(receiver int, it *item) {
	if p.local {
		places := it.block.places
		p.x.blocks.put(it.block)
		w := &p.windows[it.sender*p.x.c.Threads+receiver]
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.used -= places; w.used > p.x.c.depth/2 {
			return
		}
		for i, s := range w.waiting {
			s.sleeper.wake()
			w.waiting[i] = nil
		}
		w.waiting = w.waiting[:0]
		return
	}
	p.mu.Lock()
	p.in.Freed(it.offset)
	p.mu.Unlock()
	p.note(wire.Entry{Kind: wire.Free, Receiver: uint16(receiver), Offset: uint32(it.offset), Length: uint32(len(it.data))})
}

// promptHere is how many bytes a peer on the same host is told of at once. That costs little, but with a slab for
// many threads a block is short, and to be told of each costs as much as to copy it.
const promptHere = 32 << 10

// prompt is how many bytes the peer is told of at once.
func (p *peer) prompt() int {
	if p.direct {
		return min(p.x.c.prompt, max(p.x.c.full, promptHere))
	}
	return p.x.c.prompt
}

// append lets a notification wait. mu is held.
func (p *peer) append(e wire.Entry) {
	p.notes = append(p.notes, e)
	p.untold += int(e.Length)
}

// pressing tells whether somebody may be waiting for the room that an item takes.
func (p *peer) pressing(receiver int, it *item) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.local {
		w := &p.windows[it.sender*p.x.c.Threads+receiver]
		return w.used == p.x.c.depth || len(w.waiting) > 0
	}
	return p.in.Pressing()
}

// A window bounds the parts from a lane to a thread of the same process.
type window struct {
	used    int // places
	waiting []*Sender
}

// take takes places in a window. If there are not as many, the sender is woken when half of
// them are free, which are enough for any block.
func (p *peer) take(s *Sender, receiver, places int) (ok, full bool) {
	w := &p.windows[int(s.lane.number)*p.x.c.Threads+receiver]
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.used+places > p.x.c.depth {
		if !slices.Contains(w.waiting, s) {
			w.waiting = append(w.waiting, s)
		}
		return false, true
	}
	w.used += places
	return true, w.used == p.x.c.depth
}

// post lets a block go out.
func (p *peer) post(e wire.Entry) {
	p.mu.Lock()
	p.posts.Push(e)
	p.mu.Unlock()
	p.poke()
}

// note tells the peer of a block that lies in its memory, or that has been read in this process's: at once if there are many.
func (p *peer) note(e wire.Entry) {
	p.mu.Lock()
	p.append(e)
	urgent := p.untold >= p.prompt()
	p.mu.Unlock()
	if urgent {
		p.urge()
	} else {
		p.x.idle.arm()
	}
}

const (
	// postsAtOnce is how many blocks go out together. One operation of a batch is kept back.
	postsAtOnce = verbena.MaxBatch - 1
	// notesAtOnce is how many entries a message has at most.
	notesAtOnce = 256
)

// poster sends what waits: blocks, notifications and what has been freed.
func (p *peer) poster() {
	batch, posts := p.ep.Batch(), make([]wire.Entry, 0, postsAtOnce)
	for {
		select {
		case <-p.work:
		case <-p.x.ctx.Done():
			return
		}
		for {
			p.sending.Lock()
			more, err := p.send(batch, posts)
			p.sending.Unlock()
			if err != nil {
				_ = p.undone(err)
				return
			}
			if !more && (p.direct || !p.waits()) {
				break
			}
		}
	}
}

// send sends a part of what waits, and reports false if nothing did. sending is held.
func (p *peer) send(batch *verbena.Batch, posts []wire.Entry) (more bool, err error) {
	p.mu.Lock()
	if len(p.control) == 0 && !p.direct {
		p.takeNotes(notesAtOnce - postsAtOnce)
	}
	for len(posts) < postsAtOnce && p.posts.Len() > 0 {
		posts = append(posts, p.posts.Pop())
	}
	bye := p.bye
	p.bye = false
	p.mu.Unlock()

	ctx := p.x.ctx
	for _, e := range posts {
		at, end := int(e.Offset), int(e.Offset+e.Length)
		if p.oneSided {
			batch.PutBuffer(p.token, at, p.buffer, at, end)
			p.control = e.Append(p.control)
			continue
		}
		if err := p.ep.Send(ctx, wire.TagBlock, p.mirror[at:end]); err != nil {
			return false, err
		}
		p.messages.Add(1)
	}
	notified := len(p.control) > 0
	switch {
	case batch.Len() > 0:
		batch.Notify(wire.TagControl, p.control)
		err = batch.Do(ctx)
	case notified:
		err = p.ep.Send(ctx, wire.TagControl, p.control)
	}
	if notified && err == nil {
		p.messages.Add(1)
		p.control = p.control[:0]
	}
	if err == nil && bye {
		p.writer.bye = true
		if err = p.ep.Send(ctx, wire.TagBye, nil); err == nil {
			p.x.told()
		}
	}
	return notified || len(posts) > 0 || bye, err
}

// hangUp closes the endpoint.
func (p *peer) hangUp() {
	if p.ep != nil {
		p.hung.Store(true)
		_ = p.ep.Close() // what must arrive has been confirmed
	}
}

// free gives the memory back. Nobody writes to the peer's any more.
func (p *peer) free() error {
	for _, o := range p.out {
		o.close()
	}
	p.closeBoards()
	if p.buffer != nil {
		p.buffer.Release()
	}
	if p.exposure != nil {
		return p.exposure.Close()
	}
	return nil
}
