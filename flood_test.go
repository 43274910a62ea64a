package verbena

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// One of 64 endpoints of a worker floods it with notifications. In the middle of a handler
// of the flood the server's device holds its completions back until a call of each other
// endpoint has arrived, beside what the flood sends meanwhile, and then hands all of them
// over at once. No call waits for more than one budget of the flood's notifications from
// there on, at whichever of them it came.
func TestFloodOfAWorker(t *testing.T) {
	for _, class := range []func(string) fake.Config{fake.InfiniBand, fake.IWARP} {
		network := fake.NewNetwork()
		device := network.NewDevice(class("server"))
		name := "fake-" + device.Attributes().Class.String()
		w := world{name: name, transport: name, providers: func(testing.TB) (client, server []rdma.Provider) {
			return []rdma.Provider{fake.NewProvider(name, network.NewDevice(class("client")))}, []rdma.Provider{fake.NewProvider(name, device)}
		}}
		t.Run(name, func(t *testing.T) { floodWorker(t, w, device) })
	}
}

// floodStep is how many notifications of the flood are handled between two moments at which
// the others call: at each place of a budget in turn.
const floodStep = 5*runBudget + 1

func floodWorker(t *testing.T, w world, device *fake.Device) {
	const others, times = 63, 2 * runBudget
	const callLength = wire.HeaderSize + call.HeaderSize + len("x")
	// Shared receives would run out while completions are held back.
	p := w.pair(t, Config{Workers: 1, Tuning: TuningTable{w.transport: {Own: others + 1}}}, ListenConfig{})
	var mu sync.Mutex
	var handled []int // endpoints, in the order of the handlers since the others have called
	var calls sync.WaitGroup
	var callers []*callers2
	var answered atomic.Int64
	var flooding atomic.Uint32 // the server's queue pair of the flood
	floods, called, next := 0, 0, floodStep
	worst, beside, judged := 0, 0, 0
	var arrived [others + 1]bool // before the completions were handed over: who is judged
	over := make(chan struct{})
	// judge looks at what came before each of the others.
	judge := func() {
		before := 0
		for _, endpoint := range handled {
			if endpoint == 0 {
				before++
			} else if arrived[endpoint] {
				worst = max(worst, before)
				judged++
			}
		}
		beside += before
		handled = handled[:0]
	}
	serve := func(endpoint int) *Mux {
		mux := NewMux(MuxConfig{})
		mux.Short(methodEcho, func(q Request) {
			mu.Lock()
			handled = append(handled, endpoint)
			mu.Unlock()
			_ = q.Reply(q.Payload()) // the caller tells
		})
		mux.Short(methodCount, func(Request) {
			mu.Lock()
			handled = append(handled, endpoint)
			floods++
			// Those who have called before have been handled.
			due := floods >= next && answered.Load() == int64(called*others) && called < times
			if due {
				judge()
				called++
				next = floods + floodStep
			}
			mu.Unlock()
			if !due {
				return
			}
			device.HoldCompletions(true)
			for i := 1; i <= others; i++ {
				calls.Go(func() {
					if err := callers[i].echo(p.ctx, callers[i].a, methodEcho, []byte("x")); err != nil {
						t.Error(err)
					}
					answered.Add(1)
				})
			}
			var came map[uint32]bool // endpoints of which something has come: a call?
			for len(came) < others && p.ctx.Err() == nil {
				runtime.Gosched()
				came = map[uint32]bool{}
				for _, c := range device.Held() {
					if c.ID&idKind == idReceive && c.QueuePair != flooding.Load() {
						// Credits and greetings are shorter. A call may wait for them.
						came[c.QueuePair] = came[c.QueuePair] || int(c.Length) == callLength
					}
				}
			}
			mu.Lock()
			for i, c := range callers {
				arrived[i] = came[c.b.e.carrier.(*shell).qp.Number()]
			}
			mu.Unlock()
			device.HoldCompletions(false)
			if called == times {
				close(over)
			}
		})
		return mux
	}
	for i := range others + 1 {
		a, b := p.connect(t, w.transport)
		c := &callers2{mux: serve(i)}
		var err error
		if c.a, err = NewCaller(a, nil); err != nil {
			t.Fatal(err)
		}
		if c.b, err = NewCaller(b, c.mux); err != nil {
			t.Fatal(err)
		}
		callers = append(callers, c)
	}
	flooded := callers[0].b.e.carrier.(*shell)
	flooding.Store(flooded.qp.Number())
	// Beside the worker a helper may handle requests, as long as a caller polls. One of the
	// two that loses its processor with a call in hand delays that call, which is no matter
	// of order. So there is no helper here.
	flooded.w.runs.kicked.Store(true)
	ctx, stop := context.WithCancel(p.ctx)
	var flood sync.WaitGroup
	flood.Go(func() {
		for callers[0].a.Notify(ctx, methodCount, []byte("flood")) == nil {
		}
	})
	<-over
	calls.Wait()
	mu.Lock()
	judge()
	mu.Unlock()
	stop()
	flood.Wait()
	for _, c := range callers {
		c.close(t)
	}
	if worst > runBudget {
		t.Errorf("a call waited for %d notifications of the flood, at most %d", worst, runBudget)
	}
	if judged < times*others/2 {
		t.Errorf("%d of %d calls had come when the completions were handed over, too few", judged, times*others)
	}
	if beside < times*runBudget {
		t.Errorf("%d notifications beside %d calls are no flood", beside, times*others)
	}
}
