package rpc

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/internal/backoff"
)

// FailoverConfig tells how a [Failover] tries. Zero values stand for defaults.
type FailoverConfig struct {
	// Patience is for how long after its beginning a call is tried again. An attempt
	// under way at its end goes on, and each server is asked once: one that takes a call
	// and never answers takes [ClientConfig].CallTimeout. Default 3 min with several
	// servers, 45 s with one.
	Patience time.Duration
	// Timeouts is how many attempts of a call may time out, at connecting or at waiting for
	// the answer, without their time counting as Patience. The default is 15 with several
	// servers and 9 with one if Patience is not set either, and otherwise none; so it is
	// below 0. More than the default are of no use at waiting for the answer, which takes
	// [ClientConfig].CallTimeout each.
	Timeouts int
	// Backoff is the mean pause before a call is tried again after all servers have
	// failed it once; it doubles with each further round up to MaxBackoff. Defaults
	// 100 ms and 5 s.
	Backoff, MaxBackoff time.Duration
	// Passing tells of refusals that nothing was done and that they pass, beside
	// StandbyException and RetriableException. It may be nil.
	Passing func(*exception.Error) bool
}

// Failover makes calls of whichever of several servers answers them: of one that is
// active while others stand by, as NameNodes do. All attempts of a call have one call
// id, so that a retry cache which the servers share knows a call that is made again
// elsewhere. It may be used concurrently.
type Failover struct {
	client  *Client
	proxies []*Proxy
	cfg     FailoverConfig
	waits   int // at most so many of Timeouts are at waiting for the answer
	active  atomic.Int32
}

const (
	timeoutsOfSeveral = 15 // as HDFS's client fails over
	timeoutsOfOne     = 9
)

// Failover returns what calls the targets. There must be one at least. The client's
// Attempts do not count for it.
func (c *Client) Failover(targets []Target, cfg FailoverConfig) *Failover {
	waits := timeoutsOfOne
	if len(targets) > 1 {
		waits = timeoutsOfSeveral
	}
	switch {
	case cfg.Patience != 0:
	case len(targets) > 1:
		// HDFS's client pauses for 165 s in all.
		cfg.Patience = 3 * time.Minute
		cfg.Timeouts = cmp.Or(cfg.Timeouts, waits)
	default:
		// It dials a sole NameNode that refuses for 10 s, and one that is silent for 15 min. A
		// wrong address should show sooner than that.
		cfg.Patience = 45 * time.Second
		cfg.Timeouts = cmp.Or(cfg.Timeouts, waits)
	}
	set(&cfg.Backoff, 100*time.Millisecond)
	set(&cfg.MaxBackoff, 5*time.Second)
	f := &Failover{client: c, cfg: cfg, waits: waits}
	for _, t := range targets {
		f.proxies = append(f.proxies, c.Proxy(t))
	}
	return f
}

// Active is the address of the server that is asked first.
func (f *Failover) Active() string { return f.proxies[f.active.Load()].link.target.Address }

// Call is [Proxy.Call], except for which server is asked and how often: a call that
// none has run is made again, at the next server if this one stands by or can't be
// reached, within the configured time and ctx. One whose connection ended before the
// answer came is made again only if repeat allows it.
func (f *Failover) Call(ctx context.Context, method string, req, resp proto.Message, repeat ...Repeat) error {
	repeatable := len(repeat) > 0 && repeat[0] > 0
	if !f.client.turn.enter() {
		return named(method, f.Active(), ErrClosed)
	}
	defer f.client.turn.leave()
	id := int32(f.client.next.Add(1)-1) & 0x7fffffff
	began := time.Now() // later by the time of attempts that timed out
	timeouts, waits := 0, 0
	pauses := backoff.Policy{First: f.cfg.Backoff, Most: f.cfg.MaxBackoff}
	failures := 0 // in a row, that sent the call to the next server
	for attempt := int32(0); ; attempt++ {
		at := f.active.Load()
		p := f.proxies[at]
		if attempt > 0 {
			proto.Reset(resp)
		}
		tried := time.Now()
		err := p.try(ctx, id, attempt, method, req, resp)
		if err == nil {
			return nil
		}
		waited := errors.Is(err, ErrTimeout)
		if timeouts < f.cfg.Timeouts && (waited && waits < f.waits || undialled(err)) {
			timeouts++
			if waited {
				waits++
			}
			began = began.Add(time.Since(tried))
		}
		next := f.judge(err, repeatable)
		unasked := next == elsewhere && failures+1 < len(f.proxies)
		if next == giveUp || ctx.Err() != nil || !unasked && time.Since(began) > f.cfg.Patience {
			return named(method, p.link.target.Address, plain(err))
		}
		var round int // of pauses
		if next == elsewhere {
			f.active.CompareAndSwap(at, (at+1)%int32(len(f.proxies)))
			failures++
			if failures%len(f.proxies) != 0 {
				continue // another server may be active
			}
			round = failures / len(f.proxies)
		} else {
			failures += len(f.proxies)
			round = failures / len(f.proxies)
		}
		if !backoff.Sleep(ctx, pauses.Pause(round), f.client.ctx.Done()) {
			return named(method, p.link.target.Address, plain(err))
		}
	}
}

// verdict is what to do about a call that has failed.
type verdict uint8

const (
	giveUp verdict = iota
	again
	elsewhere
)

// undialled tells that a server could not be reached in time.
func undialled(err error) bool {
	var u *unsent
	var dial net.Error
	return errors.As(err, &u) && errors.As(err, &dial) && dial.Timeout()
}

func (f *Failover) judge(err error, repeatable bool) verdict {
	if errors.Is(err, ErrClosed) {
		return giveUp
	}
	var refused *exception.Error
	var l *lost
	var u *unsent
	switch {
	case errors.As(err, &refused):
		switch {
		case refused.Class == exception.Standby:
			return elsewhere
		case refused.Class == exception.Retriable, f.cfg.Passing != nil && f.cfg.Passing(refused):
			return again
		}
	case errors.As(err, &u):
		return elsewhere
	case errors.As(err, &l), errors.Is(err, ErrTimeout):
		if repeatable {
			return elsewhere
		}
	}
	return giveUp
}
