package verbena

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/liveness"
)

// ListenConfig configures a listener. Zero values stand for defaults.
type ListenConfig struct {
	// Services whose endpoints [Listener.Accept] returns, beside those that
	// [Listener.Service] registers. Dials that ask for another one are refused.
	// nil means any, until a service is registered; then, and with a list that is
	// empty but not nil, none.
	Services []string
	// HelloTimeout bounds the time from a connection's arrival until it has
	// been accepted, as an endpoint or a legacy connection. One that stays
	// silent for so long is closed. Default 10 s.
	HelloTimeout time.Duration
	// MaxHandshakes bounds the connections that are being set up, half of it those
	// from one address (one /64 of IPv6, one user of a Unix socket). When there are
	// more, the one that has been incomplete for longest gives way, those first whose
	// hello has not arrived. A new one whose hello arrives whole never waits behind
	// silent ones of its own address; any other is told to come again. Default 4096.
	MaxHandshakes int
	// Backlog bounds the endpoints, and the legacy connections, that wait for
	// an Accept each. Default 128.
	Backlog int
	// Group is that of the endpoints. Default: the runtime's own.
	Group *Group
	// Tuning overrides the group's for the endpoints of this listener.
	Tuning TuningTable
	// Trusted says that whoever dials may read what other peers of the group have
	// sent: see [DialConfig].Trusted.
	Trusted bool
	// InPlace says that long messages may be received as they lie in the memory of who
	// dials: see [DialConfig].InPlace.
	InPlace bool
}

func (c ListenConfig) withDefaults() ListenConfig {
	set(&c.HelloTimeout, 10*time.Second)
	set(&c.MaxHandshakes, 4096)
	set(&c.Backlog, 128)
	return c
}

// A Listener is one port for Verbena peers and everybody else. [Listener.Accept]
// gives the endpoints of the services in [ListenConfig], [Listener.Service]
// registers further ones with queues of their own, and [Listener.Legacy] has the
// connections of those who have never heard of Verbena.
type Listener struct {
	r   *Runtime
	ln  net.Listener
	cfg ListenConfig
	log *slog.Logger

	shortageTold atomic.Int64 // when, in ns since 1970

	own    *Service // of Accept
	legacy legacyQueue

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	stopped chan struct{} // nothing is accepted from ln any more

	mu        sync.Mutex
	closing   bool
	services  map[string]*Service
	others    bool // Accept takes every service that is not registered
	admission admission
	flood     flood
}

// Listen publishes a port at addr: "host:port" for TCP (an empty host means all
// addresses, port 0 any port), "unix:/path" or "unix:@name" for a Unix socket, in
// the file system or in the abstract namespace. The socket of a process that was
// killed gives way to the next listener at its path.
func (r *Runtime) Listen(ctx context.Context, addr string, cfg ListenConfig) (*Listener, error) {
	network, address := splitAddress(addr)
	ln, err := listenAt(ctx, network, address, liveness.KeepAlive(r.cfg.PeerTimeout))
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

// splitAddress takes what Dial and Listen are given apart. A bare path and a bare
// abstract name, as the Addr of a listener prints them, are those of Unix sockets.
func splitAddress(addr string) (network, address string) {
	if name, ok := strings.CutPrefix(addr, "unix:"); ok {
		return "unix", name
	}
	if strings.HasPrefix(addr, "/") || strings.HasPrefix(addr, "@") {
		return "unix", addr
	}
	return "tcp", addr
}

func listenAt(ctx context.Context, network, address string, keepAlive net.KeepAliveConfig) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	ln, err := lc.Listen(ctx, network, address)
	if network != "unix" || strings.HasPrefix(address, "@") || !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	// A process that was killed leaves its socket, at which nobody answers.
	old, dialErr := new(net.Dialer).DialContext(ctx, network, address)
	if dialErr == nil {
		return nil, errors.Join(err, old.Close())
	}
	info, statErr := os.Lstat(address)
	if !errors.Is(dialErr, syscall.ECONNREFUSED) || statErr != nil || info.Mode()&fs.ModeSocket == 0 {
		return nil, err
	}
	if removeErr := os.Remove(address); removeErr != nil {
		return nil, errors.Join(err, removeErr)
	}
	return lc.Listen(ctx, network, address)
}

// NewListener takes connections from ln, which belongs to the listener from
// here on.
func (r *Runtime) NewListener(ln net.Listener, cfg ListenConfig) (*Listener, error) {
	var err error
	if cfg.Group, err = r.group(cfg.Group); err == nil {
		err = cfg.Group.check(cfg.Tuning, cfg.Trusted)
	}
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	l := &Listener{
		r: r, ln: ln, cfg: cfg, log: r.cfg.Logger.With("listener", ln.Addr().String()), stopped: make(chan struct{}),
		services: map[string]*Service{}, others: cfg.Services == nil,
		admission: newAdmission(cfg.MaxHandshakes, min(time.Second, cfg.HelloTimeout/4)),
	}
	l.ctx, l.cancel = context.WithCancel(r.ctx)
	l.own = newService(l, "", ServiceConfig{Backlog: cfg.Backlog, Group: cfg.Group, Tuning: cfg.Tuning, Trusted: cfg.Trusted, InPlace: cfg.InPlace})
	l.legacy.init(cfg.Backlog, cfg.HelloTimeout)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		l.cancel()
		l.legacy.close()
		return nil, fmt.Errorf("verbena: listen on %s: %w", ln.Addr(), ErrClosed)
	}
	r.listeners[l] = struct{}{}
	l.wg.Go(l.run)
	l.wg.Go(func() { l.legacy.watch(l.ctx) })
	return l, nil
}

// Accept waits for the next endpoint of a service that is in
// [ListenConfig.Services].
func (l *Listener) Accept(ctx context.Context) (*Endpoint, error) { return l.own.Accept(ctx) }

// Addr is the published address.
func (l *Listener) Addr() net.Addr { return l.ln.Addr() }

// Close closes the port and everything that has not been accepted. Peers whose
// handshake is not over are told that the server is closing. Endpoints and
// connections that were accepted are left alone.
func (l *Listener) Close() error {
	l.mu.Lock()
	first := !l.closing
	l.closing = true
	l.admission.endAll(hello.CodeClosing)
	l.mu.Unlock()
	if d, ok := l.ln.(interface{ SetDeadline(time.Time) error }); first && ok && d.SetDeadline(time.Now().Add(lastCall)) == nil {
		<-l.stopped // those that had connected already are told, too
	}
	err := l.ln.Close()
	l.cancel()
	l.wg.Wait()
	l.mu.Lock()
	services := []*Service{l.own}
	for _, s := range l.services {
		services = append(services, s)
	}
	l.mu.Unlock()
	for _, s := range services {
		s.end()
	}
	l.legacy.close()
	l.r.mu.Lock()
	delete(l.r.listeners, l)
	l.r.mu.Unlock()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("verbena: close listener: %w", err)
	}
	return nil
}

// lastCall is how long a closing listener takes connections from the system's
// queue; to drain it takes much less.
const lastCall = 5 * time.Millisecond

func (l *Listener) run() {
	defer close(l.stopped)
	const longest = time.Second
	pause := time.Duration(0)
	for {
		conn, err := l.ln.Accept()
		l.mu.Lock()
		closing := l.closing || l.ctx.Err() != nil
		l.mu.Unlock()
		switch {
		case err == nil:
			pause = 0
			l.admit(conn)
			continue
		case closing:
			return
		}
		// Such as too many open files: it may pass, the sooner the more of those who
		// say nothing hang up.
		pause = min(max(2*pause, 5*time.Millisecond), longest)
		l.log.Warn("accept failed, trying again", "error", err, "pause", pause)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			l.mu.Lock()
			l.admission.endOldest(hello.CodeBusy)
			l.mu.Unlock()
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-l.ctx.Done():
			t.Stop()
			return
		}
	}
}

// Patience with what a peer that is told to go has to say: its hello is on its way, or
// here. The answer itself finds an empty buffer.
const (
	patienceBusy    = 250 * time.Millisecond
	patienceClosing = 50 * time.Millisecond
	patienceEnded   = 2 * time.Millisecond
	patienceAnswer  = time.Second // only a full buffer makes it wait
)

// admit begins a handshake, if there is room for it.
func (l *Listener) admit(conn net.Conn) {
	h := newHandshake(l, conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closing && l.letIn(h) {
		l.wg.Go(h.run)
		return
	}
	patience := l.admission.outside
	if l.closing {
		patience = patienceClosing
	}
	place := l.admission.refuse(conn)
	l.wg.Go(func() { l.hearOut(h, place, patience) })
}

// letIn ends who has to give way for h. It reports false if there is no room. It
// needs mu.
func (l *Listener) letIn(h *handshake) bool {
	victim, ok := l.admission.admit(h)
	if victim != nil {
		victim.end(hello.CodeBusy)
		l.flood.note(l.log, victim.conn)
	}
	return ok
}

// hearOut hears a connection for which there was no room. With a whole hello it may
// find some; otherwise it is told to come again.
func (l *Listener) hearOut(h *handshake, place *list.Element, patience time.Duration) {
	var offer hello.Hello
	err := h.conn.SetDeadline(time.Now().Add(patience))
	answerable := false
	if err == nil {
		offer, answerable, err = firstHello(h.conn)
	}
	l.mu.Lock()
	l.admission.refused(place)
	code := hello.CodeClosing
	if !l.closing {
		if code = hello.CodeBusy; err == nil {
			h.first, h.heard, h.spoken = &offer, true, true
			if l.letIn(h) {
				l.mu.Unlock()
				h.run()
				return
			}
		}
		l.flood.note(l.log, h.conn)
	}
	l.mu.Unlock()
	h.cancel()
	if answerable {
		l.sayNo(h.conn, false, code)
	}
	_ = h.conn.Close() // it is told already
}

// firstHello reads the hello of a connection that has not been heard yet, and tells
// whether an answer would be understood.
func firstHello(conn net.Conn) (offer hello.Hello, answerable bool, err error) {
	_, isHello, err := hello.Sniff(conn)
	if err == nil && !isHello {
		err = hello.ErrNotHello
	}
	if err != nil {
		return offer, false, err
	}
	// What it says may not matter, but it must not be unread: the system would take
	// the answer back.
	offer, err = hello.ReadHello(conn, len(hello.Magic))
	return offer, !errors.Is(err, os.ErrDeadlineExceeded), err
}

// turnAway says no to a peer that speaks Verbena, whether its magic has been
// heard already or is still to come, and closes the connection of any other.
func (l *Listener) turnAway(conn net.Conn, heard bool, code hello.Code, patience time.Duration) {
	defer conn.Close()
	now := time.Now()
	if conn.SetReadDeadline(now.Add(patience)) != nil || conn.SetWriteDeadline(now.Add(patienceAnswer)) != nil {
		return
	}
	if !heard {
		if _, answerable, _ := firstHello(conn); !answerable {
			return
		}
	}
	l.sayNo(conn, heard, code)
}

// sayNo answers a hello with a refusal. heard tells that more may come.
func (l *Listener) sayNo(conn net.Conn, heard bool, code hello.Code) {
	text := "the server is closing"
	if code == hello.CodeBusy {
		text = "too many handshakes, try again"
	}
	out, err := l.answerWith(&hello.Answer{Least: hello.LeastVersion, Greatest: hello.Version, Refusal: &hello.Refusal{Code: code, Text: text}})
	if err != nil {
		return
	}
	if _, err := conn.Write(out); err != nil {
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok && heard && half.CloseWrite() == nil {
		rest := make([]byte, hello.MaxSize)
		for n := 0; n < hello.MaxSize; {
			k, err := conn.Read(rest)
			if n += k; err != nil {
				return
			}
		}
	}
}

func (l *Listener) answerWith(a *hello.Answer) ([]byte, error) {
	a.Host, a.Network, a.Software, a.Features = l.r.host[:], l.r.network, software, l.r.features
	return a.Encode()
}

// serviceFor returns who takes endpoints of a service, or nil.
func (l *Listener) serviceFor(name string) *Service {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.services[name]; s != nil {
		return s
	}
	if l.others || slices.Contains(l.cfg.Services, name) {
		return l.own
	}
	return nil
}

// A flood counts the connections that had to go for want of room, and tells of
// them once a second.
type flood struct {
	dropped int
	next    time.Time
}

// note needs the listener's mu.
func (f *flood) note(log *slog.Logger, conn net.Conn) {
	f.dropped++
	now := time.Now()
	if now.Before(f.next) {
		return
	}
	log.Warn("too many handshakes: connections dropped", "dropped", f.dropped, "last", conn.RemoteAddr())
	f.dropped, f.next = 0, now.Add(time.Second)
}
