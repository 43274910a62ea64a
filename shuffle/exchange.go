package shuffle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle/internal/flow"
)

// An Exchange is one process's part in a shuffle. All its methods may be called
// concurrently. It must be closed.
type Exchange struct {
	c     Config
	peers []*peer // by rank, this process among them

	senders   []*Sender
	receivers []*Receiver
	blocks    blocks
	mapped    mapped
	long      atomic.Bool // a long record was sent lately
	idle      idle
	spill     *spiller

	ctx    context.Context // of all calls of the runtime; ends with the failure, or Close
	cancel context.CancelCauseFunc
	joined chan struct{} // closed when all peers have been met
	failed chan struct{} // closed with the failure
	fail1  sync.Once
	err    error // of the failure; set before failed is closed

	unfinished atomic.Int32  // senders that have not closed, and receivers that have not come to the end
	finished   chan struct{} // closed when there are none
	over       chan struct{} // closed when the peers have finished, too
	left       atomic.Int32  // processes that have not finished
	lanes      int           // of all processes
	unended    atomic.Int32  // lanes whose senders have not all closed
	untold     atomic.Int32  // peers that do not know yet that this one has finished
	close1     sync.Once
	closeErr   error

	modes sync.Mutex
	ways  []Way

	gather gatherer

	meeting    sync.Mutex // held to set a peer's endpoint, and to read it before all are there
	telling    bool       // those that were met are told of the failure; who is met now is not among them
	refusal    refusal    // of a Join that fails
	group      *verbena.Group
	service    *verbena.Service
	registered atomic.Int64 // bytes
	loops      sync.WaitGroup
}

// Join connects this process with all others, and returns when that is done. ctx bounds
// the joining alone.
//
// When it fails in one process it fails in all: those that have come are told why, and those that come within 5 s,
// or 1 s from the end of ctx. As long as somebody has not come the error is kept back. Of a process that dies before it has met
// any other one nobody knows: ctx ends the wait for it, or package launch does.
//
// Who dials the service and is no process of the exchange is turned away, after 30 s if it says nothing; the others need not wait
// for that.
func Join(ctx context.Context, c Config) (*Exchange, error) {
	if err := c.complete(); err != nil {
		nobody := refusal{met: func(int) bool { return false }}
		nobody.send(ctx, &c, nil, cannotJoin(c.Rank, err))
		return nil, fmt.Errorf("shuffle: join: %w", err)
	}
	x := newExchange(c)
	if c.Spill != "" {
		var err error
		if x.spill, err = newSpiller(x, c.Spill); err != nil {
			return nil, x.leave(ctx, err)
		}
	}
	if c.Size > 1 {
		if err := x.connect(ctx); err != nil {
			return nil, x.leave(ctx, err)
		}
	}
	for _, p := range x.peers {
		x.lanes += p.lanes
	}
	close(x.joined)
	x.loops.Go(x.finish)
	x.loops.Go(x.lookAfter)
	x.idle.arm() // peers do not ring before they have been told that it rests
	return x, nil
}

// newExchange makes an exchange that knows nobody yet.
func newExchange(c Config) *Exchange {
	x := &Exchange{c: c, joined: make(chan struct{}), failed: make(chan struct{}), finished: make(chan struct{}), over: make(chan struct{})}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	x.unfinished.Store(int32(2 * c.Threads))
	x.left.Store(int32(c.Size))
	x.untold.Store(int32(c.Size - 1))
	x.gather.init(c.Size)
	x.unended.Store(int32(c.lanes))
	x.blocks = blocks{size: c.part, limit: c.parts(), free: make([][]*block, c.longPlaces()+1)}
	x.idle = newIdle()
	for rank := range c.Size {
		p := &peer{x: x, rank: rank, local: rank == c.Rank, work: make(chan struct{}, 1)}
		if p.local {
			p.windows, p.lanes = make([]window, c.lanes*c.Threads), c.lanes
		} else {
			p.gets, p.in = make([]bool, c.Threads), flow.NewIn(c.slab())
			p.slab = &slab{out: flow.NewOut(c.slab()), waiting: make([][]*Sender, c.Threads)}
			for receiver := range c.Threads {
				p.out = append(p.out, &outgoing{p: p, receiver: receiver})
			}
		}
		x.peers = append(x.peers, p)
	}
	lanes := make([]lane, c.lanes)
	for i := range lanes {
		lanes[i] = lane{number: uint16(i), shared: c.lanes < c.Threads, streams: make([]sending, x.Partitions()), short: min(mostShort, c.MaxRecord) + 1}
	}
	for i := range c.Threads {
		l := &lanes[i%c.lanes]
		l.unclosed++
		x.senders = append(x.senders, newSender(x, l))
		x.receivers = append(x.receivers, newReceiver(x, i))
	}
	return x
}

// Rank is this process's number.
func (x *Exchange) Rank() int { return x.c.Rank }

// Size is the number of processes.
func (x *Exchange) Size() int { return x.c.Size }

// Threads is the number of partitions, and of senders, of each process.
func (x *Exchange) Threads() int { return x.c.Threads }

// Partitions is the number of partitions, which are numbered from 0. Partition p is
// received by thread p modulo Threads of process p divided by Threads.
func (x *Exchange) Partitions() int { return x.c.Size * x.c.Threads }

// Sender returns the sender of a thread, always the same one. It panics unless thread is 0 to Threads-1.
func (x *Exchange) Sender(thread int) *Sender { return x.senders[thread] }

// Receiver returns the receiver of a thread, always the same one. It panics unless thread is 0 to Threads-1.
func (x *Exchange) Receiver(thread int) *Receiver { return x.receivers[thread] }

// Done is closed when the exchange has failed.
func (x *Exchange) Done() <-chan struct{} { return x.failed }

// Err tells why the exchange has failed, or is nil.
func (x *Exchange) Err() error {
	select {
	case <-x.failed:
		return x.err
	default:
		return nil
	}
}

// Abort ends the exchange in all processes: every call fails with an error that names
// this process's rank and has err's text.
func (x *Exchange) Abort(err error) {
	_ = x.fail(&ProcessError{Rank: x.c.Rank, Err: fmt.Errorf("%w: %w", ErrAborted, err)})
}

// fail ends the exchange, once, and returns what it has failed with. err is a
// *ProcessError.
func (x *Exchange) fail(err error) error {
	x.fail1.Do(func() {
		x.err = err
		close(x.failed)
		x.loops.Go(func() {
			x.tell(err)
			x.cancel(err)
		})
	})
	return x.err
}

// one counts a sender or a receiver that has come to its end.
func (x *Exchange) one() {
	if x.unfinished.Add(-1) == 0 {
		close(x.finished)
	}
}

// finish tells the peers that all has arrived here.
func (x *Exchange) finish() {
	select {
	case <-x.finished:
	case <-x.ctx.Done():
		return
	}
	for _, p := range x.peers {
		if !p.local {
			p.mu.Lock()
			p.bye = true
			p.mu.Unlock()
			p.poke()
		}
	}
	if x.c.Size == 1 {
		x.processFinished()
	}
}

// told counts a peer that has been told that all has arrived here.
func (x *Exchange) told() {
	if x.untold.Add(-1) == 0 {
		x.processFinished()
	}
}

// processFinished counts a process that has said goodbye.
func (x *Exchange) processFinished() {
	if x.left.Add(-1) == 0 {
		close(x.over)
	}
}

// Wait returns nil when all senders have closed and all receivers have come to the end,
// in all processes; so every record has been received once. Otherwise it tells why the
// exchange has failed, or that ctx has ended the wait.
func (x *Exchange) Wait(ctx context.Context) error {
	select {
	case <-x.over:
		return nil
	case <-x.failed:
		return x.err
	case <-ctx.Done():
		return fmt.Errorf("shuffle: wait for the end: %w", context.Cause(ctx))
	}
}

// Close frees everything. Records that were received must not be used after it. Before
// the end of the exchange it is an Abort: senders and receivers that are in use then fail. A
// receiver that is in the middle of a block keeps the memory until its next call fails, and a
// batch until it is released. After a failure it returns nil, since all other calls have told of that.
func (x *Exchange) Close() error {
	x.close1.Do(func() {
		select {
		case <-x.over:
		default:
			x.Abort(errors.New("closed before the end"))
		}
		x.closeErr = x.free()
	})
	return x.closeErr
}

// free gives everything back.
func (x *Exchange) free() error {
	var errs []error
	if x.service != nil {
		errs = append(errs, x.service.Close())
	}
	select {
	case <-x.failed:
		<-x.ctx.Done() // the peers have been told
	default:
	}
	for _, p := range x.peers {
		p.hangUp()
	}
	x.gather.close()
	x.cancel(ErrClosed)
	x.loops.Wait()
	for _, p := range x.peers {
		errs = append(errs, p.free())
	}
	if x.group != nil {
		errs = append(errs, x.group.Close())
	}
	errs = append(errs, x.mapped.close())
	if x.spill != nil {
		errs = append(errs, x.spill.close())
	}
	return errors.Join(errs...)
}
