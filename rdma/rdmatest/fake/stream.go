package fake

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// streamMagic opens the connection request on a stream; 8 bytes that name the
// attempt follow. Nothing else ever travels there: the data goes by the network
// object, and the stream's end ends the connection.
const streamMagic = "fakerdma"

// A stream watches what a queue pair is connected over.
type stream struct {
	conn    net.Conn
	watcher sync.WaitGroup
}

// attach makes s end q when it ends; it needs mu.
func (q *queuePair) attach(s *stream) {
	q.stream = s
	s.watcher.Go(func() {
		_, err := s.conn.Read(make([]byte, 1))
		mu := &q.domain.network.mu
		mu.Lock()
		defer mu.Unlock()
		err = fmt.Errorf("fake: stream to %s ended: %w: %w", s.conn.RemoteAddr(), rdma.ErrDisconnected, err)
		switch {
		case q.attempt != nil:
			q.attempt.end(nil, err)
		case q.state == rdma.StateConnected:
			q.lost(err)
		}
	})
}

// ConnectStream implements [rdma.StreamDevice].
func (d *Device) ConnectStream(ctx context.Context, qp rdma.QueuePair, conn net.Conn, private []byte) ([]byte, error) {
	if !d.config.Has(rdma.CapStreams) {
		return nil, fmt.Errorf("fake: connect over a stream: %w", rdma.ErrUnsupported)
	}
	q, ok := qp.(*queuePair)
	if !ok || q.domain.device != d {
		return nil, fmt.Errorf("fake: connect over a stream: the queue pair is of another device: %w", rdma.ErrInvalid)
	}
	var request [16]byte
	copy(request[:], streamMagic)
	rand.Read(request[8:])
	token := binary.BigEndian.Uint64(request[8:])

	n := d.network
	n.mu.Lock()
	a, err := q.begin(conn.RemoteAddr().String(), private)
	if err == nil {
		n.attempts[token] = a
	}
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer func() {
		n.mu.Lock()
		delete(n.attempts, token)
		n.mu.Unlock()
	}()
	stop := context.AfterFunc(ctx, func() { conn.SetWriteDeadline(time.Unix(1, 0)) })
	_, err = conn.Write(request[:])
	stop()
	n.mu.Lock()
	if err != nil {
		a.end(nil, fmt.Errorf("fake: connect to %s: %w: %w", a.to, rdma.ErrDisconnected, err))
	}
	if !q.closed {
		q.attach(&stream{conn: conn})
	}
	n.mu.Unlock()
	return a.wait(ctx)
}

// RequestFromStream implements [rdma.StreamDevice].
func (d *Device) RequestFromStream(ctx context.Context, conn net.Conn) (rdma.ConnectRequest, error) {
	if !d.config.Has(rdma.CapStreams) {
		return nil, fmt.Errorf("fake: request from a stream: %w", rdma.ErrUnsupported)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	var request [16]byte
	_, err := io.ReadFull(conn, request[:])
	if !stop() {
		conn.SetReadDeadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", rdma.ErrTimeout, ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("fake: request from %s: %w", conn.RemoteAddr(), err)
	}
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	a := d.network.attempts[binary.BigEndian.Uint64(request[8:])]
	if string(request[:8]) != streamMagic || a == nil {
		return nil, fmt.Errorf("fake: request from %s: no such request: %w", conn.RemoteAddr(), rdma.ErrInvalid)
	}
	return &connectRequest{attempt: a, device: d, stream: &stream{conn: conn}}, nil
}
