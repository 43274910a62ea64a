package verbena

import (
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/internal/fifo"
)

// MuxConfig configures a mux.
type MuxConfig struct {
	// Handlers is how many long handlers run at a time, for all endpoints together.
	// Default 256.
	Handlers int
	// Streams is how many handlers of streams run at a time, for all endpoints
	// together. Default 1,024.
	Streams int
}

// A Mux has the handlers of methods. Any number of endpoints may use it. Handlers may
// be added at any time; all methods may be called concurrently.
type Mux struct {
	handlers atomic.Pointer[map[uint32]*handler]
	working  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	crews  [crews]crew
}

// A crew is the goroutines of one kind of handlers.
type crew struct {
	limit   int
	running int                 // goroutines that handle requests
	turns   fifo.Queue[*Caller] // with requests that may be handled, each once
	idle    []*hand             // the last one was busy last
}

// A hand is a goroutine of a crew. It stays for a while when there is nothing to do: the
// stack of a new one has to grow anew for each request.
type hand struct {
	wake chan struct{} // there is something again; closed: never
}

const (
	// mostIdle is how many hands of a crew may have nothing to do, and idleHand for how long
	// one stays.
	mostIdle = 16
	idleHand = 100 * time.Millisecond
)

// Kinds of handlers with goroutines of their own. Those of streams wait for their peers,
// so they have other places than the long ones.
const (
	longCrew = iota
	streamCrew
	crews
)

type handler struct {
	f      func(Request)
	stream func(Request, *Stream) // instead of f
	long   bool
}

// crew tells which one handles a request.
func (h *handler) crew() int {
	if h.stream != nil {
		return streamCrew
	}
	return longCrew
}

// NewMux returns a mux without handlers.
func NewMux(cfg MuxConfig) *Mux {
	set(&cfg.Handlers, 256)
	set(&cfg.Streams, 1024)
	m := &Mux{}
	m.crews[longCrew].limit, m.crews[streamCrew].limit = cfg.Handlers, cfg.Streams
	m.handlers.Store(&map[uint32]*handler{})
	return m
}

// Short sets the handler of a method that takes a few microseconds and never waits. It
// runs where the request arrives, so the answer goes out without a change of
// goroutines, and other endpoints of the worker wait meanwhile: for 16 requests of an
// endpoint at most before it is their turn. It must not make calls, send on endpoints
// or close them, or take locks that are held for long.
func (m *Mux) Short(method uint32, f func(Request)) { m.add(method, &handler{f: f}) }

// Long sets the handler of a method that may take its time. It runs in a goroutine that
// does nothing else meanwhile. When [MuxConfig].Handlers run, or half of them for one endpoint, requests
// wait, the endpoints' in turn, and then the peers.
func (m *Mux) Long(method uint32, f func(Request)) { m.add(method, &handler{f: f, long: true}) }

// Stream sets the handler of a method whose calls have streams. It runs in a goroutine of
// its own, as those of Long do, but does not count with them: [MuxConfig].Streams of
// them run at a time, half of them for one endpoint. The stream is valid until the
// request has been answered.
func (m *Mux) Stream(method uint32, f func(Request, *Stream)) {
	m.add(method, &handler{stream: f, long: true})
}

func (m *Mux) add(method uint32, h *handler) {
	for {
		old := m.handlers.Load()
		handlers := maps.Clone(*old)
		handlers[method] = h
		if m.handlers.CompareAndSwap(old, &handlers) {
			return
		}
	}
}

// handler returns that of a method, or nil.
func (m *Mux) handler(method uint32) *handler {
	if m == nil {
		return nil
	}
	return (*m.handlers.Load())[method]
}

// Close waits until all long handlers have returned. Callers that use the mux have
// been closed.
func (m *Mux) Close() {
	m.mu.Lock()
	m.closed = true
	for kind := range m.crews {
		w := &m.crews[kind]
		for _, h := range w.idle {
			close(h.wake)
		}
		w.idle = nil
	}
	m.mu.Unlock()
	m.working.Wait()
}

// A muxTurn is what a crew knows of an endpoint. The mux's mu guards it.
type muxTurn struct {
	waiting fifo.Queue[*request]
	running int  // of its handlers
	listed  bool // in the crew's turns
}

// share is how many handlers an endpoint may have running: half of them, because a
// peer that takes no answers holds them, but four if there are so many.
func (w *crew) share() int { return max(w.limit/2, min(w.limit, 4)) }

// enqueue has a request handled in its turn.
func (m *Mux) enqueue(r *request) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		r.c.drop(r)
		return
	}
	defer m.mu.Unlock()
	kind := r.handler.crew()
	w := &m.crews[kind]
	r.c.turns[kind].waiting.Push(r)
	m.list(r.c, kind)
	if w.turns.Len() == 0 || w.running == w.limit {
		return
	}
	w.running++
	if last := len(w.idle) - 1; last >= 0 {
		w.idle[last].wake <- struct{}{}
		w.idle = slices.Delete(w.idle, last, last+1)
		return
	}
	m.working.Go(func() { m.lend(kind) })
}

// lend is a hand's goroutine.
func (m *Mux) lend(kind int) {
	h := &hand{wake: make(chan struct{}, 1)}
	patience := time.NewTimer(idleHand)
	defer patience.Stop()
	for m.work(kind, h) {
		patience.Reset(idleHand)
		more := false
		select {
		case _, more = <-h.wake:
		case <-patience.C:
			if !m.dismiss(kind, h) {
				_, more = <-h.wake
			}
		}
		if !more {
			return
		}
	}
}

// dismiss lets an idle hand go, unless it is just being woken.
func (m *Mux) dismiss(kind int, h *hand) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &m.crews[kind]
	i := slices.Index(w.idle, h)
	if i >= 0 {
		w.idle = slices.Delete(w.idle, i, i+1)
	}
	return i >= 0
}

// list gives an endpoint a turn if it may have one. mu is held.
func (m *Mux) list(c *Caller, kind int) {
	w := &m.crews[kind]
	if t := &c.turns[kind]; !t.listed && t.waiting.Len() > 0 && t.running < w.share() {
		t.listed = true
		w.turns.Push(c)
	}
}

// work handles requests of a kind until none may be handled, and tells whether the hand is
// to wait for more.
func (m *Mux) work(kind int, h *hand) (waits bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &m.crews[kind]
	for w.turns.Len() > 0 {
		c := w.turns.Pop()
		t := &c.turns[kind]
		t.listed = false
		r := t.waiting.Pop()
		t.running++
		m.list(c, kind)
		m.mu.Unlock()
		c.serveLong(r)
		m.mu.Lock()
		t.running--
		m.list(c, kind)
	}
	w.running--
	if waits = !m.closed && len(w.idle) < mostIdle; waits {
		w.idle = append(w.idle, h)
	}
	return waits
}

// serveLong is serve for a request that has waited for a goroutine.
func (c *Caller) serveLong(r *request) {
	q := Request{r, r.age.Load()}
	c.mu.Lock()
	canceled, ended := r.canceled, c.ended || c.closing
	c.mu.Unlock()
	switch {
	case ended:
		c.drop(r)
	case canceled:
		c.begun(r)
		q.refuse(CodeCanceled, "given up")
	default:
		c.serve(q)
	}
}

// forget drops the requests of a caller whose endpoint has ended.
func (m *Mux) forget(c *Caller) {
	m.mu.Lock()
	var dropped []*request
	for kind := range m.crews {
		t := &c.turns[kind]
		for t.waiting.Len() > 0 {
			dropped = append(dropped, t.waiting.Pop())
		}
		m.crews[kind].turns.Remove(func(other *Caller) bool { return other == c })
		t.listed = false
	}
	m.mu.Unlock()
	for _, r := range dropped {
		c.drop(r)
	}
}

// Serve makes a [Caller] of an endpoint that serves its peer, and waits for the end of
// the endpoint. It returns nil if one of the ends has closed it.
func (m *Mux) Serve(e *Endpoint) error {
	c, err := NewCaller(e, m)
	if err != nil {
		return err
	}
	<-e.done
	err = c.Close()
	if errors.Is(e.err, ErrClosed) || errors.Is(e.err, ErrPeerClosed) {
		return err
	}
	return e.failure("serve", e.err)
}

func (c *Caller) logPanic(method uint32, p any) {
	c.e.env.log.Error("a handler of calls panicked", "method", method, "peer", c.e.remote, "service", c.e.service, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}
