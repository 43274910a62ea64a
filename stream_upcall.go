package verbena

import "github.com/verbena-data/verbena/internal/call"

// upcalls hands messages to a sink from here on.
func (s *stream) upcalls(to sink) {
	s.await(true) // whatever arrives is wanted
	s.up.Lock()
	s.sink = to
	run := false
	for m := s.in.take(); m != nil; m = s.in.take() {
		more, err := s.give(to, m)
		run = run || more
		if err != nil {
			s.abort(err)
		}
	}
	s.up.Unlock()
	notify(s.room) // the inbox is empty
	for run {
		to.run(runBudget)
		run = to.more()
	}
}

// give hands the sink a message. up is held. What will wait for a handler counts as
// before, until somebody calls begun; anything else is the sink's.
func (s *stream) give(to sink, m *Message) (run bool, err error) {
	s.in.passed(len(m.data))
	if l := m.owner.(*letter); call.Asks(m.data) {
		l.waits = true
		s.asking.Add(l.charged)
	} else {
		s.handOver(m)
	}
	v, err := to.arrived(m)
	if !v.kept {
		m.Release()
	}
	return v.run, err
}

// begun tells that the handler of a request begins, or that there is none: the memory
// of m is the application's from here on.
func (m *Message) begun() {
	if l, ok := m.owner.(*letter); ok {
		l.settle()
		notify(l.s.room)
	}
}

// drive leaves the waiting to the reader.
func (s *stream) drive(ready func() bool) bool { return ready() }

func (s *stream) sleep() {}

func (s *stream) awake() {}

func (s *stream) roused() {}

func (s *stream) ran() {}

func (s *stream) inOrder() bool { return false }

// sendPair writes a message in two parts, unless others are being written.
func (s *stream) sendPair(tag uint32, header call.Header, payload []byte) bool {
	size := call.HeaderSize + len(payload)
	if size > min(s.fragment, s.peerMax) || s.e.over() {
		return false
	}
	select {
	case s.e.sendLock <- struct{}{}:
	default:
		return false
	}
	defer func() { <-s.e.sendLock }()
	s.mu.Lock()
	full := s.writeErr != nil || s.unwritten() >= backlogLimit
	s.mu.Unlock()
	if full {
		return false
	}
	head := s.head[:call.HeaderSize]
	header.Put(head)
	f := frame{kind: frameData, flags: fragmentFirst | fragmentLast, tag: tag, length: uint32(size), total: uint32(size)}
	if s.write(f, parcel{tag: tag, header: head, body: payload}) != nil {
		return true // the endpoint has ended, and tells
	}
	s.mu.Lock()
	s.traffic.add(size)
	s.mu.Unlock()
	return true
}
