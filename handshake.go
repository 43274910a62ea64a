package verbena

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/liveness"
)

// A handshake is a connection that is not handed on yet.
type handshake struct {
	l        *Listener
	conn     net.Conn
	source   string // the admission's
	arrived  time.Time
	deadline time.Time
	ctx      context.Context // ends with the deadline, the listener, or end
	cancel   context.CancelFunc
	heard    bool         // an answer to a hello is what the peer understands now
	first    *hello.Hello // that has been read already, or nil

	// Guarded by the listener's mu.
	place, sourcePlace *list.Element // in the lists of the admission, or nil
	spoken             bool          // a hello has arrived whole
	counted            bool          // in the admission
	ended              hello.Code    // why it has been ended, or 0
}

func newHandshake(l *Listener, conn net.Conn) *handshake {
	h := &handshake{l: l, conn: conn, source: sourceOf(conn), arrived: time.Now()}
	h.deadline = h.arrived.Add(l.cfg.HelloTimeout)
	h.ctx, h.cancel = context.WithDeadline(l.ctx, h.deadline)
	return h
}

// end makes the handshake's waits fail. It needs the listener's mu.
func (h *handshake) end(code hello.Code) {
	if h.ended == 0 {
		h.ended = code
		h.cancel()
		_ = h.conn.SetDeadline(time.Unix(1, 0)) // a closed connection needs none
	}
}

// errLane is no error: the connection has become the lane of an endpoint.
var errLane = errors.New("verbena: a lane")

var errEnded = errors.New("verbena: the handshake had to give way")

// bound gives the connection the handshake's deadline, unless it has been ended.
func (h *handshake) bound() error { return h.setDeadline(h.deadline) }

func (h *handshake) setDeadline(t time.Time) error {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	if h.ended != 0 {
		return errEnded
	}
	return h.conn.SetDeadline(t)
}

// settle ends the time in which the handshake can be ended: nothing but its own
// goroutine touches the connection from here on. It reports false if it has been.
func (h *handshake) settle() bool {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	h.l.admission.settle(h)
	return h.ended == 0
}

func (h *handshake) run() {
	l := h.l
	defer func() {
		h.cancel()
		l.mu.Lock()
		l.admission.leave(h)
		l.mu.Unlock()
	}()
	err := h.bound()
	conn, isHello := h.conn, h.first != nil
	if err == nil && !isHello {
		conn, isHello, err = hello.Sniff(h.conn)
	}
	switch {
	case err != nil:
		h.dismiss(!errors.Is(err, hello.ErrCut), err)
	case !isHello:
		h.passOn(conn)
	default:
		h.serve()
	}
}

// dismiss closes a connection that came to nothing. One that had to give way is
// told so if its peer understands that, and nothing of what it said has been read
// in part.
func (h *handshake) dismiss(whole bool, err error) {
	h.l.mu.Lock()
	code := h.ended
	h.l.mu.Unlock()
	if err != nil {
		h.l.log.Debug("connection dropped", "peer", h.conn.RemoteAddr(), "error", err)
	}
	if code == 0 || !whole {
		_ = h.conn.Close() // it told nothing
		return
	}
	h.l.turnAway(h.conn, h.heard, code, patienceEnded)
}

// passOn hands the connection of a legacy client on.
func (h *handshake) passOn(conn net.Conn) {
	l := h.l
	served := l.legacy.served(h.ctx)
	if !served && h.ctx.Err() == nil {
		tell := l.log.Debug
		l.legacy.told.Do(func() { tell = l.log.Warn })
		tell("connection closed: it does not speak Verbena, and nobody takes such connections here; to serve them, accept from Listener.Legacy",
			"peer", conn.RemoteAddr())
	}
	if !served || h.setDeadline(time.Time{}) != nil || !h.settle() || !l.legacy.put(h.ctx, conn) {
		l.log.Debug("legacy connection dropped", "peer", conn.RemoteAddr(), "served", served)
		_ = conn.Close() // nobody wants it
	}
}

// serve negotiates an endpoint and hands it to its service.
func (h *handshake) serve() {
	l := h.l
	h.heard = true
	e, s, err := h.negotiate()
	if err == errLane {
		return // the connection is an endpoint's
	}
	if e == nil {
		h.l.mu.Lock()
		gaveWay := h.ended != 0
		h.l.mu.Unlock()
		// One that hung up, as a client that is killed does, leaves nobody to tell.
		if err != nil && !gaveWay && !hungUpBy(err) {
			level := slog.LevelWarn
			if refusal := (*hello.Refusal)(nil); errors.As(err, &refusal) && refusal.Code == hello.CodeService {
				level = slog.LevelDebug // who dials is told, and may have come before the service
			} else if exhausted(err) {
				level = l.shortageLevel()
			}
			l.log.Log(context.Background(), level, "handshake failed", "peer", h.conn.RemoteAddr(), "error", err)
		}
		h.dismiss(h.heard, err)
		return
	}
	e.identify(h.conn)
	if !h.settle() || l.r.adopt(e, s.cfg.Group) != nil {
		l.r.discard(e)
		return
	}
	if !s.put(h.ctx, e) {
		l.log.Warn("endpoint dropped: nobody accepts it", "peer", h.conn.RemoteAddr(), "service", e.service)
		l.r.discard(e)
	}
}

// negotiate answers hellos until one led to an endpoint. It returns none, and
// no error, if the peer wanted none.
func (h *handshake) negotiate() (*Endpoint, *Service, error) {
	l := h.l
	seen := len(hello.Magic)
	if c, ok := h.conn.(*net.TCPConn); ok {
		_ = c.SetKeepAliveConfig(liveness.KeepAlive(l.r.cfg.PeerTimeout)) // a socket without it works as well
	}
	for range hello.MaxCandidates + 1 {
		if err := h.bound(); err != nil {
			return nil, nil, err
		}
		offer, err := h.hello(seen)
		for _, f := range offer.Failed {
			l.log.Info("peer could not use a transport", "peer", h.conn.RemoteAddr(), "transport", f.Name, "reason", f.Text)
		}
		if err != nil {
			if r := refusalFor(err); r != nil {
				_ = h.answer(&hello.Answer{Least: hello.LeastVersion, Greatest: hello.Version, Refusal: r}) // it may be gone
				h.heard = false
			}
			return nil, nil, err
		}
		answer, s, shown := h.choose(offer)
		var e *Endpoint
		lane := offer.Service == laneService
		if answer.Accept != nil && !offer.Probe && !lane {
			e = s.cfg.Group.newEndpoint(s.cfg.Tuning, offer.Service, h.conn.LocalAddr(), h.conn.RemoteAddr(), h.selection(offer, answer))
			e.origin, e.trusted, e.inPlace = originOf(h.conn, false), s.cfg.Trusted, s.cfg.InPlace
			e.features = features(l.r.features & offer.Features)
		}
		if shown != nil {
			l.r.tickets.assign(shown, e, s.cfg.Group) // before the peer can show the token
			defer l.r.tickets.end(shown)
		}
		if err := h.answer(answer); err != nil {
			return nil, nil, err
		}
		if answer.Refusal != nil {
			h.heard = false
			return nil, nil, answer.Refusal
		}
		if offer.Probe {
			h.heard = false
			return nil, nil, nil
		}
		switch t := l.r.transport(answer.Accept.Name); {
		case lane:
			h.heard = false
			if err = l.r.env.lanes.attach(h.conn, h.settle); err == nil {
				return nil, nil, errLane
			}
		case t == nil:
			h.heard = false
			err = newStream(h.ctx, e, h.conn)
		case t.streams():
			h.heard = false
			if err = h.setDeadline(time.Time{}); err == nil {
				err = s.cfg.Group.acceptStream(h.ctx, t.devices()[0], e, h.conn)
			}
		default:
			seen, err = h.await(shown)
			if seen > 0 {
				continue // with its next candidate
			}
			if err == nil {
				_ = h.conn.Close() // has done its part
			}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", answer.Accept.Name, err)
		}
		return e, s, nil
	}
	return nil, nil, fmt.Errorf("%w: hellos without end", ErrProtocol)
}

// shortageEvery is how often a listener warns that there is no memory for endpoints. Those
// who are refused for that ask again.
const shortageEvery = 10 * time.Second

// shortageLevel is the level at which to tell of such a refusal.
func (l *Listener) shortageLevel() slog.Level {
	now, told := time.Now().UnixNano(), l.shortageTold.Load()
	if now-told < int64(shortageEvery) || !l.shortageTold.CompareAndSwap(told, now) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// hello returns the next one, of which so many bytes have been read.
func (h *handshake) hello(seen int) (offer hello.Hello, err error) {
	if h.first != nil {
		offer, h.first = *h.first, nil
		return offer, nil
	}
	if offer, err = hello.ReadHello(h.conn, seen); err == nil {
		h.l.mu.Lock()
		h.l.admission.hear(h)
		h.l.mu.Unlock()
	}
	return offer, err
}

// await waits until the peer has shown its token to the device's own port, or
// begins another hello here because it could not connect. In the second case
// it returns how many bytes of the hello it has read.
func (h *handshake) await(t *ticket) (seen int, err error) {
	var first [1]byte
	n, err := h.conn.Read(first[:])
	// Taken once, the attempt comes to an end by itself.
	if h.l.r.tickets.drop(t) {
		if n > 0 {
			t.cancel() // the peer has given it up
		}
		<-t.connected // it has the handshake's deadline
		switch {
		case n == 0 && t.err == nil:
			return 0, nil
		case t.err == nil:
			h.l.r.discard(t.endpoint) // the peer has given it up
		case n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && h.ctx.Err() == nil:
			// It was finish that ended the Read; the peer's hello is to come.
			level := slog.LevelInfo
			if exhausted(t.err) {
				level = h.l.shortageLevel()
			}
			h.l.log.Log(context.Background(), level, "transport could not be connected", "peer", h.conn.RemoteAddr(), "error", t.err)
			if err := h.bound(); err != nil {
				return 0, err
			}
			n, err = h.conn.Read(first[:])
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("waiting for the peer to connect: %w", err)
	}
	if first[0] != hello.Magic[0] {
		h.heard = false
		return 0, hello.ErrNotHello
	}
	return 1, nil
}

func (h *handshake) answer(a *hello.Answer) error {
	out, err := h.l.answerWith(a)
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
