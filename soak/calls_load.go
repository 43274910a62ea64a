package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
)

const leastDeadline, mostDeadline = 20 * time.Millisecond, 3 * time.Second

// A callsLane is the calls to a server over a transport.
type callsLane struct {
	server    *callsServer
	transport string
	pool      *verbena.CallPool
	answers   atomic.Uint64

	mu    sync.Mutex
	now   outcomes // since take
	late  time.Duration
	heard chan struct{} // closed at the next answer, if somebody waits for it
	last  error
	wrong []error
}

// outcomes count what became of calls.
type outcomes struct {
	answered, told, unsent, unknown uint64
	late                            time.Duration // the worst
}

func (o *outcomes) add(p outcomes) {
	o.answered += p.answered
	o.told += p.told
	o.unsent += p.unsent
	o.unknown += p.unknown
	o.late = max(o.late, p.late)
}

func (o *outcomes) calls() uint64 { return o.answered + o.told + o.unsent + o.unknown }

// take returns what there was since the last call.
func (l *callsLane) take() outcomes {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.now
	l.now = outcomes{}
	return o
}

func (l *callsLane) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// back waits for the next answer and tells how long that took.
func (l *callsLane) back(ctx context.Context, began time.Time) time.Duration {
	l.mu.Lock()
	if l.heard == nil {
		l.heard = make(chan struct{})
	}
	heard := l.heard
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callsPatience)
	defer cancel()
	select {
	case <-heard:
	case <-ctx.Done():
	}
	return time.Since(began)
}

// numbers are those of calls, different for each.
var numbers atomic.Uint64

// call makes calls until ctx ends.
func (l *callsLane) call(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		size := 16 + rng.IntN(2000)
		switch rng.IntN(64) {
		case 0:
			size = 1 << 20
		case 1, 2:
			size = 128 << 10
		}
		payload := make([]byte, size)
		number := numbers.Add(1)
		binary.BigEndian.PutUint64(payload, number)
		for i := 16; i < size; i += 1 + size/32 {
			payload[i] = byte(number)
		}
		method, repeat := uint32(1+rng.IntN(callMethods)), []verbena.Repeat(nil)
		if method == callEcho {
			repeat = []verbena.Repeat{verbena.Idempotent}
		}
		binary.BigEndian.PutUint64(payload[8:], uint64(rng.IntN(10_000))) // µs that a long handler takes
		deadline := time.Now().Add(leastDeadline + time.Duration(rng.Int64N(int64(mostDeadline-leastDeadline))))
		cctx, cancel := context.WithDeadline(ctx, deadline)
		m, err := l.pool.Call(cctx, l.server.address(), verbena.Intent{}, method, payload, repeat...)
		late := time.Since(deadline)
		cancel()
		if ctx.Err() != nil {
			if err == nil {
				m.Release()
			}
			return
		}
		l.judge(payload, m, err, late)
	}
}

// judge notes what became of a call.
func (l *callsLane) judge(payload []byte, m *verbena.Message, err error, late time.Duration) {
	var told *verbena.CallError
	var mistake error
	if err == nil {
		if !bytes.Equal(m.Bytes(), payload) {
			mistake = fmt.Errorf("over %s: the answer to another call, or one that was changed: %d bytes that begin with %x, want %d and %x",
				l.transport, len(m.Bytes()), m.Bytes()[:min(16, len(m.Bytes()))], len(payload), payload[:16])
		}
		m.Release()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch o := &l.now; {
	case err == nil:
		o.answered++
		l.answers.Add(1)
		if l.heard != nil {
			close(l.heard)
			l.heard = nil
		}
	case errors.As(err, &told) && told.Code < verbena.CodeApplication && told.Code != verbena.CodePanic && told.Code != verbena.CodeUnknownMethod:
		o.told++
	case errors.Is(err, verbena.ErrNotSent):
		o.unsent++
	case errors.Is(err, verbena.ErrOutcomeUnknown):
		o.unknown++
	default:
		mistake = fmt.Errorf("over %s: an error that does not tell what became of the call: %w", l.transport, err)
	}
	if err != nil {
		l.last = err
	}
	if mistake != nil && len(l.wrong) < 3 {
		l.wrong = append(l.wrong, mistake)
	}
	l.now.late, l.late = max(l.now.late, late), max(l.late, late)
}
