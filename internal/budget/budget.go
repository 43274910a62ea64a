// Package budget shares out a bounded amount of memory among connections that
// receive messages from peers nobody can trust to be quick.
//
// Each connection has an [Account]. A little memory is its own, so that small
// messages pass whatever the others do. What it needs beyond that it takes from
// the [Budget]: at most a share of it, so that one connection cannot have all.
// An account that may not take more waits, and its connection reads no further.
//
// Half-received messages that wait for each other's memory would wait for ever.
// So a part of the budget, as large as the longest message, is kept for one
// favored account at a time: the one that has waited longest among those whose
// application waits for that very message. It gets all that its message
// needs. A favored peer that does not go on sending would hold up the
// others; while somebody waits, [Budget.EndStalled] finds such peers.
//
// The package does not know what the memory is; it only counts.
package budget

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Own is what each account has for itself, in bytes: a message of 64 KiB, and
	// what its owner counts beside the bytes.
	Own = 65 << 10
	// lease is the least that moves between a budget and an account when there is
	// enough, so that small messages seldom take the budget's lock.
	lease = 256 << 10
	// shares is how many accounts can fill what is not kept for the favored one, and
	// peerShares how many peers.
	shares, peerShares = 4, 2
	// Stalled is how long a peer may leave a message unfinished while others wait
	// for memory. It is also how long the favored peer may take for each piece of
	// memory that it is given.
	Stalled = 15 * time.Second
)

// A Budget is safe for concurrent use.
type Budget struct {
	limit int64 // of what all accounts hold beyond their own
	most  int64 // of that, without what is kept for the favored account
	start time.Time

	mu       sync.Mutex
	ordinary int64 // most, or less while memory is short
	squeezed bool
	used     int64
	favored  *Account
	waiting  []*Account            // the longest first
	accounts map[*Account]struct{} // that hold some of it
	byPeer   map[string]*peer      // that hold some or wait
	spare    *peer                 // that was the last to leave byPeer
	favors   uint64                // that have been given
}

// A peer is what accounts share that belong to one.
type peer struct {
	users   int    // accounts that hold some or wait
	total   int64  // what they hold
	favored uint64 // the number of the last favor, 0 for none
}

// New makes a budget of limit bytes, in which messages of up to longest bytes
// can be received. longest is at most half of the limit.
func New(limit, longest int64) *Budget {
	ordinary := max(limit-longest, limit/2)
	return &Budget{
		limit: limit, most: ordinary, ordinary: ordinary,
		start: time.Now(), accounts: map[*Account]struct{}{}, byPeer: map[string]*peer{},
	}
}

// Limit is what all accounts may hold beyond their own, in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Squeeze keeps accounts from holding more than allowed bytes beyond their own,
// until Relax. The favored account still gets what its message needs, so messages
// arrive, one after the other at worst.
func (b *Budget) Squeeze(allowed int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ordinary = min(max(allowed, 0), b.most)
	b.squeezed = true
}

// Relax ends a Squeeze.
func (b *Budget) Relax() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ordinary, b.squeezed = b.most, false
	b.serve()
}

// Squeezed tells that memory is kept short.
func (b *Budget) Squeezed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.squeezed
}

// InUse is Used, by the name that pools of other memory have for it.
func (b *Budget) InUse() int64 { return b.Used() }

// Used is what accounts hold beyond their own, in bytes.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Waiting is how many accounts wait for memory.
func (b *Budget) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// Plenty tells that less than half of what is for all is in use.
func (b *Budget) Plenty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used < b.ordinary/2
}

// EndStalled calls stalled of accounts whose peers have left a message
// unfinished for [Stalled]. Those who wait call it every few seconds.
func (b *Budget) EndStalled() {
	now := b.now()
	var stalled []*Account
	b.mu.Lock()
	for a := range b.accounts {
		if a.unfinished.Load() && !a.asking && now-a.moved.Load() >= int64(Stalled) {
			stalled = append(stalled, a)
		}
	}
	b.mu.Unlock()
	for _, a := range stalled {
		a.stalled()
	}
}

func (b *Budget) now() int64 { return int64(time.Since(b.start)) }

// An Account is one connection's part of a budget. Take, Ask, Withdraw, Moved
// and Finish are called by the one goroutine that reads the connection; Give by
// anybody.
type Account struct {
	b       *Budget
	name    string // of its peer
	stalled func()
	granted chan struct{} // one token when Ask is worth a try

	unfinished atomic.Bool  // the message that is arriving has memory
	moved      atomic.Int64 // when it last grew
	preferred  atomic.Bool  // b.favored is this account

	mu     sync.Mutex // taken before b.mu
	held   int64
	leased int64 // held is at most Own + leased

	// Guarded by b.mu.
	asking bool
	urgent bool
	need   int64
	got    bool  // need has been added to used
	total  int64 // what has been taken from the budget: leased, and need if got
	peer   *peer // while it holds some or waits
}

// Open makes an account of a connection from peer. All connections of one peer
// together get at most a share, too, however many there are. stalled is called, from a goroutine that reads another
// connection, when this one's peer holds up others: it ends the connection.
func (b *Budget) Open(peer string, stalled func()) *Account {
	return &Account{b: b, name: peer, stalled: stalled, granted: make(chan struct{}, 1)}
}

// Take adds n bytes to what the account holds, if it may have them at once.
func (a *Account) Take(n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	missing := a.held + n - Own - a.leased
	if missing <= 0 {
		a.held += n
		if a.leased > 0 {
			a.begin()
		}
		return true
	}
	a.begin()
	b := a.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, size := range [...]int64{max(missing, lease), missing} {
		if b.may(a, size) {
			b.grant(a, size)
			a.leased += size
			a.held += n
			return true
		}
	}
	return false
}

// begin notes that a message has begun, or has grown. One that lies in the
// account's own memory keeps nothing from others, so it is not looked at.
func (a *Account) begin() {
	if !a.unfinished.Load() || a.preferred.Load() {
		a.moved.Store(a.b.now())
		a.unfinished.Store(true)
	}
}

// Ask is Take for an account that has to wait: it also puts the account among
// those that wait, until it gets n bytes or withdraws. It is tried again
// when Granted says so, and with urgent set when the application has begun to
// wait for the message that is arriving.
func (a *Account) Ask(n int64, urgent bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if !a.got {
		a.need, a.urgent = max(a.held+n-Own-a.leased, 0), urgent
		if !a.asking {
			a.asking = true
			b.waiting = append(b.waiting, a)
			b.use(a)
		}
		b.serve()
		if !a.got {
			return false
		}
	}
	a.got = false
	a.leased += a.need
	a.held += n
	a.unfinished.Store(true)
	return true
}

// Granted has a token when Ask has become worth a try.
func (a *Account) Granted() <-chan struct{} { return a.granted }

// Withdraw ends the wait of an Ask that did not succeed.
func (a *Account) Withdraw() {
	b := a.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.got {
		a.got = false
		b.put(a, a.need)
	}
	if a.asking {
		a.asking = false
		b.waiting = slices.DeleteFunc(b.waiting, func(w *Account) bool { return w == a })
		b.unuse(a)
	}
	b.serve()
}

// Moved notes that the message which is arriving has grown.
func (a *Account) Moved() {
	if !a.preferred.Load() { // which must fill what it is given
		a.moved.Store(a.b.now())
	}
}

// Finish notes that the message that was arriving has arrived, or will not. What
// it holds stays until it is given back.
func (a *Account) Finish() {
	if a.unfinished.Load() {
		a.unfinished.Store(false)
	}
	if a.preferred.Load() {
		a.b.mu.Lock()
		a.b.unfavor(a)
		a.b.serve()
		a.b.mu.Unlock()
	}
}

// Give takes n bytes from what the account holds.
func (a *Account) Give(n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held -= n
	// Some is kept for the next message, but nothing by an account at rest.
	keep := max(a.held-Own, 0)
	if keep > 0 {
		keep += lease
	}
	if back := a.leased - keep; back > 0 && (keep == 0 || back >= lease) {
		a.leased -= back
		a.b.mu.Lock()
		a.b.put(a, back)
		a.b.serve()
		a.b.mu.Unlock()
	}
}

// may tells whether a may take n bytes now.
func (b *Budget) may(a *Account, n int64) bool {
	if b.favored == a {
		return true
	}
	var peer int64
	if p := b.byPeer[a.name]; p != nil {
		peer = p.total
	}
	return b.used+n <= b.ordinary && a.total+n <= b.ordinary/shares && peer+n <= b.ordinary/peerShares
}

func (b *Budget) grant(a *Account, n int64) {
	if n > 0 {
		b.use(a)
		b.used += n
		a.total += n
		a.peer.total += n
		b.accounts[a] = struct{}{}
	}
}

func (b *Budget) put(a *Account, n int64) {
	if n == 0 {
		return
	}
	b.used -= n
	a.peer.total -= n
	if a.total -= n; a.total == 0 {
		delete(b.accounts, a)
	}
	b.unuse(a)
}

// use counts a among its peer's accounts.
func (b *Budget) use(a *Account) {
	if a.peer != nil {
		return
	}
	if a.peer = b.byPeer[a.name]; a.peer == nil {
		a.peer, b.spare = b.spare, nil
		if a.peer == nil {
			a.peer = &peer{}
		}
		b.byPeer[a.name] = a.peer
	}
	a.peer.users++
}

// unuse ends that if it neither holds anything nor waits.
func (b *Budget) unuse(a *Account) {
	if a.peer == nil || a.asking || a.total > 0 {
		return
	}
	if a.peer.users--; a.peer.users == 0 {
		delete(b.byPeer, a.name)
		*a.peer = peer{}
		b.spare = a.peer
	}
	a.peer = nil
}

func (b *Budget) unfavor(a *Account) {
	if b.favored == a {
		b.favored = nil
		a.preferred.Store(false)
	}
}

// serve gives those who wait what there is. Small requests pass large ones that
// do not fit.
func (b *Budget) serve() {
	b.waiting = slices.DeleteFunc(b.waiting, func(a *Account) bool {
		if !b.may(a, a.need) {
			return false
		}
		b.give(a)
		return true
	})
	if b.favored != nil {
		return
	}
	next := -1
	for i, a := range b.waiting { // peers take turns
		if a.urgent && (next < 0 || a.peer.favored < b.waiting[next].peer.favored) {
			next = i
		}
	}
	if next < 0 {
		return
	}
	a := b.waiting[next]
	b.waiting = slices.Delete(b.waiting, next, next+1)
	b.favors++
	b.favored, a.peer.favored = a, b.favors
	a.preferred.Store(true)
	b.give(a)
}

// give ends the wait of an account.
func (b *Budget) give(a *Account) {
	b.grant(a, a.need)
	a.moved.Store(b.now()) // it was not the peer that waited
	a.asking, a.got = false, true
	b.unuse(a)
	select {
	case a.granted <- struct{}{}:
	default:
	}
}
