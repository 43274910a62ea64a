package shuffle

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/verbena-data/verbena/shuffle/internal/flow"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// A gatherer collects what the processes contribute to collectives. It has a goroutine while there are calls.
type gatherer struct {
	mu      sync.Mutex
	size    int
	round   uint32 // of the collective that is next, or under way
	rounds  map[uint32]*gathering
	calls   []*gatherCall // that wait for their turn
	running bool
	closed  bool
	err     error // of a collective, after which there is no other; the goroutine's
}

// A gatherCall is a call of AllGather. It takes part in its collective also when nobody waits for it any more.
type gatherCall struct {
	data []byte
	all  [][]byte // and err, set before done is closed
	err  error
	done chan struct{}
}

type gathering struct {
	data [][]byte // by rank
	left int
	done chan struct{}
}

func (g *gatherer) init(size int) { g.size, g.rounds = size, map[uint32]*gathering{} }

// of returns the collective of a number. mu is held.
func (g *gatherer) of(round uint32) *gathering {
	c := g.rounds[round]
	if c == nil {
		c = &gathering{data: make([][]byte, g.size), left: g.size, done: make(chan struct{})}
		g.rounds[round] = c
	}
	return c
}

// arrived adds a process's contribution. A process can be one collective ahead of this
// one, since its next begins when it has this one's contribution.
func (g *gatherer) arrived(rank int, round uint32, data []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ahead := round - g.round; ahead > 1 {
		return fmt.Errorf("%w: a contribution to collective %d, at %d", flow.ErrBreach, round, g.round)
	}
	c := g.of(round)
	if c.data[rank] != nil {
		return fmt.Errorf("%w: a second contribution to collective %d", flow.ErrBreach, round)
	}
	c.data[rank] = append(make([]byte, 0, len(data)), data...)
	if c.left--; c.left == 0 {
		close(c.done)
	}
	return nil
}

// AllGather is a collective of the processes, for samples, counts and barriers: it gives
// data, at most 1 MiB, to all processes, and returns what they have given, by rank, when
// all have. Each process calls it as often as the others; the calls of a process take
// turns. What it returns is the caller's.
//
// ctx ends the wait of this call, and nothing else: the call counts, also if ctx had ended before. What it gives reaches the others, in
// its turn, and the next call of this process belongs to their next ones.
func (x *Exchange) AllGather(ctx context.Context, data []byte) ([][]byte, error) {
	if len(data) > wire.MaxGather {
		return nil, fmt.Errorf("shuffle: gather: %d bytes, at most %d are possible", len(data), wire.MaxGather)
	}
	call := &gatherCall{data: bytes.Clone(data), done: make(chan struct{})}
	if !x.enqueue(call) {
		return nil, fmt.Errorf("shuffle: gather: %w", ErrClosed)
	}
	select {
	case <-call.done:
		return call.all, call.err
	case <-x.failed:
		return nil, x.err
	case <-ctx.Done():
		return nil, fmt.Errorf("shuffle: gather: %w", context.Cause(ctx))
	}
}

// enqueue lets a call have its turn, and reports false if nothing runs any more.
func (x *Exchange) enqueue(call *gatherCall) bool {
	g := &x.gather
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.calls = append(g.calls, call)
	if !g.running {
		g.running = true
		x.loops.Go(x.gatherCalls)
	}
	return true
}

// close refuses calls from now on.
func (g *gatherer) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

// gatherCalls gives the calls their turns.
func (x *Exchange) gatherCalls() {
	g := &x.gather
	for {
		g.mu.Lock()
		if len(g.calls) == 0 {
			g.running = false
			g.mu.Unlock()
			return
		}
		call := g.calls[0]
		g.calls = g.calls[1:]
		g.mu.Unlock()
		if g.err == nil {
			call.all, g.err = x.collect(call.data)
		}
		call.err = g.err
		close(call.done)
	}
}

// collect is one collective.
func (x *Exchange) collect(data []byte) ([][]byte, error) {
	g := &x.gather
	g.mu.Lock()
	round := g.round
	c := g.of(round)
	g.mu.Unlock()
	message := wire.AppendGather(nil, round, data)
	for _, p := range x.peers {
		if p.local {
			if err := g.arrived(p.rank, round, data); err != nil {
				return nil, err // a defect
			}
			continue
		}
		if err := p.ep.Send(x.ctx, wire.TagGather, message); err != nil {
			return nil, p.undone(err)
		}
	}
	select {
	case <-c.done:
	case <-x.failed:
		return nil, x.err
	case <-x.ctx.Done():
		return nil, fmt.Errorf("shuffle: gather: %w", context.Cause(x.ctx))
	}
	g.mu.Lock()
	delete(g.rounds, round)
	g.round++
	g.mu.Unlock()
	return c.data, nil
}
