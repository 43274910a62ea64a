package verbena

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
)

// Each session has endpoints of its own, which say who calls before all else, and ends
// without the others.
func TestPoolSessions(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		s := p.serveCalls(t)
		const whoMethod, introduceMethod = 100, 101
		var mu sync.Mutex
		users := map[*Caller]string{}
		s.mux.Long(introduceMethod, func(q Request) {
			mu.Lock()
			users[q.Caller()] = string(q.Payload())
			mu.Unlock()
			_ = q.Reply(nil)
		})
		s.mux.Long(whoMethod, func(q Request) {
			mu.Lock()
			user := users[q.Caller()]
			mu.Unlock()
			_ = q.Reply([]byte(user))
		})
		addr := p.listener.Addr().String()
		pool := newCallPool(t, p.client, CallPoolConfig{PoolConfig: PoolConfig{Endpoints: 2}, Calls: 4, Attempts: 1})
		var begun atomic.Int32
		session := func(user string) *CallSession {
			return pool.Session(func(ctx context.Context, c *Caller) (any, error) {
				begun.Add(1)
				if user == "" {
					return nil, errors.New("nobody")
				}
				m, err := c.Call(ctx, introduceMethod, []byte(user))
				if err == nil {
					m.Release()
				}
				return "state of " + user, err
			})
		}
		who := func(s *CallSession) (string, error) {
			m, err := s.Call(p.ctx, addr, Intent{}, whoMethod, nil)
			if err != nil {
				return "", err
			}
			defer m.Release()
			return string(m.Bytes()), nil
		}
		ada, eve := session("ada"), session("eve")
		var calls sync.WaitGroup
		for range 20 {
			for want, s := range map[string]*CallSession{"ada": ada, "eve": eve, "": &pool.CallSession} {
				calls.Go(func() {
					if got, err := who(s); err != nil || got != want {
						t.Errorf("%q, %v, want %q", got, err, want)
					}
				})
			}
		}
		calls.Wait()
		if n := begun.Load(); n < 2 || n > 4 {
			t.Errorf("%d endpoints were introduced, want 2 to 4", n)
		}
		var of [2]*Endpoint
		for i, s := range []*CallSession{ada, eve} {
			l, err := s.Get(p.ctx, addr, Intent{})
			if err != nil {
				t.Fatal(err)
			}
			if want := []any{"state of ada", "state of eve"}[i]; l.State() != want {
				t.Errorf("%v, want %v", l.State(), want)
			}
			of[i] = l.Caller().Endpoint()
			l.Put()
		}
		if _, err := who(session("")); err == nil || !errors.Is(err, ErrNotSent) {
			t.Errorf("an endpoint whose introduction failed: %v", err)
		}
		if err := ada.Close(); err != nil {
			t.Error(err)
		}
		if _, err := who(ada); !errors.Is(err, ErrClosed) || !errors.Is(err, ErrNotSent) {
			t.Errorf("a session that is closed: %v", err)
		}
		if got, err := who(eve); err != nil || got != "eve" {
			t.Errorf("another session: %q, %v", got, err)
		}
		if !errors.Is(of[0].Err(), ErrClosed) || of[1].Err() != nil {
			t.Errorf("the endpoints' ends: %v and %v, want the first one closed", of[0].Err(), of[1].Err())
		}
		if err := pool.Drain(p.ctx); err != nil {
			t.Error(err)
		}
	})
}

// An endpoint that is dropped gets no further calls, and ends when it is free.
func TestPoolDrop(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		p.serveCalls(t)
		addr := p.listener.Addr().String()
		pool := newCallPool(t, p.client, CallPoolConfig{PoolConfig: PoolConfig{Endpoints: 1}, Calls: 2})
		var held [3]Lease
		for i := range held {
			var err error
			if held[i], err = pool.Get(p.ctx, addr, Intent{}); err != nil {
				t.Fatal(err)
			}
			if i == 1 {
				held[0].Drop()
			}
		}
		if held[0].Caller() != held[1].Caller() || held[2].Caller() == held[0].Caller() {
			t.Error("the dropped endpoint was handed out, or another one")
		}
		if err := held[1].Caller().Endpoint().Err(); err != nil {
			t.Errorf("it has ended although it is in use: %v", err)
		}
		held[1].Put()
		<-held[1].Caller().Endpoint().Done()
		held[2].Put()
		if err := pool.Drain(p.ctx); err != nil {
			t.Error(err)
		}
		if s := pool.core.stats(); s.Opened != 2 || s.Lost != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A pool's streams are calls of its endpoints until they are closed.
func TestPoolStreams(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		s := p.serveCalls(t)
		s.mux.Stream(streamBack, func(q Request, s *Stream) {
			n, err := io.Copy(s, s)
			if err != nil {
				_ = q.Fail(CodeApplication, err.Error())
				return
			}
			_ = q.Reply(fmt.Append(nil, n))
		})
		addr := p.listener.Addr().String()
		pool := newCallPool(t, p.client, CallPoolConfig{PoolConfig: PoolConfig{Endpoints: 2}, Calls: 2})
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				st, err := pool.Stream(p.ctx, addr, Intent{}, streamBack, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer st.Close()
				sent := pattern(300<<10, i)
				var sending sync.WaitGroup
				sending.Go(func() {
					if err := st.Send(p.ctx, sent); err != nil {
						t.Error(err)
					}
					if err := st.CloseSend(); err != nil {
						t.Error(err)
					}
				})
				got, err := io.ReadAll(st)
				sending.Wait()
				if err != nil || string(got) != string(sent) {
					t.Errorf("%d bytes came back of %d: %v", len(got), len(sent), err)
				}
				m, err := st.Answer(p.ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if string(m.Bytes()) != fmt.Sprint(len(sent)) {
					t.Errorf("answer %q", m.Bytes())
				}
				m.Release()
			})
		}
		all.Wait()
		// One that is not closed holds its endpoint; closing it twice gives it back once.
		st, err := pool.Stream(p.ctx, addr, Intent{}, streamBack, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := pool.core.stats(); s.Busy != 1 {
			t.Errorf("%d endpoints are busy, want that of the stream", s.Busy)
		}
		st.Close()
		st.Close()
		if s := pool.core.stats(); s.Busy != 0 {
			t.Errorf("%d endpoints are busy behind the stream", s.Busy)
		}
		if err := pool.Drain(p.ctx); err != nil {
			t.Error(err)
		}
		if _, err := pool.Stream(p.ctx, addr, Intent{}, streamBack, nil); !errors.Is(err, ErrNotSent) {
			t.Errorf("a stream of a pool that is closed: %v", err)
		}
	})
}
