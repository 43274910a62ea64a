package verbena

import (
	"context"
	"slices"
	"time"

	"github.com/verbena-data/verbena/internal/backoff"
)

// returnPauses are those between looks for a transport that was lost for a reason
// that may last, such as a port that is down.
var returnPauses = backoff.Policy{First: 5 * time.Second, Most: 5 * time.Minute}

// avoided are the transports that new endpoints leave out, because the background is
// after them: each dial would wait for what does not answer. A lane without endpoints
// has nobody in the background.
func (l *poolLane[C]) avoided() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.sought)
}

// seek looks for a better transport than that of e, in the background, unless that is
// being done.
func (l *poolLane[C]) seek(e *Endpoint) {
	names, soon := e.selection.missed()
	if len(names) == 0 {
		return
	}
	l.core.mu.RLock()
	defer l.core.mu.RUnlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.core.ended || len(l.sought) > 0 {
		return
	}
	l.sought = names
	pauses := l.core.later
	if soon {
		pauses = l.core.soon
	}
	l.core.looks.Go(func() { l.look(names, pauses) })
}

// look dials over the transports named until one connects, and goes on for the
// better ones among them. It ends with the lane's last endpoint.
func (l *poolLane[C]) look(names []string, pauses backoff.Policy) {
	p := l.core
	defer func() {
		l.mu.Lock()
		l.sought = nil
		l.mu.Unlock()
	}()
	for attempt := 1; len(names) > 0; attempt++ {
		if !backoff.Sleep(p.ctx, pauses.Pause(attempt), nil) || !l.Open() {
			return
		}
		ctx, cancel := context.WithTimeout(p.ctx, p.cfg.DialTimeout)
		e, err := p.r.dialOne(ctx, l.key.addr, p.cfg.Service, p.cfg.Dial, names)
		if e == nil {
			cancel()
			p.r.cfg.Logger.Debug("no better transport yet", "pool", p.cfg.Name, "peer", l.key.addr, "error", err)
			continue
		}
		found := e.selection.Transport
		p.r.explain(e, l.rule(), "it came back: the pool was after it")
		c, err := p.wrap(ctx, e, l.key.session)
		cancel()
		if err == nil {
			rank := slices.Index(l.way.order, found)
			worse := func(other C) bool {
				return slices.Index(l.way.order, p.endpoint(other).selection.Transport) > rank
			}
			if err = l.Replace(c, worse); err != nil {
				p.r.discard(e) // the pool is closed
			}
		}
		if err != nil {
			continue
		}
		attempt, names = 0, names[:max(slices.Index(names, found), 0)]
		l.mu.Lock()
		l.sought = names
		l.mu.Unlock()
	}
}

// rule is what the selections of the lane's endpoints say.
func (l *poolLane[C]) rule() string {
	if l.way.rule == nil {
		return ""
	}
	return l.way.rule.String()
}
