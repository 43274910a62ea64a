package slab

import "context"

// A Private is an owner's own set of regions in a pool, for memory whose keys
// are handed to a peer: its slabs lie in regions of their own, which never held
// anything of another owner. Fresh ones are zero; what the owner put back it
// may get again as it left it. Its methods may be called concurrently.
type Private struct {
	pool *Pool

	// Under the pool's lock.
	closed        bool
	idle          list
	listed        bool // in the pool's owners, as long as something is idle
	older, recent *Private
}

// owners are those with idle regions, in the order of their last use.
type owners struct{ first, last *Private }

func (l *owners) push(o *Private) {
	o.listed, o.older, o.recent = true, l.last, nil
	if l.last != nil {
		l.last.recent = o
	} else {
		l.first = o
	}
	l.last = o
}

func (l *owners) remove(o *Private) {
	if o.older != nil {
		o.older.recent = o.recent
	} else {
		l.first = o.recent
	}
	if o.recent != nil {
		o.recent.older = o.older
	} else {
		l.last = o.older
	}
	o.listed, o.older, o.recent = false, nil, nil
}

// NewPrivate makes an owner. It has no memory until it asks for some.
func (p *Pool) NewPrivate() *Private { return &Private{pool: p} }

// TryGet is [Pool.TryGet] for a slab in a region of the owner's. [Pool.Put]
// takes it back.
func (o *Private) TryGet(size int) (s Slab, ok bool, err error) { return o.pool.try(size, o, manner{}) }

// TryQuick is [Pool.TryQuick] for a slab in a region of the owner's.
func (o *Private) TryQuick(size int) (s Slab, ok bool, err error) {
	return o.pool.try(size, o, manner{quick: true})
}

// Get is [Pool.Get] for a slab in a region of the owner's.
func (o *Private) Get(ctx context.Context, size int) (Slab, error) {
	return o.pool.get(ctx, size, o, false)
}

// GetNow is [Pool.GetNow] for a slab in a region of the owner's.
func (o *Private) GetNow(ctx context.Context, size int) (Slab, error) {
	return o.pool.get(ctx, size, o, true)
}

// Close ends the owner's waits and closes its regions, which revokes their keys:
// those that are free now, the others when their slabs are Put. It returns when
// the former are closed.
func (o *Private) Close() error {
	p := o.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.closed {
		return nil
	}
	o.closed = true
	p.refuse(func(w *waiter) bool { return w.owner == o }, ErrClosed)
	var victims []*arena
	for o.idle.top != nil {
		a := o.idle.top
		p.evict(a)
		victims = append(victims, a)
	}
	return p.giveBack(victims)
}

// touch makes an owner the one that was active last. p.mu is held.
func (p *Pool) touch(o *Private) {
	if o.listed {
		p.owners.remove(o)
	}
	if o.idle.top != nil {
		p.owners.push(o)
	}
}
