package verbena

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
)

// A ticket is the single-use token that connects a request on a device's own
// port with the hello that it belongs to.
type ticket struct {
	token     [hello.TokenSize]byte
	h         *handshake
	ctx       context.Context // of the attempt to connect
	cancel    context.CancelFunc
	endpoint  *Endpoint     // to be carried; set before the token is told
	group     *Group        // of the endpoint
	connected chan struct{} // closed when the attempt is over
	err       error         // how, set before
	taken     bool          // guarded by tickets.mu
}

// tickets are those that have been told to peers and not been shown yet.
type tickets struct {
	mu      sync.Mutex
	pending map[[hello.TokenSize]byte]*ticket
}

func (ts *tickets) issue(h *handshake) *ticket {
	t := &ticket{h: h, connected: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(h.ctx)
	_, _ = rand.Read(t.token[:]) // never fails
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.pending == nil {
		ts.pending = map[[hello.TokenSize]byte]*ticket{}
	}
	ts.pending[t.token] = t
	return t
}

// assign names the endpoint that is to be carried.
func (ts *tickets) assign(t *ticket, e *Endpoint, g *Group) {
	ts.mu.Lock()
	t.endpoint, t.group = e, g
	ts.mu.Unlock()
}

// take returns the ticket for a token, once.
func (ts *tickets) take(token []byte) *ticket {
	if len(token) != hello.TokenSize {
		return nil
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.pending[[hello.TokenSize]byte(token)]
	if t != nil {
		t.taken = true
		delete(ts.pending, t.token)
	}
	return t
}

// drop withdraws a ticket; it tells whether the token had been shown.
func (ts *tickets) drop(t *ticket) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.pending, t.token)
	return t.taken
}

// end withdraws a ticket whose handshake is over.
func (ts *tickets) end(t *ticket) {
	ts.drop(t)
	t.cancel()
}

// finish tells the handshake that waits how the attempt ended.
func (t *ticket) finish(err error) {
	t.err = err
	close(t.connected)
	// It is blocked reading: the peer may also say on the connection that it
	// could not connect.
	_ = t.h.conn.SetReadDeadline(time.Unix(1, 0))
}
