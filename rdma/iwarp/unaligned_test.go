package iwarp

import (
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// registered is memory of the program, of 3 words, that begins shift bytes behind a
// multiple of 8.
func registered(s *side, words *[4]uint64, shift int) rdma.Region {
	s.t.Helper()
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(words)), 32)
	r, err := s.domain.(rdma.RegisteringDomain).Register(rdma.UserMemory{Bytes: bytes[shift:][:24], Access: rdma.AccessRemoteAtomic})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// Atomic operations reach the aligned words of memory that begins anywhere.
func TestAtomicsInUnalignedMemory(t *testing.T) {
	for _, shift := range []int{0, 1, 4} {
		a, b := newPair(t, 64, joinListener)
		words := new([4]uint64)
		r := registered(b, words, shift)
		second := r.Address() + uint64(8-shift)
		a.send(rdma.SendRequest{ID: 1, Op: rdma.OpFetchAdd, Flags: rdma.Signaled, CompareAdd: 5, SGEs: a.sge(0, 8), Remote: rdma.Remote{Address: second, Key: r.Key()}})
		c := next(t, a.sends)
		if word := atomic.LoadUint64(&words[1]); c.Status != rdma.StatusSuccess || word != 5 {
			t.Errorf("%d bytes behind: %+v, the word is %d", shift, c, word)
		}
	}
}

// A peer cannot have this side's processor carry one out anywhere else, which may fault.
func TestUnalignedAtomic(t *testing.T) {
	s := rawSide(t, 64)
	words := new([4]uint64)
	r := registered(s, words, 4)
	p := dialRaw(t, s, enhanced())
	request := wire.AtomicRequest{Op: wire.AtomicFetchAdd, ID: 1, STag: r.Key(), Offset: r.Address() + 8, AddSwap: 5}
	p.write(fpdu(wire.Segment{Last: true, Opcode: wire.OpAtomicRequest, Queue: 1, MSN: 1}, request.Append(nil)))
	if err := s.ended(); !strings.Contains(err.Error(), "multiple of 8") {
		t.Error(err)
	}
	if *words != [4]uint64{} {
		t.Errorf("the words are %#x", *words)
	}
}
