package membarrier

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/internal/release"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Of two that each store a word and then load the other's, one at least sees it. One of them has no fence of its own.
func TestOneOfTwoSees(t *testing.T) {
	for name, scope := range map[string]*Scope{"private": Private, "global": Global} {
		t.Run(name, func(t *testing.T) {
			if !scope.Registered() {
				t.Skip("this system has no membarrier")
			}
			const rounds = 30_000
			var often, seldom, round atomic.Uint64
			var saw [2]bool
			var both sync.WaitGroup
			meet := func(n uint64) {
				for round.Add(1); round.Load() < 2*n; {
					runtime.Gosched()
				}
			}
			both.Go(func() {
				for n := uint64(1); n <= rounds; n++ {
					meet(2*n - 1)
					release.Store(&often, n)
					saw[0] = seldom.Load() == n
					meet(2 * n)
				}
			})
			missed := 0
			for n := uint64(1); n <= rounds; n++ {
				meet(2*n - 1)
				seldom.Store(n)
				scope.Fence()
				saw[1] = often.Load() == n
				meet(2 * n)
				// The other one stores what it saw only behind the next meeting.
				if !saw[0] && !saw[1] {
					missed++
				}
			}
			both.Wait()
			if missed > 0 {
				t.Errorf("in %d of %d rounds neither saw the other", missed, rounds)
			}
		})
	}
}

func BenchmarkFence(b *testing.B) {
	for name, scope := range map[string]*Scope{"private": Private, "global": Global} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				scope.Fence()
			}
		})
	}
}
