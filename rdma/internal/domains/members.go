package domains

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/verbena-data/verbena/rdma"
)

// An Object is what a domain makes. Its Close takes it out of the domain's members.
type Object interface {
	comparable
	Close() error
}

// Members are the objects that a domain has made and nobody has closed: queue pairs,
// shared receive queues, completion queues and regions. The type parameters are the
// provider's types of them.
//
// The mutex is the domain's. All methods but Close are called with it held, so that
// a provider keeps what it has to know beside in step with the sets.
type Members[P, S, C, R Object] struct {
	sync.Mutex
	Pairs       Set[P]
	Shared      Set[S]
	Completions Set[C]
	Regions     Set[R]

	why error // why nothing can be made; nil while it can
	// closed says that Close has begun.
	closed bool
}

// A Set has objects of one kind, each with the number of its users: one for each use
// by a queue pair. The zero value is empty.
type Set[T Object] struct{ users map[T]int }

// Add makes an object a member.
func (s *Set[T]) Add(object T) {
	if s.users == nil {
		s.users = make(map[T]int)
	}
	s.users[object] = 0
}

// Has tells whether the object is a member.
func (s *Set[T]) Has(object T) bool {
	_, ok := s.users[object]
	return ok
}

// Len is how many members there are.
func (s *Set[T]) Len() int { return len(s.users) }

// List has all members, in no order.
func (s *Set[T]) List() []T { return s.AppendTo(nil) }

// AppendTo is List behind what list has, in its memory if that suffices.
func (s *Set[T]) AppendTo(list []T) []T { return slices.AppendSeq(list, maps.Keys(s.users)) }

// Remove takes an object out and tells whether it was a member. It fails with
// [rdma.ErrInUse], and changes nothing, while a queue pair uses it.
func (s *Set[T]) Remove(object T) (was bool, err error) {
	users, was := s.users[object]
	if users > 0 {
		return was, fmt.Errorf("%w: %d uses by queue pairs", rdma.ErrInUse, users)
	}
	delete(s.users, object)
	return was, nil
}

func (s *Set[T]) use(object T, change int) {
	if users, ok := s.users[object]; ok {
		s.users[object] = users + change
	}
}

// Queues are what a queue pair uses.
type Queues[S, C Object] struct {
	Send, Recv C // perhaps the same
	Shared     S
	HasShared  bool
}

// Find looks the queues of a configuration up, each of which must be a member. It
// fails as Usable does.
func (m *Members[P, S, C, R]) Find(c *rdma.QueuePairConfig) (q Queues[S, C], err error) {
	if m.why != nil {
		return q, m.why
	}
	var ok [3]bool
	q.Send, ok[0] = find(&m.Completions, c.SendCompletions)
	q.Recv, ok[1] = find(&m.Completions, c.RecvCompletions)
	q.HasShared, ok[2] = c.SharedReceive != nil, true
	if q.HasShared {
		q.Shared, ok[2] = find(&m.Shared, c.SharedReceive)
	}
	for i, name := range [...]string{"SendCompletions", "RecvCompletions", "SharedReceive"} {
		if !ok[i] {
			return q, fmt.Errorf("%w: %s is missing, closed or of another domain", rdma.ErrInvalid, name)
		}
	}
	return q, nil
}

func find[T Object](s *Set[T], object any) (T, bool) {
	found, ok := object.(T)
	return found, ok && s.Has(found)
}

// AddPair makes a queue pair a member, and a user of its queues.
func (m *Members[P, S, C, R]) AddPair(p P, q Queues[S, C]) {
	m.Pairs.Add(p)
	m.use(q, 1)
}

// DropPair undoes AddPair, once.
func (m *Members[P, S, C, R]) DropPair(p P, q Queues[S, C]) {
	if was, _ := m.Pairs.Remove(p); was {
		m.use(q, -1)
	}
}

func (m *Members[P, S, C, R]) use(q Queues[S, C], change int) {
	m.Completions.use(q.Send, change)
	m.Completions.use(q.Recv, change)
	if q.HasShared {
		m.Shared.use(q.Shared, change)
	}
}

// Usable tells why nothing can be made any more, or returns nil.
func (m *Members[P, S, C, R]) Usable() error { return m.why }

// Fail has nothing be made any more, for a reason that Usable tells. It returns false
// if there was one before.
func (m *Members[P, S, C, R]) Fail(why error) bool {
	if m.why != nil {
		return false
	}
	m.why = why
	return true
}

// Close closes all members in order: queue pairs, by closePair and at the same time,
// because each may wait for its peer; then shared receive queues, completion queues
// and regions. It returns false for all calls but the first, which do nothing.
//
// The mutex is not held.
func (m *Members[P, S, C, R]) Close(closePair func(P) error) (first bool, err error) {
	m.Lock()
	first = !m.closed
	m.closed = true
	m.Fail(fmt.Errorf("the domain: %w", rdma.ErrClosed))
	pairs := m.Pairs.List()
	m.Unlock()
	if !first {
		return false, nil
	}
	errs := make([]error, len(pairs))
	var group sync.WaitGroup
	for i, p := range pairs {
		group.Go(func() { errs[i] = closePair(p) })
	}
	group.Wait()
	m.Lock()
	shared, completions, regions := m.Shared.List(), m.Completions.List(), m.Regions.List()
	m.Unlock()
	return true, errors.Join(append(errs, closeAll(shared), closeAll(completions), closeAll(regions))...)
}

func closeAll[T Object](objects []T) error {
	var errs []error
	for _, each := range objects {
		errs = append(errs, each.Close())
	}
	return errors.Join(errs...)
}
