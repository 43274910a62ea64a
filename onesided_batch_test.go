package verbena

import (
	"fmt"
	"sync"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// A countingQueuePair keeps what each post has brought.
type countingQueuePair struct {
	rdma.DoorbellQueuePair
	mu    sync.Mutex
	posts [][]rdma.SendRequest
	rung  int
}

func (q *countingQueuePair) PostSendHeld(requests []rdma.SendRequest) (n int, ring bool, err error) {
	q.mu.Lock()
	q.posts = append(q.posts, append([]rdma.SendRequest(nil), requests...))
	q.mu.Unlock()
	return q.DoorbellQueuePair.PostSendHeld(requests)
}

func (q *countingQueuePair) Ring() {
	q.mu.Lock()
	q.rung++
	q.mu.Unlock()
	q.DoorbellQueuePair.Ring()
}

// A full batch is one post and one doorbell, of which the last operation alone is
// signalled, from memory that has to be copied first as from a Buffer. A notification is
// another post, and has no doorbell of its own.
func TestBatchHasOneDoorbell(t *testing.T) {
	for _, class := range []func(string) fake.Config{fake.InfiniBand, fake.IWARP} {
		w := fakeWorld("fake", class)
		for _, buffered := range []bool{false, true} {
			for _, tells := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/buffered=%v/tells=%v", class("a").Attributes.Class, buffered, tells), func(t *testing.T) {
					batchHasOneDoorbell(t, w, buffered, tells)
				})
			}
		}
	}
}

func batchHasOneDoorbell(t *testing.T, w world, buffered, tells bool) {
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, w.transport)
	_, token := exposeTo(t, b, MaxBatch*100, allRights)
	buffer := newBuffer(t, p.ctx, a, 100, 1)
	defer buffer.Release()
	s := a.carrier.(*shell)
	q := &countingQueuePair{DoorbellQueuePair: s.qp.(rdma.DoorbellQueuePair)}
	s.mu.Lock()
	s.queue.qp, s.mu.doorbell = q, q
	s.mu.Unlock()
	batch, want := a.Batch(), 1
	for i := range MaxBatch {
		if buffered {
			batch.PutBuffer(token, i*100, buffer, 0, 100)
		} else {
			batch.Put(token, i*100, pattern(100, i))
		}
	}
	if tells {
		batch.Notify(1, []byte("told"))
		want = 2
	}
	if err := batch.Do(p.ctx); err != nil {
		t.Fatal(err)
	}
	q.mu.Lock()
	posts, rung := q.posts, q.rung
	q.mu.Unlock()
	if len(posts) != want || len(posts[0]) != MaxBatch || rung != 1 {
		t.Fatalf("%d posts and %d doorbells for %d operations; want %d and 1", len(posts), rung, MaxBatch, want)
	}
	for i, r := range posts[0] {
		if last := i == MaxBatch-1; r.Flags&rdma.Signaled != 0 != last {
			t.Errorf("operation %d of %d has the flags %v", i, MaxBatch, r.Flags)
		}
	}
}
