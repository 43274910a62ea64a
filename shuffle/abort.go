package shuffle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

const (
	// patienceOfEnds bounds how long a peer is told of a failure.
	patienceOfEnds = 2 * time.Second
	// patienceOfJoins bounds it for peers that have not been met, and leastPatience for the one that has failed, which is
	// there at once if it can be, and when the context of Join has ended.
	patienceOfJoins = 5 * time.Second
	leastPatience   = time.Second
)

// kinds are what the kinds of aborts say.
var kinds = map[uint8]error{wire.AbortedByProgram: ErrAborted, wire.AbortedByLoss: ErrPeerLost, wire.AbortedByData: ErrCorrupt}

// abortOf is the message about a failure of the process that has this rank.
func abortOf(err error, rank int) wire.Abort {
	a := wire.Abort{Rank: rank, Reason: err.Error()}
	var process *ProcessError
	if errors.As(err, &process) {
		a.Rank, a.Reason = process.Rank, process.Err.Error()
	}
	for kind, means := range kinds {
		if errors.Is(err, means) {
			a.Kind = kind
		}
	}
	a.Reason = strings.TrimPrefix(a.Reason, kinds[a.Kind].Error()+": ") // who receives it says it again
	return a
}

// aborted is the failure that a message tells of.
func aborted(a wire.Abort) *ProcessError {
	return &ProcessError{Rank: a.Rank, Err: fmt.Errorf("%w: %s", kinds[a.Kind], a.Reason)}
}

// tell tells the peers why the exchange has failed.
func (x *Exchange) tell(err error) {
	var met []*peer
	x.meeting.Lock()
	x.telling = true
	for _, p := range x.peers {
		if p.ep != nil {
			met = append(met, p)
		}
	}
	x.meeting.Unlock()
	var all sync.WaitGroup
	for _, p := range met {
		all.Go(func() { p.tell(err) })
	}
	all.Wait()
}

// tell tells a peer that was met, unless the failure is that it was lost.
func (p *peer) tell(err error) {
	a := abortOf(err, p.x.c.Rank)
	if p.rank == a.Rank && a.Kind == wire.AbortedByLoss {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patienceOfEnds)
	defer cancel()
	_ = p.ep.Send(ctx, wire.TagAbort, a.Append(nil)) // it may have failed, too
}

// cannotJoin is the failure of a process that cannot join because of err, unless that is another one's.
func cannotJoin(rank int, err error) error {
	var process *ProcessError
	if errors.As(err, &process) {
		return process
	}
	return &ProcessError{Rank: rank, Err: fmt.Errorf("%w: it cannot join: %w", ErrAborted, err)}
}

// leave ends an exchange whose Join has failed, and returns what that fails with.
func (x *Exchange) leave(ctx context.Context, err error) error {
	failed := x.fail(cannotJoin(x.c.Rank, err)) // which tells the peers that were met
	x.refusal.met = func(rank int) bool { return x.endpoint(rank) != nil }
	x.refusal.send(ctx, &x.c, x.service, failed)
	return errors.Join(fmt.Errorf("shuffle: join as process %d of %d: %w", x.c.Rank, x.c.Size, err), x.free())
}

// A refusal tells the processes that were not met why the exchange has failed.
type refusal struct {
	met     func(rank int) bool
	unheard []*verbena.Endpoint // that were accepted, and have not said hello
	heard   int                 // processes of greater ranks that were not met and have told of the failure themselves
}

// send dials the processes of lesser ranks, and answers those of greater ranks, as Join would, and waits for them for
// a while. Of two that do so each hears of the other. service is the exchange's, or nil.
func (r *refusal) send(ctx context.Context, c *Config, service *verbena.Service, failed error) {
	if !c.knowsOthers() {
		return
	}
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), patienceOfJoins)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		pause(patient, leastPatience)
		cancel()
	})
	defer stop()
	ctx = patient
	soon, cancelSoon := context.WithTimeout(ctx, leastPatience)
	defer cancelSoon()
	a := abortOf(failed, c.Rank)
	message := a.Append(nil)
	missing, also := 0, 0 // of greater ranks; the one that has failed, if it may not know of it
	var all sync.WaitGroup
	for rank, address := range c.Addresses {
		switch {
		case rank == c.Rank || r.met(rank) || rank == a.Rank && a.Kind == wire.AbortedByLoss:
		case rank == a.Rank && rank < c.Rank:
			all.Go(func() { c.refuse(soon, address, message) })
		case rank == a.Rank:
			also = 1
		case rank < c.Rank:
			all.Go(func() { c.refuse(ctx, address, message) })
		default:
			missing++
		}
	}
	if r.heard > 0 && also > 0 {
		also = 0
		r.heard--
	}
	missing -= r.heard
	switch {
	case missing > 0:
		all.Go(func() { r.answer(ctx, c, service, missing, message) })
	case also > 0:
		all.Go(func() { r.answer(soon, c, service, also, message) })
	default:
		for _, e := range r.unheard {
			_ = e.Close()
		}
	}
	all.Wait()
}

// knowsOthers tells whether the configuration says enough of how to reach the other processes.
func (c *Config) knowsOthers() bool {
	return c.Size > 1 && c.Size <= wire.MaxSize && c.Rank >= 0 && c.Rank < c.Size && len(c.Addresses) == c.Size && c.Runtime != nil && c.Listener != nil
}

// refuse dials a process until it answers, over any transport, and tells it.
func (c *Config) refuse(ctx context.Context, address string, message []byte) {
	for {
		e, err := c.Runtime.Dial(ctx, address, c.service(), verbena.DialConfig{})
		if err == nil {
			_ = e.Send(ctx, wire.TagAbort, message) // it may have ended itself
			_ = e.Close()
			return
		}
		var legacy *verbena.LegacyPeerError
		if errors.As(err, &legacy) {
			return
		}
		c.Runtime.Forget(address)
		if !pause(ctx, retry) {
			return
		}
	}
}

// answer answers so many processes that dial this one.
func (r *refusal) answer(ctx context.Context, c *Config, service *verbena.Service, missing int, message []byte) {
	if service == nil {
		var err error
		if service, err = c.Listener.Service(c.service(), verbena.ServiceConfig{Backlog: c.Size}); err != nil {
			return
		}
		defer service.Close()
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	heard := make(chan struct{})
	answer := func(e *verbena.Endpoint) {
		defer e.Close()
		if !c.answers(ctx, e, message) {
			return
		}
		select {
		case heard <- struct{}{}:
		case <-ctx.Done():
		}
	}
	for _, e := range r.unheard {
		all.Go(func() { answer(e) })
	}
	all.Go(func() {
		for {
			e, err := service.Accept(ctx)
			if err != nil {
				return
			}
			all.Go(func() { answer(e) })
		}
	})
	for range missing {
		select {
		case <-heard:
		case <-ctx.Done():
			return
		}
	}
}

// answers tells a process, and reports false if it is none of the exchange.
func (c *Config) answers(ctx context.Context, e *verbena.Endpoint, message []byte) bool {
	_, err := receiveHello(ctx, e, c.Size)
	if saidSo(err) {
		return true // it tells the same
	}
	if err == nil {
		_ = e.Send(ctx, wire.TagAbort, message) // it may have ended
	}
	return err == nil
}

// pause waits, and reports false if ctx ends that.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
