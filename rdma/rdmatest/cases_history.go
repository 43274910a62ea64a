package rdmatest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/history"
)

// historyCases compare random histories with a model: see package history.
var historyCases = []testCase{
	{"History", nil, testHistory},
}

var (
	seedFlag  = flag.Uint64("rdmatest.seed", 0, "of the random histories, instead of the usual ones; a failure tells its own, and a run with it repeats the plan")
	briefFlag = flag.Bool("rdmatest.brief", false, "repeat in each case a few times what is usually repeated often: for emulated processors")
	linksFlag = flag.Int("rdmatest.links", 0, "connections of the random histories; 0 means a few")
)

// testHistory runs links one by one, then several at once. The seeds are the
// same in each run unless the flag gives one, so that no change is blamed for a
// plan that nobody has run before; what is new each time is how the ends meet.
// The soaks look for new plans.
func testHistory(e *env) {
	fresh := e.suite.Seed + 1<<32
	if *seedFlag != 0 {
		fresh = *seedFlag
	}
	alone, together, rounds, area := e.historySize()
	e.logf("seeds %d and %d", e.suite.Seed, fresh)
	options := history.Options{Seed: fresh, Bound: e.suite.Bound, Area: area, Lossy: e.suite.Lossy}
	if !e.suite.has(FeatureLengthStatus) || !e.suite.has(FeatureRefusalReason) {
		options.Shallow = true
	}
	options.Unfenced = e.suite.unfenced()
	if e.suite.atomicsTwice() {
		options.Without = rdma.CapAtomics
	}
	options.OneWayReads = !e.suite.has(FeatureReadsBothWays)
	options.LaxReads = !e.suite.has(FeatureReadRight) || !e.suite.has(FeatureRefusedReadStops)
	sides := make([]*history.Side, 2)
	for i, device := range []rdma.Device{e.suite.initiator, e.suite.target} {
		s, err := history.NewSide(device, options)
		e.check(err, "history.NewSide")
		sides[i] = s
		e.cleanup(func() {
			if err := s.Close(); err != nil && !e.t.Failed() {
				e.errorf("history: Close: %v", err)
			}
		})
	}
	l := e.b().listen()
	var connecting sync.Mutex // so that both ends of a link meet
	link := func(n int) {
		each := history.Link{Seed: e.suite.Seed + uint64(n), Rounds: rounds}
		if n%2 == 1 || *seedFlag != 0 {
			each.Seed = fresh + uint64(n)
		}
		connecting.Lock()
		var connected sync.WaitGroup
		connected.Add(2)
		release := sync.OnceFunc(connecting.Unlock)
		go func() {
			connected.Wait()
			release()
		}()
		// An end that fails ends the other, too.
		ctx, cancel := context.WithCancelCause(e.ctx)
		defer cancel(nil)
		run := func(role history.Role, connect func(context.Context, rdma.QueuePair) error) func() {
			done := sync.OnceFunc(connected.Done)
			return func() {
				defer done()
				err := sides[role].Run(ctx, role, each, func(ctx context.Context, qp rdma.QueuePair) error {
					defer done()
					return connect(ctx, qp)
				})
				if err != nil {
					cancel(err)
					if !errors.Is(err, context.Canceled) {
						e.errorf("%v; to repeat: -rdmatest.seed=%d -rdmatest.links=1", err, each.Seed)
					}
				}
			}
		}
		var ends sync.WaitGroup
		ends.Go(run(history.Initiator, func(ctx context.Context, qp rdma.QueuePair) error {
			_, err := qp.Connect(ctx, l.Address(), nil)
			return err
		}))
		ends.Go(run(history.Target, func(ctx context.Context, qp rdma.QueuePair) error {
			r, err := l.Accept(ctx)
			if err != nil {
				return err
			}
			return r.Accept(ctx, qp, nil)
		}))
		ends.Wait()
		connected.Wait()
		if e.t.Failed() {
			e.fatalf("the history of seed %d contradicts the model", each.Seed)
		}
	}
	for n := range alone {
		link(n)
	}
	const groups = 4
	var work []func()
	for g := range groups {
		work = append(work, func() {
			for n := g; n < together; n += groups {
				link(alone + n)
			}
		})
	}
	e.together(work...)
	for i, s := range sides {
		e.logf("%s: %s", history.Role(i), historySummary(&s.Stats))
	}
}

// historySize is how many links run one by one and how many several at once, the rounds of
// each, and the bytes of its memory, 0 for the usual.
func (e *env) historySize() (alone, together, rounds, area int) {
	switch {
	case isRemote(e.suite.initiator) || isRemote(e.suite.target):
		alone, together, rounds, area = 2, 3, 2, 8<<10
	case *briefFlag:
		alone, together, rounds = 3, 3, 3
	case testingShort() || race.Enabled:
		alone, together, rounds = 8, 8, 5
	default:
		alone, together, rounds = 12, 12, 8
	}
	if *linksFlag > 0 {
		alone, together = *linksFlag/2, *linksFlag-*linksFlag/2
	}
	return alone, together, rounds, area
}

func historySummary(s *history.Stats) string {
	text := fmt.Sprintf("%d requests, %d messages, %d rounds, %d registrations on %d links that ended", s.Operations(), s.Messages.Load(),
		s.Rounds.Load(), s.Registrations.Load(), s.Links.Load())
	for kind, name := range history.EndingNames() {
		text += fmt.Sprintf(" %s %d,", name, s.Ended[kind].Load())
	}
	return text[:len(text)-1]
}
