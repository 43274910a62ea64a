package shuffle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle/internal/flow"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// A peer is a process of the exchange, as this one sees it: the streams to it and from
// it. This process is one of its own peers, whose blocks are handed over by reference.
type peer struct {
	x     *Exchange
	rank  int
	local bool

	ep       *verbena.Endpoint
	exposure *verbena.Exposure // of places
	places   []byte            // that the peer fills
	oneSided bool              // blocks are put, not sent
	direct   bool              // the thread that sends puts them by itself: this process's processor copies
	token    verbena.Token     // of the places that this side fills
	buffer   *verbena.Buffer   // the memory of all blocks, registered, unless direct

	mu    sync.Mutex
	out   *flow.Out[*block]
	in    *flow.In
	notes []wire.Entry // that wait to be sent
	bye   bool         // the peer has to be told that all has arrived here

	saidBye atomic.Bool // the peer has all
	hung    atomic.Bool // this side is done with the endpoint

	messages atomic.Uint64 // that have gone there

	work chan struct{} // one token when there is something to do for poster
}

// start begins to serve the streams.
func (p *peer) start() {
	p.x.loops.Go(p.receive)
	p.x.loops.Go(p.poster)
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
		return p.control(b)
	case wire.TagBlock:
		sender, receiver, data, err := wire.ParseBlock(b)
		if err != nil {
			return err
		}
		return p.filled(int(sender), int(receiver), len(data), data)
	case wire.TagAbort:
		a, err := wire.ParseAbort(b)
		if err != nil {
			return err
		}
		kind := ErrAborted
		switch a.Kind {
		case wire.AbortedByLoss:
			kind = ErrPeerLost
		case wire.AbortedByData:
			kind = ErrCorrupt
		}
		_ = p.x.fail(&ProcessError{Rank: a.Rank, Err: fmt.Errorf("%w: %s", kind, a.Reason)})
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

// control carries out entries.
func (p *peer) control(b []byte) error {
	freed := false
	for len(b) > 0 {
		e, rest, err := wire.ParseEntry(b)
		if err != nil {
			return err
		}
		b = rest
		if e.Kind == wire.Filled {
			if !p.oneSided {
				return fmt.Errorf("%w: a block was put", flow.ErrBreach)
			}
			if err := p.filled(int(e.Sender), int(e.Receiver), int(e.Length), nil); err != nil {
				return err
			}
			continue
		}
		p.mu.Lock()
		err = p.out.Free(int(e.Sender), int(e.Receiver))
		p.mu.Unlock()
		if err != nil {
			return err
		}
		freed = true
		p.x.senders[e.Sender].sleeper.wake()
	}
	if freed {
		p.mu.Lock()
		ready := p.out.Ready()
		p.mu.Unlock()
		if ready {
			p.poke()
		}
	}
	return nil
}

// filled hands a block to its receiver. data is that of a message, and nil if the block
// has been put.
func (p *peer) filled(sender, receiver, length int, data []byte) error {
	p.mu.Lock()
	place, err := p.in.Filled(sender, receiver, length)
	full := err == nil && p.in.Full(sender, receiver)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	at := p.x.c.shape().Offset(sender, receiver, place)
	memory := p.places[at : at+length : at+length]
	if data != nil {
		copy(memory, data)
	}
	p.x.receivers[receiver].push(item{data: memory, from: p, sender: sender, place: place}, full)
	return nil
}

// freed gives back the place, or the block, of an item that has been read.
func (p *peer) freed(receiver int, it *item) {
	if it.block != nil {
		p.x.blocks.put(it.block) // before its place, which lets the sender have another block
	}
	p.mu.Lock()
	n := p.in.Freed(it.sender, receiver, it.place)
	if p.local {
		for range n {
			_ = p.out.Free(it.sender, receiver) // it was in use
		}
		p.mu.Unlock()
		p.x.senders[it.sender].sleeper.wake()
		return
	}
	for range n {
		p.notes = append(p.notes, wire.Entry{Kind: wire.Free, Sender: uint16(it.sender), Receiver: uint16(receiver)})
	}
	p.mu.Unlock()
	if n > 0 {
		p.poke()
	}
}

const (
	// postsAtOnce is how many blocks go out together. One operation of a batch is kept back.
	postsAtOnce = verbena.MaxBatch - 1
	// notesAtOnce is how many entries a message has at most.
	notesAtOnce = 256
)

// A poster is what a peer's goroutine that sends needs.
type poster struct {
	batch   *verbena.Batch
	posts   []flow.Post[*block]
	control []byte
}

// poster sends what waits: blocks that have got a place, notifications and freed places.
func (p *peer) poster() {
	q := poster{batch: p.ep.Batch(), posts: make([]flow.Post[*block], 0, postsAtOnce)}
	for {
		select {
		case <-p.work:
		case <-p.x.ctx.Done():
			return
		}
		for {
			more, err := p.post(&q)
			if err != nil {
				_ = p.undone(err)
				return
			}
			if !more {
				break
			}
		}
	}
}

// post sends a part of what waits, and reports false if nothing did.
func (p *peer) post(q *poster) (more bool, err error) {
	q.posts, q.control = q.posts[:0], q.control[:0]
	p.mu.Lock()
	n := min(len(p.notes), notesAtOnce)
	for _, e := range p.notes[:n] {
		q.control = e.Append(q.control)
	}
	p.notes = p.notes[:copy(p.notes, p.notes[n:])]
	for len(q.posts) < postsAtOnce {
		post, ok := p.out.Next()
		if !ok {
			break
		}
		q.posts = append(q.posts, post)
	}
	bye := p.bye
	p.bye = false
	p.mu.Unlock()

	ctx := p.x.ctx
	for i := range q.posts {
		post := &q.posts[i]
		b := post.Block
		if p.oneSided {
			from := b.at + wire.BlockPrefix
			if p.buffer != nil {
				q.batch.PutBuffer(p.token, post.Offset, p.buffer, from, from+b.length)
			} else {
				q.batch.Put(p.token, post.Offset, b.memory[wire.BlockPrefix:wire.BlockPrefix+b.length])
			}
			q.control = wire.Entry{Kind: wire.Filled, Sender: uint16(post.Sender), Receiver: uint16(post.Receiver), Length: uint32(b.length)}.Append(q.control)
			continue
		}
		wire.AppendBlockPrefix(b.memory[:0], uint16(post.Sender), uint16(post.Receiver))
		if err := p.ep.Send(ctx, wire.TagBlock, b.memory[:wire.BlockPrefix+b.length]); err != nil {
			return false, err
		}
		p.messages.Add(1)
	}
	switch {
	case q.batch.Len() > 0:
		p.messages.Add(1)
		q.batch.Notify(wire.TagControl, q.control)
		err = q.batch.Do(ctx)
	case len(q.control) > 0:
		p.messages.Add(1)
		err = p.ep.Send(ctx, wire.TagControl, q.control)
	}
	if err == nil && bye {
		if err = p.ep.Send(ctx, wire.TagBye, nil); err == nil {
			p.x.told()
		}
	}
	if err != nil {
		return false, err
	}
	if len(q.posts) > 0 {
		p.mu.Lock()
		for i := range q.posts {
			p.out.Done(q.posts[i].Sender, q.posts[i].Receiver)
		}
		p.mu.Unlock()
		for i := range q.posts {
			p.x.blocks.gone(q.posts[i].Block)
			q.posts[i].Block = nil
		}
		for _, s := range p.x.senders { // they may have waited for a block
			s.sleeper.wake()
		}
	}
	return n > 0 || len(q.posts) > 0 || bye, nil
}

// patienceOfEnds bounds how long a peer is told of a failure.
const patienceOfEnds = 2 * time.Second

// tell tells the peers why the exchange has failed.
func (x *Exchange) tell(err error) {
	a := wire.Abort{Rank: x.c.Rank, Reason: err.Error()}
	var process *ProcessError
	if errors.As(err, &process) {
		a.Rank, a.Reason = process.Rank, process.Err.Error()
	}
	switch {
	case errors.Is(err, ErrPeerLost):
		a.Kind = wire.AbortedByLoss
	case errors.Is(err, ErrCorrupt):
		a.Kind = wire.AbortedByData
	}
	message := a.Append(nil)
	ctx, cancel := context.WithTimeout(context.Background(), patienceOfEnds)
	defer cancel()
	var all sync.WaitGroup
	for _, p := range x.peers {
		if p.ep != nil && !(p.rank == a.Rank && a.Kind == wire.AbortedByLoss) {
			all.Go(func() { _ = p.ep.Send(ctx, wire.TagAbort, message) }) // it may have failed, too
		}
	}
	all.Wait()
}

// hangUp closes the endpoint.
func (p *peer) hangUp() {
	if p.ep != nil {
		p.hung.Store(true)
		_ = p.ep.Close() // what must arrive has been confirmed
	}
}

// free gives the memory back.
func (p *peer) free() error {
	if p.buffer != nil {
		p.buffer.Release()
	}
	if p.exposure != nil {
		return p.exposure.Close()
	}
	return nil
}
