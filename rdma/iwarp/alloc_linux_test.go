//go:build !race

package iwarp

import (
	"context"
	"runtime"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// TestAllocatesNothing counts allocations of exchanges, by polls and by waiting.
func TestAllocatesNothing(t *testing.T) {
	a, b := newPair(t, 1<<20, joinListener)
	c := make([]rdma.Completion, 1)
	take := func(q rdma.CompletionQueue, wait bool) {
		for {
			if n, err := q.Poll(c); n > 0 || err != nil {
				return
			}
			if !wait {
				runtime.Gosched()
				continue
			}
			_ = q.Arm(false)
			if n, _ := q.Poll(c); n > 0 {
				return
			}
			_ = q.Wait(context.Background())
		}
	}
	for _, wait := range []bool{false, true} {
		for _, size := range []int{64, 256 << 10} {
			recv := []rdma.RecvRequest{{SGEs: b.sge(0, size)}}
			send := []rdma.SendRequest{
				{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, size)},
				{Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: a.sge(size, size), Remote: b.at(0)},
			}
			exchange := func() {
				_, _ = b.qp.PostRecv(recv)
				_, _ = a.qp.PostSend(send)
				take(b.recvs, wait)
				take(a.sends, wait)
				take(a.sends, wait)
			}
			for range 100 {
				exchange()
			}
			// A garbage collection may empty the pools, and others run beside.
			if n := testing.AllocsPerRun(500, exchange); n > 0.5 {
				t.Errorf("%d bytes, waiting %v: %v allocations", size, wait, n)
			}
		}
	}
}
