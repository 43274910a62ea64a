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

func (s *stream) send(ctx context.Context, p parcel) error {
	return s.writeMessage(p, func() error {
		if err := s.waitBacklog(ctx, s.e.done, backlogLimit, &s.wait); err != nil {
			return err
		}
		return p.tellTime(ctx)
	})
}

// writeMessage writes a message in fragments. It calls wait before each.
func (s *stream) writeMessage(p parcel, wait func() error) error {
	// The socket takes bytes later, when nobody looks whether they are the message still.
	if err := p.own(); err != nil {
		return err
	}
	total := p.size()
	f := frame{kind: frameData, flags: fragmentFirst, tag: p.tag, total: uint32(total)}
	for {
		part := p.part(s.fragment)
		f.length = uint32(part.size())
		if p.size() == 0 {
			f.flags |= fragmentLast
		}
		if err := wait(); err != nil {
			// The peer drops fragments that have gone when the next message
			// begins.
			return err
		}
		if err := s.write(f, part); err != nil {
			return err
		}
		if p.size() == 0 {
			s.mu.Lock()
			s.traffic.add(total)
			s.mu.Unlock()
			return nil
		}
		f.flags = 0
	}
}

// unwritten is how many bytes wait to be written. mu is held.
func (s *stream) unwritten() int {
	if s.backlog == nil {
		return s.pending
	}
	return len(s.backlog.bytes) + s.pending
}

// waitBacklog waits until less than limit bytes are left to be written, or
// ended is closed. The wait counts as one of a sender in waits, unless that is nil.
func (s *stream) waitBacklog(ctx context.Context, ended <-chan struct{}, limit int, waits *stalls) error {
	for waited := false; ; waited = true {
		s.mu.Lock()
		n, err := s.unwritten(), s.writeErr
		if s.flushing {
			n++ // bytes on their way count, too
		}
		s.mu.Unlock()
		if waited && (err != nil || n < limit) {
			notify(s.drained) // drained holds one token: the next who waits needs one, too
		}
		if err != nil {
			return err
		}
		if n < limit {
			return nil
		}
		began := waits.begin()
		select {
		case <-s.drained:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-ended:
			err = s.e.err
		}
		waits.end(began)
		if err != nil {
			return err
		}
	}
}

// write takes a whole frame. It copies what the socket does not take at once, but for
// what lies in a buffer, and has it written in the background, so that no frame is
// ever cut off.
func (s *stream) write(f frame, p parcel) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writeErr != nil {
		return s.writeErr
	}
	switch f.kind {
	case frameGoodbye:
		s.bye = true
	case frameAnswer:
		if s.bye { // nothing comes behind the goodbye
			return nil
		}
	}
	f.put((*[frameHeader]byte)(s.scratch[:]))
	header, front, payload := s.scratch[:frameHeader], p.header, p.body
	if len(front) <= MaxHeader {
		header, front = append(header, front...), nil
	}
	written := 0
	if !s.flushing && s.direct.ready() {
		var err error
		if len(front) == 0 && len(payload) <= coalesceLimit {
			written, err = s.direct.write(append(header, payload...), nil, nil)
		} else {
			written, err = s.direct.write(header, front, payload)
		}
		if err != nil {
			s.broken(err)
			return s.writeErr
		}
		s.watcher.Sent()
	}
	if written == len(header)+len(front)+len(payload) {
		return nil
	}
	if s.backlog == nil {
		s.backlog = takeBacklog()
	}
	for _, before := range [...][]byte{header, front} {
		taken := min(written, len(before))
		s.backlog.bytes = append(s.backlog.bytes, before[taken:]...)
		written -= taken
	}
	if rest := payload[written:]; p.buffer != nil && len(rest) > coalesceLimit {
		p.buffer.Retain()
		s.pieces = append(s.pieces, piece{at: len(s.backlog.bytes), data: rest, buffer: p.buffer})
		s.pending += len(rest)
	} else {
		s.backlog.bytes = append(s.backlog.bytes, rest...)
	}
	if !s.flushing {
		s.flushing = true
		s.wg.Add(1)
		go s.flusher()
	}
	return nil
}

// flush writes the backlog until there is none.
func (s *stream) flush() {
	defer s.wg.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writeErr == nil && len(s.backlog.bytes)+len(s.pieces) > 0 {
		out, pieces := s.backlog, s.pieces
		s.pieces, s.written, s.writing, s.pending = s.written, nil, pieces, 0
		if s.spare == nil {
			s.spare = takeBacklog()
		}
		s.backlog, s.spare = s.spare, nil
		s.mu.Unlock()
		s.watcher.Sent() // the write below may wait for the peer
		err := s.writeOut(out.bytes, pieces)
		s.mu.Lock()
		out.bytes = out.bytes[:0]
		s.spare = out
		if s.writing = nil; len(pieces) > 0 {
			s.letGo(pieces)
			s.written = pieces[:0]
		}
		if err != nil {
			s.broken(err)
		}
		notify(s.drained)
	}
	if s.writeErr != nil && len(s.pieces) > 0 {
		pieces := s.pieces
		s.pieces, s.pending = nil, 0
		s.letGo(pieces) // nobody writes them any more
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
	if s.aside {
		return // its reader notices
	}
	s.fail(s.writeErr)
}

// A backlog is memory for bytes that wait to be written.
type backlog struct{ bytes []byte }

var backlogs = sync.Pool{New: func() any { return &backlog{make([]byte, 0, backlogLimit)} }}

func takeBacklog() *backlog { return backlogs.Get().(*backlog) }

func giveBacklog(b *backlog) {
	if b != nil && cap(b.bytes) <= 2*maxFragment {
		b.bytes = b.bytes[:0]
		backlogs.Put(b)
	}
}
