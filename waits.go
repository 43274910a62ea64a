package verbena

import (
	"context"

	"github.com/verbena-data/verbena/internal/patience"
	"github.com/verbena-data/verbena/internal/release"
)

// A receiver is the Receive of an endpoint on a queue pair, and how a message gets to
// it. Whoever waits looks at the flags without a lock; they change under the shell's
// mu, except that wake may set readable at any time.
type receiver struct {
	readable release.Flag // Receive has something to do
	handed   release.Flag // hand is the next message
	hand     *Message     // whoever clears handed owns it
	token    chan struct{}
	ready    func() bool      // readable or handed
	spin     patience.Spinner // the caller's of Receive

	// mu of the shell guards these.
	handing bool // Receive waits: the next message may be handed to it past the inbox
	asleep  bool // Receive sleeps until there is a token
	drop    func(*Message)
}

// init makes a receiver, which does not poll until it has a spinner. drop frees a
// message that nobody has received.
func (r *receiver) init(drop func(*Message)) {
	r.token, r.drop = make(chan struct{}, 1), drop
	r.ready = func() bool { return r.handed.Load() || r.readable.Load() }
}

// give hands a message over, past the inbox. The shell's mu is held.
func (r *receiver) give(m *Message) {
	r.handing, r.hand = false, m
	r.handed.Set()
	if r.asleep {
		notify(r.token)
	}
}

// take takes the message that was handed over. Only Receive calls it, or who holds mu
// when Receive will not be called any more.
func (r *receiver) take() *Message {
	m := r.hand
	r.hand = nil
	r.handed.Clear()
	return m
}

// tell wakes a Receive that sleeps if it has something to do. The shell's mu is held.
func (r *receiver) tell() {
	if r.asleep && r.readable.Load() {
		notify(r.token)
	}
}

// wake makes Receive look at the endpoint's state.
func (r *receiver) wake() {
	r.readable.Set()
	notify(r.token)
}

// sleep waits for a token, or the end of ctx or of the endpoint, unless there is
// something to do already.
func (r *receiver) sleep(ctx context.Context, over <-chan struct{}) {
	if r.ready() {
		return
	}
	select {
	case <-r.token:
	case <-ctx.Done():
	case <-over:
	}
}

// A sender is the Send of an endpoint on a queue pair that has to wait: the holder of
// sendLock. It looks at the flag without a lock; the flag changes under the shell's mu,
// except that wake may set it at any time.
type sender struct {
	writable release.Flag     // it may go on
	token    chan struct{}    // one when it, or Close, may go on
	spin     patience.Spinner // its own

	// mu of the shell guards these.
	busy    bool // it is at it: no other message may be sent before its own
	waiting bool // for a token
}

func (d *sender) init() { d.token = make(chan struct{}, 1) }

// tell lets a Send that waits look whether it may go on. The shell's mu is held.
func (d *sender) tell() {
	if d.waiting {
		d.wake()
	}
}

// wake makes whoever waits look at the endpoint's state.
func (d *sender) wake() {
	d.writable.Set()
	notify(d.token)
}

// sleep waits for a token, or the end of ctx or of the endpoint, unless it may go on
// already.
func (d *sender) sleep(ctx context.Context, over <-chan struct{}) {
	if d.writable.Load() {
		return
	}
	select {
	case <-d.token:
	case <-ctx.Done():
	case <-over:
	}
}
