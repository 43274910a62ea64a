package domains

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// An object is a queue pair or a region, and a part of every other member.
type object struct{ close func() error }

func (o *object) Close() error { return o.close() }

type queue struct {
	rdma.CompletionQueue
	*object
}

func (q *queue) Close() error { return q.object.Close() }

type shared struct {
	rdma.SharedReceiveQueue
	*object
}

func (s *shared) Close() error { return s.object.Close() }

type members = Members[*object, *shared, *queue, *object]

func TestWhoIsUsedStays(t *testing.T) {
	var m members
	a, b, s := &queue{}, &queue{}, &shared{}
	m.Completions.Add(a)
	m.Completions.Add(b)
	m.Shared.Add(s)
	one, two := &object{}, &object{}
	find := func(c rdma.QueuePairConfig) Queues[*shared, *queue] {
		t.Helper()
		q, err := m.Find(&c)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	ofOne := find(rdma.QueuePairConfig{SendCompletions: a, RecvCompletions: a})
	ofTwo := find(rdma.QueuePairConfig{SendCompletions: a, RecvCompletions: b, SharedReceive: s})
	m.AddPair(one, ofOne)
	m.AddPair(two, ofTwo)
	inUse := func(want ...bool) {
		t.Helper()
		_, errA := m.Completions.Remove(a)
		_, errB := m.Completions.Remove(b)
		_, errS := m.Shared.Remove(s)
		for i, err := range []error{errA, errB, errS} {
			if errors.Is(err, rdma.ErrInUse) != want[i] {
				t.Errorf("queue %d: %v, want in use: %v", i, err, want[i])
			}
		}
	}
	inUse(true, true, true)
	m.DropPair(one, ofOne)
	m.DropPair(one, ofOne) // only the first counts
	inUse(true, true, true)
	m.DropPair(two, ofTwo)
	inUse(false, false, false)
	if was, err := m.Completions.Remove(a); was || err != nil {
		t.Errorf("removed twice: %v, %v", was, err)
	}
	if m.Pairs.Len()+m.Completions.Len()+m.Shared.Len() != 0 {
		t.Error("something is left")
	}
}

func TestFindRefuses(t *testing.T) {
	var m, other members
	mine, theirs, s := &queue{}, &queue{}, &shared{}
	m.Completions.Add(mine)
	other.Completions.Add(theirs)
	other.Shared.Add(s)
	for name, c := range map[string]rdma.QueuePairConfig{
		"no queues":                     {},
		"no receive queue":              {SendCompletions: mine},
		"another domain's":              {SendCompletions: mine, RecvCompletions: theirs},
		"a nil":                         {SendCompletions: mine, RecvCompletions: (*queue)(nil)},
		"another domain's shared queue": {SendCompletions: mine, RecvCompletions: mine, SharedReceive: s},
		"another provider's":            {SendCompletions: mine, RecvCompletions: &foreign{}},
	} {
		if _, err := m.Find(&c); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

type foreign struct{ rdma.CompletionQueue }

func TestCloseInOrder(t *testing.T) {
	var m members
	var mu sync.Mutex
	var order []string
	broken := errors.New("broken")
	// Each object goes out of its set as it closes, as providers' do.
	closes := func(name string, remove func()) *object {
		return &object{close: func() error {
			m.Lock()
			defer m.Unlock()
			remove()
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			return nil
		}}
	}
	q, s := &queue{}, &shared{}
	q.object = closes("completions", func() {
		if _, err := m.Completions.Remove(q); err != nil {
			t.Error(err)
		}
	})
	s.object = closes("shared", func() {
		if _, err := m.Shared.Remove(s); err != nil {
			t.Error(err)
		}
	})
	var r *object
	r = closes("region", func() { _, _ = m.Regions.Remove(r) })
	m.Completions.Add(q)
	m.Shared.Add(s)
	m.Regions.Add(r)
	uses := Queues[*shared, *queue]{Send: q, Recv: q, Shared: s, HasShared: true}
	// Each of the pairs waits for all: they close at the same time.
	var together sync.WaitGroup
	for range 3 {
		var p *object
		p = closes("pair", func() { m.DropPair(p, uses) })
		together.Add(1)
		m.AddPair(p, uses)
	}
	first, err := m.Close(func(p *object) error {
		together.Done()
		together.Wait()
		return errors.Join(p.Close(), broken)
	})
	if !first || !errors.Is(err, broken) {
		t.Errorf("Close: %v, %v", first, err)
	}
	if want := []string{"pair", "pair", "pair", "shared", "completions", "region"}; !slices.Equal(order, want) {
		t.Errorf("closed in the order %v, want %v", order, want)
	}
	if err := m.Usable(); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("usable after Close: %v", err)
	}
	if first, err := m.Close(func(*object) error { panic("closed twice") }); first || err != nil {
		t.Errorf("second Close: %v, %v", first, err)
	}
	if m.Fail(broken) {
		t.Error("fails after it was closed")
	}
}

// A domain whose device is gone makes nothing, but is still closed.
func TestFail(t *testing.T) {
	var m members
	gone := errors.New("gone")
	if !m.Fail(gone) || m.Fail(errors.New("later")) || !errors.Is(m.Usable(), gone) {
		t.Errorf("%v", m.Usable())
	}
	if _, err := m.Find(&rdma.QueuePairConfig{}); !errors.Is(err, gone) {
		t.Errorf("Find: %v", err)
	}
	if first, err := m.Close(nil); !first || err != nil {
		t.Errorf("Close: %v, %v", first, err)
	}
}

func TestNumbers(t *testing.T) {
	var n Numbers
	if first := n.Next(); first != 1 {
		t.Errorf("the first is %d", first)
	}
	n.last.Store(math.MaxUint32 - 1)
	if a, b := n.Next(), n.Next(); a != math.MaxUint32 || b != 1 {
		t.Errorf("at the end %d, then %d", a, b)
	}
}
