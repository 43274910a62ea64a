package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
)

// Paces of a bystander over each transport.
const (
	shortPace = 5 * time.Millisecond
	longPace  = 100 * time.Millisecond
	dialPace  = 100 * time.Millisecond
	shortSize = 1 << 10
	longSize  = 256 << 10
	// bystanderPatience is longer than anything that it waits for may take.
	bystanderPatience = 15 * time.Second
)

// A bystander is an honest client over one transport, which measures how the
// server serves it while others attack.
type bystander struct {
	rt        *verbena.Runtime
	address   func() string
	transport string

	mu                  sync.Mutex
	shorts, longs, dial []time.Duration
	pending             map[*[]time.Duration]time.Time // since when what goes on now does
	errs                []error
}

// measured is what a bystander saw during one attack. What was not over at its end
// counts as if it had just come to an end.
type measured struct {
	transport           string
	shorts, longs, dial []time.Duration // sorted
	errs                []error
}

// take returns what was seen since the last call.
func (b *bystander) take() measured {
	b.mu.Lock()
	defer b.mu.Unlock()
	for list, start := range b.pending {
		if took := time.Since(start); took > worst(*list) {
			*list = append(*list, took)
		}
	}
	m := measured{b.transport, b.shorts, b.longs, b.dial, b.errs}
	b.shorts, b.longs, b.dial, b.errs = nil, nil, nil, nil
	for _, list := range [][]time.Duration{m.shorts, m.longs, m.dial} {
		slices.Sort(list)
	}
	return m
}

func median(sorted []time.Duration) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}

func worst(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return slices.Max(list)
}

// run works until ctx ends.
func (b *bystander) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { b.converse(ctx, shortPace, shortSize, &b.shorts) })
	wg.Go(func() { b.converse(ctx, longPace, longSize, &b.longs) })
	wg.Go(func() { b.redial(ctx) })
	wg.Wait()
}

// converse has round trips on one endpoint, and a new one when it fails.
func (b *bystander) converse(ctx context.Context, pace time.Duration, size int, times *[]time.Duration) {
	var ep *verbena.Endpoint
	message := make([]byte, size)
	b.each(ctx, pace, times, func(ctx context.Context) (err error) {
		if ep == nil {
			if ep, err = b.open(ctx); err != nil {
				return err
			}
		}
		done := b.begin(times)
		if err := exchange(ctx, ep, message); err != nil {
			failed := ep
			ep = nil
			return fmt.Errorf("round trip of %d bytes: %w", size, errors.Join(err, failed.Close()))
		}
		done()
		return nil
	})
	if ep != nil {
		_ = ep.Close() // nothing is on its way
	}
}

// redial measures how long new endpoints take, up to the first answer on them.
func (b *bystander) redial(ctx context.Context) {
	message := make([]byte, shortSize)
	b.each(ctx, dialPace, &b.dial, func(ctx context.Context) error {
		done := b.begin(&b.dial)
		ep, err := b.open(ctx)
		if err != nil {
			return err
		}
		if err := exchange(ctx, ep, message); err != nil {
			return fmt.Errorf("first round trip: %w", errors.Join(err, ep.Close()))
		}
		done()
		return ep.Close()
	})
}

func (b *bystander) each(ctx context.Context, pace time.Duration, times *[]time.Duration, f func(context.Context) error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		octx, cancel := context.WithTimeout(ctx, bystanderPatience)
		err := f(octx)
		cancel()
		b.mu.Lock()
		delete(b.pending, times)
		if err != nil && ctx.Err() == nil {
			b.errs = append(b.errs, err)
		}
		b.mu.Unlock()
	}
}

func (b *bystander) open(ctx context.Context) (*verbena.Endpoint, error) {
	return b.rt.Dial(ctx, b.address(), attackService, verbena.DialConfig{Transport: b.transport})
}

// begin times something; done notes how long it took.
func (b *bystander) begin(times *[]time.Duration) (done func()) {
	start := time.Now()
	b.mu.Lock()
	if b.pending == nil {
		b.pending = map[*[]time.Duration]time.Time{}
	}
	b.pending[times] = start
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		*times = append(*times, time.Since(start))
		delete(b.pending, times)
		b.mu.Unlock()
	}
}
