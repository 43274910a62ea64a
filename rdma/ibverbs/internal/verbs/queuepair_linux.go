//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/verbena-data/verbena/rdma/ibverbs/internal/foreign"
)

const foreignBlocking = foreign.Blocking

// QPConfig configures a reliable-connected queue pair (struct ibv_qp_init_attr).
type QPConfig struct {
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ   // nil: receives are posted to the queue pair
	Cookie         uint64 // comes back in asynchronous events
	SendDepth      int    // work requests
	RecvDepth      int
	SendSGEs       int
	RecvSGEs       int
	Inline         int  // bytes
	SignalAll      bool // every send work request completes, flag or not
}

// A QP is a reliable-connected queue pair (struct ibv_qp).
type QP struct {
	ctx    *Context
	p      uintptr
	number uint32
	config QPConfig
}

// CreateQP makes a queue pair in the reset state. The configuration that the
// driver granted, at least what was asked for, is in [QP.Config].
func (d *PD) CreateQP(config QPConfig) (*QP, error) {
	lib := d.ctx.lib
	s := lib.scratch.get()
	defer lib.scratch.put(s)
	a := config.marshal(s)
	op := fmt.Sprintf("ibv_create_qp (send depth %d, receive depth %d, %d and %d entries, %d bytes inline) on %s",
		config.SendDepth, config.RecvDepth, config.SendSGEs, config.RecvSGEs, config.Inline, d.ctx.name)
	p, err := lib.callPointer(op, lib.fn.createQP, d.p, a)
	if err != nil {
		return nil, explainMemory(err)
	}
	return newQP(d.ctx, p, config, a), nil
}

func (c *QPConfig) marshal(s *scratch) uintptr {
	a := s.take(sizeQPInitAttr)
	*at[uint64](a, offQPInitAttrQPContext) = c.Cookie
	*at[uintptr](a, offQPInitAttrSendCQ) = c.SendCQ.p
	*at[uintptr](a, offQPInitAttrRecvCQ) = c.RecvCQ.p
	if c.SRQ != nil {
		*at[uintptr](a, offQPInitAttrSRQ) = c.SRQ.p
	}
	*at[uint32](a, offQPInitAttrCap+offQPCapMaxSendWR) = uint32(c.SendDepth)
	*at[uint32](a, offQPInitAttrCap+offQPCapMaxRecvWR) = uint32(c.RecvDepth)
	*at[uint32](a, offQPInitAttrCap+offQPCapMaxSendSGE) = uint32(c.SendSGEs)
	*at[uint32](a, offQPInitAttrCap+offQPCapMaxRecvSGE) = uint32(c.RecvSGEs)
	*at[uint32](a, offQPInitAttrCap+offQPCapMaxInline) = uint32(c.Inline)
	*at[uint32](a, offQPInitAttrQPType) = qpTypeRC
	if c.SignalAll {
		*at[int32](a, offQPInitAttrSQSigAll) = 1
	}
	return a
}

func newQP(ctx *Context, p uintptr, config QPConfig, a uintptr) *QP {
	config.SendDepth = int(*at[uint32](a, offQPInitAttrCap+offQPCapMaxSendWR))
	config.RecvDepth = int(*at[uint32](a, offQPInitAttrCap+offQPCapMaxRecvWR))
	config.SendSGEs = int(*at[uint32](a, offQPInitAttrCap+offQPCapMaxSendSGE))
	config.RecvSGEs = int(*at[uint32](a, offQPInitAttrCap+offQPCapMaxRecvSGE))
	config.Inline = int(*at[uint32](a, offQPInitAttrCap+offQPCapMaxInline))
	return &QP{ctx: ctx, p: p, number: *at[uint32](p, offQPNumber), config: config}
}

// Number is the queue pair's number within its device.
func (q *QP) Number() uint32 { return q.number }

// Config is what the driver granted.
func (q *QP) Config() QPConfig { return q.config }

// PostSend posts the first n work requests of l, chained, in one call. It
// returns how many were taken; the error is about the next one: ENOMEM means
// that the queue is full, EINVAL that the driver can't do it. The list may be
// reused on return. It does not allocate unless it fails.
func (q *QP) PostSend(l *SendList, n int) (int, error) {
	if n < 1 || n > len(l.wrs) {
		return 0, fmt.Errorf("verbs: posting %d of %d work requests: %w", n, len(l.wrs), syscall.EINVAL)
	}
	last := &l.wrs[n-1]
	next := last.next
	last.next = 0
	base := uintptr(unsafe.Pointer(&l.wrs[0]))
	*l.bad = 0
	mode := q.ctx.posts
	if l.Brief {
		mode = q.ctx.briefPosts
	}
	r, errno := mode.Call3(q.ctx.postSend, q.p, base, uintptr(unsafe.Pointer(l.bad)))
	last.next = next
	runtime.KeepAlive(l)
	if r != 0 {
		return refused(base, *l.bad, unsafe.Sizeof(SendWR{}), n), postError("ibv_post_send", r, errno)
	}
	return n, nil
}

// PostRecv posts the first n receives of l, as PostSend does sends.
func (q *QP) PostRecv(l *RecvList, n int) (int, error) {
	return l.post(q.ctx, q.ctx.postRecv, q.p, n)
}

func (l *RecvList) post(c *Context, fn, queue uintptr, n int) (int, error) {
	if n < 1 || n > len(l.wrs) {
		return 0, fmt.Errorf("verbs: posting %d of %d receives: %w", n, len(l.wrs), syscall.EINVAL)
	}
	last := &l.wrs[n-1]
	next := last.next
	last.next = 0
	base := uintptr(unsafe.Pointer(&l.wrs[0]))
	*l.bad = 0
	r, errno := c.recvs.Call3(fn, queue, base, uintptr(unsafe.Pointer(l.bad)))
	last.next = next
	runtime.KeepAlive(l)
	if r != 0 {
		return refused(base, *l.bad, unsafe.Sizeof(RecvWR{}), n), postError("ibv_post_recv", r, errno)
	}
	return n, nil
}

// refused is how many of n requests at base were taken before the one at bad.
// A driver that names none of them is taken to have refused all.
func refused(base, bad, size uintptr, n int) int {
	if bad < base || (bad-base)%size != 0 || (bad-base)/size >= uintptr(n) {
		return 0
	}
	return int((bad - base) / size)
}

func postError(op string, r int32, errno syscall.Errno) error {
	if e := errorNumber(r, errno); e != 0 {
		return failure(op, e)
	}
	return errors.New("verbs: " + op + " failed and left no error number")
}

// errorNumber makes an errno of what a driver's operation returned: drivers
// differ, and return it positive, negative, or as -1 with errno set.
func errorNumber(r int32, errno syscall.Errno) syscall.Errno {
	switch {
	case r == -1:
		return errno
	case r < 0:
		return syscall.Errno(-r)
	}
	return syscall.Errno(r)
}

// ToInit takes a queue pair from reset to init on a port, so that receives can
// be posted. rdma_cm does the rest of its way.
func (q *QP) ToInit(port uint8, access Access) error {
	s := q.ctx.lib.scratch.get()
	defer q.ctx.lib.scratch.put(s)
	a := s.take(sizeQPAttr)
	*at[uint32](a, offQPAttrState) = uint32(QPInit)
	*at[uint32](a, offQPAttrAccessFlags) = uint32(access)
	*at[uint8](a, offQPAttrPortNum) = port
	mask := uintptr(maskQPState | maskQPAccess)
	if q.ctx.transport != TransportIWARP {
		mask |= maskQPPKey | maskQPPort
	}
	return q.ctx.lib.call("ibv_modify_qp to init on "+q.ctx.name, q.ctx.lib.fn.modifyQP, q.p, a, mask)
}

// ToError moves the queue pair to the error state: everything outstanding is
// flushed.
func (q *QP) ToError() error {
	s := q.ctx.lib.scratch.get()
	defer q.ctx.lib.scratch.put(s)
	a := s.take(sizeQPAttr)
	*at[uint32](a, offQPAttrState) = uint32(QPError)
	return q.ctx.lib.call("ibv_modify_qp to error on "+q.ctx.name, q.ctx.lib.fn.modifyQP, q.p, a, maskQPState)
}

// QPAttributes is a queue pair's state as the device tells it.
type QPAttributes struct {
	State          QPState
	MaxReads       uint8 // Reads and atomics that it may have outstanding
	MaxReadsAsPeer uint8 // that it takes from the peer
	Timeout        uint8 // as a code: 4.096 us times 2 to its power
	RetryCount     uint8
	RNRRetryCount  uint8
	MinRNRTimer    uint8
	AccessFlags    Access
}

// Query asks for the queue pair's state. A driver may leave the state out, as the
// kernel's software iWARP does: it is always QPReset there.
func (q *QP) Query() (QPAttributes, error) {
	s := q.ctx.lib.scratch.get()
	defer q.ctx.lib.scratch.put(s)
	a, init := s.take(sizeQPAttr), s.take(sizeQPInitAttr)
	const mask = maskQPState | maskQPAccess | maskQPTimeout | maskQPRetryCnt | maskQPRNRRetry | maskQPMinRNR | maskQPCap
	if err := q.ctx.lib.call("ibv_query_qp "+q.ctx.name, q.ctx.lib.fn.queryQP, q.p, a, mask, init); err != nil {
		return QPAttributes{}, err
	}
	return QPAttributes{
		State:          QPState(*at[uint32](a, offQPAttrState)),
		MaxReads:       *at[uint8](a, offQPAttrMaxRDAtomic),
		MaxReadsAsPeer: *at[uint8](a, offQPAttrMaxDestRDAtomic),
		Timeout:        *at[uint8](a, offQPAttrTimeout),
		RetryCount:     *at[uint8](a, offQPAttrRetryCnt),
		RNRRetryCount:  *at[uint8](a, offQPAttrRNRRetry),
		MinRNRTimer:    *at[uint8](a, offQPAttrMinRNRTimer),
		AccessFlags:    Access(*at[uint32](a, offQPAttrAccessFlags)),
	}, nil
}

// Destroy destroys the queue pair. When it returns, the device touches none of
// its memory, and its completions not polled yet may be gone. It blocks until
// every asynchronous event about it has been acknowledged.
func (q *QP) Destroy() error {
	return q.ctx.lib.call("ibv_destroy_qp "+q.ctx.name, q.ctx.lib.fn.destroyQP, q.p)
}
