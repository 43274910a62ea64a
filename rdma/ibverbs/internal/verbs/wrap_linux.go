//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import "github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"

// ContextAt makes a handle of an ibv_context that was made by other means, such
// as one of stub operations for tests. Only the operations of the data path can
// be used, not the control verbs.
func ContextAt(p uintptr, mode quirks.CallMode) *Context {
	c := newContext(&Library{}, p)
	c.setMode(mode)
	return c
}

// CQAt makes a handle of an ibv_cq of the context.
func (c *Context) CQAt(p uintptr) *CQ { return &CQ{ctx: c, p: p} }

// QPAt makes a handle of an ibv_qp of the context.
func (c *Context) QPAt(p uintptr, number uint32) *QP { return &QP{ctx: c, p: p, number: number} }

// SetOperations fills the function pointers of the data path at p, which has
// room for an ibv_context.
func SetOperations(p, device, postSend, postRecv, pollCQ, reqNotify uintptr) {
	*at[uintptr](p, offContextDevice) = device
	*at[uintptr](p, offContextPostSend) = postSend
	*at[uintptr](p, offContextPostRecv) = postRecv
	*at[uintptr](p, offContextPostSRQRecv) = postRecv
	*at[uintptr](p, offContextPollCQ) = pollCQ
	*at[uintptr](p, offContextReqNotifyCQ) = reqNotify
}
