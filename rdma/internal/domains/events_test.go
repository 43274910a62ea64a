package domains

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEventsInOrder(t *testing.T) {
	const n = 1000
	var got []rdma.EventKind
	var q Events
	q.Start(func(e rdma.Event) { got = append(got, e.Kind) })
	for i := range n {
		q.Add(rdma.Event{Kind: rdma.EventKind(i % 7)})
	}
	q.Stop()
	q.Add(rdma.Event{})
	if len(got) != n {
		t.Fatalf("%d events come, want %d", len(got), n)
	}
	for i, kind := range got {
		if kind != rdma.EventKind(i%7) {
			t.Fatalf("event %d is %s", i, kind)
		}
	}
}

// An application that does not take its events bounds them, and what has to be
// done beside is done.
func TestEventsAreBounded(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	delivered, done := 0, 0
	var q Events
	q.Start(func(rdma.Event) {
		if delivered++; delivered == 1 {
			close(entered)
			<-release
		}
	})
	q.Add(rdma.Event{})
	<-entered
	for range mostEvents + 10 {
		q.Add(rdma.Event{})
	}
	q.AddAfter(func() { done = delivered }, rdma.Event{})
	close(release)
	q.Stop()
	if want := 1 + mostEvents + 1; delivered != want {
		t.Errorf("%d events come, want %d", delivered, want)
	}
	if want := 1 + mostEvents; done != want {
		t.Errorf("what comes before the last event is done after %d events, want %d", done, want)
	}
}

func TestNobodyTakesEvents(t *testing.T) {
	done := false
	var q Events
	q.Start(nil)
	q.AddAfter(func() { done = true }, rdma.Event{})
	q.Stop()
	if !done {
		t.Error("without a listener, what comes before an event is not done")
	}
}
