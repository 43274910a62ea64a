package perf

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/verbena-data/verbena"
)

const (
	// methodAnswer is answered with as many bytes as it came with.
	methodAnswer = 1
	// methodPour takes a stream, and is answered with its length.
	methodPour = 2
)

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

// pour has every n-th poster send on a stream of its own. It ends when all has been
// taken.
func (t *talk) pour(ctx context.Context, first, _ int, _ []int64, amount Amount, r *recorder) error {
	payload := make([]byte, t.plan.Size)
	r.start()
	s, err := t.callers[first%len(t.callers)].Stream(ctx, methodPour, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	sent := uint64(0)
	for i := 0; amount.Iterations == 0 || i < amount.Iterations; i++ {
		if amount.Iterations == 0 && r.elapsed() >= amount.Duration {
			break
		}
		if err := s.Send(ctx, payload); err != nil {
			return err
		}
		sent += uint64(len(payload))
		r.mark(1)
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	m, err := s.Answer(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	if b := m.Bytes(); len(b) != 8 || binary.BigEndian.Uint64(b) != sent {
		return fmt.Errorf("perf: CORRUPT: %d bytes were sent, % x arrived", sent, b)
	}
	return nil
}

// drink is the server's part of pour.
func (t *talk) drink(q verbena.Request, s *verbena.Stream) {
	total := uint64(0)
	for {
		b, err := s.Recv(q.Context())
		if err == io.EOF {
			t.messages.Add(int64(total) / int64(t.plan.Size))
			_ = q.Reply(binary.BigEndian.AppendUint64(nil, total)) // the client tells
			return
		}
		if err != nil {
			_ = q.Fail(verbena.CodeApplication, err.Error()) // likewise
			return
		}
		total += uint64(len(b.Bytes()))
		b.Release()
	}
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
	mux.Stream(methodPour, t.drink)
	// The measurement may end before the client has closed the endpoint.
	defer context.AfterFunc(ctx, func() { _ = t.endpoints[i].Close() })()
	return mux.Serve(t.endpoints[i])
}
