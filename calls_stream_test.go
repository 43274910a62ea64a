package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/call"
	"github.com/verbena-data/verbena/internal/race"
)

// Methods with streams of the tests.
const (
	streamBack  = 20 // sends back what comes, and answers with its length
	streamHold  = 21 // receives nothing until the test lets it go, then as streamBack
	streamPour  = 22 // sends as many bytes as the payload says, and receives none
	streamStuck = 23 // receives and sends until an error, which it tells the test
	streamFail  = 24 // sends a piece and fails
)

// streams adds the handlers of streams. Errors of streamStuck's Recv and Send arrive in
// pairs.
func (c *callers2) streams() (errs chan [2]error) {
	errs = make(chan [2]error, 1<<10)
	back := func(q Request, s *Stream) {
		total := 0
		for {
			b, err := s.Recv(q.Context())
			if err == io.EOF {
				_ = q.Reply(binary.BigEndian.AppendUint64(nil, uint64(total)))
				return
			}
			if err == nil {
				total += len(b.Bytes())
				if err = s.SendBuffer(q.Context(), b); err != nil {
					b.Release()
				}
			}
			if err != nil {
				_ = q.Fail(CodeApplication, err.Error())
				return
			}
		}
	}
	c.mux.Stream(streamBack, back)
	c.mux.Stream(streamHold, func(q Request, s *Stream) {
		c.blocked <- struct{}{}
		select {
		case <-c.release:
			back(q, s)
		case <-q.Context().Done():
			_ = q.Fail(CodeApplication, "nobody waits")
		}
	})
	c.mux.Stream(streamPour, func(q Request, s *Stream) {
		if err := s.Send(q.Context(), pattern(int(binary.BigEndian.Uint32(q.Payload())), 3)); err != nil {
			_ = q.Fail(CodeApplication, err.Error())
			return
		}
		_ = q.Reply([]byte("poured"))
	})
	c.mux.Stream(streamStuck, func(q Request, s *Stream) {
		var both sync.WaitGroup
		var failed [2]error
		both.Go(func() {
			for failed[0] == nil {
				var b *Buffer
				if b, failed[0] = s.Recv(context.Background()); failed[0] == nil {
					b.Release()
				}
			}
		})
		c.blocked <- struct{}{}
		for failed[1] == nil { // until it waits for credit
			failed[1] = s.Send(context.Background(), pattern(100<<10, 1))
		}
		both.Wait()
		errs <- failed
		_ = q.Fail(CodeApplication, "stuck")
	})
	c.mux.Stream(streamFail, func(q Request, s *Stream) {
		_ = s.Send(q.Context(), []byte("before"))
		_ = q.Fail(CodeApplication+3, "on purpose")
	})
	return errs
}

// transfer sends a payload on a stream of streamBack and receives it, at the same time.
func transfer(ctx context.Context, from *Caller, method uint32, payload []byte, step int) error {
	s, err := from.Stream(ctx, method, []byte("hello"))
	if err != nil {
		return err
	}
	defer s.Close()
	return bothWays(ctx, s, payload, step)
}

func bothWays(ctx context.Context, s *Stream, payload []byte, step int) error {
	sent := make(chan error, 1)
	go func() {
		var err error
		for at := 0; at < len(payload) && err == nil; at += step {
			err = s.Send(ctx, payload[at:min(at+step, len(payload))])
		}
		if err == nil {
			err = s.CloseSend()
		}
		sent <- err
	}()
	got := 0
	for {
		b, err := s.Recv(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return errors.Join(err, <-sent)
		}
		same := got+len(b.Bytes()) <= len(payload) && bytes.Equal(b.Bytes(), payload[got:got+len(b.Bytes())])
		got += len(b.Bytes())
		b.Release()
		if !same {
			s.Close()
			<-sent
			return fmt.Errorf("the bytes up to %d came back changed", got)
		}
	}
	if err := <-sent; err != nil {
		return err
	}
	m, err := s.Answer(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	if n := binary.BigEndian.Uint64(m.Bytes()); got != len(payload) || n != uint64(got) {
		return fmt.Errorf("%d bytes came back and %d arrived, of %d", got, n, len(payload))
	}
	return nil
}

// settled waits until nothing is promised to streams any more at either end.
func (c *callers2) settled(t *testing.T) {
	t.Helper()
	for _, from := range []*Caller{c.a, c.b} {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			from.mu.Lock()
			promised, long := from.side.Promised(), from.longPieces
			from.mu.Unlock()
			if promised == 0 && long == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%d bytes are promised to streams that have ended, %d lie in long messages", promised, long)
				break
			}
		}
	}
}

func TestStream(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		c.streams()
		for _, size := range []int{0, 1, 30, 100, 40 << 10, 1 << 20, 9<<20 + 7} {
			for _, from := range []*Caller{c.a, c.b} {
				if err := transfer(p.ctx, from, streamBack, pattern(size, size), max(size/3, 1)); err != nil {
					t.Fatalf("%d bytes: %v", size, err)
				}
			}
		}
		c.settled(t)
		c.close(t)
	})
}

// Large payloads go in both directions of many streams at once, of both ends, beside
// calls.
func TestStreamsAtOnce(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		c.streams()
		length := 1 << 20
		if race.Enabled {
			length /= 4
		}
		var all sync.WaitGroup
		for i := range 12 {
			from := []*Caller{c.a, c.b}[i%2]
			all.Go(func() {
				if err := transfer(p.ctx, from, streamBack, pattern(length+i, i), 1<<(8+i)); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				for range 50 {
					if err := c.echo(p.ctx, from, methodEchoLong, pattern(3000, i)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		c.settled(t)
		c.close(t)
	})
}

// Readers that do not read keep their credit and no more: calls, other streams and the
// other direction go on, and both ends may do nothing but send.
func TestStreamsThatNobodyReads(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{Handlers: 2})
		c.streams()
		const each = 20
		payload := pattern(200<<10, 1)
		var all sync.WaitGroup
		var slow []*Stream
		for i := range 2 * each {
			from := []*Caller{c.a, c.b}[i%2]
			s, err := from.Stream(p.ctx, streamHold, nil)
			if err != nil {
				t.Fatal(err)
			}
			slow = append(slow, s)
			all.Go(func() {
				if err := errors.Join(s.Send(p.ctx, payload), s.CloseSend()); err != nil {
					t.Error(err)
				}
			})
		}
		full := func(s *Stream) bool {
			c := s.c
			c.mu.Lock()
			defer c.mu.Unlock()
			return s.toSend.asleep
		}
		for _, s := range slow {
			for !full(s) {
				time.Sleep(time.Millisecond)
			}
		}
		for _, from := range []*Caller{c.a, c.b} {
			for range 50 {
				if err := c.echo(p.ctx, from, methodEcho, payload[:2000]); err != nil {
					t.Fatal(err)
				}
				if err := c.echo(p.ctx, from, methodEchoLong, payload); err != nil {
					t.Fatal(err)
				}
			}
			if err := transfer(p.ctx, from, streamBack, pattern(2<<20, 5), 1<<20); err != nil {
				t.Fatal(err)
			}
			from.mu.Lock()
			if n, most := from.side.Promised(), max(streamMemory, 2*each*streamCredit); n > most {
				t.Errorf("%d bytes are promised, at most %d", n, most)
			}
			from.mu.Unlock()
		}
		close(c.release)
		for _, s := range slow {
			all.Go(func() {
				n, err := io.Copy(io.Discard, s)
				if err != nil || n != int64(len(payload)) {
					t.Errorf("%d bytes came back: %v", n, err)
				}
				_ = s.Close()
			})
		}
		all.Wait()
		c.settled(t)
		c.close(t)
	})
}

// A stream is a reader and a writer. Files and buffers go without other copies.
func TestStreamAdapters(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		c.mux.Stream(streamBack, func(q Request, s *Stream) {
			var arrived bytes.Buffer
			if _, err := s.WriteTo(&arrived); err != nil {
				t.Error(err)
			}
			_, err := s.ReadFrom(bytes.NewReader(arrived.Bytes()))
			again := s.CloseSend()
			if len(q.Payload()) == 0 && (err != nil || again != nil) { // the caller stays
				t.Error(err, again)
			}
			_ = q.Reply(nil)
		})
		payload := pattern(3<<20, 9)
		s, err := c.a.Stream(p.ctx, streamBack, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(s, io.LimitReader(bytes.NewReader(payload), 2<<20)); n != 2<<20 || err != nil {
			t.Fatalf("copied %d bytes: %v", n, err)
		}
		if n, err := s.Write(payload[2<<20:]); n != 1<<20 || err != nil {
			t.Fatalf("wrote %d bytes: %v", n, err)
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := s.Send(p.ctx, []byte("x")); !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, ErrAnswered) {
			t.Errorf("Send behind CloseSend: %v", err)
		}
		got, err := io.ReadAll(struct{ io.Reader }{s})
		if err != nil || !bytes.Equal(got, payload) {
			t.Errorf("read %d bytes, changed: %v", len(got), err)
		}
		if m, err := s.Answer(p.ctx); err != nil {
			t.Error(err)
		} else {
			m.Release()
		}
		if _, err := s.Answer(p.ctx); !errors.Is(err, ErrAnswered) {
			t.Errorf("a second answer: %v", err)
		}
		_ = s.Close()

		// What Read has left of a piece goes with Close.
		if s, err = c.a.Stream(p.ctx, streamBack, []byte("leaves early")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(payload[:50<<10]); err != nil {
			t.Fatal(err)
		}
		_ = s.CloseSend()
		var few [10]byte
		if n, err := s.Read(few[:]); n != 10 || err != nil || !bytes.Equal(few[:], payload[:10]) {
			t.Errorf("read %d bytes, %x: %v", n, few, err)
		}
		_ = s.Close()
		_ = s.Close()
		c.settled(t)
		c.close(t)
	})
}

// The context, the deadline, Close and the handler end both directions at both ends.
func TestStreamGivenUp(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{Logger: slog.New(slog.DiscardHandler)}, ListenConfig{})
		mine := errors.New("mine")
		for name, end := range map[string]struct {
			begin   func() (context.Context, context.CancelCauseFunc)
			give    func(*Stream, context.CancelCauseFunc)
			here    error
			handler []error // one of these
		}{
			"canceled": {
				begin:   func() (context.Context, context.CancelCauseFunc) { return context.WithCancelCause(p.ctx) },
				give:    func(_ *Stream, cancel context.CancelCauseFunc) { cancel(mine) },
				here:    mine,
				handler: []error{errCanceled},
			},
			"closed": {
				begin:   func() (context.Context, context.CancelCauseFunc) { return context.WithCancelCause(p.ctx) },
				give:    func(s *Stream, _ context.CancelCauseFunc) { _ = s.Close() },
				here:    ErrClosed,
				handler: []error{errCanceled},
			},
			"late": {
				begin: func() (context.Context, context.CancelCauseFunc) {
					ctx, cancel := context.WithTimeout(p.ctx, 300*time.Millisecond)
					return ctx, func(error) { cancel() }
				},
				give:    func(*Stream, context.CancelCauseFunc) {},
				here:    context.DeadlineExceeded,
				handler: []error{errCanceled, context.DeadlineExceeded},
			},
		} {
			c := p.callers(t, MuxConfig{})
			errs := c.streams()
			ctx, cancel := end.begin()
			s, err := c.a.Stream(ctx, streamStuck, nil)
			if err != nil { // the deadline may pass before anything is sent
				if name != "late" {
					t.Errorf("%s: %v", name, err)
				}
				cancel(nil)
				c.close(t)
				continue
			}
			if name != "late" { // a deadline may pass before the handler runs
				<-c.blocked
			}
			var both sync.WaitGroup
			both.Go(func() {
				_, err := s.Answer(p.ctx)
				var told *CallError // the handler's deadline may be first
				if !(errors.Is(err, end.here) && errors.Is(err, ErrOutcomeUnknown)) && !(name == "late" && errors.As(err, &told)) {
					t.Errorf("%s: the answer: %v", name, err)
				}
			})
			both.Go(func() {
				var err error
				for err == nil {
					err = s.Send(p.ctx, pattern(1000, 1))
				}
				var told *CallError
				if !errors.Is(err, end.here) && !(name == "late" && errors.As(err, &told)) {
					t.Errorf("%s: Send: %v", name, err)
				}
			})
			end.give(s, cancel)
			both.Wait()
			var told *CallError
			for err = nil; err == nil; {
				var b *Buffer
				if b, err = s.Recv(p.ctx); err == nil {
					b.Release()
				}
			}
			if !errors.Is(err, end.here) && !(name == "late" && errors.As(err, &told)) {
				t.Errorf("%s: Recv: %v", name, err)
			}
			if name != "late" {
				for i, err := range <-errs {
					if !errors.Is(err, end.handler[0]) {
						t.Errorf("%s: the handler's %s: %v", name, []string{"Recv", "Send"}[i], err)
					}
				}
			}
			_ = s.Close()
			cancel(nil)
			if err := c.a.Drain(p.ctx); err != nil || c.a.Pending() != 0 {
				t.Errorf("%s: drained with %d calls: %v", name, c.a.Pending(), err)
			}
			c.settled(t)
			c.close(t)
		}
	})
}

// What a handler has sent arrives before its failure. Sends after the answer tell.
func TestStreamThatFails(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		c.streams()
		var told *CallError
		for _, method := range []uint32{99, methodEcho} {
			s, err := c.a.Stream(p.ctx, method, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := map[uint32]uint32{99: CodeUnknownMethod, methodEcho: CodeStreams}[method]
			if _, err := s.Recv(p.ctx); !errors.As(err, &told) || told.Code != want {
				t.Errorf("method %d: %v, want code %d", method, err, want)
			}
			_ = s.Close()
		}
		if _, err := c.a.Call(p.ctx, streamBack, nil); !errors.As(err, &told) || told.Code != CodeStreams {
			t.Errorf("a call without streams: %v", err)
		}
		s, err := c.a.Stream(p.ctx, streamFail, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.Recv(p.ctx)
		if err != nil || string(b.Bytes()) != "before" {
			t.Fatalf("before the failure: %v", err)
		}
		b.Release()
		if _, err := s.Recv(p.ctx); !errors.As(err, &told) || told.Code != CodeApplication+3 {
			t.Errorf("the failure: %v", err)
		}
		if _, err := s.Answer(p.ctx); !errors.As(err, &told) || told.Text != "on purpose" {
			t.Errorf("the answer: %v", err)
		}
		if err := s.Send(p.ctx, []byte("x")); !errors.As(err, &told) {
			t.Errorf("Send after the failure: %v", err)
		}
		_ = s.Close()
		// The pieces of a call that has succeeded wait until somebody receives them.
		if s, err = c.a.Stream(p.ctx, streamPour, []byte{0, 0, 0x70, 0}); err != nil {
			t.Fatal(err)
		}
		m, err := s.Answer(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
		if err := s.Send(p.ctx, []byte("x")); !errors.Is(err, ErrAnswered) {
			t.Errorf("Send after the answer: %v", err)
		}
		if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, pattern(0x7000, 3)) {
			t.Errorf("read %d bytes after the answer: %v", len(got), err)
		}
		_ = s.Close()
		c.settled(t)
		c.close(t)
	})
}

// A wait whose own context ends leaves the stream as it is.
func TestStreamWaitsEnd(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		c.streams()
		s, err := c.a.Stream(p.ctx, streamHold, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(p.ctx, 50*time.Millisecond)
		defer cancel()
		if _, err := s.Recv(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Recv: %v", err)
		}
		if _, err := s.Answer(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Answer: %v", err)
		}
		payload := pattern(1<<20, 1)
		sent := 0
		for full := 0; full < 2 && p.ctx.Err() == nil; { // on a busy machine the time may be too short for anything
			ctx, cancel := context.WithTimeout(p.ctx, 50*time.Millisecond)
			n, err := s.send(ctx, parcel{body: payload[sent:]})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("Send to one who does not receive: %v", err)
			}
			if sent += n; sent >= streamCredit {
				full++
			}
		}
		if sent != streamCredit {
			t.Errorf("%d bytes were sent to one who does not receive", sent)
		}
		close(c.release)
		if err := s.Send(p.ctx, payload[sent:streamCredit+10000]); err != nil {
			t.Fatal(err)
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, payload[:streamCredit+10000]) {
			t.Errorf("read %d bytes: %v", len(got), err)
		}
		_ = s.Close()
		c.settled(t)
		c.close(t)
	})
}

// The endpoint ends while streams wait for pieces, for credit and for answers.
func TestStreamsWhenTheEndpointEnds(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		errs := c.streams()
		const each = 10
		var all sync.WaitGroup
		unknown := func(what string, err error) {
			if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrPeerClosed) && !errors.Is(err, ErrClosed) {
				t.Errorf("%s when the endpoint ends: %v", what, err)
			}
		}
		for range each {
			s, err := c.a.Stream(p.ctx, streamStuck, nil)
			if err != nil {
				t.Fatal(err)
			}
			<-c.blocked
			all.Go(func() {
				_, err := s.Answer(p.ctx)
				unknown("Answer", err)
			})
			all.Go(func() {
				var err error
				for err == nil {
					err = s.Send(p.ctx, pattern(70<<10, 1))
				}
				unknown("Send", err)
				_ = s.Close()
			})
		}
		for _, n := range []*Caller{c.b, c.a} {
			_ = n.Close()
		}
		all.Wait()
		for range each {
			for i, err := range <-errs {
				if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPeerClosed) {
					t.Errorf("the handler's %s: %v", []string{"Recv", "Send"}[i], err)
				}
			}
		}
		if _, err := c.a.Stream(p.ctx, streamBack, nil); !errors.Is(err, ErrNotSent) {
			t.Errorf("a stream after the end: %v", err)
		}
		c.close(t)
	})
}

// An end that greets without credit for streams takes none, and the caller is told so.
func TestStreamToAnOldPeer(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		old, e := p.connect(t, "")
		c, err := NewCaller(e, nil)
		if err != nil {
			t.Fatal(err)
		}
		greeting := call.Header{Kind: call.Greeting, Value: 9}
		if err := old.Send(p.ctx, call.Revision, greeting.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Stream(p.ctx, 1, nil); !errors.Is(err, ErrNoStreams) || !errors.Is(err, ErrNotSent) {
			t.Errorf("a stream to a peer that takes none: %v", err)
		}
		if n := c.Pending(); n != 0 {
			t.Errorf("%d calls are pending", n)
		}
		_, _ = old.Close(), c.Close()
	})
}

// What breaks the protocol of streams ends the endpoint.
func TestStreamsOfABreaker(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		id := call.ID{Slot: 0, Generation: 5}
		open := call.Header{Kind: call.Request, Flags: call.Streams, ID: id}
		piece := call.Header{Kind: call.Data, Flags: call.FromCaller, ID: id}
		for name, messages := range map[string][]struct {
			h     call.Header
			tag   uint32
			bytes int
		}{
			"no such call":      {{h: piece, bytes: 1}},
			"empty piece":       {{h: open, tag: streamHold}, {h: piece}},
			"beyond the credit": {{h: open, tag: streamHold}, {h: piece, bytes: streamCredit}, {h: piece, bytes: 1}},
			"no credit":         {{h: open, tag: streamHold}, {h: call.Header{Kind: call.Grant, Flags: call.FromCaller, ID: id}}},
			"a call without":    {{h: call.Header{Kind: call.Request, ID: id}, tag: methodBlock}, {h: piece, bytes: 1}},
			"two ends": {
				{h: open, tag: streamHold}, {h: call.Header{Kind: call.End, Flags: call.FromCaller, ID: id}},
				{h: call.Header{Kind: call.End, Flags: call.FromCaller, ID: id}},
			},
		} {
			p := w.pair(t, Config{}, ListenConfig{})
			breaker, b := p.connect(t, "")
			c := &callers2{mux: NewMux(MuxConfig{}), release: make(chan struct{}), blocked: make(chan struct{}, 9)}
			c.streams()
			c.mux.Long(methodBlock, func(q Request) {
				<-q.Context().Done()
				_ = q.Fail(CodeApplication, "nobody waits")
			})
			served, err := NewCaller(b, c.mux)
			if err != nil {
				t.Fatal(err)
			}
			greeting := call.Header{Kind: call.Greeting, Value: 9, ID: call.ID{Slot: 100}}
			err = breaker.Send(p.ctx, call.Revision, greeting.Append(nil))
			for _, m := range messages {
				err = errors.Join(err, breaker.Send(p.ctx, m.tag, append(m.h.Append(nil), pattern(m.bytes, 1)...)))
			}
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-b.Done():
			case <-p.ctx.Done():
				t.Fatalf("%s: the endpoint goes on", name)
			}
			if !errors.Is(b.Err(), ErrProtocol) {
				t.Errorf("%s: %v", name, b.Err())
			}
			_, _ = breaker.Close(), served.Close()
			c.mux.Close()
		}
	})
}

// Streams are given up at random at both ends while both send. In the end nothing is
// under way, promised or held.
func TestStreamsGivenUpAtRandom(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{Logger: slog.New(slog.DiscardHandler)}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		c.streams()
		var all sync.WaitGroup
		for i := range 12 {
			from := []*Caller{c.a, c.b}[i%2]
			all.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), 1))
				for n := range 30 {
					ctx, cancel := context.WithCancel(p.ctx)
					if n%3 > 0 {
						time.AfterFunc(time.Duration(rng.IntN(2000))*time.Microsecond, cancel)
					}
					method := []uint32{streamBack, streamFail, streamPour}[rng.IntN(3)]
					payload := make([]byte, 4, 200<<10)
					binary.BigEndian.PutUint32(payload, uint32(rng.IntN(200<<10)))
					s, err := from.Stream(ctx, method, payload)
					if err == nil {
						switch method {
						case streamBack:
							err = bothWays(p.ctx, s, pattern(rng.IntN(200<<10), n), 1+rng.IntN(50<<10))
						default:
							_, err = io.Copy(io.Discard, s)
						}
						_ = s.Close()
					}
					var told *CallError
					if err != nil && !errors.Is(err, context.Canceled) && !errors.As(err, &told) {
						t.Errorf("method %d: %v", method, err)
					}
					if err != nil && n%3 == 0 && method != streamFail {
						t.Errorf("method %d, which nobody gives up: %v", method, err)
					}
					cancel()
				}
			})
		}
		all.Wait()
		for _, from := range []*Caller{c.a, c.b} {
			if err := from.Drain(p.ctx); err != nil || from.Pending() != 0 {
				t.Errorf("%d calls are pending: %v", from.Pending(), err)
			}
		}
		c.settled(t)
		c.close(t)
	})
}

// A piece there and back allocates nothing, at either end, but the handles of messages, of
// which a stock makes many at a time.
func TestStreamAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{})
		c.streams()
		for _, size := range append([]int{20}, w.payloads()...) {
			s, err := c.a.Stream(p.ctx, streamBack, nil)
			if err != nil {
				t.Fatal(err)
			}
			payload := pattern(size, 1)
			came := make(chan error, 1)
			pieces := 0
			go func() {
				for n := 0; ; {
					b, err := s.Recv(p.ctx)
					pieces++
					if err != nil {
						came <- err
						return
					}
					n += len(b.Bytes())
					b.Release()
					if n == size {
						n = 0
						came <- nil
					}
				}
			}()
			one := func() {
				if err := s.Send(p.ctx, payload); err != nil {
					t.Fatal(err)
				}
				if err := <-came; err != nil {
					t.Fatal(err)
				}
			}
			for range 200 {
				one()
			}
			const runs = 300
			pieces = 0
			n := allocations(runs, one)
			each := float64(2*pieces) / (runs + allocationLooks) // each look warms up by one more; each piece goes there and back
			if n >= 1+each/stockBatch {
				t.Errorf("%.1f allocations for %d bytes there and back in %.1f pieces", n, size, each)
			}
			_ = s.Close()
			<-came
		}
		c.settled(t)
		c.close(t)
	})
}

// A closing endpoint drops the requests that wait for handlers, and still takes what comes
// behind them. Here that comes while a request is being dropped: first its stream is there,
// and then it is late, but it is never that of another call.
func TestPiecesOfDroppedRequests(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		c := p.callers(t, MuxConfig{Streams: 1})
		defer c.close(t)
		c.streams()
		call := func(method uint32) *Stream {
			s, err := c.a.Stream(p.ctx, method, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		busy := call(streamHold)
		<-c.blocked
		dropped := call(streamBack)
		defer dropped.Close()
		r := c.waiting(t, p)
		stream := r.stream
		arrives := func() {
			if err := dropped.Send(p.ctx, []byte("piece")); err != nil {
				t.Error(err)
			}
			if err := c.echo(p.ctx, c.a, methodEcho, nil); err != nil { // behind it
				t.Error(err)
			}
		}
		var other *Stream
		stream.stop = func() bool { // called when it begins to finish
			arrives()
			other = call(streamBack) // may get what is spare
			arrives()
			return true
		}
		c.mux.forget(c.b)
		arrives()
		c.b.mu.Lock()
		if left := stream.pieces.Len(); left != 0 {
			t.Errorf("%d pieces are left", left)
		}
		c.b.mu.Unlock()
		close(c.release)
		for _, s := range []*Stream{busy, other} {
			_ = s.CloseSend() // the answer tells
			m, err := s.Answer(p.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if n := binary.BigEndian.Uint64(m.Bytes()); n != 0 {
				t.Errorf("another call received %d bytes", n)
			}
			m.Release()
			s.Close()
		}
	})
}

// waiting returns the request of a stream that waits for a hand at b, when there is one.
func (c *callers2) waiting(t *testing.T, p *pair) (r *request) {
	t.Helper()
	p.until(t, "the request waits", func() bool {
		c.mux.mu.Lock()
		defer c.mux.mu.Unlock()
		q := &c.b.turns[streamCrew].waiting
		if q.Len() > 0 {
			r = *q.Front()
		}
		return r != nil
	})
	return r
}
