package verbena

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// Who waits is served in order; one that gives up lets those behind it go on.
func TestLendingServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLending(100, "bytes")
		if ok, err := l.tryTake(101); ok || !errors.Is(err, ErrTooLong) {
			t.Errorf("more than there is: %v, %v", ok, err)
		}
		if ok, err := l.tryTake(60); !ok || err != nil {
			t.Fatal(ok, err)
		}
		got := make(chan string, 3)
		wait := func(ctx context.Context, name string, n int64) {
			go func() {
				if err := l.take(ctx, n); err != nil {
					name += " gave up"
				}
				got <- name
			}()
			synctest.Wait()
		}
		ctx, giveUp := context.WithCancel(context.Background())
		wait(ctx, "first", 90)
		wait(context.Background(), "second", 30)
		wait(context.Background(), "third", 20)
		if ok, _ := l.tryTake(1); ok {
			t.Error("somebody passed those who wait")
		}
		giveUp()
		synctest.Wait()
		if names := []string{<-got, <-got}; !slices.Contains(names, "first gave up") || !slices.Contains(names, "second") {
			t.Error(names)
		}
		if used, waiting := l.inUse(); used != 90 || waiting != 1 {
			t.Errorf("%d bytes are used and %d wait", used, waiting)
		}
		l.give(60)
		if name := <-got; name != "third" {
			t.Error(name)
		}
		l.give(50)
		if used, waiting := l.inUse(); used != 0 || waiting != 0 {
			t.Errorf("%d bytes are used and %d wait", used, waiting)
		}
	})
}
