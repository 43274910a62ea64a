package verbena

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

// Methods of the tests.
const (
	echoMethod uint32 = iota + 1
	dieMethod
	refuseMethod
	holdMethod
)

// callServer serves on a listener.
type callServer struct {
	mux     *Mux
	runs    atomic.Int32
	deaths  atomic.Int32 // how often dieMethod still ends the endpoint
	refuses atomic.Int32 // how often refuseMethod still refuses
	holding chan struct{}
	release chan struct{}
}

func (p *pair) serveCalls(t testing.TB) *callServer {
	s := &callServer{mux: NewMux(MuxConfig{}), holding: make(chan struct{}, 1000), release: make(chan struct{})}
	s.mux.Short(echoMethod, func(q Request) { _ = q.Reply(q.Payload()) })
	s.mux.Long(dieMethod, func(q Request) {
		s.runs.Add(1)
		if s.deaths.Add(-1) >= 0 {
			_ = q.Caller().Endpoint().Close() // nobody gets the answer
		}
		_ = q.Reply(q.Payload())
	})
	s.mux.Long(refuseMethod, func(q Request) {
		if s.refuses.Add(-1) >= 0 {
			_ = q.Fail(CodeApplication, "never")
			return
		}
		_ = q.Reply(nil)
	})
	s.mux.Long(holdMethod, func(q Request) {
		s.holding <- struct{}{}
		<-s.release
		_ = q.Reply(q.Payload())
	})
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			e, err := p.listener.Accept(context.Background())
			if err != nil {
				return
			}
			serving.Go(func() { _ = s.mux.Serve(e) })
		}
	})
	t.Cleanup(func() {
		_ = p.server.Close()
		serving.Wait()
		s.mux.Close()
	})
	return s
}

func newCallPool(t testing.TB, r *Runtime, cfg CallPoolConfig) *CallPool {
	t.Helper()
	cfg.PoolConfig = quick(cfg.PoolConfig)
	p, err := r.NewCallPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Calls share endpoints, go by rules, and are repeated only where they may be.
func TestPoolCalls(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{Rules: rules(t, "bulk: size=4096.. only=tcp")}, ListenConfig{})
		s := p.serveCalls(t)
		addr := p.listener.Addr().String()
		pool := newCallPool(t, p.client, CallPoolConfig{PoolConfig: PoolConfig{Endpoints: 2}, Calls: 8})
		var calls sync.WaitGroup
		for range 50 {
			calls.Go(func() {
				for _, payload := range [][]byte{[]byte("small"), make([]byte, 5000)} {
					m, err := pool.Call(p.ctx, addr, Intent{}, echoMethod, payload)
					if err != nil {
						t.Error(err)
						continue
					}
					if len(m.Bytes()) != len(payload) {
						t.Errorf("%d bytes came back of %d", len(m.Bytes()), len(payload))
					}
					m.Release()
				}
			})
		}
		calls.Wait()
		peers := pool.Peers()
		if len(peers) > 2 || w.transport != TransportTCP && len(peers) != 2 {
			t.Errorf("%+v", peers)
		}
		for _, s := range peers {
			if s.Open > 2 || s.Busy != 0 {
				t.Errorf("%+v", s)
			}
		}
		// A call whose endpoint dies is carried out once, unless it may be repeated.
		s.deaths.Store(1)
		if _, err := pool.Call(p.ctx, addr, Intent{}, dieMethod, nil); !errors.Is(err, ErrOutcomeUnknown) || s.runs.Load() != 1 {
			t.Errorf("%v after %d runs", err, s.runs.Load())
		}
		s.runs.Store(0)
		s.deaths.Store(2)
		if m, err := pool.Call(p.ctx, addr, Intent{}, dieMethod, []byte("x"), Idempotent); err != nil || s.runs.Load() != 3 {
			t.Errorf("%v after %d runs", err, s.runs.Load())
		} else {
			m.Release()
		}
		// What the handler refuses is the caller's business.
		s.refuses.Store(1)
		var told *CallError
		if _, err := pool.Call(p.ctx, addr, Intent{}, refuseMethod, nil, Idempotent); !errors.As(err, &told) || told.Code != CodeApplication {
			t.Error(err)
		}
		if err := pool.Notify(p.ctx, addr, Intent{}, echoMethod, []byte("x")); err != nil {
			t.Error(err)
		}
		// Drain waits for the call that is under way, and lets none begin.
		answered := make(chan error, 1)
		go func() {
			m, err := pool.Call(p.ctx, addr, Intent{}, holdMethod, []byte("x"))
			if err == nil {
				m.Release()
			}
			answered <- err
		}()
		<-s.holding
		drained := make(chan error, 1)
		go func() { drained <- pool.Drain(p.ctx) }()
		p.until(t, "it drains", func() bool { return pool.core.over(nil) })
		if _, err := pool.Call(p.ctx, addr, Intent{}, echoMethod, nil); !errors.Is(err, ErrNotSent) || !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		close(s.release)
		if err := errors.Join(<-answered, <-drained); err != nil {
			t.Error(err)
		}
	})
}

// A call that nobody can take fails after its attempts, and says that it was not sent.
func TestPoolCallsNobody(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{})
	addr := p.listener.Addr().String()
	if err := p.listener.Close(); err != nil {
		t.Fatal(err)
	}
	pool := newCallPool(t, p.client, CallPoolConfig{Attempts: 3})
	if _, err := pool.Call(p.ctx, addr, Intent{}, echoMethod, nil); !errors.Is(err, ErrNotSent) || errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
	if s := pool.core.stats(); s.Failed != 3 {
		t.Errorf("%+v", s)
	}
}
