package verbena

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// A thousand clients, each with a pool and real connections, lose their server at
// once. It is away for five seconds. None makes more than two attempts in a second.
//
//	VERBENA_STORM=1 go test . -run PoolStorm -v
func TestPoolStorm(t *testing.T) {
	if os.Getenv("VERBENA_STORM") == "" {
		t.Skip("it takes half a minute: set VERBENA_STORM")
	}
	const clients = 1000
	p := worlds[0].pair(t, Config{}, ListenConfig{Backlog: clients})
	addr := p.listener.Addr().String()
	answer(t, p.listener)
	pools := make([]*Pool, clients)
	attempts := func() (n uint64) {
		for _, pool := range pools {
			s := pool.core.stats()
			n += s.Opened + s.Failed
		}
		return n
	}
	each := func(f func(pool *Pool)) {
		var wg sync.WaitGroup
		for _, pool := range pools {
			wg.Go(func() { f(pool) })
		}
		wg.Wait()
	}
	for i := range pools {
		var err error
		if pools[i], err = p.client.NewPool(PoolConfig{Service: "test/1", Name: fmt.Sprint("client ", i)}); err != nil {
			t.Fatal(err)
		}
	}
	comeBack := func(pool *Pool) {
		for {
			if _, err := exchangeOn(p.ctx, pool, addr, Intent{}); err == nil || p.ctx.Err() != nil {
				return
			}
		}
	}
	each(comeBack)
	before := attempts()
	if err := p.server.Close(); err != nil {
		t.Log(err)
	}
	lost := time.Now()
	back := make(chan struct{})
	go func() {
		each(comeBack)
		close(back)
	}()
	up := false
	var samples []uint64 // of each tenth of a second
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		<-tick.C
		samples = append(samples, attempts())
		if !up && time.Since(lost) > 5*time.Second {
			up = true
			l, err := newRuntime(t, Config{}, nil).Listen(p.ctx, addr, ListenConfig{Backlog: clients})
			if err != nil {
				t.Fatal(err)
			}
			answer(t, l)
		}
		select {
		case <-back:
		default:
			continue
		}
		tick.Stop()
		break
	}
	worst := uint64(0)
	for i, n := range samples {
		from := before
		if i >= 10 {
			from = samples[i-10]
		}
		worst = max(worst, n-from)
	}
	t.Logf("%d clients back after %v, with %d attempts, %d in the worst second", clients, time.Since(lost).Round(time.Millisecond), attempts()-before, worst)
	for i := 9; i < len(samples); i += 10 {
		from := before
		if i >= 10 {
			from = samples[i-10]
		}
		t.Logf("second %d: %d", i/10+1, samples[i]-from)
	}
	if p.ctx.Err() != nil {
		t.Error("not all are back after a minute")
	}
	if worst > 2*clients+clients/5 { // the samples may be a tenth of a second late
		t.Errorf("%d attempts in a second", worst)
	}
}
