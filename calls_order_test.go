package verbena

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Callers that share one of Go's processors over iWARP get their turns: between two calls of
// one, the others make a few each. Two that find each other's answers would have the
// processor for 10 ms otherwise, which is more than a thousand calls.
func TestCallersTakeTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const callers, calls, most = 16, 1000, 12 * 16
	w := worldOf(t, "iwarp")
	_, address := startPeer(t, w, "GOMAXPROCS=1")
	providers, _ := w.providers(t)
	r := newRuntime(t, Config{}, providers)
	ctx := testContext(t)
	e, err := r.Dial(ctx, address, "calls/1", DialConfig{Transport: "iwarp"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCaller(e, nil)
	if err != nil {
		t.Fatal(err)
	}
	waiting := roused.woken.Load() - roused.run.Load() // of tests before, if there are some
	var all sync.WaitGroup
	var made atomic.Int64 // calls of all
	worst := make([]int64, callers)
	for i := range callers {
		all.Go(func() {
			payload := make([]byte, 64)
			for n := range calls {
				before := made.Load()
				m, err := c.Call(ctx, methodEcho, payload)
				if err != nil {
					t.Error(err)
					return
				}
				m.Release()
				if after := made.Add(1); n > 0 {
					worst[i] = max(worst[i], after-before)
				}
			}
		})
	}
	all.Wait()
	for i, n := range worst {
		if n > most {
			t.Errorf("%d calls were made while caller %d of %d waited for one", n, i, callers)
		}
	}
	if n := roused.woken.Load() - roused.run.Load(); n != waiting {
		t.Errorf("%d callers that were woken have not run, %d before", n, waiting)
	}
	_ = c.Close() // the peer is about to be killed
}

// A caller overtakes others if more have been woken before it, and have not run, than can
// run at a time. Numbers wrap.
func TestRousals(t *testing.T) {
	for _, start := range []uint32{0, 1<<32 - 2} {
		var r rousals
		r.woken.Store(start)
		r.run.Store(start)
		first, second, third := r.wakes(), r.wakes(), r.wakes()
		for _, c := range []struct {
			number     uint32
			processors int
			want       bool
		}{{first, 1, false}, {second, 1, true}, {second, 2, false}, {third, 2, true}} {
			if got := r.overtakes(c.number, c.processors); got != c.want {
				t.Errorf("number %d with %d processors: overtakes is %t", c.number-start, c.processors, got)
			}
		}
		r.runs()
		if r.overtakes(second, 1) || !r.overtakes(third, 1) {
			t.Error("after the first has run, the second overtakes nobody, and the third does")
		}
	}
}
