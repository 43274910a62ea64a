package shuffle

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// strangers is how many endpoints more than there are processes missing may have said nothing yet. Those that come then wait in the
// backlog of the service.
const strangers = 32

// helloLimit is how long an endpoint may say nothing. A process registers its memory before it does.
var helloLimit = 30 * time.Second

// guests are the endpoints that were accepted, until it is known whose they are.
type guests struct {
	x        *Exchange
	places   chan struct{} // one taken for each, and for the one that is accepted next
	welcomed chan error    // of each that belongs to the exchange: nil if it has joined
	all      sync.WaitGroup

	mu     sync.Mutex
	silent []*verbena.Endpoint // that said nothing until the end
	heard  int                 // processes that were not met and have told of a failure
}

// accept takes the endpoints of peers of greater ranks. One that does not belong to the
// exchange is closed: what it has said is logged. One that says nothing holds up nobody.
func (x *Exchange) accept(ctx context.Context, missing int) (err error) {
	g := &guests{x: x, places: make(chan struct{}, missing+strangers), welcomed: make(chan error)}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		g.all.Wait()
		if err != nil { // these and those that come yet are told of it
			x.refusal.unheard, x.refusal.heard = g.silent, g.heard
			return
		}
		for _, e := range g.silent {
			_ = e.Close()
		}
	}()
	ended := make(chan error, 1)
	g.all.Go(func() { ended <- g.receive(ctx) })
	for missing > 0 {
		select {
		case err := <-g.welcomed:
			if err != nil {
				return err
			}
			missing--
		case err := <-ended:
			return fmt.Errorf("%d processes have not joined: %w", missing, err)
		}
	}
	return nil
}

// receive accepts endpoints until ctx ends.
func (g *guests) receive(ctx context.Context) error {
	for {
		select {
		case g.places <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		e, err := g.x.service.Accept(ctx)
		if err != nil {
			return err
		}
		g.all.Go(func() {
			g.welcome(ctx, e)
			<-g.places
		})
	}
}

// welcome finds out whose an endpoint is.
func (g *guests) welcome(ctx context.Context, e *verbena.Endpoint) {
	p, err := g.x.welcome(ctx, e)
	switch {
	case err == nil:
		p.start()
		g.tell(ctx, nil)
		return
	case p != nil: // it is told before its endpoint is closed
		g.tell(ctx, err)
		return
	case saidSo(err):
		g.mu.Lock()
		g.heard++
		g.mu.Unlock()
		g.tell(ctx, err)
	case ctx.Err() != nil:
		g.mu.Lock()
		g.silent = append(g.silent, e)
		g.mu.Unlock()
		return
	default:
		g.x.c.Logger.Warn("shuffle: a process was turned away", "address", e.RemoteAddr(), "err", err)
	}
	_ = e.Close()
}

// tell tells accept of one that belongs to the exchange, unless that has ended.
func (g *guests) tell(ctx context.Context, err error) {
	select {
	case g.welcomed <- err:
	case <-ctx.Done():
	}
}

// welcome exchanges hellos on an endpoint that was accepted. With a peer beside it an
// error is fatal.
func (x *Exchange) welcome(ctx context.Context, e *verbena.Endpoint) (*peer, error) {
	soon, cancel := context.WithTimeoutCause(ctx, helloLimit, fmt.Errorf("it has said nothing for %v", helloLimit))
	theirs, err := receiveHello(soon, e, x.c.Size)
	cancel()
	if err != nil {
		return nil, err
	}
	if theirs.Rank <= x.c.Rank || theirs.Rank >= x.c.Size {
		return nil, fmt.Errorf("it says that it is process %d", theirs.Rank)
	}
	p := x.peers[theirs.Rank]
	if !x.met(p, e) {
		return nil, fmt.Errorf("process %d has joined already", theirs.Rank)
	}
	h, err := x.hello(ctx, p)
	if err == nil {
		if err = e.Send(ctx, wire.TagHello, h.Append(nil)); err == nil {
			err = x.agree(p, h, theirs)
		}
	}
	if err != nil {
		return p, p.unmet(err)
	}
	return p, nil
}
