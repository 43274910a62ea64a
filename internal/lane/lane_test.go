package lane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/internal/backoff"
	"github.com/verbena-data/verbena/internal/race"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A conn is a connection of a test.
type conn struct {
	number int
	done   chan struct{}
	once   sync.Once
	own    atomic.Bool // this side ended it
	closes atomic.Int32
	users  atomic.Int32
}

func (c *conn) Done() <-chan struct{} { return c.done }
func (c *conn) end()                  { c.once.Do(func() { close(c.done) }) }

// A server makes connections, or fails.
type server struct {
	mu       sync.Mutex
	err      error
	delay    time.Duration
	conns    []*conn
	attempts []time.Time
	dialling atomic.Int32
	most     int32
}

func (s *server) dial(ctx context.Context) (*conn, error) {
	s.mu.Lock()
	s.most = max(s.most, s.dialling.Add(1))
	s.attempts = append(s.attempts, time.Now())
	s.mu.Unlock()
	defer s.dialling.Add(-1)
	t := time.NewTimer(s.delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	c := &conn{number: len(s.conns), done: make(chan struct{})}
	s.conns = append(s.conns, c)
	return c, nil
}

func (s *server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

var errDown = errors.New("down")

func (s *server) lane(change func(*Config[*conn])) *Lane[*conn] {
	cfg := Config[*conn]{
		Most: 4, Share: 1, Idle: time.Minute, DialTimeout: 15 * time.Second, Proven: 10 * time.Second,
		Pause: backoff.Policy{First: 500 * time.Millisecond, Most: 10 * time.Second}.Pause,
		Dial:  s.dial,
		Close: func(_ context.Context, c *conn) {
			c.own.Store(true)
			c.closes.Add(1)
			c.end()
		},
		Lost: func(c *conn) bool { return !c.own.Load() },
	}
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}

func must[C Conn](t *testing.T, l *Lane[C], err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func drain(t *testing.T, l *Lane[*conn]) {
	t.Helper()
	if err := l.Drain(t.Context(), t.Context()); err != nil {
		t.Error(err)
	}
}

// Requests get a free connection, then new ones up to the bound, then wait in order.
func TestBoundAndOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{delay: time.Millisecond}
		l := s.lane(nil)
		defer drain(t, l)
		var held []*Held[*conn]
		for range 4 {
			h, err := l.Get(t.Context())
			must(t, l, err)
			held = append(held, h)
		}
		if len(s.conns) != 4 || s.most != 1 {
			t.Errorf("%d connections, %d attempts at once", len(s.conns), s.most)
		}
		order := make(chan int, 10)
		for i := range 10 {
			go func() {
				h, err := l.Get(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				order <- i
				l.Put(h)
			}()
			synctest.Wait()
		}
		if s := l.Stats(); s.Waiting != 10 || s.Open != 4 || s.Busy != 4 {
			t.Errorf("%+v", s)
		}
		l.Put(held[2])
		for want := range 10 {
			if got := <-order; got != want {
				t.Errorf("request %d before %d", got, want)
			}
		}
		synctest.Wait()
		h, err := l.Get(t.Context())
		must(t, l, err)
		if h != held[2] {
			t.Error("not the one that was put back last")
		}
		for _, h := range append(held[:2:2], held[2:]...) {
			l.Put(h)
		}
		if s := l.Stats(); len(l.free) != 4 || s.Requests != 15 || s.Waited != 14 || s.Opened != 4 {
			t.Errorf("%+v", s)
		}
	})
}

// One attempt serves all who wait; it tells them all when it fails; the next one
// begins after a pause, and only if somebody still wants it.
func TestOneAttemptForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{delay: time.Second, err: errDown}
		l := s.lane(nil)
		defer drain(t, l)
		var failed atomic.Int32
		get := func(ctx context.Context) {
			for range 100 {
				go func() {
					if _, err := l.Get(ctx); errors.Is(err, errDown) {
						failed.Add(1)
					}
				}()
			}
			synctest.Wait()
		}
		get(t.Context())
		time.Sleep(time.Second)
		synctest.Wait()
		if failed.Load() != 100 || len(s.attempts) != 1 {
			t.Fatalf("%d were told of %d attempts", failed.Load(), len(s.attempts))
		}
		end := time.Now()
		get(t.Context())
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if failed.Load() != 200 || len(s.attempts) != 2 {
			t.Fatalf("%d were told of %d attempts", failed.Load(), len(s.attempts))
		}
		if pause := s.attempts[1].Sub(end); pause < 250*time.Millisecond || pause > 750*time.Millisecond {
			t.Errorf("the second attempt comes %v after the first", pause)
		}
		// Those whose time is over before the pause hear why there is nothing.
		time.Sleep(10 * time.Second)
		get(t.Context()) // the third one fails, too, and a pause of a second or more follows
		time.Sleep(time.Second)
		synctest.Wait()
		before := len(s.attempts)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		get(ctx)
		time.Sleep(time.Minute)
		synctest.Wait()
		if failed.Load() != 400 || len(s.attempts) != before {
			t.Errorf("%d were told, %d attempts for nobody", failed.Load(), len(s.attempts)-before)
		}
		s.fail(nil)
		h, err := l.Get(t.Context())
		must(t, l, err)
		l.Put(h)
	})
}

// An attempt gets as much time as those who wait for it have, and those who come
// later with more wait for the next.
func TestTimeOfAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{delay: 5 * time.Second}
		l := s.lane(nil)
		defer drain(t, l)
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := l.Get(short)
			failed <- err
		}()
		time.Sleep(time.Second)
		h, err := l.Get(t.Context())
		must(t, l, err)
		l.Put(h)
		if err := <-failed; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if len(s.attempts) != 2 {
			t.Errorf("%d attempts", len(s.attempts))
		}
	})
}

// A failure that was known before costs no pause.
func TestKnownFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{err: errDown}
		l := s.lane(func(c *Config[*conn]) { c.Cheap = func(err error) bool { return errors.Is(err, errDown) } })
		defer drain(t, l)
		began := time.Now()
		for range 10 {
			if _, err := l.Get(t.Context()); !errors.Is(err, errDown) {
				t.Error(err)
			}
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("ten answers took %v", d)
		}
	})
}

// A connection that ends is not handed out, and the next attempt comes after a
// pause, which does not grow when many are lost together. One that this side's
// application has closed costs none.
func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		l := s.lane(nil)
		defer drain(t, l)
		fill := func() (held []*Held[*conn]) {
			for range 4 {
				h, err := l.Get(t.Context())
				must(t, l, err)
				held = append(held, h)
			}
			return held
		}
		held := fill()
		for _, h := range held[:2] {
			l.Put(h)
		}
		time.Sleep(time.Hour) // the two are idle and go
		for _, h := range held[2:] {
			l.Put(h)
		}
		held = fill()
		for i, h := range held {
			h.Conn.end()
			if i < 2 {
				l.Put(h) // before who watches it is told
			}
		}
		began := time.Now()
		h, err := l.Get(t.Context())
		must(t, l, err)
		if pause := time.Since(began); pause < 250*time.Millisecond || pause > 750*time.Millisecond {
			t.Errorf("the next attempt comes after %v", pause)
		}
		for _, h := range held[2:] {
			if h.Conn.closes.Load() != 0 {
				t.Error("closed under its request")
			}
			l.Put(h)
		}
		synctest.Wait()
		for _, c := range s.conns[:6] {
			if n := c.closes.Load(); n != 1 {
				t.Errorf("connection %d closed %d times", c.number, n)
			}
		}
		if s := l.Stats(); s.Lost != 4 || s.Idle != 2 || s.Failures != 1 {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Second)
		began = time.Now()
		h.Conn.own.Store(true)
		h.Conn.end()
		l.Put(h)
		if h, err = l.Get(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		l.Put(h)
	})
}

// A server that accepts and then ends each connection is asked less and less often.
func TestCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		l := s.lane(nil)
		defer drain(t, l)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		for {
			h, err := l.Get(ctx)
			if err != nil {
				break
			}
			h.Conn.end()
			l.Put(h)
			synctest.Wait()
		}
		if n := len(s.attempts); n < 40 || n > 125 {
			t.Errorf("%d attempts in ten minutes", n) // a pause is 5 to 15 s in the end
		}
	})
}

// A connection that is to be kept for a shorter time than others goes when that is over,
// whenever the others do.
func TestConnectionsAreKeptForDifferentTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		l := s.lane(func(c *Config[*conn]) {
			c.KeepFor = func(c *conn, idle time.Duration) time.Duration {
				if c.number == 1 {
					return time.Second
				}
				return idle
			}
		})
		defer drain(t, l)
		long, err := l.Get(t.Context())
		must(t, l, err)
		short, err := l.Get(t.Context())
		must(t, l, err)
		l.Put(short)
		for range 5 { // who uses it in time keeps it
			time.Sleep(900 * time.Millisecond)
			h, err := l.Get(t.Context())
			must(t, l, err)
			if h != short {
				t.Fatal("a new one")
			}
			l.Put(h)
		}
		l.Put(long)
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		if short.Conn.closes.Load() != 1 || long.Conn.closes.Load() != 0 {
			t.Error("the wrong one, or none, went")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := l.Stats(); s.Open != 0 || s.Idle != 2 || s.Lost != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// What nobody uses goes, the longest idle first; what is used stays.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		l := s.lane(nil)
		defer drain(t, l)
		a, err := l.Get(t.Context())
		must(t, l, err)
		b, err := l.Get(t.Context())
		must(t, l, err)
		l.Put(b)
		time.Sleep(59 * time.Second)
		l.Put(a)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if a.Conn.closes.Load() != 0 || b.Conn.closes.Load() != 1 {
			t.Error("the wrong one, or none, went")
		}
		for range 100 {
			h, err := l.Get(t.Context())
			must(t, l, err)
			if h != a {
				t.Fatal("a new one")
			}
			l.Put(h)
			time.Sleep(59 * time.Second)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := l.Stats(); s.Open != 0 || s.Idle != 2 || s.Lost != 0 {
			t.Errorf("%+v", s)
		}
		if !l.Forget() {
			t.Error("it is not forgotten")
		}
		if _, err := l.Get(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// Several requests share a connection while others are made.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{delay: time.Second}
		l := s.lane(func(c *Config[*conn]) { c.Most, c.Share = 2, 3 })
		defer drain(t, l)
		began := time.Now()
		first, err := l.Get(t.Context())
		must(t, l, err)
		second, err := l.Get(t.Context())
		must(t, l, err)
		if second != first || time.Since(began) != time.Second {
			t.Error("the second request waits although there is room")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		third, err := l.Get(t.Context())
		must(t, l, err)
		if third == first {
			t.Error("the third request does not take the free one")
		}
		held := []*Held[*conn]{first, second, third}
		for range 3 {
			h, err := l.Get(t.Context())
			must(t, l, err)
			held = append(held, h)
		}
		synctest.Wait()
		if first.users != 3 || third.users != 3 || len(s.conns) != 2 {
			t.Errorf("%d and %d users, %d connections", first.users, third.users, len(s.conns))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		for _, h := range held {
			l.Put(h)
		}
	})
}

// A better connection takes over; the others end with their requests.
func TestReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		l := s.lane(nil)
		free, err := l.Get(t.Context())
		must(t, l, err)
		used, err := l.Get(t.Context())
		must(t, l, err)
		l.Put(free)
		better := &conn{number: 100, done: make(chan struct{})}
		if err := l.Replace(better, func(c *conn) bool { return c.number < 100 }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if free.Conn.closes.Load() != 1 || used.Conn.closes.Load() != 0 {
			t.Error("the free one stays, or the used one goes")
		}
		h, err := l.Get(t.Context())
		must(t, l, err)
		if h.Conn != better {
			t.Error("not the better one")
		}
		l.Put(h)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		// One that is on its way out, but has a request, is closed by Drain.
		if err := l.Drain(cancelled, cancelled); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if used.Conn.closes.Load() != 1 || better.closes.Load() != 1 {
			t.Error("Drain leaves some")
		}
		l.Put(used)
		if err := l.Replace(better, nil); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// Drain lets requests end that have a connection, and refuses the others.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		l := s.lane(func(c *Config[*conn]) { c.Most = 1 })
		h, err := l.Get(t.Context())
		must(t, l, err)
		refused := make(chan error, 1)
		go func() {
			_, err := l.Get(t.Context())
			refused <- err
		}()
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- l.Drain(t.Context(), t.Context()) }()
		if err := <-refused; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		synctest.Wait()
		if h.Conn.closes.Load() != 0 || len(drained) != 0 {
			t.Error("it does not wait for the request")
		}
		l.Put(h)
		if err := <-drained; err != nil || h.Conn.closes.Load() != 1 {
			t.Error(err, h.Conn.closes.Load())
		}
		if err := l.Drain(t.Context(), t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Drain does not wait for an attempt, nor for the pause before one.
func TestDrainWhileConnecting(t *testing.T) {
	for _, s := range []*server{{delay: time.Hour}, {err: errDown}} {
		synctest.Test(t, func(t *testing.T) {
			l := s.lane(nil)
			ended := make(chan error, 1)
			go func() {
				for {
					if _, err := l.Get(t.Context()); errors.Is(err, ErrClosed) {
						ended <- err
						return
					}
				}
			}()
			time.Sleep(100 * time.Millisecond)
			began := time.Now()
			drain(t, l)
			<-ended
			if d := time.Since(began); d != 0 {
				t.Errorf("it took %v", d)
			}
		})
	}
}

// A thousand clients lose a server at once. It is away for half a minute, and they
// come back with no more than two attempts of each in any second, on the whole no
// more than one and a half, and fewer and fewer while it stays away.
func TestStorm(t *testing.T) {
	const clients = 1000
	if race.Enabled {
		t.Skip("a minute of 1,000 clients is slow under the race detector; nothing here is shared among them")
	}
	synctest.Test(t, func(t *testing.T) {
		servers, lanes := make([]*server, clients), make([]*Lane[*conn], clients)
		for i := range clients {
			servers[i] = &server{delay: time.Millisecond}
			lanes[i] = servers[i].lane(nil)
			defer drain(t, lanes[i])
			h, err := lanes[i].Get(t.Context())
			must(t, lanes[i], err)
			lanes[i].Put(h)
		}
		time.Sleep(20 * time.Second)
		lost := time.Now()
		var back sync.WaitGroup
		for i := range clients {
			servers[i].fail(errDown)
			servers[i].conns[0].end()
		}
		synctest.Wait()
		for i := range clients {
			back.Go(func() {
				for {
					h, err := lanes[i].Get(t.Context())
					if err == nil {
						lanes[i].Put(h)
						return
					}
				}
			})
		}
		time.Sleep(30 * time.Second)
		for i := range clients {
			servers[i].fail(nil)
		}
		up := time.Now()
		back.Wait()
		if d := time.Since(up); d > 16*time.Second {
			t.Errorf("the last one came back after %v", d)
		}
		tenths := map[int]int{}
		for i, s := range servers {
			for n, at := range s.attempts[1:] {
				tenths[int(at.Sub(lost)/(100*time.Millisecond))]++
				if n >= 2 && at.Sub(s.attempts[n-1]) < time.Second {
					t.Errorf("client %d makes three attempts in a second", i)
				}
			}
		}
		in := func(second float64) (n int) {
			for i := range 10 {
				n += tenths[int(second*10)+i]
			}
			return n
		}
		for tenth := range 500 {
			if n := in(float64(tenth) / 10); n > clients*3/2 {
				t.Errorf("%d attempts in the second from %.1f s", n, float64(tenth)/10)
			}
		}
		if n := in(25); n > clients/4 {
			t.Errorf("%d attempts in the 26th second", n)
		}
	})
}

// Random requests, losses, failures and replacements never break what a lane
// promises.
func TestHistories(t *testing.T) {
	histories := 300
	if race.Enabled {
		histories = 30
	}
	for seed := range histories {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { history(t, uint64(seed)) })
		})
	}
}

func history(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	s := &server{delay: time.Duration(r.IntN(50)) * time.Millisecond}
	most, share := 1+r.IntN(4), 1+r.IntN(3)
	l := s.lane(func(c *Config[*conn]) {
		c.Most, c.Share, c.Idle = most, share, time.Duration(1+r.IntN(2000))*time.Millisecond
	})
	var requests sync.WaitGroup
	for range 20 {
		seed := r.Uint64()
		requests.Go(func() {
			r := rand.New(rand.NewPCG(seed, 2))
			for range 20 {
				time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(3000))*time.Millisecond)
				h, err := l.Get(ctx)
				cancel()
				if err != nil {
					continue
				}
				if h.Conn.closes.Load() > 0 {
					t.Error("a closed connection was handed out")
				}
				if n := h.Conn.users.Add(1); int(n) > share {
					t.Errorf("%d requests on a connection", n)
				}
				time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
				if r.IntN(10) == 0 {
					h.Conn.own.Store(r.IntN(2) == 0)
					h.Conn.end()
				}
				h.Conn.users.Add(-1)
				l.Put(h)
			}
		})
	}
	stop := make(chan struct{})
	var faults sync.WaitGroup
	var replaced atomic.Int32
	faults.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(r.IntN(500)) * time.Millisecond):
			}
			switch r.IntN(4) {
			case 0:
				s.fail(errDown)
			case 1, 2:
				s.fail(nil)
			case 3:
				c := &conn{number: 1000, done: make(chan struct{})}
				s.mu.Lock()
				s.conns = append(s.conns, c)
				s.mu.Unlock()
				if l.Replace(c, func(*conn) bool { return true }) == nil {
					replaced.Add(1)
				}
			}
			if n := l.Stats().Open; n > most {
				t.Errorf("%d connections", n)
			}
		}
	})
	requests.Wait()
	close(stop)
	faults.Wait()
	drain(t, l)
	if s.most > 1 {
		t.Errorf("%d attempts at once", s.most)
	}
	for _, c := range s.conns {
		if n := c.closes.Load(); n != 1 {
			t.Errorf("connection closed %d times", n)
		}
	}
	if st := l.Stats(); st.Opened != uint64(len(s.conns)) || st.Open != 0 || st.Waiting != 0 || st.Requests+st.Left != 400 {
		t.Errorf("%+v of %d connections", st, len(s.conns))
	}
}

// A request that finds a free connection allocates nothing.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	s := &server{}
	l := s.lane(nil)
	defer drain(t, l)
	if n := testing.AllocsPerRun(1000, func() {
		h, err := l.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l.Put(h)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkGetPut(b *testing.B) {
	s := &server{}
	l := s.lane(nil)
	defer func() { _ = l.Drain(context.Background(), context.Background()) }()
	for b.Loop() {
		h, err := l.Get(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		l.Put(h)
	}
}
