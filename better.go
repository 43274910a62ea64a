package verbena

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/internal/backoff"
)

// ErrNoneBetter says that no transport that is preferred to an endpoint's was left
// for a passing reason: a new dial would choose as the last one did.
var ErrNoneBetter = errors.New("verbena: no better transport was left for a passing reason")

// betterPauses are those between attempts of Better.
var betterPauses = backoff.Policy{First: 100 * time.Millisecond, Most: 30 * time.Second}

// Better waits until a transport can be had that is preferred to the one of e,
// which this side has dialled, and returns a new endpoint over it. It returns
// [ErrNoneBetter] at once unless e's selection says [Selection.Passing]. It asks the
// server at once, then after about 100 ms, and after twice as long each time up to 30 s,
// and gives up with ctx. The server sees nothing of attempts that fail.
//
// An endpoint keeps its transport for life: the order of its messages and what was
// delivered are those of one queue pair. So e stays as it is; the caller moves over
// when its protocol is at a point where it can, and closes e. Cfg.Transport is
// ignored.
func (r *Runtime) Better(ctx context.Context, e *Endpoint, cfg DialConfig) (*Endpoint, error) {
	s := e.Selection()
	var names []string
	for _, c := range s.Candidates {
		if c.Chosen {
			break
		}
		if c.Passing {
			names = append(names, c.Transport)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s at %s over %s: %w", e.service, s.Peer, s.Transport, ErrNoneBetter)
	}
	for attempt := 1; ; attempt++ {
		better, refusals := r.dialOne(ctx, s.Peer, e.service, cfg, names)
		if better != nil {
			return better, nil
		}
		if ctx.Err() != nil || errors.Is(refusals, ErrClosed) {
			return nil, refusals
		}
		if !backoff.Sleep(ctx, betterPauses.Pause(attempt), nil) {
			return nil, fmt.Errorf("verbena: waiting for a better transport to %s: %w", s.Peer, errors.Join(refusals, context.Cause(ctx)))
		}
	}
}

// dialOne dials over each of the transports in turn, and over no other, until one
// connects.
func (r *Runtime) dialOne(ctx context.Context, addr, service string, cfg DialConfig, names []string) (*Endpoint, error) {
	var refusals []error
	for _, name := range names {
		cfg.Transport = name // no other is taken, so a failure makes no endpoint
		better, err := r.Dial(ctx, addr, service, cfg)
		if err == nil {
			return better, nil
		}
		refusals = append(refusals, err)
		if ctx.Err() != nil || errors.Is(err, ErrClosed) {
			break
		}
	}
	return nil, errors.Join(refusals...)
}
