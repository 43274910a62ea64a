package shuffle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/verbena-data/verbena/shuffle"
)

// A call of AllGather whose context ends counts all the same: no process hears of a breach, and none gets what was meant for another
// call.
func TestAllGatherGoesOnWithoutWhoWaits(t *testing.T) {
	const size, calls = 3, 5
	eachWorld(t, func(t *testing.T, w world) {
		exchanges := w.join(t, size, shuffle.Config{})
		impatient, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("impatient")
		for call := range 3 { // the first waits for the others, the second for the first, and the third has no time from the beginning
			if call == 1 {
				impatient, cancel = context.WithCancelCause(t.Context())
			}
			ended := make(chan error, 1)
			go func() {
				_, err := exchanges[0].AllGather(impatient, fmt.Append(nil, "0 in ", call))
				ended <- err
			}()
			cancel(reason)
			if err := <-ended; !errors.Is(err, reason) {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for rank, x := range exchanges {
			first := 0
			if rank == 0 {
				first = 3
			}
			all.Go(func() {
				for call := first; call < calls; call++ {
					var want []string
					for rank := range size {
						want = append(want, fmt.Sprint(rank, " in ", call))
					}
					got, err := x.AllGather(testContext(t), fmt.Append(nil, rank, " in ", call))
					var texts []string
					for _, b := range got {
						texts = append(texts, string(b))
					}
					if err != nil || !slices.Equal(texts, want) {
						t.Errorf("process %d, call %d: %q, %v", rank, call, texts, err)
					}
				}
			})
		}
		all.Wait()
	})
}

// Close ends a call that the others leave alone.
func TestCloseEndsAllGather(t *testing.T) {
	exchanges := worlds[0].join(t, 2, shuffle.Config{})
	for _, x := range exchanges {
		if err := x.Sender(0).Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range exchanges {
		drain(t, x.Receiver(0))
	}
	if err := exchanges[0].Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := exchanges[0].AllGather(testContext(t), nil)
			ended <- err
		}()
	}
	if err := exchanges[0].Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, shuffle.ErrClosed) {
			t.Error(err)
		}
	}
	if _, err := exchanges[0].AllGather(testContext(t), nil); !errors.Is(err, shuffle.ErrClosed) {
		t.Error(err)
	}
}
