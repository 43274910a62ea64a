package perf

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
)

// preface begins a TCP connection to the server's port that is to become a
// queue pair; a token follows.
const preface = "VBPERF1\n"

// privateSize is what travels with a connection request: the session's token
// and the number of the connection, big-endian.
const privateSize = tokenSize + 2

const (
	// setupTimeout bounds each step of setting a session up.
	setupTimeout = 30 * time.Second
	// sessionTimeout bounds a session, so that a client that does nothing does not
	// keep the server's loops spinning for ever.
	sessionTimeout = time.Hour
	// farewell is how long a client may take to read why its measurement failed.
	farewell = time.Second
	// maxSessions are served at a time.
	maxSessions = 64
	// maxPrefaces bounds the connections that are reading their preface.
	maxPrefaces = 1024
)

// ServerConfig configures a server.
type ServerConfig struct {
	Address   string // to listen at, "host:port"
	Providers []rdma.Provider
	// Device names the one to use where a provider has several; else the first.
	Device string
	// Tuning is that of the endpoints, but for how they wait, which a plan says.
	Tuning verbena.TuningTable
	Logger *slog.Logger
}

// A Server is the passive end of measurements, for any number of clients, one
// after the other or together.
type Server struct {
	cfg      ServerConfig
	runtime  *verbena.Runtime
	listener *verbena.Listener
	cancel   context.CancelFunc
	ctx      context.Context
	wg       sync.WaitGroup
	slots    chan struct{}
	prefaces chan struct{}

	measurements atomic.Uint64 // with endpoints, ever

	mu      sync.Mutex
	streams map[[tokenSize]byte]*session
	lent    int64 // memory of all sessions
}

// Listen opens the port and serves until Close.
func Listen(ctx context.Context, cfg ServerConfig) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := checkDevice(ctx, cfg.Providers, cfg.Device); err != nil {
		return nil, err
	}
	rt, err := newRuntime(cfg.Providers, cfg.Tuning, cfg.Logger)
	if err != nil {
		return nil, err
	}
	ln, err := rt.Listen(ctx, cfg.Address, verbena.ListenConfig{Services: []string{Service}, Backlog: maxConnections})
	if err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	s := &Server{
		cfg: cfg, runtime: rt, listener: ln, slots: make(chan struct{}, maxSessions), prefaces: make(chan struct{}, maxPrefaces),
		streams: map[[tokenSize]byte]*session{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.acceptSessions)
	s.wg.Go(s.acceptStreams)
	return s, nil
}

// Addr is the published address.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close ends all sessions.
func (s *Server) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.wg.Wait()
	return errors.Join(err, s.runtime.Close())
}

func (s *Server) acceptSessions() {
	for {
		e, err := s.listener.Accept(s.ctx)
		if err != nil {
			return
		}
		select {
		case s.slots <- struct{}{}:
		default:
			_ = control{e}.send(s.ctx, kindRefusal, refusal{Reason: fmt.Sprintf("%d measurements are running, try again later", maxSessions)})
			_ = e.Close() // the peer has been told why
			continue
		}
		s.wg.Go(func() {
			s.session(e)
			<-s.slots
		})
	}
}

func (s *Server) session(e *verbena.Endpoint) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = e.Close() }) // ends its Receive
	defer func() {
		stop()
		_ = e.Close() // the client has what it needs
	}()
	c := control{e}
	err := s.serve(ctx, c)
	if err == nil || s.ctx.Err() != nil || e.Err() != nil {
		return // nobody waits for an answer
	}
	// The client is told, if it is there: its data connections end with it, too, and may
	// be the first to say so.
	ctx, cancelFarewell := context.WithTimeout(ctx, farewell)
	defer cancelFarewell()
	if c.send(ctx, kindRefusal, refusal{Reason: err.Error()}) == nil {
		select {
		case <-e.Done():
		case <-ctx.Done():
		}
	}
	if s.ctx.Err() != nil || errors.Is(e.Err(), verbena.ErrPeerDied) {
		s.cfg.Logger.Debug("measurement ended: its client or this server is gone", "peer", e.RemoteAddr(), "error", err)
		return
	}
	s.cfg.Logger.Warn("measurement failed", "peer", e.RemoteAddr(), "error", err)
}

// serve is one measurement.
func (s *Server) serve(ctx context.Context, c control) (err error) {
	setup, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	body, err := c.receive(setup, kindPlan)
	if err != nil {
		return err
	}
	plan, err := decodePlan(body)
	if err != nil {
		return err
	}
	need := plan.memory()
	if err := s.lend(need); err != nil {
		return err
	}
	defer s.giveBack(need)
	ctx, end := context.WithTimeoutCause(ctx, sessionTimeout, fmt.Errorf("perf: a measurement may take %s", sessionTimeout))
	defer end()
	if plan.Level != LevelVerbs {
		return s.serveEndpoints(ctx, setup, c, plan)
	}
	return s.serveQueuePairs(ctx, setup, c, plan)
}

// lend sets memory aside for a session.
func (s *Server) lend(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lent+n > maxMemory {
		return fmt.Errorf("perf: %d MiB are wanted, other measurements leave %d of %d: try again later", n>>20, (maxMemory-s.lent)>>20, int64(maxMemory)>>20)
	}
	s.lent += n
	return nil
}

func (s *Server) giveBack(n int64) {
	s.mu.Lock()
	s.lent -= n
	s.mu.Unlock()
}

func (s *Server) serveQueuePairs(ctx, setup context.Context, c control, plan *Plan) (err error) {
	dev, err := findDevice(setup, s.cfg.Providers, plan.Transport, s.cfg.Device)
	if err != nil {
		return err
	}
	side, err := newSide(plan, dev, false)
	if err != nil {
		return err
	}
	var loops sync.WaitGroup
	defer func() {
		side.stop(errStopped)
		loops.Wait()
		err = errors.Join(err, side.close())
	}()
	if err := s.connect(setup, c, dev, side); err != nil {
		return err
	}
	peer, err := receiveMemory(setup, c)
	if err != nil {
		return err
	}
	side.meet(peer)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, l := range side.lanes {
		loops.Go(func() {
			err := l.respond()
			side.stop(err)
			if !errors.Is(side.err, errStopped) {
				cancel(side.err) // the client is told
			}
		})
	}
	if err := c.send(setup, kindMemory, memory{Address: side.region.Address(), Key: side.region.Key()}); err != nil {
		return err
	}
	used, err := meter(ctx, c)
	if err != nil {
		return err
	}
	r := result{CPU: int64(used), Resident: resident(), Registered: int64(len(side.bytes))}
	side.stop(errStopped)
	loops.Wait()
	for _, l := range side.lanes {
		r.Messages += l.messages.Load()
		r.Verified += l.verified.Load()
	}
	return c.send(ctx, kindResult, r)
}

func (s *Server) serveEndpoints(ctx, setup context.Context, c control, plan *Plan) (err error) {
	var token [tokenSize]byte
	if _, err := rand.Read(token[:]); err != nil {
		return fmt.Errorf("perf: token: %w", err)
	}
	service := dataService(token[:])
	group, err := s.runtime.NewGroup(verbena.GroupConfig{Name: fmt.Sprintf("measurement %d", s.measurements.Add(1))})
	if err != nil {
		return err
	}
	t := &talk{plan: plan, runtime: s.runtime, group: group, token: token[:], log: s.cfg.Logger}
	ctx, cancel := context.WithCancelCause(ctx)
	var loops sync.WaitGroup
	defer func() {
		cancel(nil)
		loops.Wait()
		err = errors.Join(err, t.close())
	}()
	if plan.overStreams() {
		return s.serveStreams(ctx, setup, c, t)
	}
	ln, err := s.listener.Service(service, verbena.ServiceConfig{Backlog: plan.Connections, Group: group, Tuning: plan.tuning()})
	if err != nil {
		return err
	}
	if err := c.send(setup, kindOffer, offer{Token: token[:]}); err != nil {
		return errors.Join(err, ln.Close())
	}
	if err := t.accept(setup, ln); err != nil {
		return errors.Join(err, ln.Close())
	}
	if err := ln.Close(); err != nil {
		return err
	}
	if _, err := receiveMemory(setup, c); err != nil {
		return err
	}
	serving, done := context.WithCancel(ctx)
	defer done()
	respond := t.respond
	switch {
	case plan.Level == LevelRPC:
		respond = t.serveEcho
	case plan.onCalls():
		respond = t.serveCalls
	}
	for i := range t.endpoints {
		loops.Go(func() {
			if err := respond(serving, i); err != nil && serving.Err() == nil {
				cancel(err)
				t.fail(err)
			}
		})
	}
	if err := c.send(setup, kindMemory, memory{}); err != nil {
		return err
	}
	used, err := meter(ctx, c)
	if err != nil {
		return err
	}
	r := result{CPU: int64(used), Resident: resident(), Registered: t.registered()}
	done()
	loops.Wait()
	r.Messages, r.Verified = t.messages.Load(), t.verified.Load()
	return c.send(ctx, kindResult, r)
}

// serveStreams serves Hadoop RPC as foreign clients speak it, at a port of its own.
func (s *Server) serveStreams(ctx, setup context.Context, c control, t *talk) (err error) {
	host, _, err := net.SplitHostPort(c.endpoint.LocalAddr().String())
	if err != nil {
		return fmt.Errorf("perf: the address that the client has dialled: %w", err)
	}
	address, stop, err := t.listenEcho(ctx, host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := c.send(setup, kindOffer, offer{Token: t.token, Address: address}); err != nil {
		return err
	}
	if _, err := receiveMemory(setup, c); err != nil {
		return err
	}
	if err := c.send(setup, kindMemory, memory{}); err != nil {
		return err
	}
	used, err := meter(ctx, c)
	if err != nil {
		return err
	}
	return c.send(ctx, kindResult, result{CPU: int64(used), Resident: resident(), Messages: t.messages.Load()})
}

// meter returns the processor time from the client's mark to its stop. The
// client may take as long as it likes; when it goes away, the endpoint ends.
func meter(ctx context.Context, c control) (time.Duration, error) {
	if _, err := c.receive(ctx, kindMark); err != nil {
		return 0, err
	}
	before, err := processorTime()
	if err != nil {
		return 0, err
	}
	if err := c.send(ctx, kindMark, struct{}{}); err != nil {
		return 0, err
	}
	if _, err := c.receive(ctx, kindStop); err != nil {
		return 0, err
	}
	after, err := processorTime()
	return after - before, err
}

func receiveMemory(ctx context.Context, c control) (memory, error) {
	var m memory
	body, err := c.receive(ctx, kindMemory)
	if err == nil {
		err = decode(body, &m)
	}
	return m, err
}

// checkDevice refuses the name of a device that no provider has; empty is the first of each.
func checkDevice(ctx context.Context, providers []rdma.Provider, device string) error {
	if device == "" {
		return nil
	}
	var there []string
	for _, p := range providers {
		devices, _ := p.Devices(ctx) // why there are none, [findDevice] tells who wants one
		for _, d := range devices {
			if d.Attributes().Name == device {
				return nil
			}
			there = append(there, d.Attributes().Name)
		}
	}
	return fmt.Errorf("perf: %w: no device %q among %q", rdma.ErrUnavailable, device, there)
}

// findDevice returns a provider's device of a name, or its first.
func findDevice(ctx context.Context, providers []rdma.Provider, name, device string) (rdma.Device, error) {
	var names []string
	for _, p := range providers {
		if p.Name() != name {
			names = append(names, p.Name())
			continue
		}
		devices, err := p.Devices(ctx)
		if err != nil {
			return nil, fmt.Errorf("perf: transport %s: %w", name, err)
		}
		var there []string
		for _, d := range devices {
			if device == "" || d.Attributes().Name == device {
				return d, nil
			}
			there = append(there, d.Attributes().Name)
		}
		return nil, fmt.Errorf("perf: transport %s: %w: no device %q among %q", name, rdma.ErrUnavailable, device, there)
	}
	return nil, fmt.Errorf("perf: there is no transport %q here, but %q", name, names)
}

// A session waits for the connections of one client.
type session struct {
	token   [tokenSize]byte
	streams chan net.Conn
}

// connect makes the client's connections.
func (s *Server) connect(ctx context.Context, c control, dev rdma.Device, side *side) error {
	x := &session{streams: make(chan net.Conn, len(side.conns))}
	if _, err := rand.Read(x.token[:]); err != nil {
		return fmt.Errorf("perf: token: %w", err)
	}
	o := offer{Token: x.token[:]}
	var next func() (rdma.ConnectRequest, error)
	if streams, ok := asStreams(dev); ok {
		s.mu.Lock()
		s.streams[x.token] = x
		s.mu.Unlock()
		defer s.forget(x)
		next = func() (rdma.ConnectRequest, error) {
			select {
			case conn := <-x.streams:
				return streams.RequestFromStream(ctx, conn)
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	} else {
		ln, err := dev.Listen(ctx, "")
		if err != nil {
			return fmt.Errorf("perf: listen on %s: %w", dev.Attributes().Name, err)
		}
		defer ln.Close()
		o.Address = ln.Address()
		next = func() (rdma.ConnectRequest, error) { return ln.Accept(ctx) }
	}
	if err := c.send(ctx, kindOffer, o); err != nil {
		return err
	}
	// The client may go away instead of connecting.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	s.wg.Go(func() {
		select {
		case <-c.endpoint.Done():
			cancel(fmt.Errorf("perf: the client is gone: %w", c.endpoint.Err()))
		case <-stop:
		}
	})
	seen := make([]bool, len(side.conns))
	for left := len(side.conns); left > 0; {
		request, err := next()
		if err != nil {
			return fmt.Errorf("perf: waiting for %d more connections: %w", left, err)
		}
		i, err := x.connection(request.PrivateData(), seen)
		if err != nil {
			_ = request.Reject(nil) // not one of this session
			s.cfg.Logger.Warn("connection rejected", "peer", request.RemoteAddress(), "error", err)
			continue
		}
		if err := request.Accept(ctx, side.conns[i].qp, nil); err != nil {
			return fmt.Errorf("perf: accept connection %d of %s: %w", i+1, request.RemoteAddress(), err)
		}
		seen[i] = true
		left--
	}
	return nil
}

// connection tells which of the session's connections a request is for.
func (x *session) connection(private []byte, seen []bool) (int, error) {
	if len(private) < privateSize || string(private[:tokenSize]) != string(x.token[:]) {
		return 0, errors.New("perf: it does not show the session's token")
	}
	i := int(binary.BigEndian.Uint16(private[tokenSize:]))
	if i >= len(seen) || seen[i] {
		return 0, fmt.Errorf("perf: connection %d is not expected", i+1)
	}
	return i, nil
}

func asStreams(dev rdma.Device) (rdma.StreamDevice, bool) {
	d, ok := dev.(rdma.StreamDevice)
	return d, ok && dev.Attributes().Has(rdma.CapStreams)
}

func (s *Server) forget(x *session) {
	s.mu.Lock()
	delete(s.streams, x.token)
	s.mu.Unlock()
	for {
		select {
		case conn := <-x.streams:
			_ = conn.Close() // nobody waits for it any more
		default:
			return
		}
	}
}

// acceptStreams takes the connections that begin with the preface.
func (s *Server) acceptStreams() {
	legacy := s.listener.Legacy()
	for {
		conn, err := legacy.Accept()
		if err != nil {
			return
		}
		select {
		case s.prefaces <- struct{}{}:
		default:
			_ = conn.Close() // too many read their preface already
			continue
		}
		s.wg.Go(func() {
			if err := s.route(conn); err != nil {
				s.cfg.Logger.Warn("connection dropped", "peer", conn.RemoteAddr(), "error", err)
				_ = conn.Close() // it is not for us
			}
			<-s.prefaces
		})
	}
}

// route reads a stream's preface and gives it to its session.
func (s *Server) route(conn net.Conn) error {
	// Close of the server does not wait for silent ones.
	stop := context.AfterFunc(s.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetReadDeadline(time.Now().Add(setupTimeout)); err != nil {
		return err
	}
	var head [len(preface) + tokenSize]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return fmt.Errorf("perf: preface: %w", err)
	}
	if string(head[:len(preface)]) != preface {
		return errors.New("perf: it speaks neither Verbena nor perf")
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if !stop() {
		return net.ErrClosed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.streams[[tokenSize]byte(head[len(preface):])]
	if x == nil {
		return errors.New("perf: no session has its token")
	}
	select {
	case x.streams <- conn:
		return nil
	default:
		return errors.New("perf: its session has all connections")
	}
}
