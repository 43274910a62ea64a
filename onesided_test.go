package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/link"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// atomics tells whether atomic operations reach the peer of an endpoint.
func atomics(e *Endpoint) bool { return e.selection.OneSided != oneSidedNoAtomics }

// exposeTo makes memory that the peer of e may use, and the token as it arrives there.
func exposeTo(t testing.TB, e *Endpoint, size int, rights Rights) (*Exposure, Token) {
	t.Helper()
	x, err := e.Expose(testContext(t), ExposeConfig{Size: size, Rights: rights})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	token, err := ParseToken(x.Token().Append(nil))
	if err != nil || token != x.Token() {
		t.Fatal(token, err)
	}
	return x, token
}

// testAtomics changes the eight bytes at 16 of the peer's memory.
func testAtomics(t *testing.T, ctx context.Context, a *Endpoint, token Token, memory []byte) {
	t.Helper()
	binary.NativeEndian.PutUint64(memory[16:], 7)
	for i, step := range []struct{ old, replacement, want uint64 }{{6, 1, 7}, {7, 9, 7}, {9, 1 << 60, 9}} {
		if before, err := a.CompareSwap(ctx, token, 16, step.old, step.replacement); err != nil || before != step.want {
			t.Fatal(i, before, err)
		}
	}
	if before, err := a.FetchAdd(ctx, token, 16, ^uint64(0)); err != nil || before != 1<<60 {
		t.Fatal(before, err)
	}
	if now := binary.NativeEndian.Uint64(memory[16:]); now != 1<<60-1 {
		t.Fatal(now)
	}
}

func TestOneSided(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		s := a.Selection()
		t.Logf("%s: %s", s.Transport, s.OneSided)
		if says := strings.HasPrefix(s.OneSided, "emulated"); says != (w.transport == TransportTCP) {
			t.Errorf("operations over %s are %q", s.Transport, s.OneSided)
		}
		if says := strings.HasPrefix(s.Files, "emulated"); says != (w.transport != "shm") {
			t.Errorf("files over %s are read %q", s.Transport, s.Files)
		}
		const size = 3 << 20
		x, token := exposeTo(t, b, size, allRights)
		if !bytes.Equal(x.Bytes(), make([]byte, size)) || token.Len() != size || token.Rights() != allRights {
			t.Fatal("fresh memory is not zero, or the token wrong")
		}
		for i, n := range []int{0, 1, 8, 100, 4096, 70_000, MaxOperation + 1, size} {
			offset := size - n
			if i%2 == 0 {
				offset /= 2
			}
			if err := a.Put(p.ctx, token, offset, pattern(n, i)); err != nil {
				t.Fatal(err)
			}
			into := make([]byte, n)
			if err := a.Get(p.ctx, token, offset, into); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(into, pattern(n, i)) {
				t.Fatalf("%d bytes come back as others", n)
			}
			if !bytes.Equal(x.Bytes()[offset:offset+n], pattern(n, i)) {
				t.Fatalf("%d bytes are not in the peer's memory", n)
			}
		}
		if atomics(a) {
			testAtomics(t, p.ctx, a, token, x.Bytes())
		}
		// A batch, used twice.
		batch := a.Batch()
		for round := range 2 {
			var got [MaxBatch / 2][100]byte
			for i := range got {
				batch.Put(token, 1000*i, pattern(100, i+round))
			}
			if batch.Len() != len(got) {
				t.Fatal(batch.Len())
			}
			for i := range got {
				batch.Get(token, 1000*i, got[i][:])
			}
			if err := batch.Do(p.ctx); err != nil {
				t.Fatal(err)
			}
			for i := range got {
				if !bytes.Equal(got[i][:], pattern(100, i+round)) {
					t.Fatalf("Get %d of a batch has read something else", i)
				}
			}
		}
		// Buffers, some of which the device reaches and some not.
		for i, n := range []int{100, 4096, 200_000} {
			buffer, err := a.Buffer(p.ctx, n)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Send(p.ctx, 1, pattern(n, i)); err != nil {
				t.Fatal(err)
			}
			m, err := a.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			m.cut(3) // as of the messages of calls
			if err := a.PutBuffer(p.ctx, token, 64, &m.Buffer, 7, n-3); err != nil {
				t.Fatal(err)
			}
			buffer.cut(2)
			if err := a.GetBuffer(p.ctx, token, 64, buffer, 1, n-9); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(buffer.Bytes()[1:n-9], pattern(n, i)[10:]) || !bytes.Equal(m.Bytes(), pattern(n, i)[3:]) {
				t.Fatalf("a buffer of %d bytes comes back as another", n)
			}
			m.Release()
			buffer.Release()
		}
		// The other direction works as well, and messages still do.
		_, back := exposeTo(t, a, 100, MayRead)
		if err := b.Get(p.ctx, back, 0, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		sendOne(t, p.ctx, a, b)
		closeBoth(t, a, b)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func sendOne(t *testing.T, ctx context.Context, a, b *Endpoint) {
	t.Helper()
	if err := a.Send(ctx, 5, pattern(100, 1)); err != nil {
		t.Fatal(err)
	}
	m, err := b.Receive(ctx)
	if err != nil || m.Tag != 5 || !bytes.Equal(m.Bytes(), pattern(100, 1)) {
		t.Fatal(m, err)
	}
	m.Release()
}

// closeBoth closes two ends at a time.
func closeBoth(t *testing.T, ends ...*Endpoint) {
	t.Helper()
	var wg sync.WaitGroup
	for _, e := range ends {
		wg.Go(func() {
			if err := e.Close(); err != nil && !errors.Is(err, ErrNotDelivered) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// What this side can see is refused before anything is posted, and harms nobody.
func TestOneSidedRefusals(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		_, token := exposeTo(t, b, 100, MayRead)
		_, writable := exposeTo(t, b, 104, MayWrite|MayAtomic)
		old, err := b.Expose(p.ctx, ExposeConfig{Size: 8, Rights: MayRead, Until: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		late := old.Token()
		late.deadline = time.Now().UnixMilli() - 1
		eight := make([]byte, 8)
		swap := func(token Token, offset int) error {
			_, err := a.CompareSwap(p.ctx, token, offset, 0, 1)
			return err
		}
		for name, c := range map[string]struct{ got, want error }{
			"no right to write":   {a.Put(p.ctx, token, 0, eight), ErrRights},
			"no right to read":    {a.Get(p.ctx, writable, 0, eight), ErrRights},
			"no right to swap":    {swap(token, 0), ErrRights},
			"beyond the end":      {a.Get(p.ctx, token, 93, eight), ErrBounds},
			"behind the end":      {a.Get(p.ctx, token, 1<<40, eight), ErrBounds},
			"before the start":    {a.Put(p.ctx, writable, -1, eight), ErrBounds},
			"not aligned":         {swap(writable, 4), ErrBounds},
			"swap behind the end": {swap(writable, 104), ErrBounds},
			"too late":            {a.Get(p.ctx, late, 0, eight), ErrRevoked},
			"no token":            {a.Get(p.ctx, Token{}, 0, eight), ErrRevoked},
			"notify, no right":    {a.PutNotify(p.ctx, token, 0, eight, 1, nil), ErrRights},
			"notify, too long":    {a.PutNotify(p.ctx, writable, 0, eight, 1, make([]byte, a.MaxMessage()+1)), ErrTooLong},
		} {
			if !errors.Is(c.got, c.want) {
				t.Errorf("%s: %v", name, c.got)
			}
		}
		batch := a.Batch()
		for range MaxBatch + 1 {
			batch.Get(token, 0, eight)
		}
		if err := batch.Do(p.ctx); !errors.Is(err, ErrTooLong) {
			t.Error(err)
		}
		for _, c := range []ExposeConfig{{Rights: MayRead}, {Size: 1}, {Size: 1, Rights: 8}, {Size: 1, Rights: MayRead, Until: time.Now().Add(-time.Second)}} {
			if x, err := b.Expose(p.ctx, c); err == nil {
				t.Errorf("%+v is exposed", c)
				_ = x.Close()
			}
		}
		if err := a.Get(p.ctx, token, 92, eight); err != nil {
			t.Fatal(err)
		}
		closeBoth(t, a, b)
		if err := a.Get(p.ctx, token, 92, eight); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPeerClosed) {
			t.Error(err)
		}
		if _, err := b.Expose(p.ctx, ExposeConfig{Size: 1, Rights: MayRead}); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// An endpoint has so many exposures and no more. One that ends makes room.
func TestMostExposures(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		c := ExposeConfig{Size: 8, Rights: MayRead}
		all := make([]*Exposure, maxExposures)
		for i := range all {
			x, err := b.Expose(p.ctx, c)
			if err != nil {
				t.Fatalf("exposure %d: %v", i+1, err)
			}
			all[i] = x
		}
		if x, err := b.Expose(p.ctx, c); x != nil || !errors.Is(err, ErrTooLong) || !strings.Contains(err.Error(), "1024 exposures") {
			t.Errorf("one more: %v", err)
		}
		if err := all[0].Close(); err != nil {
			t.Fatal(err)
		}
		x, err := b.Expose(p.ctx, c)
		if err != nil {
			t.Fatal("one instead of another:", err)
		}
		all[0] = x
		if err := a.Get(p.ctx, x.Token(), 0, make([]byte, 8)); err != nil {
			t.Error(err)
		}
		for _, x := range all {
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
		}
		closeBoth(t, a, b)
	})
}

// Whoever receives the notification sees what was put before it.
func TestPutNotifyOrder(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		const slots, rounds = 4, 300
		sizes := []int{8, 200, 5000, 40_000}
		x, token := exposeTo(t, b, slots*40_000, MayWrite)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range rounds {
				// A slot is written again when the peer has said that it has looked.
				if i >= slots {
					m, err := a.Receive(p.ctx)
					if err != nil {
						t.Error(err)
						return
					}
					m.Release()
				}
				n := sizes[i%len(sizes)]
				if err := a.PutNotify(p.ctx, token, i%slots*40_000, pattern(n, i), uint32(i), binary.BigEndian.AppendUint32(nil, uint32(n))); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for i := range rounds {
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			n := int(binary.BigEndian.Uint32(m.Bytes()))
			if m.Tag != uint32(i) || !bytes.Equal(x.Bytes()[i%slots*40_000:][:n], pattern(n, i)) {
				t.Fatalf("notification %d arrived before its %d bytes", i, n)
			}
			m.Release()
			if err := b.Send(p.ctx, 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
	})
}

// A peer that uses what was revoked is refused, and what the owner puts there
// afterwards stays.
func TestRevokeUnderWay(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		x, token := exposeTo(t, b, 64<<10, MayWrite)
		landed := make(chan struct{})
		failed := make(chan error)
		go func() {
			for i := 0; ; i++ {
				if err := a.Put(p.ctx, token, 0, pattern(64<<10, i)); err != nil {
					failed <- err
					return
				}
				if i == 10 {
					close(landed)
				}
			}
		}()
		<-landed
		if err := x.Revoke(); err != nil {
			t.Fatal(err)
		}
		clear(x.Bytes())
		err := <-failed
		if !w.refused(err) {
			t.Fatal(err)
		}
		if w.transport == TransportTCP {
			sendOne(t, p.ctx, a, b)
		} else {
			<-a.Done()
			<-b.Done()
		}
		closeBoth(t, a, b)
		if !bytes.Equal(x.Bytes(), make([]byte, 64<<10)) {
			t.Fatal("a Put landed in memory that was revoked")
		}
	})
}

// The end of an exposure's time revokes it.
func TestExposureUntil(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		x, err := b.Expose(p.ctx, ExposeConfig{Size: 8, Rights: MayRead, Until: time.Now().Add(300 * time.Millisecond)})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		token := x.Token()
		token.deadline = 0 // so that the peer does not refuse it by itself
		for err == nil {
			err = a.Get(p.ctx, token, 0, make([]byte, 8))
		}
		if !w.refused(err) {
			t.Fatal(err)
		}
		x.Bytes()[0] = 1 // still there
	})
}

// A token of another endpoint, or one that was made up, opens nothing.
func TestForeignToken(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		_, token := exposeTo(t, b, 100, allRights)
		token.id++
		token.key ^= 0x5555
		if err := a.Get(p.ctx, token, 0, make([]byte, 8)); !w.refused(err) {
			t.Fatal(err)
		}
		c, d := p.connect(t, w.transport)
		defer closeBoth(t, c, d)
		way := byDevice
		if w.transport != TransportTCP {
			way = 0
		}
		token.ways = way
		if err := c.Get(p.ctx, token, 0, make([]byte, 8)); !errors.Is(err, ErrRevoked) {
			t.Fatal(err)
		}
		sendOne(t, p.ctx, c, d)
	})
}

// Batches that together want more memory than there is wait for one another, and one
// that wants more than there will ever be is refused.
func TestBatchMemory(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{SendMemory: 16 << 20}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		const size = 1 << 20
		x, token := exposeTo(t, b, size, allRights)
		copy(x.Bytes(), pattern(size, 1))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				batch, into := a.Batch(), make([]byte, size)
				for range 4 {
					clear(into)
					var before uint64
					for i := 0; i < size; i += size / 8 {
						batch.Get(token, i, into[i:i+size/8])
					}
					if atomics(a) {
						batch.FetchAdd(token, 0, 0, &before)
					}
					if err := batch.Do(p.ctx); err != nil {
						t.Error(err)
						return
					}
					if !bytes.Equal(into, pattern(size, 1)) || atomics(a) && before != binary.NativeEndian.Uint64(into) {
						t.Error("a batch has read something else")
					}
				}
			})
		}
		wg.Wait()
		batch, into := a.Batch(), make([]byte, size)
		for range MaxBatch {
			batch.Get(token, 0, into)
		}
		err := batch.Do(p.ctx)
		if _, ok := a.carrier.(*shell); ok != errors.Is(err, ErrTooLong) || !ok && err != nil {
			t.Error(err)
		}
		sendOne(t, p.ctx, a, b)
		closeBoth(t, a, b)
	})
}

// impatient is a context that ends when somebody has looked at it once.
type impatient struct {
	context.Context
	looks atomic.Int32
}

func (c *impatient) Err() error {
	if c.looks.Add(1) == 1 {
		return nil
	}
	return c.Context.Err()
}

// When a buffer has settled, an operation that was given up does not change it.
func TestSettledOperation(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		const size = 1 << 20
		_, token := exposeTo(t, b, size, allRights)
		buffer, err := a.Buffer(p.ctx, size)
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(p.ctx)
		cancel()
		ours := bytes.Repeat([]byte{0xee}, size)
		gone := 0
		for range 20 {
			err := a.GetBuffer(&impatient{Context: ended}, token, 0, buffer, 0, size)
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if err != nil {
				gone++
			}
			if err := a.Settled(p.ctx, buffer); err != nil {
				t.Fatal(err)
			}
			copy(buffer.Bytes(), ours)
			if err := a.Get(p.ctx, token, 0, make([]byte, 8)); err != nil { // behind what was given up
				t.Fatal(err)
			}
			if !bytes.Equal(buffer.Bytes(), ours) {
				t.Fatal("an operation has changed a buffer that had settled")
			}
		}
		t.Logf("%d of 20 operations were given up", gone)
		buffer.Release()
		closeBoth(t, a, b)
	})
}

// A notification that waits for the peer holds no memory of the operations.
func TestPutNotifyWaits(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		s, ok := a.carrier.(*shell)
		if !ok {
			t.Skip("it stages nothing")
		}
		const size = 300_000
		x, token := exposeTo(t, b, size, allRights)
		full, sent := make([]byte, link.Small), 0
		for s.sendNow(1, full) {
			sent++
		}
		before := s.n.sendPool.Used()
		done := make(chan error, 1)
		go func() { done <- a.PutNotify(p.ctx, token, 0, pattern(size, 2), 2, nil) }()
		last := make([]byte, 1)
		for last[0] != pattern(size, 2)[size-1] {
			if err := a.Get(p.ctx, token, size-1, last); err != nil {
				t.Fatal(err)
			}
		}
		for s.n.sendPool.Used()-before >= size {
			if p.ctx.Err() != nil {
				t.Fatal("the memory is held while the notification waits")
			}
			time.Sleep(time.Millisecond)
		}
		for tag := uint32(1); tag == 1; sent-- {
			m, err := b.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			tag = m.Tag
			m.Release()
		}
		if err := <-done; err != nil || sent != -1 || !bytes.Equal(x.Bytes(), pattern(size, 2)) {
			t.Fatal(err, sent)
		}
		closeBoth(t, a, b)
	})
}

// What an operation waits for ends with its context, and with the endpoint.
func TestOneSidedContext(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		x, token := exposeTo(t, b, 1<<20, MayRead|MayWrite)
		over, cancel := context.WithCancel(p.ctx)
		cancel()
		if err := a.Get(over, token, 0, make([]byte, 8)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), 1))
				buffer := make([]byte, 300_000)
				registered, err := a.Buffer(p.ctx, len(buffer))
				if err != nil {
					t.Error(err)
					return
				}
				defer registered.Release()
				for range 50 {
					ctx, cancel := context.WithTimeout(p.ctx, time.Duration(rng.IntN(200))*time.Microsecond)
					n := rng.IntN(len(buffer))
					err := a.Get(ctx, token, 0, buffer[:n])
					switch i % 4 {
					case 0:
						err = a.Put(ctx, token, 0, buffer[:n])
					case 1:
						err = a.GetBuffer(ctx, token, 0, registered, 0, n)
					}
					clear(buffer) // ours again, whatever became of it
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		if err := a.Put(p.ctx, token, 0, pattern(100, 3)); err != nil {
			t.Fatal(err)
		}
		into := make([]byte, 100)
		if err := a.Get(p.ctx, token, 0, into); err != nil || !bytes.Equal(into, pattern(100, 3)) {
			t.Fatal(err)
		}
		sendOne(t, p.ctx, a, b)
		// The end of the endpoint ends what is under way.
		for range 4 {
			wg.Go(func() {
				for {
					if err := a.Get(p.ctx, token, 0, make([]byte, 300_000)); err != nil {
						if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPeerClosed) && !errors.Is(err, ErrPeerDied) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		closeBoth(t, a)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Ends that have not agreed on one-sided operations say so, and nothing else changes.
func TestOneSidedWithOldPeer(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		for _, old := range []string{"client", "server"} {
			t.Run(old, func(t *testing.T) {
				p := w.pair(t, Config{}, ListenConfig{})
				if old == "client" {
					p.client.features = 0
				} else {
					p.server.features = 0
				}
				a, b := p.connect(t, w.transport)
				for _, e := range []*Endpoint{a, b} {
					if _, err := e.Expose(p.ctx, ExposeConfig{Size: 8, Rights: MayRead}); !errors.Is(err, ErrUnsupported) {
						t.Error(err)
					}
					if err := e.Get(p.ctx, Token{rights: MayRead, length: 8}, 0, make([]byte, 8)); !errors.Is(err, ErrUnsupported) {
						t.Error(err)
					}
					if s := e.Selection().OneSided; s != oneSidedUnknown {
						t.Error(s)
					}
				}
				sendOne(t, p.ctx, a, b)
				closeBoth(t, a, b)
			})
		}
	})
}

// TestOneSidedHistories has several goroutines of both ends operate at random, each on
// memory of its own, and compares with a model after every Get.
func TestOneSidedHistories(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		for seed := range uint64(3) {
			p := w.pair(t, Config{}, ListenConfig{})
			a, b := p.connect(t, w.transport)
			var wg sync.WaitGroup
			for i := range 6 {
				from, to := a, b
				if i%2 == 1 {
					from, to = b, a
				}
				wg.Go(func() { operateAtRandom(t, p.ctx, from, to, rand.New(rand.NewPCG(seed, uint64(i)))) })
			}
			// Messages go on meanwhile, both ways.
			for _, ends := range [][2]*Endpoint{{a, b}, {b, a}} {
				wg.Go(func() {
					for i := range 200 {
						if err := ends[0].Send(p.ctx, uint32(i), pattern(i*7, i)); err != nil {
							t.Error(err)
							return
						}
					}
				})
				wg.Go(func() {
					for i := range 200 {
						m, err := ends[1].Receive(p.ctx)
						if err != nil || m.Tag != uint32(i) || !bytes.Equal(m.Bytes(), pattern(i*7, i)) {
							t.Error(i, err)
							return
						}
						m.Release()
					}
				})
			}
			wg.Wait()
			closeBoth(t, a, b)
		}
	})
}

func operateAtRandom(t *testing.T, ctx context.Context, from, to *Endpoint, rng *rand.Rand) {
	const words = 2048
	x, err := to.Expose(ctx, ExposeConfig{Size: 8 * words, Rights: allRights})
	if err != nil {
		t.Error(err)
		return
	}
	defer x.Close()
	token := x.Token()
	model := make([]byte, 8*words)
	batch := from.Batch()
	for range 60 {
		type check struct {
			got, want       []byte
			before, expects uint64
		}
		var checks []*check
		const part = words / MaxBatch // so that the operations of a batch do not touch each other
		for i := range 1 + rng.IntN(MaxBatch) {
			at, end := 8*(i*part+rng.IntN(part)), 8*(i+1)*part
			n, kinds := rng.IntN(end-at+1), 2
			if atomics(from) {
				kinds = 4
			}
			now := binary.NativeEndian.Uint64(model[at:])
			c := &check{}
			switch operationKind(rng.IntN(kinds)) {
			case opPut:
				data := pattern(n, rng.IntN(256))
				batch.Put(token, at, data)
				copy(model[at:], data)
			case opGet:
				c.got, c.want = make([]byte, n), bytes.Clone(model[at:at+n])
				batch.Get(token, at, c.got)
			case opCompareSwap:
				old := now - uint64(rng.IntN(2))
				c.expects = now
				batch.CompareSwap(token, at, old, 99, &c.before)
				if old == now {
					binary.NativeEndian.PutUint64(model[at:], 99)
				}
			case opFetchAdd:
				delta := rng.Uint64()
				c.expects = now
				batch.FetchAdd(token, at, delta, &c.before)
				binary.NativeEndian.PutUint64(model[at:], now+delta)
			}
			checks = append(checks, c)
		}
		if err := batch.Do(ctx); err != nil {
			t.Error(err)
			return
		}
		for i, c := range checks {
			if !bytes.Equal(c.got, c.want) || c.before != c.expects {
				t.Errorf("operation %d of the batch: %d bytes or the number %d are not what the model has", i, len(c.want), c.before)
				return
			}
		}
	}
	into := make([]byte, len(model))
	if err := from.Get(ctx, token, 0, into); err != nil || !bytes.Equal(into, model) || !bytes.Equal(x.Bytes(), model) {
		t.Errorf("in the end the memory is not what the model has: %v", err)
	}
}

// Operations cost no allocation in steady state, be it a device or the peer's runtime that
// carries them out.
func TestOneSidedAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	eachWorld(t, func(t *testing.T, w world) {
		if strings.HasPrefix(w.name, "fake") {
			t.Skip("a fake allocates")
		}
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		_, token := exposeTo(t, b, 1<<16, allRights)
		data := make([]byte, 4096)
		batch := a.Batch()
		buffer, err := a.Buffer(p.ctx, 4096)
		if err != nil {
			t.Fatal(err)
		}
		defer buffer.Release()
		one := func() {
			if err := a.GetBuffer(p.ctx, token, 0, buffer, 0, 4096); err != nil {
				t.Fatal(err)
			}
			if err := a.Put(p.ctx, token, 0, data); err != nil {
				t.Fatal(err)
			}
			if err := a.Get(p.ctx, token, 0, data); err != nil {
				t.Fatal(err)
			}
			if _, err := a.FetchAdd(p.ctx, token, 0, 1); err != nil && !errors.Is(err, ErrUnsupported) {
				t.Fatal(err)
			}
			for i := range 4 {
				batch.Put(token, i, data)
			}
			if err := batch.Do(p.ctx); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			one()
		}
		if n := allocations(200, one); n >= 1 {
			t.Errorf("%v allocations", n)
		}
	})
}

// withoutAtomics is a provider's device as siw is: a peer's runtime serves atomic
// operations for it.
type withoutAtomics struct{ rdma.Provider }

func (p withoutAtomics) Devices(ctx context.Context) ([]rdma.Device, error) {
	devices, err := p.Provider.Devices(ctx)
	for i, d := range devices {
		if streams, ok := d.(rdma.StreamDevice); ok {
			devices[i] = streamsWithoutAtomics{streams}
		} else {
			devices[i] = deviceWithoutAtomics{d}
		}
	}
	return devices, err
}

type (
	deviceWithoutAtomics  struct{ rdma.Device }
	streamsWithoutAtomics struct{ rdma.StreamDevice }
)

func (d deviceWithoutAtomics) Attributes() rdma.Attributes {
	a := d.Device.Attributes()
	a.Capabilities &^= rdma.CapAtomics
	return a
}

func (d streamsWithoutAtomics) Attributes() rdma.Attributes {
	return deviceWithoutAtomics{d.StreamDevice}.Attributes()
}

// Atomic operations that the peer's runtime serves cost no allocation in steady state
// either.
func TestServedAtomicsAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	eachWorld(t, func(t *testing.T, w world) {
		if strings.HasPrefix(w.name, "fake") {
			t.Skip("a fake allocates")
		}
		whole := w.providers
		w.providers = func(t testing.TB) (client, server []rdma.Provider) {
			client, server = whole(t)
			for _, side := range [][]rdma.Provider{client, server} {
				for i, p := range side {
					side[i] = withoutAtomics{p}
				}
			}
			return client, server
		}
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		x, token := exposeTo(t, b, 1<<16, allRights)
		want := uint64(0)
		one := func() {
			if before, err := a.FetchAdd(p.ctx, token, 8, 1); err != nil || before != want {
				t.Fatalf("%d, %v, want %d", before, err, want)
			}
			if before, err := a.CompareSwap(p.ctx, token, 8, want+1, want+2); err != nil || before != want+1 {
				t.Fatalf("%d, %v, want %d", before, err, want+1)
			}
			want += 2
		}
		for range 100 {
			one()
		}
		if n := allocations(1000, one); n >= 1 {
			t.Errorf("%v allocations", n)
		}
		if got := binary.NativeEndian.Uint64(x.Bytes()[8:]); got != want {
			t.Errorf("there is %d, want %d", got, want)
		}
	})
}

func FuzzToken(f *testing.F) {
	f.Add(Token{rights: allRights, ways: byDevice | atomicsByDevice, key: 1, address: 2, length: 3, id: 4, deadline: 5}.Append(nil))
	f.Add(Token{rights: MayRead, length: 1, id: 4}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		token, err := ParseToken(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(token.Append(nil), b) {
			t.Fatalf("%x became %x", b, token.Append(nil))
		}
		if token.check(0, token.Len()+1, token.rights) == nil {
			t.Fatal("it allows more than there is")
		}
	})
}

// The layout is what docs/onesided.md says.
func TestTokenLayout(t *testing.T) {
	got := Token{rights: 7, ways: 3, key: 0x04050607, address: 0x08090a0b0c0d0e0f, length: 0x1011121314, id: 0x18191a1b1c1d1e1f, deadline: 0x2021222324252627}.Append(nil)
	want := []byte{
		1, 7, 3, 0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 0, 0, 0x10, 0x11, 0x12, 0x13, 0x14,
		0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27,
	}
	if !bytes.Equal(got, want) || len(got) != TokenSize {
		t.Errorf("% x", got)
	}
}

// A peer that dies in the middle ends every operation with an error that says so.
func TestOneSidedPeerDies(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		x, token := exposeTo(t, b, 1<<20, MayRead|MayWrite)
		var wg, begun sync.WaitGroup
		for i := range 6 {
			begun.Add(1)
			wg.Go(func() {
				data := make([]byte, 1+i*100_000)
				err := a.Put(p.ctx, token, 0, data)
				begun.Done()
				for err == nil {
					if err = a.Get(p.ctx, token, 0, data); err == nil {
						err = a.PutNotify(p.ctx, token, 0, data, 0, nil)
					}
				}
				if !errors.Is(err, ErrPeerDied) {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			for {
				m, err := b.Receive(p.ctx)
				if err != nil {
					return
				}
				m.Release()
			}
		})
		begun.Wait()
		switch c := b.carrier.(type) {
		case *shell:
			_ = c.qp.Disconnect()
		case *stream:
			c.abort(ErrPeerDied)
		}
		wg.Wait()
		// The exposure ends with the endpoint, which nobody has closed yet.
		for x.serve(func([]byte) {}) {
			if p.ctx.Err() != nil {
				t.Fatal("an exposure outlives its endpoint")
			}
			time.Sleep(time.Millisecond)
		}
		closeBoth(t, a, b)
	})
}

// FuzzStreamOperations lets a peer send any frames to an endpoint over TCP that exposes
// 64 bytes under the id 1: none of them reaches beyond, and none makes it fail but by an
// error of the endpoint.
func FuzzStreamOperations(f *testing.F) {
	operation := func(kind operationKind, tag, total uint32, offset uint64, rest string) []byte {
		head := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 1), offset)
		return frame{kind: frameOperation, flags: uint8(kind), tag: tag, length: uint32(operationHead + len(rest)), total: total}.encode(string(head) + rest)
	}
	f.Add(append(operation(opPut, 0, 0, 60, "abcd"), operation(opGet, 1, 64, 0, "")...))
	f.Add(append(operation(opPut, 0, 0, 61, "abcd"), operation(opGet, 1, 1<<20, 1<<63, "")...))
	f.Add(append(operation(opFetchAdd, 3, 0, 56, "12345678"), operation(opCompareSwap, 3, 0, 64, "1234567812345678")...))
	f.Add(frame{kind: frameAnswer, tag: 3, length: 3}.encode("abc"))
	fuzzStream(f, Config{}, func(t *testing.T, e *Endpoint, _ []byte) func(*Message) {
		e.features = features(hello.FeatureOneSided)
		x := &Exposure{e: e, memory: &exposedPages{env: e.env, pages: make([]byte, 64)}, token: Token{rights: allRights, length: 64, id: 1}}
		if err := e.exposed.add(x); err != nil {
			t.Fatal(err)
		}
		return func(*Message) {}
	})
}
