package shuffle

import (
	"fmt"
	"slices"
	"testing"

	"github.com/verbena-data/verbena/internal/fifo"
	"github.com/verbena-data/verbena/internal/race"
)

// The model is one process: threads that share lanes, the windows from each lane to each receiving thread, and those threads. What
// decides who waits and who is woken is the code itself: the windows' take and freed, the lanes' mayUse and wakeAll, and the
// sleepers. The steps around it are those of sender.go and receiver.go; what lies between two of them touches nothing that others see,
// or is done under a lock that a step holds on to. What a lane's favourite adds without that lock counts as added under it, since
// each excludes the other. A part holds one record.
type lanesModel struct {
	threads, lanes, depth int
	scripts               [][]laneOp // of the senders, each of which closes behind it
	partitions            int        // to which they send; 0: as many as threads
	idle                  int        // threads from this one on send nothing, close, and only then receive, all in one goroutine
	d                     laneDefects

	x *Exchange // into which a state is loaded for a step
}

// A laneOp is what a sender does.
type laneOp struct {
	to     int
	pieces int // of a record in fragments, or 0: it is short, or goes by reference
	places int // of a record that goes by reference in a block of its own, or 0
	flush  bool
}

// laneDefects are planted.
type laneDefects struct {
	idleFlushes bool // who has sent nothing lets go out, in Close, what others have collected
	idleEnds    bool // who has sent nothing and closes last ends the lane by itself
	triesFirst  bool // who finds no room says that it sleeps only then
	keepsLane   bool // who waits keeps the lane
	forgets     bool // nobody notes who waits for a window
	releases    bool // who releases a partition wakes nobody
	releasesOne bool // or only the first
	wakesOne    bool // who makes room wakes one, and forgets the others
	exactly     bool // room is told only when exactly half of it is free
}

const (
	mostThreads = 3
	mostLanes   = 2
	mostWaiting = 8
)

// A list is of senders.
type list struct {
	n  uint8
	at [mostWaiting]uint8
}

// laneState is a state of it, which is compared as it is.
type laneState struct {
	senders   [mostThreads]laneSender
	receivers [mostThreads]laneReceiver
	lane      [mostLanes]struct {
		owner    uint8 // thread that has locked it, and 1; 0: nobody
		unclosed uint8
		waiting  list
		streams  [mostThreads]struct {
			filled bool
			user   uint8 // as owner
		}
	}
	window [mostLanes][mostThreads]struct {
		used    uint8
		waiting list
	}
}

type laneSender struct {
	at            laneStep
	kind          laneTry
	op            uint8 // of the script; its length: close
	to, left      uint8
	fast, gave    bool
	asleep, token bool
	closed        bool // Close has returned
	ending        bool
}

type laneReceiver struct {
	at            laneStep
	ended         uint8 // lanes
	holds         laneItem
	asleep, token bool
	items         uint8
	queue         [8]laneItem
}

// A laneItem is what has been handed over; places is 0 if there is none.
type laneItem struct {
	lane, places uint8
	end          bool
}

type laneStep uint8

const (
	lLock laneStep = iota
	lBegin
	lSleeps
	lTry
	lPush
	lWake
	lStays
	lUnlock
	lSelect
	lAgain // lock
	lDone
	lEnded

	rFree
	rTake
	rSleeps
	rTakeAgain
	rSelect
	rEnded
)

// A laneTry is what is tried when somebody waits.
type laneTry uint8

const (
	tryFlush laneTry = iota
	tryAcquire
	tryPiece
	tryEnd
)

func newLanesModel(m lanesModel) *lanesModel {
	c := Config{Threads: m.threads, Size: 1, lanes: m.lanes, depth: m.depth, part: 1024, MaxRecord: 1}
	m.x = newExchange(c)
	if m.partitions == 0 {
		m.partitions = m.threads
	}
	return &m
}

func (m *lanesModel) first() (s laneState) {
	for i := range m.threads {
		s.lane[i%m.lanes].unclosed++
		if s.receivers[i].at = rTake; i >= m.partitions {
			s.receivers[i].at = rEnded
		}
	}
	return s
}

func (m *lanesModel) put(l list, to []*Sender) []*Sender {
	to = to[:0]
	for _, i := range l.at[:l.n] {
		to = append(to, m.x.senders[i])
	}
	return to
}

func (m *lanesModel) list(from []*Sender) (l list) {
	for _, s := range from {
		if l.n == mostWaiting {
			panic("more wait than threads can")
		}
		l.at[l.n] = uint8(slices.Index(m.x.senders, s))
		l.n++
	}
	return l
}

func putSleeper(s *sleeper, asleep, token bool) {
	s.asleep.Store(asleep)
	select {
	case <-s.token:
	default:
	}
	if token {
		s.token <- struct{}{}
	}
}

// load has the exchange be in a state.
func (m *lanesModel) load(s *laneState) {
	for i := range m.threads {
		putSleeper(&m.x.senders[i].sleeper, s.senders[i].asleep, s.senders[i].token)
		putSleeper(&m.x.receivers[i].sleeper, s.receivers[i].asleep, s.receivers[i].token)
	}
	for n := range m.lanes {
		l := m.x.senders[n].lane
		l.waiting = m.put(s.lane[n].waiting, l.waiting)
		for to := range m.threads {
			l.streams[to].user = nil
			if user := s.lane[n].streams[to].user; user > 0 {
				l.streams[to].user = m.x.senders[user-1]
			}
			w := &m.x.peers[0].windows[n*m.threads+to]
			w.used, w.waiting = int(s.window[n][to].used), m.put(s.window[n][to].waiting, w.waiting)
		}
	}
}

// store takes the state back.
func (m *lanesModel) store(s *laneState) {
	for i := range m.threads {
		a, b := &m.x.senders[i].sleeper, &m.x.receivers[i].sleeper
		s.senders[i].asleep, s.senders[i].token = a.asleep.Load(), len(a.token) > 0
		s.receivers[i].asleep, s.receivers[i].token = b.asleep.Load(), len(b.token) > 0
	}
	for n := range m.lanes {
		l := m.x.senders[n].lane
		s.lane[n].waiting = m.list(l.waiting)
		for to := range m.threads {
			s.lane[n].streams[to].user = 0
			if user := l.streams[to].user; user != nil {
				s.lane[n].streams[to].user = uint8(slices.Index(m.x.senders, user)) + 1
			}
			w := &m.x.peers[0].windows[n*m.threads+to]
			s.window[n][to].used, s.window[n][to].waiting = uint8(w.used), m.list(w.waiting)
		}
	}
}

// take is p.take.
func (m *lanesModel) take(i, to, places int) bool {
	s := m.x.senders[i]
	ok, _ := m.x.peers[0].take(s, to, places)
	if w := &m.x.peers[0].windows[int(s.lane.number)*m.threads+to]; !ok && m.d.forgets {
		w.waiting = w.waiting[:0]
	}
	return ok
}

// send takes a step of a sender, and reports false if it waits.
func (m *lanesModel) send(s *laneState, i int) bool {
	t := &s.senders[i]
	real := m.x.senders[i]
	n := int(real.lane.number)
	l := &s.lane[n]
	closing := int(t.op) == len(m.scripts[i])
	var op laneOp
	if !closing {
		op = m.scripts[i][t.op]
	}
	switch t.at {
	case lLock:
		if l.owner > 0 {
			return false
		}
		l.owner, t.at = uint8(i+1), lBegin
	case lBegin:
		t.to = 0
		switch {
		case closing:
			l.unclosed--
			switch {
			case l.unclosed > 0 && !t.gave && !m.d.idleFlushes:
				t.at = lDone
			case l.unclosed == 0:
				t.ending = true
				if !t.gave && !m.d.idleEnds {
					t.closed = true // a goroutine of its own does it
				}
				t.kind, t.at = tryAcquire, lSleeps
			default:
				m.flushNext(s, i)
			}
		case op.flush:
			m.flushNext(s, i)
		case op.pieces > 0 || op.places > 0:
			t.gave, t.to, t.kind, t.at = true, uint8(op.to), tryAcquire, lSleeps
		default:
			t.gave, t.to = true, uint8(op.to)
			if stream := &l.streams[op.to]; stream.filled {
				t.kind, t.fast, t.at = tryFlush, true, lTry
			} else {
				stream.filled, t.at = true, lDone
			}
		}
	case lSleeps:
		if m.d.triesFirst { // it is said behind the try
			t.at = lTry
			break
		}
		real.sleeper.sleeps()
		t.at = lTry
	case lTry:
		m.try(s, i, op)
	case lPush:
		r := &s.receivers[t.to]
		item := laneItem{uint8(n), 1, t.kind == tryEnd}
		if t.kind == tryPiece && op.places > 0 {
			item.places = uint8(op.places)
		}
		r.queue[r.items] = item
		r.items++
		if t.kind == tryFlush || t.kind == tryAcquire {
			l.streams[t.to].filled = false
		}
		t.at = lWake
	case lWake:
		m.x.receivers[t.to].sleeper.wake()
		t.at = lStays
		if t.fast {
			t.fast = false
			m.done(s, i, op)
		}
	case lStays:
		real.sleeper.stays()
		m.done(s, i, op)
	case lUnlock:
		if m.d.triesFirst {
			real.sleeper.sleeps()
		}
		if !m.d.keepsLane {
			l.owner = 0
		}
		t.at = lSelect
	case lSelect:
		select {
		case <-real.sleeper.token:
			t.at = lAgain
		default:
			return false
		}
	case lAgain:
		if l.owner > 0 && l.owner != uint8(i+1) {
			return false
		}
		l.owner, t.at = uint8(i+1), lSleeps
	case lDone:
		l.owner = 0
		t.kind, t.to, t.at = 0, 0, lLock
		if closing {
			*t = laneSender{at: lEnded, closed: true, op: t.op, asleep: t.asleep, token: t.token}
		} else {
			t.op++
		}
	case lEnded:
		return false
	}
	return true
}

// flushNext goes on with the next part that is not empty; behind the last it is done.
func (m *lanesModel) flushNext(s *laneState, i int) {
	t := &s.senders[i]
	for ; int(t.to) < m.partitions; t.to++ {
		if s.lane[i%m.lanes].streams[t.to].filled {
			t.kind, t.fast, t.at = tryFlush, true, lTry
			return
		}
	}
	t.at = lDone
}

// try is what a wait tries.
func (m *lanesModel) try(s *laneState, i int, op laneOp) {
	t := &s.senders[i]
	real := m.x.senders[i]
	stream, o := &s.lane[i%m.lanes].streams[t.to], &real.lane.streams[t.to]
	t.at = lUnlock
	if t.fast {
		t.at = lSleeps
	}
	switch t.kind {
	case tryFlush:
		switch {
		case !t.fast && !stream.filled: // another thread has done it
			t.at = lStays
		case real.mayUse(o) && m.take(i, int(t.to), 1):
			t.at = lPush
		}
	case tryAcquire:
		switch {
		case !real.mayUse(o):
		case !stream.filled:
			o.user, t.at = real, lStays
		case m.take(i, int(t.to), 1):
			o.user, t.at = real, lPush // the lane is held until it goes on
		}
	case tryPiece:
		if m.take(i, int(t.to), max(1, op.places)) {
			t.at = lPush
		}
	case tryEnd:
		if real.mayUse(o) && m.take(i, int(t.to), 1) {
			t.at = lPush
		}
	}
	if t.fast && t.at == lSleeps {
		t.fast = false
	}
}

// done goes on behind a try that has been able to do something.
func (m *lanesModel) done(s *laneState, i int, op laneOp) {
	t := &s.senders[i]
	release := func() {
		l := m.x.senders[i].lane
		l.streams[t.to].user = nil
		if m.d.releasesOne {
			l.waiting = l.waiting[:min(1, len(l.waiting))]
		}
		if !m.d.releases {
			l.wakeAll()
		}
	}
	switch t.kind {
	case tryFlush:
		if int(t.op) < len(m.scripts[i]) && !op.flush {
			s.lane[i%m.lanes].streams[t.to].filled, t.at = true, lDone
			return
		}
		m.flushNext(s, i)
	case tryAcquire:
		t.at, t.kind, t.left = lSleeps, tryPiece, uint8(max(1, op.pieces))
		if t.ending {
			t.kind = tryEnd
		}
	case tryPiece:
		if t.left--; t.left > 0 {
			t.at = lSleeps
			return
		}
		release()
		t.at = lDone
	case tryEnd:
		release()
		t.kind, t.at = tryAcquire, lSleeps
		if t.to++; int(t.to) == m.partitions {
			t.to, t.at = 0, lDone
		}
	}
}

// receive takes a step of a receiver.
func (m *lanesModel) receive(s *laneState, i int) bool {
	t := &s.receivers[i]
	if i >= m.idle && !s.senders[i].closed {
		return false // its goroutine closes first
	}
	sleeper := &m.x.receivers[i].sleeper
	takes := func() bool {
		if t.items == 0 {
			return false
		}
		t.holds = t.queue[0]
		copy(t.queue[:], t.queue[1:])
		t.items--
		t.queue[t.items] = laneItem{}
		if t.holds.end {
			t.ended++
		}
		t.at = rFree
		return true
	}
	switch t.at {
	case rFree:
		m.freed(i, t.holds)
		t.holds, t.at = laneItem{}, rTake
	case rTake:
		switch {
		case int(t.ended) == m.lanes:
			t.at = rEnded
		case !takes():
			t.at = rSleeps
		}
	case rSleeps:
		sleeper.sleeps()
		t.at = rTakeAgain
	case rTakeAgain:
		if takes() {
			sleeper.stays()
		} else {
			t.at = rSelect
		}
	case rSelect:
		select {
		case <-sleeper.token:
			t.at = rSleeps
		default:
			return false
		}
	default:
		return false
	}
	return true
}

// freed is p.freed.
func (m *lanesModel) freed(i int, it laneItem) {
	p := m.x.peers[0]
	w := &p.windows[int(it.lane)*m.threads+i]
	waiting := slices.Clone(w.waiting)
	switch {
	case m.d.exactly && w.used-int(it.places) != m.depth/2:
		w.used -= int(it.places)
		return
	case m.d.wakesOne:
		w.waiting = w.waiting[:min(1, len(waiting))]
	}
	p.freed(i, &item{from: p, sender: int(it.lane), block: &block{places: int(it.places)}})
	m.x.blocks.free[it.places] = m.x.blocks.free[it.places][:0]
	if m.d.wakesOne && len(w.waiting) > 0 { // none was woken
		w.waiting = waiting
	}
}

// over tells whether all has been received, and nothing is left.
func (m *lanesModel) over(s *laneState) bool {
	for i := range m.threads {
		if s.senders[i].at != lEnded || s.receivers[i].at != rEnded || s.receivers[i].items > 0 {
			return false
		}
		for n := range m.lanes {
			if s.window[n][i].used > 0 || s.lane[n].streams[i].user > 0 || s.lane[n].streams[i].filled {
				return false
			}
		}
	}
	return true
}

// search finds all states. stuck is one in which nothing happens any more and not all has been received, or nil.
func (m *lanesModel) search(most int) (states int, stuck *laneState) {
	first := m.first()
	seen := map[laneState]struct{}{first: {}}
	var unseen fifo.Queue[laneState]
	unseen.Push(first)
	for unseen.Len() > 0 {
		s := unseen.Pop()
		moves := false
		for i := range m.threads {
			for _, step := range []func(*laneState, int) bool{m.send, m.receive} {
				next := s
				m.load(&next)
				if !step(&next, i) {
					continue
				}
				moves = true
				m.store(&next)
				if _, known := seen[next]; !known {
					seen[next] = struct{}{}
					unseen.Push(next)
				}
			}
		}
		if !moves && !m.over(&s) {
			return len(seen), &s
		}
		if len(seen) > most {
			panic(fmt.Sprintf("more than %d states: the model is no small one any more", most))
		}
	}
	return len(seen), nil
}

// TestNobodyWaitsForEverWithinAProcess searches all states of a process whose windows are full again and again: in each, something
// goes on, until all has been received. What is planted is found.
func TestNobodyWaitsForEverWithinAProcess(t *testing.T) {
	if testing.Short() || race.Enabled {
		t.Skip("it takes seconds, and has one goroutine")
	}
	short := func(to ...int) (ops []laneOp) {
		for _, to := range to {
			ops = append(ops, laneOp{to: to})
		}
		return ops
	}
	shared := lanesModel{threads: 2, lanes: 1, depth: 2, idle: 2, scripts: [][]laneOp{short(0, 0, 0, 0, 1), short(0, 0, 1)}}
	fragments := lanesModel{threads: 2, lanes: 1, depth: 2, idle: 2, scripts: [][]laneOp{{{to: 0, pieces: 4}}, {{to: 0}, {to: 0}, {flush: true}}}}
	contended := lanesModel{threads: 3, lanes: 1, partitions: 1, depth: 1, idle: 3, scripts: [][]laneOp{{{to: 0, pieces: 2}}, short(0), short(0)}}
	long := lanesModel{threads: 2, lanes: 1, depth: 4, idle: 2, scripts: [][]laneOp{{{to: 0, places: 2}, {to: 0, places: 2}, {to: 0, places: 2}}, short(0, 0, 0, 0)}}
	idle := lanesModel{threads: 2, lanes: 1, depth: 2, idle: 1, scripts: [][]laneOp{short(1, 1, 1, 1), nil}}
	last := lanesModel{threads: 2, lanes: 1, depth: 2, idle: 1, scripts: [][]laneOp{short(1, 1), nil}} // just as much as there is room for
	three := lanesModel{threads: 3, lanes: 1, depth: 2, idle: 1, scripts: [][]laneOp{short(1, 1, 2), nil, nil}}
	for _, c := range []struct {
		name  string
		m     lanesModel
		d     laneDefects
		found bool
	}{
		{"short records", shared, laneDefects{}, false},
		{"fragments", fragments, laneDefects{}, false},
		{"several wait for a partition", contended, laneDefects{}, false},
		{"by reference", long, laneDefects{}, false},
		{"one closes and then receives", idle, laneDefects{}, false},
		{"one closes last and then receives", last, laneDefects{}, false},
		{"two close and then receive", three, laneDefects{}, false},

		{"who has sent nothing flushes in Close", idle, laneDefects{idleFlushes: true}, true},
		{"who has sent nothing ends the lane in Close", last, laneDefects{idleEnds: true}, true},
		{"a lane is kept by who waits", idle, laneDefects{keepsLane: true}, true},
		{"it says that it sleeps behind the try", shared, laneDefects{triesFirst: true}, true},
		{"nobody notes who waits", shared, laneDefects{forgets: true}, true},
		{"a release wakes nobody", fragments, laneDefects{releases: true}, true},
		{"a release wakes one", contended, laneDefects{releasesOne: true}, true},
		{"one is woken, others are forgotten", shared, laneDefects{wakesOne: true}, true},
		{"only when exactly half is free", long, laneDefects{exactly: true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.m.d = c.d
			states, stuck := newLanesModel(c.m).search(1_000_000)
			if (stuck != nil) != c.found {
				t.Errorf("of %d states, one is stuck: %+v", states, stuck)
			}
			t.Logf("%d states", states)
		})
	}
}
