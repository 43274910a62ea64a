package verbena

import (
	"sync"
	"time"
)

// peerCacheSize bounds the addresses that are remembered.
const peerCacheSize = 4096

const (
	// verbenaExpiry is how long a peer that answered a hello counts as one that
	// would answer the next. A connection that breaks is then no sign of a legacy
	// server.
	verbenaExpiry = 10 * time.Minute
	// A transport that could not be connected is left out for firstFailure, then
	// for twice as long with each further failure, up to longestFailure.
	firstFailure, longestFailure = 5 * time.Second, 5 * time.Minute
	// firstLook is the least pause between two looks at a silent peer. It doubles
	// with each look in vain, up to the time for which the silence is remembered.
	firstLook = time.Second
)

// A peerCache remembers what dials found out about addresses, so that the next
// one need not: who has never heard of Verbena and who has, and which transports
// do not connect.
type peerCache struct {
	mu    sync.Mutex
	peers map[string]*peerMemory
}

// A peerMemory is what is known of one address. Times are those until which it
// is.
type peerMemory struct {
	verbena time.Time // it has answered a hello
	legacy  time.Time // it has answered in another protocol
	silent  time.Time // it has not answered, twice

	// suspect is when the exchange began that was not answered, once.
	suspect time.Time

	looking   bool
	nextLook  time.Time
	lookPause time.Duration

	failures map[string]failure // by transport
}

type failure struct {
	reason string
	pause  time.Duration
	until  time.Time // left out
}

// stale tells whether nothing of it matters any more.
func (p *peerMemory) stale(now time.Time) bool {
	if p.looking || now.Before(p.verbena) || now.Before(p.legacy) || now.Before(p.silent) || now.Sub(p.suspect) < verbenaExpiry {
		return false
	}
	for _, f := range p.failures {
		if now.Before(f.until.Add(longestFailure)) {
			return false
		}
	}
	return true
}

// at returns the memory of an address, new if need be. It needs mu.
func (c *peerCache) at(addr string) *peerMemory {
	if p := c.peers[addr]; p != nil {
		return p
	}
	if c.peers == nil {
		c.peers = map[string]*peerMemory{}
	}
	if len(c.peers) >= peerCacheSize {
		now := time.Now()
		for a, p := range c.peers {
			if p.stale(now) {
				delete(c.peers, a)
			}
		}
		for a := range c.peers { // still full: any one
			if len(c.peers) < peerCacheSize {
				break
			}
			delete(c.peers, a)
		}
	}
	p := &peerMemory{}
	c.peers[addr] = p
	return p
}

// legacy tells until when addr is known as a legacy server, and whether silence
// is all that speaks for it.
func (c *peerCache) legacy(addr string) (until time.Time, silent, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, now := c.peers[addr], time.Now()
	switch {
	case p == nil:
		return time.Time{}, false, false
	case now.Before(p.legacy):
		return p.legacy, false, true
	}
	return p.silent, true, now.Before(p.silent)
}

// verbena tells whether addr has lately answered a hello.
func (c *peerCache) verbena(addr string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[addr]
	return p != nil && time.Now().Before(p.verbena)
}

// answered notes that addr speaks Verbena.
func (c *peerCache) answered(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.at(addr)
	p.verbena = time.Now().Add(verbenaExpiry)
	p.legacy, p.silent, p.suspect, p.nextLook, p.lookPause = time.Time{}, time.Time{}, time.Time{}, time.Time{}, 0
}

// foreign notes that addr has answered in another protocol.
func (c *peerCache) foreign(addr string, expiry time.Duration) (until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.at(addr)
	p.verbena, p.legacy = time.Time{}, time.Now().Add(expiry)
	return p.legacy
}

// silence notes that addr has not answered an exchange that began then, although
// it had the whole deadline, or hung up. Twice in a row makes it a legacy server:
// two exchanges of which the second began when the first had had its time, so
// that a moment in which many dials fail counts once.
func (c *peerCache) silence(addr string, began time.Time, deadline, expiry time.Duration) (until time.Time, remembered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, now := c.at(addr), time.Now()
	switch {
	case now.Before(p.silent):
	case p.suspect.IsZero() || began.Sub(p.suspect) > deadline+verbenaExpiry:
		p.suspect = began
		return time.Time{}, false
	case began.Sub(p.suspect) < deadline:
		return time.Time{}, false
	}
	p.silent = now.Add(expiry)
	return p.silent, true
}

// look tells whether it is time to look at addr again. Whoever is told so does,
// and calls looked.
func (c *peerCache) look(addr string, longest time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, now := c.at(addr), time.Now()
	if p.looking || now.Before(p.nextLook) {
		return false
	}
	p.lookPause = min(max(2*p.lookPause, firstLook), max(longest, firstLook))
	p.looking, p.nextLook = true, now.Add(p.lookPause)
	return true
}

func (c *peerCache) looked(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[addr]; p != nil {
		p.looking = false
	}
}

// fail notes that a transport to addr could not be connected, for a reason that
// lasts.
func (c *peerCache) fail(addr, transport, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.at(addr)
	if p.failures == nil {
		p.failures = map[string]failure{}
	}
	now := time.Now()
	f := p.failures[transport]
	if now.After(f.until.Add(longestFailure)) {
		f.pause = 0 // long ago
	}
	f.reason, f.pause = reason, min(max(2*f.pause, firstFailure), longestFailure)
	f.until = now.Add(f.pause)
	p.failures[transport] = f
}

// failed tells why a transport to addr is to be left out, and until when.
func (c *peerCache) failed(addr, transport string) (reason string, until time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.peers[addr]
	if p == nil {
		return "", time.Time{}, false
	}
	f, ok := p.failures[transport]
	return f.reason, f.until, ok && time.Now().Before(f.until)
}

// connected forgets the failures of a transport.
func (c *peerCache) connected(addr, transport string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[addr]; p != nil {
		delete(p.failures, transport)
	}
}

func (c *peerCache) forget(addr string) {
	c.mu.Lock()
	delete(c.peers, addr)
	c.mu.Unlock()
}
