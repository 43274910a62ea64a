//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// An SGE is a scatter-gather entry (struct ibv_sge): Length bytes at Address,
// registered under LKey. An inline request needs no key.
type SGE struct {
	Address uint64
	Length  uint32
	LKey    uint32
}

// A SendWR is a work request for a send queue (struct ibv_send_wr). It lies in
// a [SendList], which links it to its entries and to the next one.
type SendWR struct {
	ID         uint64
	next       uintptr
	sgList     uintptr
	NumSGE     int32
	Opcode     WROpcode
	Flags      SendFlags
	immediate  [4]byte // big-endian
	remoteAddr uint64
	union      [3]uint64 // rkey, or compare and add, swap, rkey
	_          [7]uint64
}

// SetImmediate sets the 32 bits that travel with an immediate operation.
func (w *SendWR) SetImmediate(v uint32) { binary.BigEndian.PutUint32(w.immediate[:], v) }

// SetInvalidate sets the peer's key that WRSendWithInvalidate revokes.
func (w *SendWR) SetInvalidate(rkey uint32) { binary.NativeEndian.PutUint32(w.immediate[:], rkey) }

// SetRemote sets the target of a Write or Read.
func (w *SendWR) SetRemote(address uint64, rkey uint32) {
	w.remoteAddr = address
	*(*uint32)(unsafe.Pointer(&w.union[0])) = rkey
}

// RemoteAddress is what SetRemote has set.
func (w *SendWR) RemoteAddress() uint64 { return w.remoteAddr }

// SetAtomic sets the target and operands of an atomic.
func (w *SendWR) SetAtomic(address uint64, rkey uint32, compareAdd, swap uint64) {
	w.remoteAddr = address
	w.union[0], w.union[1] = compareAdd, swap
	*(*uint32)(unsafe.Pointer(&w.union[2])) = rkey
}

// A RecvWR is a work request for a receive queue (struct ibv_recv_wr), in a
// [RecvList].
type RecvWR struct {
	ID     uint64
	next   uintptr
	sgList uintptr
	NumSGE int32
	_      int32
}

// A WC is a completion (struct ibv_wc). If Status is not StatusSuccess only ID,
// Status, VendorError and QPNumber mean something.
type WC struct {
	ID          uint64
	Status      Status
	Opcode      WCOpcode
	VendorError uint32
	Length      uint32 // bytes, of receives, Reads and atomics
	immediate   [4]byte
	QPNumber    uint32
	sourceQP    uint32
	Flags       WCFlags
	_           [8]byte
}

// Immediate is the 32 bits that came along, if Flags has WCWithImmediate.
func (c *WC) Immediate() uint32 { return binary.BigEndian.Uint32(c.immediate[:]) }

// A SendList is a number of work requests with room for their entries, chained
// in order, for any number of posts one after the other. Everything in it is
// reused: set all fields that the operation looks at before each post. It belongs
// to one goroutine at a time.
type SendList struct {
	// Brief says that all that is posted next makes but a few packets. Some drivers
	// are called in another way then.
	Brief bool

	wrs  []SendWR
	sges []SGE
	per  int
	bad  *uintptr // where the driver tells the first request that it refused
}

// list takes the memory of n work requests of size bytes, with their entries and
// the place where a driver tells the request that it refused.
func (a *Arena) list(what string, n, sges, size int) (wrs unsafe.Pointer, entries []SGE, bad *uintptr, err error) {
	if n < 1 || n > 1<<20 || sges < 0 || sges > 1<<10 {
		return nil, nil, nil, fmt.Errorf("verbs: a list of %d %s with %d entries each is out of range", n, what, sges)
	}
	if wrs, err = a.alloc(n * size); err != nil {
		return nil, nil, nil, err
	}
	room, err := a.alloc(n * sges * int(unsafe.Sizeof(SGE{})))
	if err != nil {
		return nil, nil, nil, err
	}
	refused, err := a.alloc(int(unsafe.Sizeof(uintptr(0))))
	if err != nil {
		return nil, nil, nil, err
	}
	return wrs, unsafe.Slice((*SGE)(room), n*sges), (*uintptr)(refused), nil
}

// NewSendList takes a list of n work requests of up to sges entries each.
func (a *Arena) NewSendList(n, sges int) (*SendList, error) {
	if sges == 0 {
		sges = 1
	}
	wrs, entries, bad, err := a.list("requests", n, sges, int(unsafe.Sizeof(SendWR{})))
	if err != nil {
		return nil, err
	}
	l := &SendList{wrs: unsafe.Slice((*SendWR)(wrs), n), sges: entries, per: sges, bad: bad}
	for i := range l.wrs {
		l.wrs[i].sgList = uintptr(unsafe.Pointer(&l.sges[i*sges]))
		if i+1 < n {
			l.wrs[i].next = uintptr(unsafe.Pointer(&l.wrs[i+1]))
		}
	}
	return l, nil
}

// Len is the number of work requests.
func (l *SendList) Len() int { return len(l.wrs) }

// At is the i-th work request. NumSGE says how many of its entries count.
func (l *SendList) At(i int) *SendWR { return &l.wrs[i] }

// SGEs is the room for the i-th work request's entries.
func (l *SendList) SGEs(i int) []SGE { return l.sges[i*l.per : (i+1)*l.per : (i+1)*l.per] }

// A RecvList is for receives what a [SendList] is for sends.
type RecvList struct {
	wrs  []RecvWR
	sges []SGE
	per  int
	bad  *uintptr
}

// NewRecvList takes a list of n receives of up to sges entries each.
func (a *Arena) NewRecvList(n, sges int) (*RecvList, error) {
	if sges == 0 {
		sges = 1
	}
	wrs, entries, bad, err := a.list("receives", n, sges, int(unsafe.Sizeof(RecvWR{})))
	if err != nil {
		return nil, err
	}
	l := &RecvList{wrs: unsafe.Slice((*RecvWR)(wrs), n), sges: entries, per: sges, bad: bad}
	for i := range l.wrs {
		l.wrs[i].sgList = uintptr(unsafe.Pointer(&l.sges[i*sges]))
		if i+1 < n {
			l.wrs[i].next = uintptr(unsafe.Pointer(&l.wrs[i+1]))
		}
	}
	return l, nil
}

// Len is the number of receives.
func (l *RecvList) Len() int { return len(l.wrs) }

// At is the i-th receive. NumSGE says how many of its entries count.
func (l *RecvList) At(i int) *RecvWR { return &l.wrs[i] }

// SGEs is the room for the i-th receive's entries.
func (l *RecvList) SGEs(i int) []SGE { return l.sges[i*l.per : (i+1)*l.per : (i+1)*l.per] }

// Completions is room for a batch of completions. It belongs to one goroutine
// at a time.
type Completions struct{ wcs []WC }

// NewCompletions takes room for n completions.
func (a *Arena) NewCompletions(n int) (*Completions, error) {
	if n < 1 || n > 1<<20 {
		return nil, fmt.Errorf("verbs: a batch of %d completions is out of range", n)
	}
	p, err := a.alloc(n * int(unsafe.Sizeof(WC{})))
	if err != nil {
		return nil, err
	}
	return &Completions{wcs: unsafe.Slice((*WC)(p), n)}, nil
}

// Len is how many completions fit.
func (c *Completions) Len() int { return len(c.wcs) }

// At is the i-th completion of the last Poll.
func (c *Completions) At(i int) *WC { return &c.wcs[i] }
