//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// A PD is a protection domain (struct ibv_pd).
type PD struct {
	ctx *Context
	p   uintptr
}

// AllocPD makes a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	p, err := c.lib.callPointer("ibv_alloc_pd "+c.name, c.lib.fn.allocPD, c.p)
	if err != nil {
		return nil, err
	}
	return &PD{c, p}, nil
}

// Context is the device that the domain belongs to.
func (d *PD) Context() *Context { return d.ctx }

// Dealloc frees the domain; it fails with EBUSY while something belongs to it.
func (d *PD) Dealloc() error {
	return d.ctx.lib.call("ibv_dealloc_pd "+d.ctx.name, d.ctx.lib.fn.deallocPD, d.p)
}

// An MR is a memory region (struct ibv_mr).
type MR struct {
	pd         *PD
	p          uintptr
	lkey, rkey uint32
}

// RegisterMR registers memory, which must be mapped memory and stay mapped
// until Deregister. The error of a registration beyond RLIMIT_MEMLOCK says so.
func (d *PD) RegisterMR(memory []byte, access Access) (*MR, error) {
	if len(memory) == 0 {
		return nil, fmt.Errorf("verbs: registering memory of no bytes: %w", syscall.EINVAL)
	}
	lib := d.ctx.lib
	p, err := lib.callPointer(fmt.Sprintf("ibv_reg_mr of %d bytes on %s", len(memory), d.ctx.name),
		lib.fn.regMR, d.p, uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)), uintptr(access))
	if err != nil {
		return nil, explainMemory(err)
	}
	return &MR{pd: d, p: p, lkey: *at[uint32](p, offMRLKey), rkey: *at[uint32](p, offMRRKey)}, nil
}

// LKey is the key for this side's work requests.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey is the key for the peer's.
func (m *MR) RKey() uint32 { return m.rkey }

// Deregister revokes both keys. When it returns, the device is done with the memory.
func (m *MR) Deregister() error {
	return m.pd.ctx.lib.call("ibv_dereg_mr "+m.pd.ctx.name, m.pd.ctx.lib.fn.deregMR, m.p)
}

// A CompChannel delivers completion events (struct ibv_comp_channel).
type CompChannel struct {
	ctx *Context
	p   uintptr
}

// CreateCompChannel makes a channel; its descriptor is non-blocking.
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	p, err := c.lib.callPointer("ibv_create_comp_channel "+c.name, c.lib.fn.createCompChannel, c.p)
	if err != nil {
		return nil, err
	}
	ch := &CompChannel{c, p}
	if err := syscall.SetNonblock(int(*at[int32](p, offCompChannelFD)), true); err != nil {
		_ = ch.Destroy()
		return nil, fmt.Errorf("verbs: completion channel of %s: %w", c.name, err)
	}
	return ch, nil
}

// Descriptor is the channel's own, non-blocking and readable when there is an
// event, until Destroy.
func (ch *CompChannel) Descriptor() int { return int(*at[int32](ch.p, offCompChannelFD)) }

// File is a duplicate of Descriptor. The caller closes it.
func (ch *CompChannel) File() (*os.File, error) {
	return duplicate(*at[int32](ch.p, offCompChannelFD), ch.ctx.name+" completion events")
}

// Event takes the next completion event and returns what its queue was created
// with; ok is false if there is none. It does not block. Each event is
// acknowledged by [CQ.AckEvents] in the end.
func (ch *CompChannel) Event() (cookie uint64, ok bool, err error) {
	lib := ch.ctx.lib
	s := lib.scratch.get()
	defer lib.scratch.put(s)
	p := s.take(16)
	r, errno := lib.raw(lib.fn.getCQEvent, ch.p, p, p+8)
	if int32(r) != 0 {
		if errno == syscall.EAGAIN || errno == syscall.EINTR {
			return 0, false, nil
		}
		return 0, false, failure("ibv_get_cq_event "+ch.ctx.name, errno)
	}
	return *at[uint64](p, 8), true, nil
}

// Destroy closes the channel; it fails with EBUSY while a completion queue uses it.
func (ch *CompChannel) Destroy() error {
	return ch.ctx.lib.call("ibv_destroy_comp_channel "+ch.ctx.name, ch.ctx.lib.fn.destroyCompChannel, ch.p)
}

// A CQ is a completion queue (struct ibv_cq).
type CQ struct {
	ctx *Context
	p   uintptr
}

// CreateCQ makes a completion queue of at least entries. cookie comes back in
// its events. channel may be nil: then there are no completion events.
func (c *Context) CreateCQ(entries int, cookie uint64, channel *CompChannel, vector int) (*CQ, error) {
	var ch uintptr
	if channel != nil {
		ch = channel.p
	}
	p, err := c.lib.callPointer(fmt.Sprintf("ibv_create_cq of %d entries on %s", entries, c.name),
		c.lib.fn.createCQ, c.p, uintptr(entries), uintptr(cookie), ch, uintptr(vector))
	if err != nil {
		return nil, explainMemory(err)
	}
	return &CQ{ctx: c, p: p}, nil
}

// Entries is the number of completions that fit, at least what was asked for.
func (q *CQ) Entries() int { return int(*at[int32](q.p, offCQCQE)) }

// Poll takes up to into.Len() completions and returns how many. It does not
// block or allocate. An error means that the queue or its device has failed.
func (q *CQ) Poll(into *Completions) (int, error) {
	n, errno := q.ctx.polls.Call3(q.ctx.pollCQ, q.p, uintptr(len(into.wcs)), uintptr(unsafe.Pointer(&into.wcs[0])))
	if n < 0 || int(n) > len(into.wcs) {
		return 0, q.pollError(n, errno)
	}
	return int(n), nil
}

func (q *CQ) pollError(n int32, errno syscall.Errno) error {
	if n > 0 {
		return fmt.Errorf("verbs: ibv_poll_cq on %s returned %d completions, more than fit", q.ctx.name, n)
	}
	if e := errorNumber(n, errno); e != 0 {
		return failure("ibv_poll_cq "+q.ctx.name, e)
	}
	return fmt.Errorf("verbs: ibv_poll_cq on %s failed with %d: the completion queue is broken, destroy it", q.ctx.name, n)
}

// RequestNotify asks for one event on the queue's channel at the next
// completion, or the next that is solicited or an error. What is in the queue
// already raises none: poll once more after it.
//
// Some drivers count no receive as solicited (see [quirks.Driver.ArmsForAll]): there
// solicitedOnly waits for ever, and a caller has to ask for all.
func (q *CQ) RequestNotify(solicitedOnly bool) error {
	var solicited uintptr
	if solicitedOnly {
		solicited = 1
	}
	// Arming is an ioctl on some drivers: always the way that may block.
	r, errno := foreignBlocking.Call3(q.ctx.reqNotify, q.p, solicited, 0)
	if r != 0 {
		return failure("ibv_req_notify_cq "+q.ctx.name, errorNumber(r, errno))
	}
	return nil
}

// AckEvents gives n events back. Destroy waits for all.
func (q *CQ) AckEvents(n int) {
	if n > 0 {
		q.ctx.lib.callVoid(q.ctx.lib.fn.ackCQEvents, q.p, uintptr(n))
	}
}

// Destroy destroys the queue; it fails with EBUSY while a queue pair uses it
// and blocks until every event that it raised has been acknowledged.
func (q *CQ) Destroy() error {
	return q.ctx.lib.call("ibv_destroy_cq "+q.ctx.name, q.ctx.lib.fn.destroyCQ, q.p)
}

// An SRQ is a shared receive queue (struct ibv_srq).
type SRQ struct {
	ctx *Context
	p   uintptr
}

// CreateSRQ makes a shared receive queue for at least depth receives of up to
// sges entries. cookie comes back in its asynchronous events.
func (d *PD) CreateSRQ(depth, sges int, cookie uint64) (*SRQ, error) {
	lib := d.ctx.lib
	s := lib.scratch.get()
	defer lib.scratch.put(s)
	a := s.take(sizeSRQInitAttr)
	*at[uint64](a, offSRQInitAttrSRQContext) = cookie
	*at[uint32](a, offSRQInitAttrAttr+offSRQAttrMaxWR) = uint32(depth)
	*at[uint32](a, offSRQInitAttrAttr+offSRQAttrMaxSGE) = uint32(sges)
	p, err := lib.callPointer(fmt.Sprintf("ibv_create_srq of %d receives with %d entries on %s", depth, sges, d.ctx.name), lib.fn.createSRQ, d.p, a)
	if err != nil {
		return nil, explainMemory(err)
	}
	return &SRQ{ctx: d.ctx, p: p}, nil
}

// PostRecv posts the first n receives of l. It returns how many were taken; the
// error is about the next one. It does not allocate unless it fails.
func (q *SRQ) PostRecv(l *RecvList, n int) (int, error) {
	return l.post(q.ctx, q.ctx.postSRQRecv, q.p, n)
}

// SetLimit raises AsyncSRQLimitReached once when fewer than n receives are left.
func (q *SRQ) SetLimit(n int) error {
	s := q.ctx.lib.scratch.get()
	defer q.ctx.lib.scratch.put(s)
	a := s.take(sizeSRQAttr)
	*at[uint32](a, offSRQAttrLimit) = uint32(n)
	return q.ctx.lib.call("ibv_modify_srq "+q.ctx.name, q.ctx.lib.fn.modifySRQ, q.p, a, maskSRQLimit)
}

// Destroy destroys the queue; it fails with EBUSY while a queue pair uses it.
func (q *SRQ) Destroy() error {
	return q.ctx.lib.call("ibv_destroy_srq "+q.ctx.name, q.ctx.lib.fn.destroySRQ, q.p)
}
