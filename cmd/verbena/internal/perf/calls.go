package perf

import (
	"context"
	"fmt"
	"time"

	"github.com/verbena-data/verbena"
)

// methodAnswer is answered with as many bytes as it came with.
const methodAnswer = 1

// calls has every n-th poster call on an endpoint of its own, or share one.
func (t *talk) calls(ctx context.Context, first, _ int, _ []int64, amount Amount, r *recorder) error {
	c := t.callers[first%len(t.callers)]
	payload := make([]byte, t.plan.Size)
	return t.callInTurn(amount, r, func() (int, error) {
		m, err := c.Call(ctx, methodAnswer, payload)
		if err != nil {
			return 0, err
		}
		defer m.Release()
		return len(m.Bytes()), nil
	})
}

// callInTurn makes calls one after the other. Each returns how many bytes came back.
func (t *talk) callInTurn(amount Amount, r *recorder, call func() (int, error)) error {
	r.start()
	for i := 0; amount.Iterations == 0 || i < amount.Iterations; i++ {
		if amount.Pause > 0 {
			time.Sleep(amount.Pause)
			r.resume()
		}
		if amount.Iterations == 0 && r.elapsed() >= amount.Duration {
			return nil
		}
		n, err := call()
		if err != nil {
			return err
		}
		if n != t.plan.Size {
			return fmt.Errorf("perf: CORRUPT: %d bytes came back of %d", n, t.plan.Size)
		}
		r.mark(1)
	}
	return nil
}

// serveCalls is the server's part for an endpoint, until the client closes it.
func (t *talk) serveCalls(ctx context.Context, i int) error {
	mux := verbena.NewMux(verbena.MuxConfig{})
	answer := make([]byte, t.plan.Size)
	mux.Short(methodAnswer, func(q verbena.Request) {
		if len(q.Payload()) != t.plan.Size {
			t.fail(fmt.Errorf("perf: CORRUPT: %d bytes arrived, %d were sent", len(q.Payload()), t.plan.Size))
		}
		t.messages.Add(1)
		_ = q.Reply(answer) // the client tells
	})
	// The measurement may end before the client has closed the endpoint.
	defer context.AfterFunc(ctx, func() { _ = t.endpoints[i].Close() })()
	return mux.Serve(t.endpoints[i])
}
