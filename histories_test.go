package verbena

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

var (
	historyCount = flag.Int("histories", 4, "random histories of calls, operations and crashes in each world")
	historySeed  = flag.Uint64("history-seed", 0, "of the first one; 0: by the clock")
)

// TestHistories has clients call, with streams and without, notify and operate on exposed
// memory by pools, and give up at random moments, while the server's endpoints end, in
// order or cut off, and its runtime is closed and made anew; every fourth history is calm.
// A model knows what each of them may have done: no call that was not sent is carried out,
// none is carried out twice unless it may be, one that was answered has been carried out,
// an outcome is unknown only to who has given up or lost the endpoint, every answer is the
// caller's own, a stream brings a prefix of what was sent, memory holds what was put
// there, a notification that was sent in a calm history is handled, and at the end nothing
// is registered. A thousand of them are 240,000 steps in each world:
//
//	go test . -run TestHistories -histories 1000
func TestHistories(t *testing.T) {
	seed := *historySeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-history-seed %d", seed)
	eachWorld(t, func(t *testing.T, w world) {
		for i := range uint64(*historyCount) {
			if h := newHistory(t, w, seed+i); !h.run() {
				t.Fatalf("-history-seed %d", seed+i)
			}
		}
	})
}

// Methods of histories, and what a handler waits for.
const (
	historyEcho     uint32 = 1 + iota // short, may be repeated
	historyEchoLong                   // long, may be repeated
	historyOnce                       // short
	historyOnceLong                   // long
	historyBlock                      // long, until the caller gives up
	historyNotify                     // short, a notification
	historyStream                     // sends back what comes, and answers with its length
)

// An outcome is what a client knows of a call or a notification in the end.
type outcome int

const (
	outcomeUnknown outcome = iota
	outcomeAnswered
	outcomeNotDone
)

// contradicts tells that a caller cannot know o of what was carried out so many times and
// must not be twice.
func (o outcome) contradicts(runs int) bool {
	return runs > 1 || runs > 0 && o == outcomeNotDone || runs == 0 && o == outcomeAnswered
}

type history struct {
	t         *testing.T
	w         world
	seed      uint64
	ctx       context.Context
	addr      string
	providers []rdma.Provider // of the server
	mux       *Mux
	client    *Runtime
	calls     *CallPool
	pool      *Pool
	numbers   atomic.Uint64
	troubled  bool // endpoints end

	serving sync.WaitGroup

	mu       sync.Mutex
	server   *Runtime
	ends     []*Endpoint // that the server has accepted
	runs     map[uint64]int
	outcomes map[uint64]outcome // of what must not be done twice
	owed     []uint64           // notifications that have to be handled before anything is closed
}

func newHistory(t *testing.T, w world, seed uint64) *history {
	client, server := w.providers(t)
	h := &history{
		t: t, w: w, seed: seed, ctx: testContext(t), addr: "127.0.0.1:0", providers: server, mux: NewMux(MuxConfig{Handlers: 4}),
		runs: map[uint64]int{}, outcomes: map[uint64]outcome{}, troubled: seed%4 != 0,
	}
	h.client = h.runtime(client)
	h.calls = newCallPool(t, h.client, CallPoolConfig{PoolConfig: PoolConfig{Service: "calls/1", Endpoints: 2, Dial: DialConfig{Transport: w.transport}}})
	h.pool = newPool(t, h.client, PoolConfig{Service: "memory/1", Endpoints: 2, Dial: DialConfig{Transport: w.transport}})
	echo := func(q Request) { _ = q.Reply(q.Payload()) } // the endpoint's end tells
	once := func(q Request) {
		h.mu.Lock()
		h.runs[binary.BigEndian.Uint64(q.Payload())]++
		h.mu.Unlock()
		_ = q.Reply(q.Payload())
	}
	h.mux.Short(historyEcho, echo)
	h.mux.Long(historyEchoLong, echo)
	h.mux.Short(historyOnce, once)
	h.mux.Long(historyOnceLong, once)
	h.mux.Long(historyBlock, func(q Request) {
		<-q.Context().Done()
		once(q)
	})
	h.mux.Short(historyNotify, once)
	h.mux.Stream(historyStream, func(q Request, s *Stream) {
		n, err := io.Copy(s, s)
		if err != nil {
			_ = q.Fail(CodeApplication, err.Error()) // nobody is there
			return
		}
		h.mu.Lock()
		h.runs[binary.BigEndian.Uint64(q.Payload())]++
		h.mu.Unlock()
		_ = q.Reply(binary.BigEndian.AppendUint64(nil, uint64(n)))
	})
	h.start()
	return h
}

func (h *history) runtime(providers []rdma.Provider) *Runtime {
	return newRuntime(h.t, Config{Linger: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}, providers)
}

// start makes a server, after the first one at the same address.
func (h *history) start() {
	r := h.runtime(h.providers)
	l, err := r.Listen(h.ctx, h.addr, ListenConfig{})
	for err != nil && h.ctx.Err() == nil && h.addr != "127.0.0.1:0" { // the system may not have freed the port yet
		time.Sleep(time.Millisecond)
		l, err = r.Listen(h.ctx, h.addr, ListenConfig{})
	}
	if err != nil {
		h.t.Error(err)
		return
	}
	h.mu.Lock()
	h.server, h.ends = r, nil
	h.mu.Unlock()
	if h.addr == "127.0.0.1:0" { // nobody else looks yet
		h.addr = l.Addr().String()
	}
	h.serving.Go(func() {
		for {
			e, err := l.Accept(h.ctx)
			if err != nil {
				return
			}
			h.mu.Lock()
			h.ends = append(h.ends, e)
			h.mu.Unlock()
			h.serving.Go(func() {
				if e.Service() == "memory/1" {
					h.expose(e)
				} else {
					_ = h.mux.Serve(e) // clients are told
				}
			})
		}
	})
}

const exposedBytes = 4096

// expose hands the peer a token, and then confirms each notification with what lies at
// the place that it names.
func (h *history) expose(e *Endpoint) {
	defer e.Close()
	x, err := e.Expose(h.ctx, ExposeConfig{Size: exposedBytes, Rights: allRights})
	if err != nil {
		return
	}
	defer x.Close()
	if e.Send(h.ctx, 0, x.Token().Append(nil)) != nil {
		return
	}
	for {
		m, err := e.Receive(h.ctx)
		if err != nil {
			return
		}
		at := int(m.Tag)
		m.Release()
		if e.Send(h.ctx, uint32(at), bytes.Clone(x.Bytes()[at:min(at+100, exposedBytes)])) != nil {
			return
		}
	}
}

func (h *history) run() bool {
	rng := rand.New(rand.NewPCG(h.seed, 0))
	over := make(chan struct{})
	var trouble, clients sync.WaitGroup
	steps := 40
	if race.Enabled {
		steps = 15
	}
	m, err := h.calls.Call(h.ctx, h.addr, Intent{}, historyEcho, nil) // the peer is known before it is closed
	if err != nil {
		h.t.Error(err)
	} else {
		m.Release()
	}
	for i := range uint64(6) {
		clients.Go(func() { h.act(rand.New(rand.NewPCG(h.seed, i+1)), steps) })
	}
	if h.troubled {
		trouble.Go(func() { h.trouble(rng, over) })
	}
	clients.Wait()
	close(over)
	trouble.Wait()
	h.awaitNotifications()
	var domains []*domain
	for _, r := range []*Runtime{h.client, h.server} {
		if d := r.firstDomain(h.w.transport); d != nil {
			domains = append(domains, d)
		}
	}
	_ = h.calls.Close()
	_ = h.pool.Close()
	_ = h.client.Close()
	_ = h.server.Close()
	h.serving.Wait()
	h.mux.Close()
	for id, o := range h.outcomes {
		if n := h.runs[id]; o.contradicts(n) {
			h.t.Errorf("number %d was carried out %d times, and its caller knows %d (0 nothing, 1 that it was answered, 2 that it was not done)", id, n, o)
		}
	}
	for _, d := range domains {
		for left := true; left && !h.t.Failed(); time.Sleep(time.Millisecond) {
			left = false
			for _, pool := range d.pools() {
				left = left || pool.Registered > 0
			}
			if left && h.ctx.Err() != nil {
				h.t.Errorf("in the end there are %+v", d.pools())
			}
		}
	}
	if h.ctx.Err() != nil {
		h.t.Error("it was not over in time")
	}
	return !h.t.Failed()
}

// trouble ends endpoints of the server, and the server, until over is closed.
func (h *history) trouble(rng *rand.Rand, over chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(rng.IntN(20_000)) * time.Microsecond):
		}
		switch {
		case n < 30 && rng.IntN(4) > 0:
			h.mu.Lock()
			var e *Endpoint
			if len(h.ends) > 0 {
				e = h.ends[rng.IntN(len(h.ends))]
			}
			h.mu.Unlock()
			switch {
			case e == nil:
			case rng.IntN(2) == 0:
				_ = e.Close() // its peer may be sending
			default:
				cutOff(e)
			}
		case n < 30:
			_ = h.server.Close()
			h.start()
		}
	}
}

// act is one client.
func (h *history) act(rng *rand.Rand, steps int) {
	for range steps {
		if h.t.Failed() {
			return
		}
		ctx, cancel := h.ctx, context.CancelFunc(func() {})
		gives := rng.IntN(3) == 0
		if gives {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(4000))*time.Microsecond)
		}
		switch rng.IntN(9) {
		case 0:
			h.operate(ctx, rng)
		case 1:
			h.notify(ctx, rng, gives)
		case 2:
			h.stream(ctx, rng, gives)
		default:
			h.call(ctx, rng, gives)
		}
		cancel()
	}
}

// cutOff ends the connection of an endpoint without a goodbye, as the death of one of its
// ends does.
func cutOff(e *Endpoint) {
	switch c := e.carrier.(type) {
	case *shell:
		_ = c.qp.Disconnect() // the ends see it
	case *stream:
		_ = c.conn.Close()
	}
}

func (h *history) payload(rng *rand.Rand) (id uint64, payload []byte) {
	size := 8 + rng.IntN(3000)
	if rng.IntN(20) == 0 {
		size = 200 << 10
	}
	id = h.numbers.Add(1)
	payload = bytes.Clone(pattern(size, int(id)))
	binary.BigEndian.PutUint64(payload, id)
	return id, payload
}

func (h *history) note(id uint64, o outcome) {
	h.mu.Lock()
	h.outcomes[id] = o
	h.mu.Unlock()
}

func (h *history) call(ctx context.Context, rng *rand.Rand, gives bool) {
	id, payload := h.payload(rng)
	method := 1 + uint32(rng.IntN(int(historyBlock)))
	if method == historyBlock && !gives {
		method = historyOnce
	}
	var repeat []Repeat
	if method == historyEcho || method == historyEchoLong {
		repeat = []Repeat{Idempotent}
	}
	m, err := h.calls.Call(ctx, h.addr, Intent{}, method, payload, repeat...)
	var told *CallError
	o := outcomeUnknown
	switch {
	case err == nil:
		if o = outcomeAnswered; !bytes.Equal(m.Bytes(), payload) {
			h.t.Errorf("call %d got %d bytes, %x at first, and not its own %d", id, len(m.Bytes()), prefix(m.Bytes()), len(payload))
		}
		m.Release()
	case errors.As(err, &told) && (told.Code == CodeLate || told.Code == CodeBusy || told.Code == CodeCanceled), errors.Is(err, ErrNotSent):
		o = outcomeNotDone
	case errors.Is(err, ErrOutcomeUnknown):
		h.excused(ctx, "call", id, err)
		if repeat != nil && ctx.Err() == nil && !h.troubled {
			h.t.Errorf("call %d, which may be repeated: %v", id, err)
		}
	default:
		h.t.Errorf("call %d: %v", id, err)
	}
	if repeat == nil {
		h.note(id, o)
	}
}

// excused sees to it that who does not know the outcome has given up, or has lost the
// endpoint: and nobody loses one in a calm history.
func (h *history) excused(ctx context.Context, what string, id uint64, err error) {
	ended := errors.Is(err, ErrPeerClosed) || errors.Is(err, ErrPeerDied) || errors.Is(err, ErrClosed)
	if ctx.Err() == nil && (!ended || !h.troubled) {
		h.t.Errorf("the outcome of %s %d is unknown although nobody has given up and no endpoint ended: %v", what, id, err)
	}
}

// stream makes a call with streams in both directions. What comes back is a prefix of what
// was sent, in order, whatever ends it; all of it, if there is an answer.
func (h *history) stream(ctx context.Context, rng *rand.Rand, gives bool) {
	id := h.numbers.Add(1)
	s, err := h.calls.Stream(ctx, h.addr, Intent{}, historyStream, binary.BigEndian.AppendUint64(nil, id))
	if err != nil {
		switch {
		case errors.Is(err, ErrNotSent):
			h.note(id, outcomeNotDone)
		case errors.Is(err, ErrOutcomeUnknown):
			h.excused(ctx, "stream", id, err)
			h.note(id, outcomeUnknown)
		default:
			h.t.Errorf("stream %d: %v", id, err)
		}
		return
	}
	sent := pattern(rng.IntN(300<<10), int(id))
	piece := 1 + rng.IntN(60<<10)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer s.Close()
	sending.Go(func() {
		for rest := sent; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
			if s.Send(ctx, rest[:min(piece, len(rest))]) != nil {
				return // the answer tells why
			}
		}
		_ = s.CloseSend() // likewise
	})
	got, whole := 0, false
	for {
		b, err := s.Recv(ctx)
		if err != nil {
			whole = err == io.EOF
			break // otherwise the answer tells, or has come meanwhile
		}
		n := len(b.Bytes())
		if got+n > len(sent) || !bytes.Equal(b.Bytes(), sent[got:got+n]) {
			h.t.Errorf("stream %d brings other bytes behind %d", id, got)
			b.Release()
			break
		}
		got += n
		b.Release()
	}
	m, err := s.Answer(ctx)
	var told *CallError
	switch {
	case err == nil:
		if n := binary.BigEndian.Uint64(m.Bytes()); whole && got != len(sent) || n != uint64(len(sent)) {
			h.t.Errorf("stream %d of %d bytes brought %d, and its answer says %d", id, len(sent), got, n)
		}
		m.Release()
		h.note(id, outcomeAnswered)
	case ctx.Err() != nil:
		h.note(id, outcomeUnknown)
	case errors.As(err, &told): // the handler has heard of an end before the caller has
		if !h.troubled && !gives {
			h.t.Errorf("stream %d: %v", id, err)
		}
		h.note(id, outcomeUnknown)
	case errors.Is(err, ErrOutcomeUnknown):
		h.excused(ctx, "stream", id, err)
		h.note(id, outcomeUnknown)
	default:
		h.t.Errorf("the answer of stream %d: %v", id, err)
	}
}

// notify owes the handling of a notification that was sent, unless its deadline may pass
// before, or its endpoint may end.
func (h *history) notify(ctx context.Context, rng *rand.Rand, gives bool) {
	id, payload := h.payload(rng)
	o := outcomeUnknown
	switch err := h.calls.Notify(ctx, h.addr, Intent{}, historyNotify, payload); {
	case err == nil:
		if !h.troubled && !gives {
			h.mu.Lock()
			h.owed = append(h.owed, id)
			h.mu.Unlock()
		}
	case errors.Is(err, ErrOutcomeUnknown):
		h.excused(ctx, "notification", id, err)
	case errors.Is(err, ErrNotSent):
		o = outcomeNotDone
	default:
		h.t.Errorf("notification %d: %v", id, err)
	}
	h.note(id, o)
}

// awaitNotifications waits until what is owed has been handled.
func (h *history) awaitNotifications() {
	for _, id := range h.owed { // the clients have ended
		for handled := false; !handled; {
			h.mu.Lock()
			handled = h.runs[id] > 0
			h.mu.Unlock()
			switch {
			case handled:
			case h.ctx.Err() != nil:
				h.t.Errorf("notification %d was sent and nobody has handled it", id)
				return
			default:
				time.Sleep(time.Millisecond)
			}
		}
	}
}

// operate has a session of one-sided operations on memory of its own: each endpoint is
// used for one, and closed.
func (h *history) operate(ctx context.Context, rng *rand.Rand) {
	e, err := h.pool.Get(ctx, h.addr, Intent{})
	if err != nil {
		return // the attempt failed, or its time is over: the pool's own tests look at that
	}
	defer h.pool.Put(e)
	defer e.Close()
	failed := func(what string, err error) bool {
		if h.troubled && errors.Is(err, ErrPeerDied) { // a lane over TCP may end a moment before
			select {
			case <-e.Done():
			case <-h.ctx.Done():
			}
		}
		// An end that closes ends its exposures before it has said goodbye.
		if err != nil && err != io.EOF && !errors.Is(err, ErrRevoked) && ctx.Err() == nil && e.Err() == nil {
			h.t.Errorf("%s on an endpoint that lives: %v", what, err)
		}
		return err != nil
	}
	m, err := e.Receive(ctx)
	if failed("receive", err) {
		return
	}
	token, err := ParseToken(m.Bytes())
	m.Release()
	if failed("token", err) {
		return
	}
	model := make([]byte, exposedBytes)
	for range 1 + rng.IntN(12) {
		at := 8 * rng.IntN(exposedBytes/8)
		n := rng.IntN(exposedBytes - at + 1)
		data := pattern(n, rng.IntN(256))
		word := binary.NativeEndian.Uint64(model[at:])
		kinds := 3
		if atomics(e) {
			kinds = 5
		}
		switch rng.IntN(kinds) {
		case 0:
			if failed("put", e.Put(ctx, token, at, data)) {
				return
			}
			copy(model[at:], data)
		case 1:
			got := make([]byte, n)
			if failed("get", e.Get(ctx, token, at, got)) {
				return
			}
			if !bytes.Equal(got, model[at:at+n]) {
				h.t.Errorf("%d bytes at %d are not what was put there", n, at)
			}
		case 2:
			if failed("put and notify", e.PutNotify(ctx, token, at, data, uint32(at), nil)) {
				return
			}
			copy(model[at:], data)
			m, err := e.Receive(ctx)
			if failed("receive", err) {
				return
			}
			if int(m.Tag) != at || !bytes.Equal(m.Bytes(), model[at:min(at+100, exposedBytes)]) {
				h.t.Errorf("who was notified of %d bytes at %d found others, at %d", n, at, m.Tag)
			}
			m.Release()
		case 3:
			before, err := e.FetchAdd(ctx, token, at, uint64(n))
			if failed("fetch and add", err) {
				return
			}
			if before != word {
				h.t.Errorf("fetch and add at %d found %d, not %d", at, before, word)
			}
			binary.NativeEndian.PutUint64(model[at:], word+uint64(n))
		case 4:
			expected := word + uint64(rng.IntN(2))
			before, err := e.CompareSwap(ctx, token, at, expected, uint64(n))
			if failed("compare and swap", err) {
				return
			}
			if before != word {
				h.t.Errorf("compare and swap at %d found %d, not %d", at, before, word)
			}
			if expected == word {
				binary.NativeEndian.PutUint64(model[at:], uint64(n))
			}
		}
	}
}
