package verbena

import (
	"errors"
	"runtime"
	"testing"

	"github.com/verbena-data/verbena/internal/pressure"
)

func TestMemoryDefaults(t *testing.T) {
	for limit, want := range map[int64][2]int64{
		0:         {1 << 30, 512 << 20}, // not known
		64 << 30:  {1 << 30, 512 << 20},
		256 << 20: {64 << 20, 32 << 20},
		16 << 20:  {8 << 20, 8 << 20},
	} {
		if got := [2]int64{defaultReceiveMemory(limit), defaultSendMemory(limit)}; got != want {
			t.Errorf("of %d bytes %v, want %v", limit, got, want)
		}
	}
	cfg, err := Config{}.withDefaults()
	if limit := pressure.Process().Now().Limit; err != nil || limit > 0 && cfg.ReceiveMemory > limit/4 {
		t.Errorf("%d bytes of %d, %v", cfg.ReceiveMemory, limit, err)
	}
}

// While memory is short endpoints go on, with less: what is free is given back at
// once, peers get no more receives, and messages of all lengths arrive.
func TestPressure(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{IgnorePressure: true}, ListenConfig{}) // but for what the test says
		a, b := p.connect(t, w.transport)
		move := func(size int) {
			t.Helper()
			sent := make(chan error, 1)
			go func() { sent <- a.Send(p.ctx, 1, pattern(size, 1)) }()
			m, err := b.Receive(p.ctx)
			if err := errors.Join(err, <-sent); err != nil {
				t.Fatal(err)
			}
			if len(m.Bytes()) != size {
				t.Fatalf("%d bytes of %d", len(m.Bytes()), size)
			}
			m.Release()
		}
		move(16 << 20)
		var memory []squeezable
		for _, r := range []*Runtime{p.client, p.server} {
			memory = append(memory, r.env.arriving)
			if n := r.firstDomain(w.transport); n != nil {
				memory = append(memory, n.receivePool, n.longPool, n.sendPool, n.offerPool)
			}
		}
		press := func(level pressure.Level) {
			for _, m := range memory {
				follow(pressure.Reading{Level: level}, m)
			}
		}
		for _, level := range []pressure.Level{pressure.Tight, pressure.Critical, pressure.Critical} {
			press(level)
			for _, size := range []int{0, 100, 5000, 3 << 20} {
				move(size)
			}
		}
		for _, m := range memory {
			if !m.Squeezed() {
				t.Errorf("%T is not squeezed", m)
			}
		}
		if n := p.server.firstDomain(w.transport); n != nil {
			for n.longPool.Registered() > leastAllowed(n.longPool.Limit()) { // on a goroutine of its own
				if p.ctx.Err() != nil {
					t.Fatalf("%d bytes stay registered", n.longPool.Registered())
				}
				runtime.Gosched()
			}
			if s := p.server.Stats().of(w.transport).Pools[1]; s.Name != "long" || !s.Squeezed {
				t.Errorf("stats: %+v", s)
			}
		}
		press(pressure.Calm)
		move(16 << 20)
		for _, m := range memory {
			if m.Squeezed() {
				t.Errorf("%T is still squeezed", m)
			}
		}
	})
}

// A runtime tells how short memory is, and has a pool for what comes over TCP.
func TestMemoryStats(t *testing.T) {
	r := newRuntime(t, Config{ReceiveMemory: 32 << 20}, nil)
	s := r.Stats()
	if runtime.GOOS == "linux" && (s.Memory.Limit == 0 || s.Memory.Used == 0 || s.Memory.LimitOf == "") || s.Memory.Pressure == "" {
		t.Errorf("%+v", s.Memory)
	}
	if pools := s.of(TransportTCP).Pools; len(pools) != 4 || pools[0].Name != "stream" || pools[0].Limit != 32<<20 || pools[1].Name != "lent" || pools[1].Limit == 0 {
		t.Errorf("%+v", pools)
	}
}
