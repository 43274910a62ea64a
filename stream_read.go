package verbena

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/verbena-data/verbena/internal/budget"
)

const (
	streamBuffer = 16 << 10
	// inboxLimit is how many bytes wait to be received before reading pauses.
	inboxLimit = 4 << 20
	// mostAsking is how many bytes of requests wait for handlers before further messages
	// have to wait for memory like those of others.
	mostAsking = 16 << 20
	// inboxOverhead is what a message counts beside its bytes.
	inboxOverhead = 256
)

// read runs until the connection has nothing more to say.
func (s *stream) read() {
	defer close(s.readDone)
	s.readErr = s.readFrames()
	s.abandon()
	switch err := s.readErr; {
	case err == nil:
		// The peer said goodbye. Answering it lets the peer know that all has
		// arrived.
		s.fail(ErrPeerClosed)
		if !s.e.closing.Load() {
			_ = s.sayGoodbye() // the peer may be gone already
		}
	case errors.Is(err, ErrProtocol):
		s.fail(err)
		_ = s.conn.Close() // tells the peer; Close frees the rest
	default:
		s.fail(fmt.Errorf("%w: %w", ErrPeerDied, err))
	}
}

// readFrames returns nil at the peer's goodbye.
func (s *stream) readFrames() error {
	r := bufio.NewReaderSize(s.conn, streamBuffer)
	var header [frameHeader]byte
	var a assembly
	for {
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return err
		}
		f, err := parseFrame(&header)
		if err != nil {
			return err
		}
		switch f.kind {
		case frameGoodbye:
			return nil
		case frameOpening:
			return fmt.Errorf("%w: a second opening", ErrProtocol)
		case frameOperation, frameAnswer:
			if !s.servesOperations() {
				return fmt.Errorf("%w: frame of kind %d, which was not agreed on", ErrProtocol, f.kind)
			}
			if f.kind == frameAnswer {
				err = s.answered(r, f, s)
			} else {
				err = s.asked(r, f, s)
			}
			if err != nil {
				return err
			}
			continue
		}
		begins, err := a.add(f, s.ownMax)
		if err != nil {
			return err
		}
		if begins {
			s.abandon()
			s.waitInbox()
		}
		if s.e.closing.Load() { // nobody will receive it
			if err := s.skip(r, int(f.length), nil); err != nil {
				return err
			}
			continue
		}
		if err := s.readFragment(r, &a, int(f.length)); err != nil {
			return err
		}
		if s.current != nil && !a.open {
			if err := s.deliver(); err != nil {
				return err
			}
		}
	}
}

// readFragment reads n bytes into the message that is arriving.
func (s *stream) readFragment(r *bufio.Reader, a *assembly, n int) error {
	if s.current == nil {
		if err := s.begin(a); err != nil {
			return s.skip(r, n, err)
		}
	}
	l := s.current
	for end := len(l.data) + n; len(l.data) < end; {
		if err := s.grow(l); err != nil {
			return s.skip(r, end-len(l.data), err)
		}
		at := len(l.data)
		got, err := r.Read(l.data[at:min(end, l.granted)])
		l.data = l.data[:at+got]
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if l.total > budget.Own {
			s.memory.Moved()
		}
	}
	return nil
}

// skip reads n bytes that have no memory because of err. If this end is closing
// it goes on like that to the peer's goodbye.
func (s *stream) skip(r *bufio.Reader, n int, err error) error {
	if !s.e.closing.Load() {
		return err
	}
	s.abandon()
	_, err = r.Discard(n)
	return err
}

// deliver puts the message that has arrived into the inbox, or hands it to the sink.
func (s *stream) deliver() error {
	l := s.current
	s.current = nil
	s.memory.Finish()
	s.up.Lock()
	to := s.sink
	if to == nil {
		s.in.push(&l.Message)
		s.up.Unlock()
		return nil
	}
	run, err := s.give(to, &l.Message)
	s.up.Unlock()
	// Requests are handled here, one endpoint's by its own reader.
	for run {
		to.run(runBudget)
		run = to.more()
	}
	return err
}

// abandon drops the message that is arriving.
func (s *stream) abandon() {
	if l := s.current; l != nil {
		s.current = nil
		s.memory.Finish()
		l.Release()
	}
}

// waitInbox waits until the inbox has room. While it does not, the socket fills
// and the peer's sends wait.
func (s *stream) waitInbox() {
	for !s.e.closing.Load() {
		messages, bytes := s.in.size()
		full := bytes+messages*inboxOverhead >= inboxLimit
		if !full {
			return
		}
		select {
		case <-s.room:
		case <-s.e.done:
			if !s.e.closing.Load() {
				return
			}
		}
	}
}

// take waits until the message that is arriving may have n bytes more, or the
// endpoint has ended.
//
// It reads no further meanwhile, so that the peer's sends wait. If the
// application is in Receive and nothing else is there for it, this message is
// the one that it waits for, and is preferred. So is one behind requests that wait
// for handlers, unless they are many: then only one in a second, because the answers
// that handlers wait for come behind it.
func (s *stream) take(n int64) error {
	if n > budget.Own { // small ones are the endpoint's own
		s.e.env.taking(n)
	}
	if s.memory.Take(n) {
		return nil
	}
	s.hungry.Store(true)
	defer s.hungry.Store(false)
	defer s.memory.Withdraw()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for looks := 0; ; {
		messages, _ := s.in.size()
		next := messages == 0 && (looks > 0 || s.asking.Load() <= mostAsking)
		if s.memory.Ask(n, next && s.awaited.Load()) {
			return nil
		}
		select {
		case <-s.memory.Granted():
		case <-s.room:
		case <-look.C:
			if looks++; looks%4 == 0 {
				s.e.env.arriving.EndStalled()
			}
		case <-s.e.done:
			return s.e.err
		}
	}
}
