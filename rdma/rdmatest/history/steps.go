package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/verbena-data/verbena/rdma"
)

// postRound posts what is planned, with a goroutine for each poster.
func (e *end) postRound() error {
	leaves := -1
	end := e.t.endingBy
	if e.round == e.t.rounds-1 && end.kind == endsAbruptly && end.by == e.role {
		leaves = e.random.IntN(len(e.out.posters[0].steps) + 1)
	}
	if e.out.count == 1 {
		return e.runPoster(0, leaves)
	}
	errs := make([]error, e.out.count)
	var posters sync.WaitGroup
	for p := range e.out.count {
		posters.Go(func() {
			at := -1
			if p == 0 {
				at = leaves
			}
			errs[p] = e.runPoster(p, at)
		})
	}
	posters.Wait()
	var failed error
	for _, err := range errs {
		if err != nil && (failed == nil || !errors.Is(err, errFailed)) {
			failed = err
		}
	}
	return failed
}

// errLeft says that this end has ended the connection, as planned.
var errLeft = errors.New("this end has left")

// runPoster carries out the steps of a poster. It ends the connection before step
// leaves, unless that is -1.
func (e *end) runPoster(p, leaves int) error {
	steps := e.out.posters[p].steps
	random := rand.New(rand.NewPCG(e.t.seed, uint64(e.round)<<8|uint64(p)))
	batch, sges := e.batches[p][:0], e.sges[p][:0]
	flush := func(broken int) error {
		err := e.post(p, batch, broken)
		e.batches[p], e.sges[p] = batch, sges
		batch, sges = batch[:0], sges[:0]
		return err
	}
	for i := range steps {
		if i == leaves {
			if err := flush(-1); err != nil {
				return err
			}
			return e.leave()
		}
		s := &steps[i]
		if s.kind == stepPost {
			var r rdma.SendRequest
			r, sges = e.request(p, i, s, sges)
			batch = append(batch, r)
			if s.refusal != refuseNothing {
				e.side.Stats.Refused[s.refusal].Add(1)
				if err := flush(len(batch) - 1); err != nil {
					return err
				}
			}
			if len(batch) < 8 && random.IntN(3) != 0 {
				continue
			}
			if err := flush(-1); err != nil {
				return err
			}
			if random.IntN(8) == 0 {
				if _, err := e.pump(); err != nil {
					return err
				}
			}
			continue
		}
		if err := flush(-1); err != nil {
			return err
		}
		switch s.kind {
		case stepFill:
			if err := e.writeLocal(e.out.spans[s.firstSpan], e.out.data[s.dataFrom:s.dataTo]); err != nil {
				return err
			}
		case stepWrong:
			if err := e.postWrong(s.wrong); err != nil {
				return err
			}
		case stepSettle:
			if err := e.settle(p, i); err != nil {
				return err
			}
		}
	}
	if err := flush(-1); err != nil {
		return err
	}
	if leaves == len(steps) {
		return e.leave()
	}
	if p == 0 && e.out.brokenAt >= 0 {
		// The broken request must fail the queue pair.
		return e.await("the failure of the queue pair", func() bool { return false })
	}
	return nil
}

func (e *end) leave() error {
	if e.t.endingBy.close {
		e.closed.Store(true)
		if err := e.qp.Close(); err != nil {
			return fmt.Errorf("close queue pair: %w", err)
		}
	} else if err := e.qp.Disconnect(); err != nil && e.qp.State() == rdma.StateConnected {
		return fmt.Errorf("disconnect: %w", err)
	}
	return errLeft
}

// settle waits until a poster's requests are done, and compares what they fetched
// since the last settling.
func (e *end) settle(p, until int) error {
	if err := e.await("settling", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.done[p] == len(e.posted[p])
	}); err != nil {
		return err
	}
	steps := e.out.posters[p].steps
	for i := until - 1; i >= 0 && steps[i].kind != stepSettle; i-- {
		s := &steps[i]
		if !s.fetching {
			continue
		}
		// What the processor has written over since then is not compared.
		want := e.out.data[s.dataFrom:s.dataTo]
		for _, piece := range e.out.spans[s.firstSpan:][:s.spanCount] {
			if e.filledAfter(steps[i+1:until], piece) {
				want = want[piece.length():]
				continue
			}
			got, err := e.readLocal(piece)
			if err != nil {
				return err
			}
			if err := same(got, want[:piece.length()], fmt.Sprintf("round %d: what %s %d has brought when it is complete", e.round, s.op, i)); err != nil {
				return err
			}
			want = want[piece.length():]
		}
	}
	return nil
}

func (e *end) filledAfter(steps []step, place span) bool {
	for i := range steps {
		if steps[i].kind == stepFill && overlaps(e.out.spans[steps[i].firstSpan:][:1], place) {
			return true
		}
	}
	return false
}

func (e *end) localPlace(s span) (memory, int) {
	part := s.from * localParts / e.t.area
	if part == localParts || s.to > localPart(part, e.t.area).to {
		part-- // an empty span at the end of a part
	}
	return e.local[part], s.from - localPart(part, e.t.area).from
}

func (e *end) writeLocal(s span, b []byte) error {
	m, at := e.localPlace(s)
	return m.write(at, b)
}

func (e *end) readLocal(s span) ([]byte, error) {
	m, at := e.localPlace(s)
	return m.read(at, s.length())
}
