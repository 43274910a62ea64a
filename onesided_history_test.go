package verbena

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
)

var (
	exposureHistories = flag.Int("exposure-histories", 8, "random histories of one-sided operations to run over each transport")
	exposureSeed      = flag.Uint64("exposure-seed", 1, "of the first of them")
)

// TestExposureHistories drives both ends of endpoints at random: memory of three kinds
// and files are exposed, written, read, counted in, revoked and closed, alone and in
// batches, by one call and by many at a time; endpoints close, are cut off and come
// back. A model of the bytes tells what a Get must bring. More of them:
//
//	go test . -run ExposureHistories -exposure-histories 1000
func TestExposureHistories(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{SendMemory: 64 << 20}, ListenConfig{})
		m, err := NewMapping(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		for s := *exposureSeed; s < *exposureSeed+uint64(*exposureHistories); s++ {
			h := &exposureHistory{t: t, w: w, p: p, mapping: m, rng: rand.New(rand.NewPCG(s, 11))}
			if err := h.run(); err != nil {
				t.Fatalf("seed %d: %v\nthe last steps:\n%s", s, err, h.steps())
			}
		}
		if err := m.Close(); err != nil {
			t.Error("something is left of its exposures:", err)
		}
	})
}

type exposureHistory struct {
	t       *testing.T
	w       world
	p       *pair
	mapping *Mapping
	rng     *rand.Rand
	ends    [2]*Endpoint
	open    []*modelled
	parts   int // of the mapping, in use
	log     []string
}

// modelled is an exposure and what it must hold.
type modelled struct {
	owner   int // the end that exposes it
	x       *Exposure
	bytes   []byte
	rights  Rights
	revoked bool
	file    *os.File
}

func (h *exposureHistory) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *exposureHistory) steps() string {
	var b bytes.Buffer
	for _, s := range h.log[max(0, len(h.log)-40):] {
		b.WriteString(s + "\n")
	}
	return b.String()
}

func (h *exposureHistory) run() error {
	h.connect()
	for range 30 + h.rng.IntN(60) {
		if err := h.step(); err != nil {
			return err
		}
	}
	return h.end(h.rng.IntN(3))
}

func (h *exposureHistory) connect() {
	h.ends[0], h.ends[1] = h.p.connect(h.t, h.w.transport)
	h.say("connected")
}

func (h *exposureHistory) step() error {
	switch n := h.rng.IntN(20); {
	case n < 3 || len(h.open) == 0:
		return h.expose()
	case n < 16:
		return h.operations()
	case n == 16:
		return h.revoke()
	case n == 17:
		return h.useRevoked()
	case n == 18 && h.rng.IntN(3) == 0:
		err := h.end(h.rng.IntN(3))
		h.connect()
		return err
	}
	return h.close(h.rng.IntN(len(h.open)))
}

// expose exposes something at one end.
func (h *exposureHistory) expose() (err error) {
	if len(h.open) >= 12 {
		return nil
	}
	o := &modelled{owner: h.rng.IntN(2), rights: Rights(1 + h.rng.IntN(7))}
	size := 8 * (1 + h.rng.IntN(6000))
	c := ExposeConfig{Size: size, Rights: o.rights}
	e := h.ends[o.owner]
	kind := h.rng.IntN(3)
	switch kind {
	case 0:
		o.x, err = e.Expose(h.p.ctx, c)
	case 1: // the parts may overlap no other
		if h.parts++; h.parts > 1<<20/48_000 {
			h.parts = 1
		}
		for _, other := range h.open {
			if start, _ := extent(other.x.Bytes()); len(other.x.Bytes()) > 0 && overlap(h.part(size), other.x.Bytes()) && start != 0 {
				return nil
			}
		}
		c.Memory = h.part(size)
		clear(c.Memory)
		o.x, err = e.Expose(h.p.ctx, c)
	case 2:
		contents := pattern(size, size)
		o.rights, o.file = MayRead, fileWith(h.t, contents)
		o.bytes = contents
		o.x, err = e.ExposeFile(h.p.ctx, FileConfig{File: o.file})
	}
	if err != nil {
		return err
	}
	if o.bytes == nil {
		o.bytes = make([]byte, size)
	}
	h.say("end %d exposes %d bytes of kind %d for %s", o.owner, size, kind, o.rights)
	h.open = append(h.open, o)
	return nil
}

func (h *exposureHistory) part(size int) []byte {
	return h.mapping.Bytes()[(h.parts-1)*48_000:][:size]
}

// operations carries out some, by one call or several at a time, each in a place of its
// own.
func (h *exposureHistory) operations() error {
	o := h.open[h.rng.IntN(len(h.open))]
	if o.revoked {
		return nil
	}
	e, token := h.ends[1-o.owner], o.x.Token()
	callers := 1 + h.rng.IntN(3)
	share := len(o.bytes) / callers / 8 * 8
	if share == 0 {
		return nil
	}
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		seed := h.rng.Uint64()
		wg.Go(func() { errs[i] = h.call(e, token, o, i*share, share, rand.New(rand.NewPCG(seed, 3))) })
	}
	wg.Wait()
	h.say("%d callers at end %d operate on %d bytes for %s", callers, 1-o.owner, len(o.bytes), o.rights)
	return errors.Join(errs...)
}

// call carries out a batch on a share of the bytes, and looks at the result.
func (h *exposureHistory) call(e *Endpoint, token Token, o *modelled, start, n int, rng *rand.Rand) error {
	model := o.bytes[start : start+n]
	b := e.Batch()
	type result struct {
		got    []byte
		want   []byte
		before uint64
		was    uint64
	}
	var results []*result
	for range 1 + rng.IntN(4) {
		at := rng.IntN(n)
		length := 1 + rng.IntN(n-at)
		r := &result{}
		switch kind := rng.IntN(4); {
		case kind == 0 && o.rights&MayWrite != 0 && len(results) == 0: // before all others
			data := make([]byte, length)
			for i := range data {
				data[i] = byte(rng.Uint32())
			}
			copy(model[at:], data)
			b.Put(token, start+at, data)
			continue
		case kind == 1 && o.rights&MayRead != 0:
			// Behind an atomic operation of the batch it may bring either.
			if len(results) > 0 {
				continue
			}
			r.got, r.want = make([]byte, length), bytes.Clone(model[at:at+length])
			b.Get(token, start+at, r.got)
		case kind == 2 && o.rights&MayAtomic != 0 && len(results) == 0:
			at = at / 8 * 8
			word := model[at : at+8]
			delta := rng.Uint64()
			r.was = binary.NativeEndian.Uint64(word)
			binary.NativeEndian.PutUint64(word, r.was+delta)
			b.FetchAdd(token, start+at, delta, &r.before)
		case kind == 3 && o.rights&MayAtomic != 0 && len(results) == 0:
			at = at / 8 * 8
			word := model[at : at+8]
			r.was = binary.NativeEndian.Uint64(word)
			old := r.was + rng.Uint64N(2)
			if old == r.was {
				binary.NativeEndian.PutUint64(word, 77)
			}
			b.CompareSwap(token, start+at, old, 77, &r.before)
		default:
			continue
		}
		results = append(results, r)
	}
	if err := b.Do(h.p.ctx); err != nil {
		return err
	}
	for _, r := range results {
		if !bytes.Equal(r.got, r.want) || r.before != r.was {
			return fmt.Errorf("an operation at %d of %d bytes brought something else", start, n)
		}
	}
	return nil
}

// revoke ends an exposure, whose bytes stay as they are.
func (h *exposureHistory) revoke() error {
	o := h.open[h.rng.IntN(len(h.open))]
	if err := h.settle(o); err != nil {
		return err
	}
	if err := o.x.Revoke(); err != nil {
		return err
	}
	o.revoked = true
	h.say("end %d revokes %d bytes", o.owner, len(o.bytes))
	return h.look(o)
}

// settle waits until what was put is there: a Get brings it behind the Puts.
func (h *exposureHistory) settle(o *modelled) error {
	if o.revoked {
		return nil
	}
	e := h.ends[1-o.owner]
	switch {
	case o.rights&MayRead != 0:
		into := make([]byte, len(o.bytes))
		if err := e.Get(h.p.ctx, o.x.Token(), 0, into); err != nil {
			return err
		}
		if !bytes.Equal(into, o.bytes) {
			return fmt.Errorf("%d bytes are others in the end", len(o.bytes))
		}
	case o.rights&MayAtomic != 0:
		_, err := e.FetchAdd(h.p.ctx, o.x.Token(), 0, 0)
		return err
	default: // a message behind the Puts
		if err := e.Send(h.p.ctx, 1, nil); err != nil {
			return err
		}
		m, err := h.ends[o.owner].Receive(h.p.ctx)
		if err != nil {
			return err
		}
		m.Release()
	}
	return nil
}

// look compares the bytes of the exposing side.
func (h *exposureHistory) look(o *modelled) error {
	if o.file == nil && !bytes.Equal(o.x.Bytes(), o.bytes) {
		return fmt.Errorf("%d bytes of end %d are not as the model has them", len(o.bytes), o.owner)
	}
	return nil
}

// useRevoked reads what was revoked. It is refused; of memory on a device that ends the
// endpoint.
func (h *exposureHistory) useRevoked() error {
	for _, o := range h.open {
		if !o.revoked || o.rights&MayRead == 0 {
			continue
		}
		e := h.ends[1-o.owner]
		h.say("end %d reads what was revoked", 1-o.owner)
		if err := e.Get(h.p.ctx, o.x.Token(), 0, make([]byte, 8)); !h.w.refused(err) || o.file != nil && !errors.Is(err, ErrRevoked) {
			return fmt.Errorf("a Get of what was revoked: %w", err)
		}
		if o.file == nil && h.w.transport != TransportTCP {
			<-h.ends[0].Done()
			<-h.ends[1].Done()
			err := h.end(0)
			h.connect()
			return err
		}
		return nil
	}
	return nil
}

// close gives an exposure back.
func (h *exposureHistory) close(i int) error {
	o := h.open[i]
	h.open = append(h.open[:i], h.open[i+1:]...)
	if err := h.settle(o); err != nil {
		return err
	}
	h.say("end %d closes %d bytes", o.owner, len(o.bytes))
	return errors.Join(h.look(o), o.x.Close())
}

// end ends the endpoint: both sides close, one does, or the connection breaks. All
// exposures end with it, and nothing can be done any more.
func (h *exposureHistory) end(how int) error {
	h.say("the endpoint ends: %d", how)
	alive := h.ends[0].Err() == nil && h.ends[1].Err() == nil
	for _, o := range h.open {
		if alive {
			if err := h.settle(o); err != nil {
				return err
			}
		}
	}
	if how == 2 && alive {
		switch c := h.ends[h.rng.IntN(2)].carrier.(type) {
		case *shell:
			_ = c.qp.Disconnect() // the ends see it
		case *stream:
			_ = c.conn.Close()
		}
		<-h.ends[0].Done()
		<-h.ends[1].Done()
	}
	if how == 1 {
		closeBoth(h.t, h.ends[h.rng.IntN(2)])
	}
	closeBoth(h.t, h.ends[0], h.ends[1])
	for _, o := range h.open {
		if err := h.ends[1-o.owner].Get(h.p.ctx, o.x.Token(), 0, make([]byte, 1)); err == nil {
			return errors.New("a Get of an endpoint that has ended")
		}
		if o.x.serve(func([]byte) {}) {
			return errors.New("an exposure outlives its endpoint")
		}
		if alive {
			if err := h.look(o); err != nil {
				return err
			}
		}
		if err := o.x.Close(); err != nil {
			return err
		}
	}
	h.open = nil
	for _, e := range h.ends {
		if used, _ := registrationsOf(e).room.inUse(); used != 0 {
			return fmt.Errorf("%d bytes of the application are still counted", used)
		}
	}
	return nil
}
