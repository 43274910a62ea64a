package onesided

import "encoding/binary"

// A Set is what a caller waits for: operations that the peer's runtime was asked for.
type Set struct {
	// Done has a token when the last answer is there. The carrier may send one, too, to
	// make the caller look.
	Done chan struct{}
	left int // without an answer
	err  error
	// undone has a bit for each number of operations of which one has failed, or was forgotten.
	undone uint64
}

// Sets keeps sets whose callers have gone for the next ones.
type Sets struct{ idle []*Set }

// Take returns an empty set.
func (s *Sets) Take() *Set {
	n := len(s.idle)
	if n == 0 {
		return newSet()
	}
	set := s.idle[n-1]
	s.idle = s.idle[:n-1]
	return set
}

// Put takes a set back that Forget has done with.
func (s *Sets) Put(set *Set) {
	set.left, set.err, set.undone = 0, nil, 0
	select {
	case <-set.Done:
	default:
	}
	s.idle = append(s.idle, set)
}

// newSet returns an empty set.
func newSet() *Set { return &Set{Done: make(chan struct{}, 1)} }

// Left is how many operations have no answer.
func (s *Set) Left() int { return s.left }

// Err is the first error that the peer has answered, or that has made an answer
// impossible.
func (s *Set) Err() error { return s.err }

// Undone tells whether one of the operations with a number has failed, or was forgotten.
func (s *Set) Undone(number int) bool { return s.undone&(1<<number) != 0 }

// ended takes the end of one of the operations.
func (s *Set) ended(number int, err error) {
	if err != nil {
		s.undone |= 1 << number
	}
	if s.err == nil {
		s.err = err
	}
	if s.left--; s.left == 0 {
		select {
		case s.Done <- struct{}{}:
		default:
		}
	}
}

// A Query is an operation that the peer is asked for.
type Query struct {
	Set *Set
	// Of is a number below 64 by which Set.Undone tells of it. Several may have the same: a
	// caller's operation that is asked for in pieces.
	Of int
	// Want is how many bytes the answer has if the operation is carried out.
	Want int
	// Number says that the answer is a number of 8 bytes, which goes to Value unless that
	// is nil; other bytes go to Into, which has room for them.
	Number bool
	Value  *uint64
	Into   []byte
}

// A Way is one of the connections by which an endpoint's operations go. The answer to one
// comes the way that it went.
type Way uint8

// query is one that has no answer.
type query struct {
	Query
	sent bool // it may be answered
	way  Way  // that it went
}

// Asked are the operations that the peer was asked for and has not answered, by id.
//
// The answers of one way come one after the other, and are taken by one reader. So an id
// whose answer is expected belongs to that reader until it calls Answered. The answers of
// two ways may be taken in turns.
type Asked struct{ all []query }

// NewAsked makes room for ids below n.
func NewAsked(n int) Asked { return Asked{all: make([]query, n)} }

// None tells that it has room for nothing.
func (a *Asked) None() bool { return len(a.all) == 0 }

// Add notes an operation that is about to be sent under an id that is free.
func (a *Asked) Add(id uint32, q Query) {
	a.all[id] = query{Query: q}
	q.Set.left++
}

// Sent says that the peer may answer, that way.
func (a *Asked) Sent(id uint32, way Way) { a.all[id].sent, a.all[id].way = true, way }

// Expected judges an answer of n bytes that has come one way. With done it says that the
// operation was carried out. Expected reports false if the peer was not asked that way, or
// for something else.
func (a *Asked) Expected(id uint32, way Way, done bool, n int) bool {
	if uint64(id) >= uint64(len(a.all)) || !a.all[id].sent || a.all[id].way != way {
		return false
	}
	return done && n == a.all[id].Want || !done && n == 0
}

// Number tells whether the answer is a number.
func (a *Asked) Number(id uint32) bool { return a.all[id].Number }

// Take puts bytes of the answer, from at on, where they belong. If nobody waits any more,
// they go nowhere: the memory is the caller's again. A number comes whole.
func (a *Asked) Take(id uint32, at int, data []byte) {
	q := &a.all[id]
	switch {
	case q.Set == nil:
	case !q.Number:
		copy(q.Into[at:], data)
	case q.Value != nil:
		*q.Value = binary.BigEndian.Uint64(data)
	}
}

// Answered ends an operation with what the peer says of it. Its id is free.
func (a *Asked) Answered(id uint32, err error) {
	set, of := a.all[id].Set, a.all[id].Of
	a.all[id] = query{}
	if set != nil {
		set.ended(of, err)
	}
}

// Forget says that nobody waits for a set any more. Operations that were sent are
// answered all the same, and keep their ids; freed is called with those of the others.
func (a *Asked) Forget(set *Set, freed func(id uint32)) {
	if set.left == 0 {
		return
	}
	for id := range a.all {
		q := &a.all[id]
		if q.Set != set {
			continue
		}
		set.undone |= 1 << q.Of
		q.Set, q.Value, q.Into = nil, nil, nil
		if !q.sent {
			*q = query{}
			freed(uint32(id))
		}
	}
}

// Lose ends all operations that were sent one way: no answer comes from there any more.
// freed is called with their ids. The reader of that way calls it, or nobody reads there.
func (a *Asked) Lose(way Way, err error, freed func(id uint32)) {
	for id := range a.all {
		if q := &a.all[id]; q.sent && q.way == way {
			a.Answered(uint32(id), err)
			freed(uint32(id))
		}
	}
}
