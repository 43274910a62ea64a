package rdmanet

import (
	"cmp"
	"container/list"
	"context"
	"sync"
	"time"
)

// headStart is how long a dial waits for an endpoint whose peer has still to
// close the connection before, rather than setting up another endpoint. It is
// about what a set-up costs.
const headStart = 2 * time.Millisecond

// pool keeps the sessions of a dialer, by peer: those in use, those that wait
// for their peer's close, and the parked ones.
type pool struct {
	perPeer, total int
	idleTimeout    time.Duration
	life           time.Duration // of an endpoint, below 0 for ever

	mu       sync.Mutex
	closed   bool
	sessions map[*session]*pooled
	peers    map[string]*peer
	parked   list.List // of *session, the longest parked first
}

type pooled struct {
	key      string
	born     time.Time
	place    *list.Element // in parked, or nil
	draining bool
	passing  bool          // a better transport was left for a reason of that moment
	idle     time.Duration // how long it may be parked; 0: as others
}

type peer struct {
	sessions int
	parked   []*session // the latest last: its memory is the warmest
	draining int
	waiters  []chan *session

	// Of a peer whose last endpoint left a better transport for a passing reason.
	passing bool
	retryAt time.Time // when a dial tries again instead of taking such an endpoint
	pause   time.Duration
}

func newPool(perPeer, total int, idleTimeout, life time.Duration) *pool {
	return &pool{
		perPeer: perPeer, total: total, idleTimeout: idleTimeout, life: life,
		sessions: map[*session]*pooled{}, peers: map[string]*peer{},
	}
}

// add takes in a new session; false if the pool is closed.
func (p *pool) add(key string, s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	chosen, ok := s.ep.(selected)
	passing := ok && chosen.Selection().Passing()
	var idle time.Duration
	if k, ok := s.ep.(keeper); ok {
		idle = k.KeepFor(p.idleTimeout)
	}
	p.sessions[s] = &pooled{key: key, born: time.Now(), passing: passing, idle: idle}
	pr := p.peers[key]
	if pr == nil {
		pr = &peer{}
		p.peers[key] = pr
	}
	pr.sessions++
	if pr.passing = passing; passing {
		pr.retryAt = time.Now().Add(pr.pause)
		pr.pause = min(max(2*pr.pause, firstPause), passingLife)
	} else {
		pr.pause = 0
	}
	return true
}

// take returns a parked session to the peer, or one that is about to be parked,
// or nil.
func (p *pool) take(ctx context.Context, key string) *session {
	p.mu.Lock()
	pr := p.peers[key]
	if pr == nil || p.closed || p.total <= 0 || p.perPeer <= 0 {
		p.mu.Unlock()
		return nil
	}
	again := pr.passing && !time.Now().Before(pr.retryAt)
	for n := len(pr.parked); n > 0; n-- {
		s := pr.parked[n-1]
		e := p.sessions[s]
		if e.passing && (again || !pr.passing) {
			continue // something better can be had, or is to be tried
		}
		if p.left(e) > 0 { // otherwise its timer ends it now
			p.unpark(s)
			p.mu.Unlock()
			return s
		}
	}
	if again { // other dials take what there is meanwhile
		pr.retryAt = time.Now().Add(pr.pause)
		p.mu.Unlock()
		return nil
	}
	if pr.draining <= len(pr.waiters) {
		p.mu.Unlock()
		return nil
	}
	ch := make(chan *session, 1)
	pr.waiters = append(pr.waiters, ch)
	p.mu.Unlock()

	timer := time.NewTimer(headStart)
	defer timer.Stop()
	select {
	case s := <-ch:
		return s
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, w := range pr.waiters {
		if w == ch {
			pr.waiters = append(pr.waiters[:i], pr.waiters[i+1:]...)
			break
		}
	}
	p.prune(key)
	select {
	case s := <-ch: // it came just now
		return s
	default:
		return nil
	}
}

// unpark is called with mu held.
func (p *pool) unpark(s *session) bool {
	e := p.sessions[s]
	if e == nil || e.place == nil {
		return false
	}
	p.parked.Remove(e.place)
	e.place = nil
	pr := p.peers[e.key]
	for i, other := range pr.parked {
		if other == s {
			pr.parked = append(pr.parked[:i], pr.parked[i+1:]...)
			break
		}
	}
	return true
}

func (p *pool) settle(e *pooled, draining bool) {
	if e.draining == draining {
		return
	}
	e.draining = draining
	if draining {
		p.peers[e.key].draining++
	} else {
		p.peers[e.key].draining--
	}
}

func (p *pool) opened(*conn) {} // a session refuses an OPEN that comes to the dialer

func (p *pool) draining(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.sessions[s]; e != nil {
		p.settle(e, true)
	}
}

const (
	// passingLife is how long an endpoint is parked that got a worse transport because
	// the better one was busy, say: the next dial may do better.
	passingLife = time.Second
	// firstPause is the pause between the second and the third dial that try whether
	// the better transport is back; the second tries at once. It doubles with each in
	// vain, up to passingLife. Dials in between take parked endpoints.
	firstPause = 25 * time.Millisecond
)

// left is how long an endpoint may still be parked.
func (p *pool) left(e *pooled) time.Duration {
	life := p.life
	if e.passing && (life < 0 || life > passingLife) {
		life = passingLife
	}
	idle := cmp.Or(e.idle, p.idleTimeout)
	if life < 0 {
		return idle
	}
	return min(idle, life-time.Since(e.born))
}

// A keeper is an endpoint that may have to go sooner.
type keeper interface {
	KeepFor(idle time.Duration) time.Duration
}

// KeepFor is how long whoever keeps connections for later should keep this one from its last
// use on: as [verbena.Endpoint.KeepFor] of its endpoint.
func (c *conn) KeepFor(idle time.Duration) time.Duration {
	if k, ok := c.s.ep.(keeper); ok {
		return k.KeepFor(idle)
	}
	return idle
}

// idle parks the session, or hands it to a dial that is waiting for it.
func (p *pool) idle(s *session) bool {
	var oldest *session
	p.mu.Lock()
	e := p.sessions[s]
	if p.closed || e == nil || p.total <= 0 || p.perPeer <= 0 {
		p.mu.Unlock()
		return false
	}
	left := p.left(e)
	p.mu.Unlock()
	if left <= 0 {
		return false
	}
	s.after(left, func() {
		p.mu.Lock()
		parked := p.unpark(s)
		p.mu.Unlock()
		if parked {
			s.shutdown(errIdle)
		}
	})
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return false
	}
	p.settle(e, false)
	pr := p.peers[e.key]
	if e.passing && !pr.passing { // there is something better
		p.mu.Unlock()
		return false
	}
	if len(pr.waiters) > 0 {
		pr.waiters[0] <- s
		pr.waiters = pr.waiters[1:]
		p.mu.Unlock()
		return true
	}
	if len(pr.parked) >= p.perPeer {
		p.mu.Unlock()
		return false
	}
	if p.parked.Len() >= p.total {
		oldest = p.parked.Front().Value.(*session)
		p.unpark(oldest)
	}
	e.place = p.parked.PushBack(s)
	pr.parked = append(pr.parked, s)
	p.mu.Unlock()
	if oldest != nil {
		oldest.shutdown(errIdle)
	}
	return true
}

func (p *pool) ended(s *session, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.sessions[s]
	if e == nil {
		return
	}
	p.unpark(s)
	p.settle(e, false)
	delete(p.sessions, s)
	p.peers[e.key].sessions--
	p.prune(e.key)
}

func (p *pool) prune(key string) {
	if pr := p.peers[key]; pr != nil && pr.sessions == 0 && len(pr.waiters) == 0 {
		delete(p.peers, key)
	}
}

// close ends all sessions that no connection is open on, and waits for them.
// Sessions in use end with their connection.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	var free, draining []*session
	for s, e := range p.sessions {
		switch {
		case e.place != nil:
			free = append(free, s)
		case e.draining:
			draining = append(draining, s)
		}
	}
	p.mu.Unlock()
	for _, s := range free {
		s.shutdown(errClosed)
	}
	await(append(draining, free...), closeGrace)
}

// counts returns how many sessions there are, and how many of them are parked.
func (p *pool) counts() (sessions, parked int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sessions), p.parked.Len()
}
