package verbena

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
)

// A Listener is one TCP port for Verbena peers and everybody else.
type Listener struct {
	r   *Runtime
	ln  net.Listener
	cfg ListenConfig
	log *slog.Logger

	endpoints chan *Endpoint
	legacy    chan net.Conn

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex
	handshakes int
	silent     list.List // of *handshake: those that have said nothing yet, oldest first
}

// Listen publishes a TCP port at addr ("host:port"; an empty host means all
// addresses, port 0 any port).
func (r *Runtime) Listen(ctx context.Context, addr string, cfg ListenConfig) (*Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("verbena: listen: %w", err)
	}
	l, err := r.NewListener(ln, cfg)
	if err != nil {
		_ = ln.Close() // was never used
		return nil, err
	}
	return l, nil
}

// NewListener takes connections from ln, which belongs to the listener from
// here on.
func (r *Runtime) NewListener(ln net.Listener, cfg ListenConfig) (*Listener, error) {
	cfg = cfg.withDefaults()
	l := &Listener{
		r: r, ln: ln, cfg: cfg, log: r.cfg.Logger.With("listener", ln.Addr().String()),
		endpoints: make(chan *Endpoint, cfg.Backlog), legacy: make(chan net.Conn, cfg.Backlog),
	}
	l.ctx, l.cancel = context.WithCancel(r.ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		l.cancel()
		return nil, fmt.Errorf("verbena: listen on %s: %w", ln.Addr(), ErrClosed)
	}
	r.listeners[l] = struct{}{}
	l.wg.Go(l.run)
	return l, nil
}

// Accept waits for the next endpoint of a Verbena peer.
func (l *Listener) Accept(ctx context.Context) (*Endpoint, error) {
	select {
	case e := <-l.endpoints:
		return e, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("verbena: accept on %s: %w", l.Addr(), context.Cause(ctx))
	case <-l.ctx.Done():
		return nil, fmt.Errorf("verbena: accept on %s: %w", l.Addr(), ErrClosed)
	}
}

// Legacy returns the listener of the connections that do not begin with a
// hello. They are handed on with every byte in place, as *net.TCPConn where
// that is possible. Closing it closes nothing: the port is l's. Until somebody
// accepts them, as many wait as the backlog holds.
func (l *Listener) Legacy() net.Listener { return &legacyListener{l: l, closed: make(chan struct{})} }

// Addr is the published address.
func (l *Listener) Addr() net.Addr { return l.ln.Addr() }

// Close closes the port and everything that has not been accepted. Endpoints
// and connections that were are left alone.
func (l *Listener) Close() error {
	l.cancel()
	err := l.ln.Close()
	l.wg.Wait()
	for {
		select {
		case e := <-l.endpoints:
			l.r.discard(e)
			continue
		case c := <-l.legacy:
			_ = c.Close() // was never accepted
			continue
		default:
		}
		break
	}
	l.r.mu.Lock()
	delete(l.r.listeners, l)
	l.r.mu.Unlock()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("verbena: close listener: %w", err)
	}
	return nil
}

func (l *Listener) run() {
	const longest = time.Second
	pause := time.Duration(0)
	for {
		conn, err := l.ln.Accept()
		if l.ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // too late
			}
			return
		}
		if err != nil {
			// Such as too many open files: it may pass.
			pause = min(max(2*pause, 5*time.Millisecond), longest)
			l.log.Warn("accept failed, trying again", "error", err, "pause", pause)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-l.ctx.Done():
				t.Stop()
				return
			}
			continue
		}
		pause = 0
		if h := l.admit(conn); h != nil {
			l.wg.Go(h.run)
		} else {
			_ = conn.Close() // a flood
		}
	}
}

// admit makes room for a handshake. When there are too many, the one that has
// been silent for longest gives way, so that a flood of idle connections does
// not keep those out that have something to say.
func (l *Listener) admit(conn net.Conn) *handshake {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handshakes >= l.cfg.MaxHandshakes {
		oldest := l.silent.Front()
		if oldest == nil {
			l.log.Warn("connection dropped: too many handshakes", "peer", conn.RemoteAddr())
			return nil
		}
		l.silent.Remove(oldest)
		victim := oldest.Value.(*handshake)
		victim.place, victim.evicted = nil, true
		l.handshakes--
		_ = victim.conn.Close() // ends its handshake
		l.log.Warn("silent connection dropped: too many handshakes", "peer", victim.conn.RemoteAddr())
	}
	l.handshakes++
	h := &handshake{l: l, conn: conn, deadline: time.Now().Add(l.cfg.HelloTimeout)}
	h.place = l.silent.PushBack(h)
	return h
}

// A handshake is a connection that is not handed on yet.
type handshake struct {
	l        *Listener
	conn     net.Conn
	deadline time.Time
	place    *list.Element // in l.silent, or nil
	evicted  bool          // counts as a handshake no more; l.mu
}

// spoken ends the silence, also if it ends without a word: what is over gives way
// to nobody. It reports false if the connection has given way already.
func (h *handshake) spoken() bool {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	if h.place != nil {
		h.l.silent.Remove(h.place)
		h.place = nil
	}
	return !h.evicted
}

func (h *handshake) run() {
	l := h.l
	ctx, cancel := context.WithDeadline(l.ctx, h.deadline)
	stop := context.AfterFunc(l.ctx, func() { _ = h.conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		stop()
		cancel()
		l.mu.Lock()
		if !h.evicted {
			l.handshakes--
		}
		l.mu.Unlock()
	}()
	conn, isHello, err := hello.Sniff(h.conn, h.deadline)
	if in := h.spoken(); err != nil || !in {
		l.log.Debug("connection dropped", "peer", h.conn.RemoteAddr(), "error", err)
		_ = h.conn.Close() // it told nothing
		return
	}
	if !isHello {
		if !stop() || !handOver(ctx, l.legacy, conn) {
			l.log.Debug("legacy connection dropped: nobody accepts it", "peer", conn.RemoteAddr())
			_ = conn.Close() // nobody wants it
		}
		return
	}
	e, err := h.negotiate(ctx)
	if err != nil {
		l.log.Warn("handshake failed", "peer", h.conn.RemoteAddr(), "error", err)
	}
	if e == nil {
		_ = h.conn.Close() // is told nothing more
		return
	}
	if err := l.r.adopt(e); err != nil {
		l.r.discard(e)
		return
	}
	// From here on nothing but the endpoint itself touches its connection.
	if !stop() || !handOver(ctx, l.endpoints, e) {
		l.log.Warn("endpoint dropped: nobody accepts it", "peer", h.conn.RemoteAddr(), "service", e.service)
		l.r.discard(e)
	}
}

func handOver[T any](ctx context.Context, to chan<- T, value T) bool {
	select {
	case to <- value:
		return true
	default:
	}
	select {
	case to <- value:
		return true
	case <-ctx.Done():
		return false
	}
}

// negotiate answers hellos until one led to an endpoint. It returns none, and
// no error, if the peer wanted none.
func (h *handshake) negotiate(ctx context.Context) (*Endpoint, error) {
	l := h.l
	seen := len(hello.Magic)
	if c, ok := h.conn.(*net.TCPConn); ok {
		_ = c.SetKeepAliveConfig(keepAlive) // a socket without it works as well
	}
	for range hello.MaxCandidates + 1 {
		if err := h.conn.SetDeadline(h.deadline); err != nil {
			return nil, err
		}
		if err := l.ctx.Err(); err != nil { // its deadline may have been overwritten
			return nil, err
		}
		offer, err := hello.ReadHello(h.conn, seen)
		for _, f := range offer.Failed {
			l.log.Info("peer could not use a transport", "peer", h.conn.RemoteAddr(), "transport", f.Name, "reason", f.Text)
		}
		if err != nil {
			if r := refusalFor(err); r != nil {
				_ = h.answer(&hello.Answer{Least: hello.LeastVersion, Greatest: hello.Version, Refusal: r}) // it may be gone
			}
			return nil, err
		}
		answer, shown := h.choose(offer)
		var e *Endpoint
		if answer.Accept != nil && !offer.Probe {
			e = newEndpoint(l.r, offer.Service, h.conn.LocalAddr(), h.conn.RemoteAddr(), h.selection(offer, answer))
		}
		if shown != nil {
			l.r.tickets.assign(shown, e) // before the peer can show the token
			defer l.r.tickets.drop(shown)
		}
		if err := h.answer(answer); err != nil {
			return nil, err
		}
		if answer.Refusal != nil {
			return nil, answer.Refusal
		}
		if offer.Probe {
			return nil, nil
		}
		switch t := l.r.transport(answer.Accept.Name); {
		case t == nil:
			err = newStream(ctx, e, h.conn)
		case t.streams():
			if err = h.conn.SetDeadline(time.Time{}); err == nil {
				err = t.devices[0].acceptStream(ctx, e, h.conn)
			}
		default:
			seen, err = h.await(ctx, shown)
			if seen > 0 {
				continue // with its next candidate
			}
			if err == nil {
				_ = h.conn.Close() // has done its part
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", answer.Accept.Name, err)
		}
		return e, nil
	}
	return nil, fmt.Errorf("%w: hellos without end", ErrProtocol)
}

// await waits until the peer has shown its token to the device's own port, or
// begins another hello here because it could not connect. In the second case
// it returns how many bytes of the hello it has read.
func (h *handshake) await(ctx context.Context, t *ticket) (seen int, err error) {
	var first [1]byte
	n, err := h.conn.Read(first[:])
	// Taken once, the attempt comes to an end by itself.
	if h.l.r.tickets.drop(t) {
		<-t.connected // it has the handshake's deadline
		switch {
		case n == 0 && t.err == nil:
			return 0, nil
		case t.err == nil:
			h.l.r.discard(t.endpoint) // the peer has given it up
		case n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil:
			// It was finish that ended the Read; the peer's hello is to come.
			h.l.log.Info("transport could not be connected", "peer", h.conn.RemoteAddr(), "error", t.err)
			if err := h.conn.SetDeadline(h.deadline); err != nil {
				return 0, err
			}
			n, err = h.conn.Read(first[:])
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("waiting for the peer to connect: %w", err)
	}
	if first[0] != hello.Magic[0] {
		return 0, hello.ErrNotHello
	}
	return 1, nil
}

func (h *handshake) answer(a *hello.Answer) error {
	a.Host, a.Software = h.l.r.host[:], software
	out, err := a.Encode()
	if err != nil {
		return err
	}
	_, err = h.conn.Write(out)
	return err
}

func refusalFor(err error) *hello.Refusal {
	var version *hello.VersionError
	var unknown *hello.CriticalError
	switch {
	case errors.As(err, &version):
		return &hello.Refusal{Code: hello.CodeVersion, Text: err.Error()}
	case errors.As(err, &unknown):
		return &hello.Refusal{Code: hello.CodeCritical, Text: err.Error()}
	case errors.Is(err, hello.ErrMalformed):
		return &hello.Refusal{Code: hello.CodeMalformed, Text: err.Error()}
	}
	return nil
}

// choose takes the first candidate that this side can serve, and says of the
// others why not.
func (h *handshake) choose(offer hello.Hello) (*hello.Answer, *ticket) {
	l := h.l
	refuse := func(code hello.Code, text string) *hello.Answer {
		return &hello.Answer{Least: hello.LeastVersion, Greatest: hello.Version, Refusal: &hello.Refusal{Code: code, Text: text}}
	}
	version, err := hello.Choose(offer.Least, offer.Greatest)
	if err != nil {
		return refuse(hello.CodeVersion, err.Error()), nil
	}
	if !offer.Probe && len(l.cfg.Services) > 0 && !slices.Contains(l.cfg.Services, offer.Service) {
		return refuse(hello.CodeService, fmt.Sprintf("%s is not offered here", offer.Service)), nil
	}
	answer := &hello.Answer{Least: version, Greatest: version}
	sameHost := string(offer.Host) == string(l.r.host[:])
	for _, c := range offer.Candidates {
		accept, t, err := h.consider(c, sameHost, offer.Probe)
		if err == nil {
			answer.Accept = accept
			return answer, t
		}
		answer.Verdicts = append(answer.Verdicts, hello.Verdict{Name: c.Name, Text: err.Error()})
	}
	answer = refuse(hello.CodeNoTransport, "none of the candidates can be used")
	answer.Verdicts = nil
	for _, c := range offer.Candidates {
		if _, _, err := h.consider(c, sameHost, true); err != nil {
			answer.Verdicts = append(answer.Verdicts, hello.Verdict{Name: c.Name, Text: err.Error()})
		}
	}
	return answer, nil
}

// consider tells whether a candidate can be served.
func (h *handshake) consider(c hello.Candidate, sameHost, probe bool) (*hello.Accept, *ticket, error) {
	if c.Name == TransportTCP {
		return &hello.Accept{Name: c.Name}, nil, nil
	}
	t := h.l.r.transport(c.Name)
	switch {
	case t == nil:
		return nil, nil, errors.New("no such provider there")
	case t.unavailable != nil:
		return nil, nil, t.unavailable
	case !t.crossesHosts() && !sameHost:
		return nil, nil, errors.New("it is on another host")
	case t.streams():
		return &hello.Accept{Name: c.Name}, nil, nil
	}
	dev, err := t.reaching(hello.DecodeAddresses(c.Parameters)...)
	if err != nil {
		return nil, nil, err
	}
	address, err := dev.listen()
	if err != nil {
		return nil, nil, err
	}
	accept := &hello.Accept{Name: c.Name, Address: address}
	if probe {
		return accept, nil, nil
	}
	token := h.l.r.tickets.issue(h)
	accept.Token = token.token[:]
	return accept, token, nil
}

// selection is how this side sees the choice.
func (h *handshake) selection(offer hello.Hello, answer *hello.Answer) Selection {
	s := Selection{Peer: h.conn.RemoteAddr().String(), SameHost: string(offer.Host) == string(h.l.r.host[:])}
	for _, c := range offer.Candidates {
		s.Candidates = append(s.Candidates, Candidate{Transport: c.Name})
	}
	for _, f := range offer.Failed {
		if s.candidate(f.Name) == nil {
			s.Candidates = append(s.Candidates, Candidate{Transport: f.Name, Reason: "the peer: " + f.Text})
		}
	}
	for _, v := range answer.Verdicts {
		s.note(v.Name, v.Text)
	}
	s.choose(answer.Accept.Name, "the first of the peer's candidates that can be used")
	return s
}

type legacyListener struct {
	l      *Listener
	once   sync.Once
	closed chan struct{}
}

func (l *legacyListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.l.legacy:
		return c, nil
	case <-l.l.ctx.Done():
	case <-l.closed:
	}
	return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: net.ErrClosed}
}

func (l *legacyListener) Addr() net.Addr { return l.l.Addr() }

func (l *legacyListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}
