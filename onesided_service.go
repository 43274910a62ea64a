package verbena

import (
	"sync/atomic"
	"unsafe"
)

// A verdictCode is the peer's answer to an operation.
type verdictCode uint8

const (
	verdictDone verdictCode = iota
	verdictRevoked
	verdictBounds
	verdictRights
	verdictCodes // how many there are
)

var verdictErrors = [verdictCodes]error{verdictRevoked: ErrRevoked, verdictBounds: ErrBounds, verdictRights: ErrRights}

// A service is an answer that is due.
type service struct {
	id      uint32
	kind    operationKind
	via     *stream // where the answer goes: the stream, or its lane
	verdict verdictCode
	value   uint64    // of an atomic operation
	memory  *Exposure // of a Get
	offset  int
	length  int
}

// judge tells whether the peer may do something with memory that it named.
func judge(x *Exposure, offset uint64, length int, needs Rights) verdictCode {
	switch {
	case x == nil:
		return verdictRevoked
	case x.token.rights&needs == 0:
		return verdictRights
	case offset > x.token.length || uint64(length) > x.token.length-offset, needs == MayAtomic && offset%8 != 0:
		return verdictBounds
	}
	return verdictDone
}

// swap carries out an atomic operation.
func (a *service) swap(operand, replacement uint64) verdictCode {
	alive := a.memory.serve(func(memory []byte) {
		p := word(memory, a.offset)
		if a.kind == opFetchAdd {
			a.value = atomic.AddUint64(p, operand) - operand
			return
		}
		for {
			a.value = atomic.LoadUint64(p)
			if a.value != operand || atomic.CompareAndSwapUint64(p, operand, replacement) {
				return
			}
		}
	})
	if !alive {
		return verdictRevoked
	}
	return verdictDone
}

// word is the 8 bytes of memory at offset, aligned to them, for atomic operations of
// this side.
func word(memory []byte, offset int) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(memory[offset : offset+8])))
}

// get reads from what is exposed.
func (x *Exposure) get(into []byte, offset int) (code verdictCode) {
	code = verdictRevoked
	x.serve(func(memory []byte) {
		if f, ok := x.memory.(*exposedFile); ok {
			code = f.read(into, offset)
			return
		}
		copy(into, memory[offset:])
		code = verdictDone
	})
	return code
}
