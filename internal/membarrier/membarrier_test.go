package membarrier

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/internal/release"
	"github.com/verbena-data/verbena/internal/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var scopes = map[string]*Scope{"private": Private, "global": Global}

// Of two that each store a word and then load the other's, one at least sees it. One of them has no fence of its own.
func TestOneOfTwoSees(t *testing.T) {
	for name, scope := range scopes {
		t.Run(name, func(t *testing.T) {
			if !scope.Registered() {
				testneed.Missing(t, "this process may not call membarrier", "run on Linux 4.14 or later, without a filter that forbids it")
			}
			const rounds = 30_000
			var often, seldom, round atomic.Uint64
			var oftenSaw bool
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
					oftenSaw = seldom.Load() == n
					meet(2 * n)
				}
			})
			missed := 0
			for n := uint64(1); n <= rounds; n++ {
				meet(2*n - 1)
				seldom.Store(n)
				scope.Fence()
				seldomSaw := often.Load() == n
				meet(2 * n)
				if !oftenSaw && !seldomSaw {
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
	for name, scope := range scopes {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				scope.Fence()
			}
		})
	}
}
