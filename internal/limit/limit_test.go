package limit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
)

func TestLimit(t *testing.T) {
	for range 3 { // limits are used again
		l := New(context.Background(), time.Now(), time.Hour)
		if at, has := l.Deadline(); !has || time.Until(at) <= 0 || time.Until(at) > time.Hour || l.Err() != nil || l.Passed() {
			t.Errorf("a fresh limit: %v %v %v", at, has, l.Err())
		}
		select {
		case <-l.Done():
			t.Error("it ended too early")
		default:
		}
		l.End()
		l = New(context.Background(), time.Now(), time.Millisecond)
		<-l.Done()
		if !l.Passed() || !errors.Is(l.Err(), context.DeadlineExceeded) {
			t.Errorf("after the deadline: %v", l.Err())
		}
		l.End()

		ctx, cancel := context.WithCancel(t.Context())
		l = New(ctx, time.Now(), time.Hour)
		done := l.Done()
		cancel()
		<-done
		if l.Passed() || !errors.Is(l.Err(), context.Canceled) {
			t.Errorf("after a cancel: %v", l.Err())
		}
		l.End()

		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		l = New(ctx, time.Now(), 2*time.Hour)
		if l.own || l.Done() != ctx.Done() {
			t.Error("the caller's own deadline is the nearer one, and not used")
		}
		l.End()
		cancel()
	}
}

// Contexts that are derived from a limit end with it, and have no goroutine that looks at it
// after End: the race detector would tell.
func TestDerivedContexts(t *testing.T) {
	l := New(context.Background(), time.Now(), time.Millisecond)
	child, cancel := context.WithCancel(l)
	<-child.Done()
	if !errors.Is(child.Err(), context.DeadlineExceeded) {
		t.Errorf("a derived context ends with %v", child.Err())
	}
	late, cancelLate := context.WithCancel(l)
	<-late.Done()
	cancel()
	cancelLate()
	l.End()

	for range 2000 {
		l := New(context.Background(), time.Now(), time.Hour)
		child, cancel := context.WithCancel(l)
		called := make(chan struct{})
		stop := context.AfterFunc(l, func() { close(called) })
		cancel()
		if !errors.Is(child.Err(), context.Canceled) || l.Err() != nil || !stop() || stop() {
			t.Fatalf("%v, %v", child.Err(), l.Err())
		}
		l.End()
		select {
		case <-called:
			t.Fatal("a function that was stopped is called")
		default:
		}
	}

	// Who does not cancel hears of the end all the same.
	l = New(context.Background(), time.Now(), time.Hour)
	forgotten, cancel := context.WithCancel(l)
	defer cancel()
	l.End()
	<-forgotten.Done()
}

func TestLimitAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector empties pools")
	}
	if n := testing.AllocsPerRun(1000, func() {
		l := New(context.Background(), time.Now(), time.Minute)
		_ = l.Done()
		l.End()
	}); n != 0 {
		t.Errorf("a limit allocates %v times", n)
	}
}
