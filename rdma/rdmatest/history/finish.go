package history

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// finish checks that the link has ended as planned. outcome is what the rounds
// returned: nil after the last one, errLeft, errFailed, errUnaligned, or a difference
// from the model.
func (e *end) finish(outcome error) error {
	ending, known := ending{}, e.t != nil && e.t.rounds > 0
	if known {
		ending = e.t.endingBy
	}
	last := known && e.round >= e.t.rounds-1
	switch {
	case outcome == nil:
		// Every other ending stops the last round by an error.
		if ending.kind != endsInOrder {
			return fmt.Errorf("the link has not ended %s", ending.kind)
		}
		if err := e.inOrder(ending); err != nil {
			return err
		}
	case errors.Is(outcome, errUnaligned):
		if err := e.qp.Disconnect(); err != nil {
			return fmt.Errorf("disconnect: %w", err)
		}
		if err := e.checkEnd(false, false); err != nil {
			return err
		}
	case errors.Is(outcome, errLeft):
		if err := e.left(ending); err != nil {
			return err
		}
	case errors.Is(outcome, errFailed):
		died := e.link.Died != nil && e.link.Died()
		if err := e.ended(!died && last && (ending.kind == endsRefused || ending.kind == endsTooLong)); err != nil {
			return err
		}
		// The peer may be in the last round while this end still waits for the end of
		// the one before.
		last = last || known && e.round == e.t.rounds-2 && e.released
		planned := !died && last && (ending.kind == endsRefused || ending.kind == endsTooLong || ending.kind == endsAbruptly && ending.by != e.role)
		// The peer may end the link in order as soon as it has this end's last message,
		// before the completion of that message is seen here.
		planned = planned || last && ending.kind == endsInOrder && ending.by != e.role && e.controls == 2
		switch {
		case died:
			e.side.Stats.Lost.Add(1)
			return ErrLost
		case !planned:
			return fmt.Errorf("round %d: the queue pair has failed: %w; requests: %s", e.round, e.cause(), e.failure)
		}
		if ending.kind == endsInOrder {
			if err := e.compare(); err != nil {
				return err
			}
		}
	default:
		return outcome
	}
	e.side.Stats.Ended[ending.kind].Add(1)
	return nil
}

func (e *end) cause() error {
	if err := e.qp.Err(); err != nil {
		return err
	}
	return errors.New("it tells no cause")
}

// inOrder ends the link after its last round: one end leaves, the other sees it.
func (e *end) inOrder(ending ending) error {
	if ending.by == e.role {
		if err := e.leave(); !errors.Is(err, errLeft) {
			return err
		}
		if err := e.left(ending); err != nil {
			return err
		}
	} else if err := e.ended(false); err != nil {
		return err
	}
	return e.compare()
}

// left checks what this end's own Close or Disconnect has done.
func (e *end) left(ending ending) error {
	if ending.close {
		if n, err := e.qp.PostSend([]rdma.SendRequest{{ID: 667, Op: rdma.OpSend}}); n != 0 || !errors.Is(err, rdma.ErrState) && !errors.Is(err, rdma.ErrClosed) {
			return fmt.Errorf("PostSend after Close: %d, %w", n, err)
		}
		return e.compareLoosely()
	}
	return e.checkEnd(false, false)
}

// ended checks a failure that the peer or a request has caused. planned says that it
// was the request that the plan has for it.
func (e *end) ended(planned bool) error { return e.checkEnd(planned, true) }

func (e *end) checkEnd(planned, event bool) error {
	ctx, cancel := context.WithTimeout(e.ctx, e.side.options.Bound)
	defer cancel()
	select {
	case <-e.qp.Done():
	case <-ctx.Done():
		return e.late("the end of the connection")
	}
	if state := e.qp.State(); state != rdma.StateError && state != rdma.StateClosed {
		return fmt.Errorf("the queue pair has told its end by Done and is %s", state)
	}
	if e.qp.Err() == nil {
		return errors.New("the queue pair has failed and Err is nil")
	}
	if err := e.drain(ctx, planned); err != nil {
		return err
	}
	// A failed request says so by its completion. Where no request has failed, an
	// event must say that the queue pair has.
	if event && e.failure == rdma.StatusSuccess && e.recvFailure == rdma.StatusSuccess {
		if err := e.side.event(ctx, e.qp.Number()); err != nil {
			return err
		}
	}
	if n, err := e.qp.PostSend([]rdma.SendRequest{{ID: 667, Op: rdma.OpSend}}); n != 0 || !errors.Is(err, rdma.ErrState) {
		return fmt.Errorf("PostSend after a failure: %d, %w; want ErrState", n, err)
	}
	if e.srq == nil {
		if n, err := e.qp.PostRecv([]rdma.RecvRequest{{ID: 667}}); n != 0 || !errors.Is(err, rdma.ErrState) {
			return fmt.Errorf("PostRecv after a failure: %d, %w; want ErrState", n, err)
		}
	}
	if e.out == nil {
		return nil
	}
	if e.out.brokenAt < 0 && e.t.mayTell && e.failure != rdma.StatusSuccess && e.failure != rdma.StatusRetryExceeded {
		return fmt.Errorf("round %d of %d: a request completes as %s, and none was to be refused: %w (the link should end %s, by the %s)",
			e.round, e.t.rounds, e.failure, e.cause(), e.t.endingBy.kind, e.t.endingBy.by)
	}
	if planned && e.out.brokenAt >= 0 {
		if err := e.checkBroken(); err != nil {
			return err
		}
	}
	if planned && e.in.brokenAt >= 0 && e.in.posters[0].steps[e.in.brokenAt].refusal != refuseUnaligned {
		if err := e.checkRefused(); err != nil {
			return err
		}
	}
	return e.compareLoosely()
}

// drain waits for what must still complete: every signalled request, every request
// behind one that failed, and all receives unless they are shared.
func (e *end) drain(ctx context.Context, planned bool) error {
	// Of a shared queue only the receive that was being filled is flushed. One that
	// was too short fails, perhaps after Done.
	failing := planned && e.t.mayTell && e.in != nil && e.in.brokenAt >= 0 && e.in.posters[0].steps[e.in.brokenAt].refusal == refuseTooLong
	is := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for p := range e.posted {
			for i := e.done[p]; i < len(e.posted[p]); i++ {
				r := &e.posted[p][i]
				refused := planned && r.broken && (r.op >= rdma.OpRead || e.t.class[e.role] == rdma.ClassInfiniBand)
				if r.signaled || refused || e.failedAt[p] >= 0 {
					return false
				}
			}
		}
		if e.srq != nil {
			return !failing || e.recvFailed
		}
		return e.recvDone == e.recvPosted
	}
	e.mu.Lock()
	e.unposted, e.draining = 0, true
	e.mu.Unlock()
	for i := 0; !is(); i++ {
		progress, err := e.pump()
		if err != nil {
			return err
		}
		if !progress {
			if ctx.Err() != nil {
				return fmt.Errorf("after the failure (%w), %d of %d receives have completed, and requests are missing: %w", e.cause(), e.recvDone, e.recvPosted, e.late("flushing"))
			}
			yield(i)
		}
	}
	// Messages in shared receives may still be in the queue, once each.
	if e.srq != nil {
		if err := e.recvs.empty(); err != nil {
			return err
		}
	}
	_, err := e.pump()
	return err
}

// checkBroken checks how the request has ended that the peer had to refuse.
func (e *end) checkBroken() error {
	s := &e.out.posters[0].steps[e.out.brokenAt]
	what := fmt.Sprintf("round %d: a %s with %s", e.round, s.op, s.refusal)
	index := -1
	for i, each := range e.posted[0] {
		if each.broken {
			index = i
		}
	}
	if index < 0 {
		return fmt.Errorf("%s: the queue pair failed before it: %w", what, e.cause())
	}
	if e.t.class[e.role] == rdma.ClassIWARP {
		if s.op >= rdma.OpRead && e.failedAt[0] < 0 {
			return fmt.Errorf("%s: no request fails", what)
		}
		if e.failure != rdma.StatusSuccess && e.failedAt[0] > index {
			return fmt.Errorf("%s: a later request completes as %s", what, e.failure)
		}
		if s.refusal != refuseTooLong && e.t.mayTell && !errors.Is(e.qp.Err(), rdma.ErrRemoteAccess) && s.refusal != refuseUnaligned {
			return fmt.Errorf("%s: Err does not wrap ErrRemoteAccess: %w", what, e.qp.Err())
		}
		return nil
	}
	if e.side.options.Lossy && e.failedAt[0] >= 0 && e.failedAt[0] <= index && (e.failure == rdma.StatusSuccess || e.failure == rdma.StatusRetryExceeded) {
		return nil // the refusal was lost: the request is flushed, or given up
	}
	if e.failedAt[0] != index {
		return fmt.Errorf("%s: request %d of the round fails, not %d", what, e.failedAt[0], index)
	}
	want := []rdma.Status{rdma.StatusRemoteAccess}
	switch {
	case s.refusal == refuseTooLong && e.t.mayTell:
		want = []rdma.Status{rdma.StatusRemoteInvalid}
	case s.refusal == refuseTooLong:
		want = []rdma.Status{rdma.StatusRemoteInvalid, rdma.StatusRemoteOperation}
	case s.refusal == refuseUnaligned:
		want = append(want, rdma.StatusRemoteInvalid)
	}
	for _, status := range want {
		if e.failure == status {
			return nil
		}
	}
	return fmt.Errorf("%s: it completes as %s, want %v", what, e.failure, want)
}

// checkRefused checks, at the end that had to refuse a request, that everything
// before it has been carried out and nothing from it on.
func (e *end) checkRefused() error {
	s := &e.in.posters[0].steps[e.in.brokenAt]
	what := fmt.Sprintf("round %d: the peer's %s with %s", e.round, s.op, s.refusal)
	if e.expected.got != e.expected.total {
		return fmt.Errorf("%s: %d of %d messages before it have come: %w", what, e.expected.got, e.expected.total, e.cause())
	}
	if s.refusal == refuseTooLong && e.t.mayTell && e.recvFailure != rdma.StatusLocalLength {
		return fmt.Errorf("%s: the receive completes as %s: %w", what, e.recvFailure, e.cause())
	}
	if s.refusal != refuseTooLong && e.recvFailure != rdma.StatusSuccess {
		return fmt.Errorf("%s: a receive completes as %s", what, e.recvFailure)
	}
	for part := range e.exposed {
		place := exposedPart(part, e.t.area)
		got, err := e.exposed[part].read(0, place.length())
		if err != nil {
			return err
		}
		if err := same(got, e.in.exposed[place.from:place.to], fmt.Sprintf("%s: region %d", what, part)); err != nil {
			return err
		}
	}
	return nil
}

// compareLoosely checks memory after a connection that ended within a round. Each
// byte must be what it was before the round, or what some request of it puts there.
func (e *end) compareLoosely() error {
	if e.out == nil || e.round < 0 {
		return nil
	}
	if err := e.compareParts(true, exposedParts, exposedPart, e.in.exposedBefore, e.in.exposed, func(try func(at int, data []byte)) {
		e.in.puts(try)
		if e.released && e.round < e.t.rounds-1 {
			e.in.plan(e.round + 1)
			e.in.puts(try)
		}
	}); err != nil {
		return err
	}
	return e.compareParts(false, localParts, localPart, e.out.localBefore, e.out.local, func(try func(at int, data []byte)) {
		for p := range e.out.count {
			for i := range e.out.posters[p].steps {
				s := &e.out.posters[p].steps[i]
				if !s.fetching && s.kind != stepFill {
					continue
				}
				data := e.out.data[s.dataFrom:s.dataTo]
				for _, piece := range e.out.spans[s.firstSpan:][:s.spanCount] {
					try(piece.from, data[:piece.length()])
					data = data[piece.length():]
				}
			}
		}
	})
}

// puts calls try with what each request of the round puts into the exposed memory.
func (d *direction) puts(try func(at int, data []byte)) {
	for p := range d.count {
		for i := range d.posters[p].steps {
			if s := &d.posters[p].steps[i]; s.changesPeer {
				try(s.putsAt, d.data[s.putsFrom:s.putsTo])
			}
		}
	}
}

func (e *end) compareParts(exposed bool, parts int, where func(part, area int) span, before, after []byte, puts func(try func(at int, data []byte))) error {
	got := make([]byte, e.t.area)
	for part := range parts {
		place := where(part, e.t.area)
		if e.part(exposed, part).region == nil {
			copy(got[place.from:place.to], before[place.from:place.to])
			continue
		}
		b, err := e.part(exposed, part).read(0, place.length())
		if err != nil {
			return err
		}
		copy(got[place.from:], b)
	}
	explained := make([]bool, e.t.area)
	for i := range got {
		explained[i] = got[i] == before[i] || got[i] == after[i]
	}
	puts(func(at int, data []byte) {
		for i, b := range data {
			explained[at+i] = explained[at+i] || got[at+i] == b
		}
	})
	for i := range got {
		if !explained[i] {
			return fmt.Errorf("round %d: after the end, byte %d of the memory (exposed: %v) is %#x, which nobody put there", e.round, i, exposed, got[i])
		}
	}
	return nil
}
