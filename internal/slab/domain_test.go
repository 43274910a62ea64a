package slab

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

var errDevice = errors.New("the device does not want to")

// A device is a domain that allocates and nothing else.
type device struct {
	rdma.Domain
	t     testing.TB
	limit int64

	mu        sync.Mutex
	keys      uint32
	regions   map[*region]struct{}
	bytes     int64
	allocated int // regions
	refuses   func(size int) bool
	keeps     func() bool          // does not close a region
	takes     func() time.Duration // to allocate or to close
}

func newDevice(t testing.TB, limit int64) *device {
	return &device{t: t, limit: limit, regions: map[*region]struct{}{}}
}

// newPool makes a pool whose limit the device checks.
func newPool(t testing.TB, limit int64) (*Pool, *device) {
	d := newDevice(t, limit)
	p := New(d, rdma.AccessLocalWrite, limit)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		p.Settle()
		if len(d.regions) != 0 && !t.Failed() {
			t.Errorf("%d regions of %d bytes are left", len(d.regions), d.bytes)
		}
	})
	return p, d
}

func (d *device) pause() {
	if d.takes != nil {
		time.Sleep(d.takes())
	}
}

func (d *device) Allocate(size int, access rdma.Access) (rdma.Region, error) {
	d.pause()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuses != nil && d.refuses(size) {
		return nil, errDevice
	}
	d.keys++
	d.allocated++
	r := &region{device: d, memory: make([]byte, size), key: d.keys, access: access}
	d.regions[r] = struct{}{}
	if d.bytes += int64(size); d.bytes > d.limit {
		d.t.Errorf("%d bytes registered, the limit is %d", d.bytes, d.limit)
	}
	return r, nil
}

type region struct {
	device *device
	memory []byte
	key    uint32
	access rdma.Access
	steady bool
}

// Steady implements [rdma.SteadyRegion].
func (r *region) Steady() { r.steady = true }

func (r *region) Bytes() []byte       { return r.memory }
func (r *region) Key() uint32         { return r.key }
func (r *region) Address() uint64     { return uint64(r.key) << 40 }
func (r *region) Access() rdma.Access { return r.access }

func (r *region) Close() error {
	d := r.device
	d.pause()
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, there := d.regions[r]; !there {
		d.t.Error("a region is closed twice")
	}
	if d.keeps != nil && d.keeps() {
		return errDevice
	}
	delete(d.regions, r)
	d.bytes -= int64(len(r.memory))
	for i := 0; i < len(r.memory); i += page {
		r.memory[i] = 0xdd // who still has it will see
	}
	return nil
}

// check looks at what must hold at any time, and at more when nobody is busy.
func (p *Pool) check(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var idle, small, large, drained, used int64
	wrong := func(a *arena, what string) {
		t.Helper()
		t.Errorf("%s: arena %d of %d bytes, class %d, %d of %d out", what, a.place, len(a.memory), a.class, a.out, a.count)
	}
	for i, a := range p.all {
		if a.place != i || a.tag != 0 && (*p.table.Load())[a.tag>>indexBits] != a {
			wrong(a, "not in its place")
		}
		if a.out != a.fresh-len(a.free) || a.fresh > a.count || a.count*a.stride > len(a.memory) {
			wrong(a, "miscounted")
		}
		used += int64(a.used())
		var where *list
		switch {
		case a.out == 0:
			idle += a.size()
			where = a.list // one of several
			if where == nil || a.drains || a.owner != nil && where != &a.owner.idle {
				wrong(a, "idle in no list")
			}
		case a.drains:
			drained += a.size()
			where = &p.drained
		case a.large:
			large += a.size()
		default:
			small += a.size()
			if a.class != noClass && a.out < a.count {
				where = &p.classes[a.class].partial
			}
		}
		if len(a.spoilt) > 0 {
			where = nil
			if a.out <= len(a.spoilt) {
				wrong(a, "not retired")
			}
		}
		if a.list != where {
			wrong(a, "in the wrong list")
		}
		if a.owner != nil && a.out == 0 && !a.owner.listed {
			wrong(a, "of an owner that is not listed")
		}
	}
	if used != p.used.Load() || idle != p.idle || drained != p.drainedUse {
		t.Errorf("%d used, %d idle, %d drained; counted %d, %d, %d", used, idle, drained, p.used.Load(), p.idle, p.drainedUse)
	}
	if p.line.lanes != 0 && p.opened.Load() != 0 {
		t.Error("shelves are open while somebody waits")
	}
	if idle+used > 0 && p.line.lanes == 0 && (idle > 0 || p.opened.Load() != 0) && !p.trim.armed && !p.closed {
		t.Error("something is free and nobody will trim it")
	}
	if p.registered.Load() > p.limit || p.Used() > p.registered.Load() {
		t.Errorf("%d used, %d registered, the limit is %d", p.Used(), p.registered.Load(), p.limit)
	}
	if p.busy > 0 {
		return
	}
	if p.squeeze.untold != 0 {
		t.Errorf("%d bytes of plans are left that nobody was told of", p.squeeze.untold)
	}
	if small != p.smallUse || large != p.largeUse || idle+small+large+drained+p.lost != p.registered.Load() {
		t.Errorf("%d and %d in use, %d lost; counted %d and %d, %d are registered", small, large, p.lost, p.smallUse, p.largeUse, p.registered.Load())
	}
	if d, ok := p.domain.(*device); ok {
		d.mu.Lock()
		if d.bytes != p.registered.Load() {
			t.Errorf("the device has %d bytes, the pool counts %d", d.bytes, p.registered.Load())
		}
		d.mu.Unlock()
	}
	waiting := p.waiting()
	if p.serve(); p.waiting() != waiting {
		t.Errorf("%d waiters could have been served", waiting-p.waiting())
	}
}

func chance(r *rand.Rand, percent int) bool { return r.IntN(100) < percent }
