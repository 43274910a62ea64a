package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"testing"
	"time"
)

// fillUp sends until nothing more is taken, because nobody receives. It returns how many
// messages were sent.
func fillUp(t *testing.T, p *pair, e *Endpoint) (sent int) {
	t.Helper()
	message := make([]byte, 1<<20)
	for ; ; sent++ {
		ctx, cancel := context.WithTimeout(p.ctx, 300*time.Millisecond)
		err := e.Send(ctx, uint32(sent), message)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return sent
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Operations over TCP do not wait behind messages that nobody receives, in either
// direction; and those arrive.
func TestOperationsPassMessages(t *testing.T) {
	w := worldOf(t, "tcp")
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	_, ofB := exposeTo(t, b, 1<<20, allRights)
	_, ofA := exposeTo(t, a, 1<<20, allRights)
	toB, toA := fillUp(t, p, a), fillUp(t, p, b)
	var wg sync.WaitGroup
	for _, side := range []struct {
		e     *Endpoint
		token Token
	}{{a, ofB}, {b, ofA}} {
		for range 4 {
			wg.Go(func() {
				into := make([]byte, 500_000)
				for range 20 {
					if _, err := side.e.FetchAdd(p.ctx, side.token, 0, 1); err != nil {
						t.Error(err)
						return
					}
					if err := side.e.Get(p.ctx, side.token, 8, into); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Go(func() {
			for i := range 20 {
				if err := side.e.Put(p.ctx, side.token, 8, pattern(500_000, i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, side := range []struct {
		e     *Endpoint
		token Token
	}{{a, ofB}, {b, ofA}} {
		into := make([]byte, 500_008)
		if err := side.e.Get(p.ctx, side.token, 0, into); err != nil || binary.NativeEndian.Uint64(into) != 80 || !bytes.Equal(into[8:], pattern(500_000, 19)) {
			t.Error(binary.NativeEndian.Uint64(into), err)
		}
	}
	// What was sent arrives, and the notification behind it.
	for _, side := range []struct {
		from, to *Endpoint
		sent     int
		token    Token
	}{{a, b, toB, ofB}, {b, a, toA, ofA}} {
		wg.Go(func() {
			if err := side.from.PutNotify(p.ctx, side.token, 0, make([]byte, 8), 1<<20, nil); err != nil {
				t.Error(err)
			}
		})
		for i := 0; ; i++ {
			m, err := side.to.Receive(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			tag := m.Tag
			m.Release()
			if tag == 1<<20 {
				if i != side.sent {
					t.Errorf("%d of %d messages before the notification", i, side.sent)
				}
				break
			}
		}
	}
	wg.Wait()
	closeBoth(t, a, b)
}

// A lane that breaks ends what is under way there, and not the endpoint.
func TestLaneBreaks(t *testing.T) {
	w := worldOf(t, "tcp")
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	_, token := exposeTo(t, b, 4096, allRights)
	if err := a.Get(p.ctx, token, 0, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	l := a.carrier.(*stream).lane.Load()
	if l == nil {
		t.Fatal("there is no lane")
	}
	_ = l.conn.Close()
	var err error
	for err == nil {
		err = a.Get(p.ctx, token, 0, make([]byte, 8))
	}
	if !errors.Is(err, ErrPeerDied) {
		t.Error(err)
	}
	sendOne(t, p.ctx, a, b)
	closeBoth(t, a, b)
}

// Nobody gets in with a ticket that is none, or that was used; the listener goes on.
func TestLaneTickets(t *testing.T) {
	w := worldOf(t, "tcp")
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	_, token := exposeTo(t, b, 4096, allRights)
	if err := a.Get(p.ctx, token, 0, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	used := a.carrier.(*stream).ticket
	for _, ticket := range []laneTicket{used, {}, {1, 2, 3}} {
		conn, err := a.openLane(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		var header [frameHeader]byte
		frame{kind: frameLane, length: ticketSize}.put(&header)
		if _, err := conn.Write(append(header[:], ticket[:]...)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, header[:]); err == nil {
			t.Errorf("ticket %x opens a lane", ticket)
		}
		_ = conn.Close()
	}
	if err := a.Get(p.ctx, token, 0, make([]byte, 8)); err != nil {
		t.Error(err)
	}
	c, d := p.connect(t, w.transport)
	sendOne(t, p.ctx, c, d)
	closeBoth(t, a, b, c, d)
	if waiting := len(p.server.env.lanes.waiting); waiting != 0 {
		t.Errorf("%d tickets are left", waiting)
	}
}
