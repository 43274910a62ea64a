package slab

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A history is a pool under operations that some bytes choose, of users that run
// at the same time as far as the device makes them wait, with a model of who has
// what.
type history struct {
	t      *testing.T
	pool   *Pool
	device *device
	choice []byte

	held    []*holding
	owners  []*Private
	had     map[uint32]*Private // who had a region, by key; nil is everybody
	running int                 // requests that are not over
	cancels []context.CancelFunc
	stamp   uint64
	spoilt  int
	gone    atomic.Int64
}

type holding struct {
	slab  Slab
	stamp uint64
}

// next is a number below n.
func (h *history) next(n int) int {
	if len(h.choice) < 2 {
		h.choice = nil
		return 0
	}
	v := int(binary.LittleEndian.Uint16(h.choice))
	h.choice = h.choice[2:]
	return v % n
}

func (h *history) size() int {
	// Any power of two up to 8 MiB, or something below it.
	n := 1 << h.next(24)
	return n - h.next(n/3+1)
}

// got takes a slab into the model. It runs while nothing else does.
func (h *history) got(s Slab, size int, o *Private) {
	if s.Size() < size {
		h.t.Errorf("%d bytes where %d were asked for", s.Size(), size)
	}
	key := s.Region().Key()
	if before, known := h.had[key]; known && before != o {
		h.t.Error("a region went from one owner to another")
	} else if !known && o != nil && (s.Bytes()[0] != 0 || s.Bytes()[s.Size()-1] != 0) {
		h.t.Error("an owner's fresh memory is not zero")
	}
	h.had[key] = o
	h.stamp++
	h.mark(s, h.stamp)
	h.held = append(h.held, &holding{s, h.stamp})
}

// mark writes to both ends and wherever another slab could begin.
func (h *history) mark(s Slab, stamp uint64) {
	b := s.Bytes()
	for i := 0; i+8 <= len(b); i += max(256, len(b)/64) {
		binary.LittleEndian.PutUint64(b[i:], stamp)
	}
	binary.LittleEndian.PutUint64(b[len(b)-8:], stamp)
}

func (h *history) put(i int) {
	x := h.held[i]
	h.held = append(h.held[:i], h.held[i+1:]...)
	b := x.slab.Bytes()
	for _, i := range []int{0, max(256, len(b)/64), len(b) - 8} {
		if i+8 <= len(b) && binary.LittleEndian.Uint64(b[i:]) != x.stamp && i%max(256, len(b)/64) == 0 {
			h.t.Error("somebody else wrote to a slab")
		}
	}
	if binary.LittleEndian.Uint64(b[len(b)-8:]) != x.stamp {
		h.t.Error("somebody else wrote to a slab")
	}
	if h.next(16) == 0 {
		h.spoilt++
		h.pool.Spoil(x.slab, func() { h.gone.Add(1) })
		return
	}
	go h.pool.Put(x.slab) // others do what they want meanwhile
}

// request is a user that wants memory and does not wait in any other way.
func (h *history) request(results chan func()) {
	size, how := h.size(), h.next(8)
	var o *Private
	if len(h.owners) > 0 && h.next(3) == 0 {
		o = h.owners[h.next(len(h.owners))]
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.cancels = append(h.cancels, cancel)
	h.running++
	var s Slab
	var err error
	go func() {
		ok := true
		switch {
		case how < 4 && o == nil:
			s, err = h.pool.Get(ctx, size)
		case how < 4:
			s, err = o.Get(ctx, size)
		case how == 4 && o == nil:
			s, ok, err = h.pool.TryQuick(size)
		case how < 6 && o == nil:
			s, ok, err = h.pool.TryGet(size)
		case how < 6:
			s, ok, err = o.TryGet(size)
		case o == nil:
			s, err = h.pool.GetNow(ctx, size)
		default:
			s, err = o.GetNow(ctx, size)
		}
		results <- func() {
			h.running--
			switch {
			case s.None() != (err != nil || !ok):
				h.t.Errorf("slab: %t, error %v", !s.None(), err)
			case err == nil && ok:
				h.got(s, size, o)
			case err == nil || errors.Is(err, errDevice) || errors.Is(err, context.Canceled):
			case errors.Is(err, ErrExhausted) && how >= 6:
			case errors.Is(err, ErrTooLarge) && int64(size) > h.pool.Limit()/2:
			case errors.Is(err, ErrClosed) && o != nil:
			default:
				h.t.Error(err)
			}
		}
	}()
}

func (h *history) run() {
	results := make(chan func(), 1<<16)
	settle := func() {
		synctest.Wait()
		for {
			select {
			case f := <-results:
				f()
				continue
			default:
			}
			break
		}
		h.pool.check(h.t)
	}
	for len(h.choice) > 0 && !h.t.Failed() {
		switch n := h.next(100); {
		case n < 45:
			h.request(results)
		case n < 80:
			if len(h.held) > 0 {
				h.put(h.next(len(h.held)))
			}
		case n < 84:
			if len(h.cancels) > 0 {
				h.cancels[h.next(len(h.cancels))]()
			}
		case n < 88:
			h.owners = append(h.owners, h.pool.NewPrivate())
		case n < 90:
			if len(h.owners) > 0 {
				i := h.next(len(h.owners))
				go h.owners[i].Close()
				h.owners = append(h.owners[:i], h.owners[i+1:]...)
			}
		case n < 92:
			go h.pool.Trim()
		case n < 94:
			// Put everything back at once.
			for range h.held {
				h.put(0)
			}
		case n < 96:
			// Memory becomes short, or is so no more; it may stay short to the end.
			if h.next(3) > 0 {
				h.pool.Squeeze(int64(h.next(1<<15)) << 10)
			} else {
				h.pool.Relax()
			}
		default:
			time.Sleep(time.Duration(h.next(5000)) * time.Millisecond)
		}
		if h.next(3) > 0 {
			settle()
		}
	}
	// However it came here, whoever still waits is served once all is put back,
	// unless the device does not want to.
	settle()
	h.device.mu.Lock()
	h.device.refuses, h.device.keeps = nil, nil
	h.device.mu.Unlock()
	for i := 0; h.running > 0 && i < 10_000 && !h.t.Failed(); i++ {
		for len(h.held) > 0 {
			h.put(0)
		}
		time.Sleep(10 * time.Second)
		settle()
		if h.pool.lost > 0 && len(h.held) == 0 {
			for _, cancel := range h.cancels { // what was lost may be what they need
				cancel()
			}
		}
	}
	if h.running > 0 {
		h.t.Errorf("%d requests wait for ever", h.running)
		h.t.Logf("limit %d registered %d idle %d small %d large %d drained %d lost %d busy %d lanes %b", h.pool.limit, h.pool.registered.Load(), h.pool.idle, h.pool.smallUse, h.pool.largeUse, h.pool.drainedUse, h.pool.lost, h.pool.busy, h.pool.line.lanes)
	}
	for len(h.held) > 0 {
		h.put(0)
	}
	for _, cancel := range h.cancels {
		cancel()
	}
	time.Sleep(time.Minute)
	settle()
	if n := h.pool.Registered(); n != h.pool.lost || h.pool.trim.armed {
		h.t.Errorf("%d bytes stay, %d of them lost; the timer runs: %t", n, h.pool.lost, h.pool.trim.armed)
	}
	if n := h.gone.Load(); n != int64(h.spoilt) && h.pool.lost == 0 || n > int64(h.spoilt) {
		h.t.Errorf("%d slabs were spoilt, %d are gone", h.spoilt, n)
	}
	if err := h.pool.Close(); err != nil && h.pool.lost == 0 {
		h.t.Error(err)
	}
	if h.device.bytes != h.pool.lost {
		h.t.Errorf("%d bytes are left of which %d are lost", h.device.bytes, h.pool.lost)
	}
}

// play runs a history. The first bytes choose what the device is like.
func play(t *testing.T, choice []byte) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{t: t, choice: choice, had: map[uint32]*Private{}}
		limit := []int64{1 << 20, 3 << 20, 12 << 20, 40 << 20}[h.next(4)]
		h.device = newDevice(t, limit)
		h.pool = New(h.device, 0, limit)
		r := rand.New(rand.NewPCG(uint64(h.next(1<<16)), 0))
		slow, refuses, keeps := []int{0, 20, 100}[h.next(3)], []int{0, 5}[h.next(2)], []int{0, 0, 2}[h.next(3)]
		lock := make(chan struct{}, 1)
		percent := func(n int) bool {
			lock <- struct{}{}
			defer func() { <-lock }()
			return chance(r, n)
		}
		h.device.takes = func() time.Duration {
			if !percent(slow) {
				return 0
			}
			return 700 * time.Millisecond
		}
		h.device.refuses = func(int) bool { return percent(refuses) }
		h.device.keeps = func() bool { return percent(keeps) }
		h.run()
	})
}

// Random histories: no two users have the same bytes, no owner sees another's
// memory, the books are right at every step, the limit holds, nobody who could
// be served waits, nobody waits for ever, however short memory is, and in the end
// everything goes back.
// VERBENA_SLAB_HISTORIES plays more of them.
func TestHistories(t *testing.T) {
	n := 60
	if s := os.Getenv("VERBENA_SLAB_HISTORIES"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	for seed := range n {
		r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
		choice := make([]byte, 2000)
		_, _ = r.Read(choice)
		if play(t, choice); t.Failed() {
			t.Fatalf("history %d", seed)
		}
	}
}

func FuzzHistory(f *testing.F) {
	for seed := range byte(4) {
		choice := make([]byte, 1000)
		_, _ = rand.NewChaCha8([32]byte{seed}).Read(choice)
		f.Add(choice)
	}
	f.Fuzz(func(t *testing.T, choice []byte) {
		if len(choice) < 4000 {
			play(t, choice)
		}
	})
}
