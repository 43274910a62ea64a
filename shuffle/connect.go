package shuffle

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// groups numbers the groups of the exchanges of all runtimes in the process.
var groups atomic.Uint64

// retry is how long a dial waits before it tries again: the peer has not joined yet.
const retry = 20 * time.Millisecond

// connect sets up an endpoint with each peer. Of two processes the one with the greater
// rank dials.
func (x *Exchange) connect(ctx context.Context) (err error) {
	c := &x.c
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	size := c.slab().Size()
	// An exposure, and a buffer, count as memory for sending.
	x.group, err = c.Runtime.NewGroup(verbena.GroupConfig{
		Name: fmt.Sprintf("shuffle-%d", groups.Add(1)), SendMemory: 4*int64(c.Size*(size+wire.BoardSize)) + 64<<20, Tuning: x.tuning(),
	})
	if err != nil {
		return err
	}
	each := size + wire.BoardSize
	free, err := x.mapped.add((c.Size - 1) * each)
	if err != nil {
		return fmt.Errorf("memory for %d bytes of slabs: %w", (c.Size-1)*each, err)
	}
	for _, p := range x.peers {
		if !p.local {
			p.incoming, p.board, free = free[:size:each], board(free[size:each:each]), free[each:]
		}
	}

	if x.service, err = c.Listener.Service(c.service(), verbena.ServiceConfig{Group: x.group, Backlog: c.Size}); err != nil {
		return err
	}
	x.loops.Go(func() {
		select {
		case <-x.failed: // a peer that was met has told of it
			cancel(x.err)
		case <-ctx.Done():
		}
	})
	results := make(chan error, c.Size)
	waits := 0
	for rank := range c.Rank {
		waits++
		go func() { results <- x.dial(ctx, x.peers[rank]) }()
	}
	if missing := c.Size - 1 - c.Rank; missing > 0 {
		waits++
		go func() { results <- x.accept(ctx, missing) }()
	}
	for range waits {
		if e := <-results; e != nil && err == nil {
			err = e
			cancel(e)
		}
	}
	if failed := x.Err(); failed != nil {
		return failed
	}
	return err
}

// tuning keeps the runtime's memory small: messages are short, unless they carry blocks.
func (x *Exchange) tuning() verbena.TuningTable {
	table := verbena.TuningTable{}
	for _, d := range x.c.Runtime.Stats().Devices {
		t := verbena.Tuning{Eager: notesAtOnce*wire.EntrySize + 64, Window: 4, MaxWindow: 16}
		if x.c.choose(d.Transport).Mode == TwoSided {
			t.Eager = max(t.Eager, x.c.full+x.c.page)
			t.MaxWindow = 0
		}
		if d.Transport != verbena.TransportTCP {
			table[d.Transport] = t
		}
	}
	return table
}

func (x *Exchange) dial(ctx context.Context, p *peer) error {
	for {
		e, err := x.c.Runtime.Dial(ctx, x.c.Addresses[p.rank], x.c.service(), verbena.DialConfig{Transport: x.c.Transport, Group: x.group})
		if err == nil {
			_ = x.met(p, e) // nobody else dials it
			if err = x.greet(ctx, p); err == nil {
				p.start()
				return nil
			}
			return p.unmet(err)
		}
		var legacy *verbena.LegacyPeerError
		var selection *verbena.SelectionError
		if errors.As(err, &legacy) || errors.As(err, &selection) && ctx.Err() == nil {
			return fmt.Errorf("process %d: %w", p.rank, err)
		}
		// It may not have begun to listen, or not joined yet.
		x.c.Runtime.Forget(x.c.Addresses[p.rank])
		if !pause(ctx, retry) {
			return fmt.Errorf("process %d: %w, last: %w", p.rank, context.Cause(ctx), err)
		}
	}
}

// greet exchanges hellos on an endpoint that this side has dialled.
func (x *Exchange) greet(ctx context.Context, p *peer) error {
	h, err := x.hello(ctx, p)
	if err != nil {
		return err
	}
	if err := p.ep.Send(ctx, wire.TagHello, h.Append(nil)); err != nil {
		return err
	}
	theirs, err := receiveHello(ctx, p.ep, x.c.Size)
	if err != nil {
		return err
	}
	if theirs.Rank != p.rank {
		return fmt.Errorf("process %d answers at its address", theirs.Rank)
	}
	return x.agree(p, h, theirs)
}

// met says that a peer is at the other end of an endpoint, and reports false if it is at that of another one already. It is told of a
// failure if the others have been.
func (x *Exchange) met(p *peer, e *verbena.Endpoint) bool {
	x.meeting.Lock()
	first := p.ep == nil
	if first {
		p.ep = e
	}
	late := first && x.telling
	x.meeting.Unlock()
	if late {
		p.tell(x.err)
	}
	return first
}

// endpoint is what tells whether a peer has been met.
func (x *Exchange) endpoint(rank int) *verbena.Endpoint {
	x.meeting.Lock()
	defer x.meeting.Unlock()
	return x.peers[rank].ep
}

// unmet is why a peer at the other end of an endpoint cannot be worked with.
func (p *peer) unmet(err error) error {
	var process *ProcessError
	if errors.As(err, &process) {
		return err
	}
	select {
	case <-p.ep.Done():
	default:
		return fmt.Errorf("process %d at %s: %w", p.rank, p.x.c.Addresses[p.rank], err)
	}
	for { // it may have said why it has gone
		m, gone := p.ep.Receive(p.x.ctx)
		if gone != nil {
			return &ProcessError{Rank: p.rank, Err: fmt.Errorf("%w: %w", ErrPeerLost, err)}
		}
		a, other := wire.ParseAbort(m.Bytes())
		tag := m.Tag
		m.Release()
		if tag == wire.TagAbort && other == nil {
			return aborted(a)
		}
	}
}

// errNoHello is why there is no first message. Beside it may be a *ProcessError that this process has heard of elsewhere: what
// ended the wait.
var errNoHello = errors.New("no hello")

// saidSo tells whether the error of receiveHello is what the peer has said in place of a hello.
func saidSo(err error) bool {
	var process *ProcessError
	return errors.As(err, &process) && !errors.Is(err, errNoHello)
}

// receiveHello receives the first message. It is a *ProcessError of one of size processes, and not errNoHello, if that
// says that they cannot all join.
func receiveHello(ctx context.Context, e *verbena.Endpoint, size int) (h wire.Hello, err error) {
	m, err := e.Receive(ctx)
	if err != nil {
		return h, fmt.Errorf("%w: %w", errNoHello, err)
	}
	defer m.Release()
	if m.Tag == wire.TagAbort {
		a, err := wire.ParseAbort(m.Bytes())
		switch {
		case err != nil:
			return h, err
		case a.Rank >= size:
			return h, fmt.Errorf("%w: an abort because of process %d of %d", wire.ErrFormat, a.Rank, size)
		}
		return h, aborted(a)
	}
	if m.Tag != wire.TagHello {
		return h, fmt.Errorf("%w: a message with tag %d in place of a hello", wire.ErrFormat, m.Tag)
	}
	return wire.ParseHello(m.Bytes())
}

// hello is this side's, with the token of the slab that the peer fills.
func (x *Exchange) hello(ctx context.Context, p *peer) (*wire.Hello, error) {
	h := &wire.Hello{
		Rank: x.c.Rank, Size: x.c.Size, Threads: x.c.Threads, Lanes: x.c.lanes, Page: x.c.page, Pages: x.c.pages, MaxRecord: int64(x.c.MaxRecord),
		OneSided: x.c.choose(p.ep.Selection().Transport).Mode == OneSided,
	}
	if !h.OneSided {
		return h, nil
	}
	memory := p.incoming
	if p.sameHost() {
		memory = memory[:len(memory)+len(p.board)]
	}
	var err error
	p.exposure, err = p.ep.Expose(ctx, verbena.ExposeConfig{Memory: memory, Rights: verbena.MayWrite})
	if err != nil {
		return nil, err
	}
	h.Token = p.exposure.Token().Append(nil)
	return h, nil
}

// sameHost tells whether this process's processor writes to the peer's memory.
func (p *peer) sameHost() bool { return p.ep.Selection().Transport == "shm" }

// chosen notes for [Stats] how blocks go to a peer.
func (x *Exchange) chosen(p *peer, ours, theirs bool) {
	transport := p.ep.Selection().Transport
	c := x.c.choose(transport)
	if ours && !theirs {
		c = choice{TwoSided, "the peer sends"}
	}
	x.modes.Lock()
	defer x.modes.Unlock()
	for i := range x.ways {
		if w := &x.ways[i]; w.Transport == transport && w.Mode == c.Mode && w.Why == c.Why {
			w.Peers++
			return
		}
	}
	x.ways = append(x.ways, Way{Transport: transport, Mode: c.Mode, Why: c.Why, Peers: 1})
}

// agree compares the hellos, and chooses how blocks go to the peer.
func (x *Exchange) agree(p *peer, ours *wire.Hello, theirs wire.Hello) error {
	for _, v := range []struct {
		what         string
		ours, theirs int64
	}{
		{"Size", int64(ours.Size), int64(theirs.Size)}, {"Threads", int64(ours.Threads), int64(theirs.Threads)},
		{"MaxRecord", ours.MaxRecord, theirs.MaxRecord},
		{"Memory (it makes the length of pages)", int64(ours.Page), int64(theirs.Page)},
		{"Memory (it makes the number of pages)", int64(ours.Pages), int64(theirs.Pages)},
	} {
		if v.ours != v.theirs {
			return fmt.Errorf("the processes have different configurations: %s is %d in process %d, %d in process %d", v.what, v.ours, ours.Rank, v.theirs, theirs.Rank)
		}
	}
	p.lanes = theirs.Lanes
	p.oneSided = ours.OneSided && theirs.OneSided
	x.chosen(p, ours.OneSided, theirs.OneSided)
	p.direct = p.oneSided && p.sameHost()
	p.sums = !p.direct && !p.ep.Selection().Checksums
	size := x.c.slab().Size()
	if p.oneSided {
		exposed := size
		if p.direct {
			exposed += wire.BoardSize
		}
		x.registered.Add(int64(exposed))
		var err error
		if p.token, err = verbena.ParseToken(theirs.Token); err != nil {
			return err
		}
		if p.token.Len() != exposed || p.token.Rights() != verbena.MayWrite {
			return fmt.Errorf("%w: a token for %d bytes with rights %v", wire.ErrFormat, p.token.Len(), p.token.Rights())
		}
	}
	if p.direct {
		return nil
	}
	var err error
	if p.mirror, err = x.mapped.add(size); err != nil || !p.oneSided {
		return err
	}
	x.registered.Add(int64(size))
	p.buffer, err = p.ep.Wrap(x.ctx, p.mirror)
	return err
}
