package verbena

import (
	"context"
	"fmt"
	"sync"
)

const (
	// coalesceLimit is how many bytes are cheaper to copy behind their header
	// than to gather.
	coalesceLimit = 2 << 10
	// backlogLimit is how many bytes may wait to be written before Send waits.
	backlogLimit = 64 << 10
)

func (s *stream) send(ctx context.Context, tag uint32, message []byte) error {
	total := len(message)
	f := frame{kind: frameData, flags: fragmentFirst, tag: tag, total: uint32(total)}
	for {
		n := min(len(message), s.fragment)
		f.length = uint32(n)
		if n == len(message) {
			f.flags |= fragmentLast
		}
		if err := s.waitBacklog(ctx, s.e.done, backlogLimit); err != nil {
			// The peer drops fragments that have gone when the next message
			// begins.
			return err
		}
		if err := s.write(f, message[:n]); err != nil {
			return err
		}
		if n == len(message) {
			s.mu.Lock()
			s.traffic.add(total)
			s.mu.Unlock()
			return nil
		}
		message, f.flags = message[n:], 0
	}
}

// waitBacklog waits until less than limit bytes are left to be written, or
// ended is closed.
func (s *stream) waitBacklog(ctx context.Context, ended <-chan struct{}, limit int) error {
	for {
		s.mu.Lock()
		n, err := len(s.backlog), s.writeErr
		if s.flushing {
			n++ // bytes on their way count, too
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if n < limit {
			return nil
		}
		select {
		case <-s.drained:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ended:
			return s.e.err
		}
	}
}

// write takes a whole frame. It copies what the socket does not take at once and
// has it written in the background, so that no frame is ever cut off.
func (s *stream) write(f frame, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writeErr != nil {
		return s.writeErr
	}
	header := (*[frameHeader]byte)(s.scratch[:])
	f.put(header)
	written := 0
	if !s.flushing && s.direct.ready() {
		var err error
		if len(payload) <= coalesceLimit {
			n := copy(s.scratch[frameHeader:], payload)
			written, err = s.direct.write(s.scratch[:frameHeader+n], nil)
		} else {
			written, err = s.direct.write(header[:], payload)
		}
		if err != nil {
			s.broken(err)
			return s.writeErr
		}
		s.watcher.Sent()
	}
	if written == frameHeader+len(payload) {
		return nil
	}
	if s.backlog == nil {
		s.backlog = takeBacklog()
	}
	if written < frameHeader {
		s.backlog = append(s.backlog, header[written:]...)
		written = frameHeader
	}
	s.backlog = append(s.backlog, payload[written-frameHeader:]...)
	if !s.flushing {
		s.flushing = true
		s.wg.Go(s.flush)
	}
	return nil
}

// flush writes the backlog until there is none.
func (s *stream) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writeErr == nil && len(s.backlog) > 0 {
		out := s.backlog
		if s.spare == nil {
			s.spare = takeBacklog()
		}
		s.backlog, s.spare = s.spare[:0], nil
		s.mu.Unlock()
		s.watcher.Sent() // the write below may wait for the peer
		_, err := s.conn.Write(out)
		s.mu.Lock()
		s.spare = out[:0]
		if err != nil {
			s.broken(err)
		}
		notify(s.drained)
	}
	s.flushing = false
	// An idle connection keeps no buffers.
	giveBacklog(s.backlog)
	giveBacklog(s.spare)
	s.backlog, s.spare = nil, nil
	s.watcher.Sent()
	notify(s.drained)
}

// broken records that the socket takes no more. s.mu is held.
func (s *stream) broken(err error) {
	s.writeErr = fmt.Errorf("%w: %w", ErrPeerDied, err)
	s.fail(s.writeErr)
}

var backlogs = sync.Pool{New: func() any { b := make([]byte, 0, backlogLimit); return &b }}

func takeBacklog() []byte { return (*backlogs.Get().(*[]byte))[:0] }

func giveBacklog(b []byte) {
	if c := cap(b); c >= backlogLimit && c <= 2*maxFragment {
		backlogs.Put(&b)
	}
}
