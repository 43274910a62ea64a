package verbena

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/liveness"
)

// One-sided operations over TCP have a connection of their own, their lane, so that
// they do not wait behind messages that nobody receives. The dialling end opens it when
// it first exposes something or operates. Its reader waits for no application: what a
// peer puts goes to memory that is there, and at most streamOperations answers wait.

const (
	// laneService is what the hello of a lane asks for.
	laneService = "verbena.lane/1"
	ticketSize  = 16
	// laneTimeout bounds the set-up of a lane. Without one operations go with the messages.
	laneTimeout = 5 * time.Second
)

type laneTicket [ticketSize]byte

// lanes are the endpoints of a runtime that wait for a lane.
type lanes struct {
	mu      sync.Mutex
	waiting map[laneTicket]*stream
}

// issue makes the ticket of an endpoint. The first who shows it gets in.
func (l *lanes) issue(s *stream) (t laneTicket) {
	_, _ = rand.Read(t[:]) // never fails
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = map[laneTicket]*stream{}
	}
	l.waiting[t] = s
	return t
}

func (l *lanes) take(t laneTicket) *stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.waiting[t]
	delete(l.waiting, t)
	return s
}

// A sideLane is a stream's, of which only what writes frames is used, and the connection.
type sideLane struct {
	*stream
	turn chan struct{} // held to send an operation
}

// hasLane tells whether both ends know lanes.
func (s *stream) hasLane() bool { return s.e.features.has(hello.FeatureLane) }

// wantLane opens the lane, once, if it is for this end to do so.
func (s *stream) wantLane(ctx context.Context) {
	if s.e.openLane == nil || s.laneTried.Load() {
		return
	}
	select {
	case s.laneTurn <- struct{}{}:
	case <-ctx.Done():
		return
	case <-s.e.done:
		return
	}
	defer func() { <-s.laneTurn }()
	if s.laneTried.Load() {
		return
	}
	attempt, cancel := context.WithTimeout(ctx, laneTimeout)
	defer cancel()
	conn, err := s.openLane(attempt)
	if err != nil && ctx.Err() != nil {
		return // somebody more patient may come
	}
	if err != nil {
		s.e.env.log.Warn("one-sided operations go with the messages", "peer", s.e.remote, "error", err)
	} else {
		s.join(conn)
	}
	s.laneTried.Store(true)
}

// openLane dials, and shows the ticket.
func (s *stream) openLane(ctx context.Context) (conn net.Conn, err error) {
	if conn, err = s.e.openLane(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close() // is not used
		}
	}()
	limit, _ := ctx.Deadline()
	stop, err := bindContext(ctx, conn, limit)
	if err != nil {
		return nil, err
	}
	var header [frameHeader]byte
	frame{kind: frameLane, length: ticketSize}.put(&header)
	if _, err = conn.Write(append(header[:], s.ticket[:]...)); err == nil {
		if _, err = io.ReadFull(conn, header[:]); err == nil && header[0] != byte(frameLane) {
			err = fmt.Errorf("%w: it does not know the lane's ticket", ErrProtocol)
		}
	}
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	return conn, err
}

// attach is the other side of openLane: the connection, which has said that it is a lane,
// shows whose it is.
func (l *lanes) attach(conn net.Conn, settle func() bool) error {
	var b [frameHeader + ticketSize]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return err
	}
	if b[0] != byte(frameLane) || binary.BigEndian.Uint32(b[8:]) != ticketSize {
		return fmt.Errorf("%w: a lane without a ticket", ErrProtocol)
	}
	s := l.take(laneTicket(b[frameHeader:]))
	if s == nil {
		return fmt.Errorf("%w: the ticket of a lane is unknown", ErrProtocol)
	}
	var header [frameHeader]byte
	frame{kind: frameLane}.put(&header)
	if _, err := conn.Write(header[:]); err != nil { // before anything else goes there
		return err
	}
	if !settle() {
		return errors.New("verbena: the handshake had to give way")
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if !s.join(conn) {
		return ErrClosed
	}
	return nil
}

// join makes a connection the lane. It reports false, and has closed it, if the endpoint
// has ended.
func (s *stream) join(conn net.Conn) bool {
	l := &sideLane{turn: make(chan struct{}, 1), stream: &stream{
		e: s.e, conn: conn, aside: true, fragment: s.fragment, drained: make(chan struct{}, 1),
	}}
	l.flusher = l.flush
	if sc, ok := conn.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			l.direct.init(raw)
		}
	}
	s.laneMu.Lock()
	defer s.laneMu.Unlock()
	if s.e.over() || s.lane.Load() != nil {
		_ = conn.Close() // nobody uses it
		return false
	}
	l.watcher = liveness.Watch(conn, s.e.env.peerTimeout, func(err error) { s.abort(fmt.Errorf("%w: %w", ErrPeerDied, err)) })
	s.lane.Store(l)
	s.laneWG.Go(func() { s.readLane(l) })
	return true
}

// readLane reads operations and answers until the lane ends.
func (s *stream) readLane(l *sideLane) {
	err := s.readOperations(l)
	if s.e.over() {
		return
	}
	if errors.Is(err, ErrProtocol) {
		s.abort(err)
		return
	}
	// The peer closes its lane when all else is said, so this one has died alone. What was
	// under way there has no answer.
	s.errands.lose(fmt.Errorf("%w: the lane of one-sided operations: %w", ErrPeerDied, err))
}

func (s *stream) readOperations(l *sideLane) error {
	r := bufio.NewReaderSize(l.conn, streamBuffer)
	var header [frameHeader]byte
	for {
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return err
		}
		f, err := parseFrame(&header)
		if err == nil {
			switch f.kind {
			case frameOperation:
				err = s.asked(r, f, l.stream)
			case frameAnswer:
				err = s.answered(r, f, l.stream)
			default:
				err = fmt.Errorf("%w: a frame of kind %d on a lane", ErrProtocol, f.kind)
			}
		}
		if err != nil {
			return err
		}
	}
}

// leaveLane ends the lane. The endpoint has ended.
func (s *stream) leaveLane() {
	if !s.e.dialled {
		s.e.env.lanes.take(s.ticket) // if nobody has
	}
	s.laneMu.Lock()
	l := s.lane.Load()
	s.laneMu.Unlock()
	if l == nil {
		return
	}
	l.watcher.Stop()
	_ = l.conn.Close() // nobody waits for what is still under way
	s.laneWG.Wait()
	l.wg.Wait()
}
