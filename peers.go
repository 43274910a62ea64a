package verbena

import (
	"sync"
	"time"
)

// peerCacheSize bounds the addresses that are remembered.
const peerCacheSize = 4096

// verbenaExpiry is how long a peer that answered a hello counts as one that
// would answer the next. A connection that breaks is then no sign of a legacy
// server.
const verbenaExpiry = 10 * time.Minute

// A peerCache remembers which addresses have never heard of Verbena, so that a
// dial need not find out again, and which have.
type peerCache struct {
	mu    sync.Mutex
	peers map[string]peerMemory
}

type peerMemory struct {
	legacy bool
	until  time.Time
}

// legacy tells until when addr is known as a legacy server.
func (c *peerCache) legacy(addr string) (until time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.peers[addr]
	return p.until, ok && p.legacy && time.Now().Before(p.until)
}

// verbena tells whether addr has lately answered a hello.
func (c *peerCache) verbena(addr string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.peers[addr]
	return ok && !p.legacy && time.Now().Before(p.until)
}

func (c *peerCache) remember(addr string, legacy bool, expiry time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.peers == nil {
		c.peers = map[string]peerMemory{}
	}
	if len(c.peers) >= peerCacheSize {
		for a, p := range c.peers {
			if now.After(p.until) {
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
	until := now.Add(expiry)
	c.peers[addr] = peerMemory{legacy: legacy, until: until}
	return until
}

func (c *peerCache) forget(addr string) {
	c.mu.Lock()
	delete(c.peers, addr)
	c.mu.Unlock()
}
