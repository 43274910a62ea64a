package perf

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
)

// Tags of messages at level runtime.
const (
	tagData uint32 = 1
	tagLast uint32 = 2 // empty; answered when all messages before it have been taken
	tagName uint32 = 3 // the first: number of the connection, 2 bytes, big-endian
)

// dataService is what a session's endpoints ask for.
func dataService(token []byte) string { return "verbena.perf.data/1:" + hex.EncodeToString(token) }

// newRuntime is one for measurements. It takes messages of every size that a plan
// may have.
func newRuntime(providers []rdma.Provider, table verbena.TuningTable, log *slog.Logger) (*verbena.Runtime, error) {
	return verbena.New(verbena.Config{Providers: providers, Tuning: table, Logger: log, MaxMessage: maxSize})
}

// tuning waits as a plan says.
func (p *Plan) tuning() verbena.TuningTable {
	if spin := map[string]time.Duration{WaitSpin: time.Second, WaitEvent: -1}[p.Wait]; spin != 0 && p.Transport != verbena.TransportTCP {
		return verbena.TuningTable{p.Transport: {Spin: spin, CallSpin: spin}}
	}
	return nil
}

// A talk is one end of a measurement with endpoints.
type talk struct {
	plan      *Plan
	runtime   *verbena.Runtime
	group     *verbena.Group // of the endpoints; its memory is the measurement's
	endpoints []*verbena.Endpoint
	callers   []*verbena.Caller // of the endpoints, if calls are measured; at the client
	clients   []io.Closer       // at level rpc; at the client
	echoes    []echoCall
	token     []byte // the session's
	log       *slog.Logger
	corrupt   func(message int64, payload []byte)

	messages, verified atomic.Int64
	failure            error
	once               sync.Once
	closers            sync.WaitGroup
}

// registered is how many bytes the group's pools have registered. All its endpoints
// share them.
func (t *talk) registered() (n int64) {
	for _, d := range t.runtime.Stats().Devices {
		for _, p := range d.Pools {
			if p.Group == t.group.Name() {
				n += p.Registered
			}
		}
	}
	return n
}

func (t *talk) close() error {
	t.closers.Wait()
	for _, c := range t.clients {
		_ = c.Close() // never fails
	}
	return t.group.Close()
}

func (t *talk) fail(err error) {
	t.once.Do(func() {
		t.failure = err
		for _, e := range t.endpoints {
			if e == nil {
				continue
			}
			t.closers.Go(func() { _ = e.Close() }) // ends the loops
		}
	})
}

// held is the last message, until the answer to it is on its way: as at level verbs, the
// time of posting its receive again does not count.
type held struct{ message *verbena.Message }

func (h *held) hold(m *verbena.Message) { h.message = m }

func (h *held) release() {
	if m := h.message; m != nil {
		h.message = nil
		m.Release()
	}
}

// respond is the server's loop of an endpoint, until the client closes it.
func (t *talk) respond(ctx context.Context, i int) error {
	e, p := t.endpoints[i], t.plan
	reply := make([]byte, p.Size)
	var arrived int64
	var sum uint64
	var late held
	defer late.release()
	for {
		m, err := e.Receive(ctx)
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if m.Tag == tagLast {
			m.Release()
			if err := e.Send(ctx, tagLast, nil); err != nil {
				return err
			}
			continue
		}
		switch b := m.Bytes(); {
		case len(b) != p.Size:
			err = fmt.Errorf("perf: CORRUPT: %d bytes arrived, %d were sent", len(b), p.Size)
		case p.Verify:
			if err = check(b, i, arrived, asking); err == nil {
				t.verified.Add(int64(len(b)))
			}
		case p.ReadPayload:
			sum += touch(b)
		}
		late.hold(m)
		if p.Mode != ModeLatency || p.RepostFirst {
			late.release()
		}
		if err != nil {
			return err
		}
		t.messages.Add(1)
		if p.Mode == ModeLatency {
			if p.Verify {
				fill(reply, i, arrived, answering)
			} else if p.ReadPayload {
				rewrite(reply, byte(sum))
			}
			if err := e.Send(ctx, tagData, reply); err != nil {
				return err
			}
		}
		late.release()
		arrived++
	}
}

// dial makes the client's endpoints.
func (t *talk) dial(ctx context.Context, server string, token []byte) error {
	for i := range t.plan.Connections {
		e, err := t.runtime.Dial(ctx, server, dataService(token), verbena.DialConfig{
			Transport: t.plan.Transport, Group: t.group, Tuning: t.plan.tuning(),
		})
		if err == nil {
			t.endpoints = append(t.endpoints, e)
			err = e.Send(ctx, tagName, binary.BigEndian.AppendUint16(nil, uint16(i)))
		}
		if err == nil && t.plan.onCalls() {
			var c *verbena.Caller
			if c, err = verbena.NewCaller(e, nil); err == nil {
				t.callers = append(t.callers, c)
			}
		}
		if err != nil {
			return fmt.Errorf("perf: endpoint %d of %d: %w", i+1, t.plan.Connections, err)
		}
	}
	return nil
}

// accept makes the server's endpoints, which may arrive in another order.
func (t *talk) accept(ctx context.Context, ln *verbena.Service) error {
	t.endpoints = make([]*verbena.Endpoint, t.plan.Connections)
	for n := range t.endpoints {
		e, err := ln.Accept(ctx)
		if err != nil {
			return fmt.Errorf("perf: waiting for endpoint %d of %d: %w", n+1, len(t.endpoints), err)
		}
		m, err := e.Receive(ctx)
		if err != nil {
			return fmt.Errorf("perf: endpoint %d of %d: %w", n+1, len(t.endpoints), endedEarly(err))
		}
		i := len(t.endpoints)
		if m.Tag == tagName && len(m.Bytes()) == 2 {
			i = int(binary.BigEndian.Uint16(m.Bytes()))
		}
		m.Release()
		if i >= len(t.endpoints) || t.endpoints[i] != nil {
			return fmt.Errorf("perf: an endpoint of %s does not tell a number that is due", e.RemoteAddr())
		}
		t.endpoints[i] = e
	}
	return nil
}

// prepare makes a message.
func (t *talk) prepare(b []byte, connection int, message int64) {
	switch {
	case t.plan.Verify:
		fill(b, connection, message, asking)
		if t.corrupt != nil {
			t.corrupt(message, b)
		}
	case t.plan.ReadPayload:
		rewrite(b, byte(message))
	}
}

// latency plays ping-pong on every n-th endpoint from first on, one after the other.
func (t *talk) latency(ctx context.Context, first, n int, sent []int64, amount Amount, r *recorder) error {
	message := make([]byte, t.plan.Size)
	var late held
	defer late.release()
	r.start()
	k := first
	for i := 0; amount.Iterations == 0 || i < amount.Iterations; i++ {
		if amount.Iterations == 0 && r.elapsed() >= amount.Duration {
			return nil
		}
		e := t.endpoints[k]
		t.prepare(message, k, sent[k])
		if err := e.Send(ctx, tagData, message); err != nil {
			return err
		}
		late.release()
		m, err := e.Receive(ctx)
		if err != nil {
			return endedEarly(err)
		}
		if t.plan.ReadPayload {
			r.sum += touch(m.Bytes())
		}
		if t.plan.Verify {
			if err = check(m.Bytes(), k, sent[k], answering); err == nil {
				t.verified.Add(int64(len(m.Bytes())))
			}
		}
		if err == nil && len(m.Bytes()) != t.plan.Size {
			err = fmt.Errorf("perf: CORRUPT: %d bytes came back of %d", len(m.Bytes()), t.plan.Size)
		}
		late.hold(m)
		if t.plan.RepostFirst {
			late.release()
		}
		if err != nil {
			return err
		}
		sent[k]++
		if k += n; k >= len(t.endpoints) {
			k = first
		}
		r.mark(1)
	}
	return nil
}

// stream sends on every n-th endpoint in turn.
func (t *talk) stream(ctx context.Context, first, n int, sent []int64, amount Amount, r *recorder) error {
	message := make([]byte, t.plan.Size)
	r.start()
	k := first % len(t.endpoints)
	for i := 0; amount.Iterations == 0 || i < amount.Iterations; i++ {
		if amount.Iterations == 0 && r.elapsed() >= amount.Duration {
			return nil
		}
		t.prepare(message, k, sent[k])
		if err := t.endpoints[k].Send(ctx, tagData, message); err != nil {
			return err
		}
		if t.plan.Verify {
			sent[k]++
		}
		if k += n; k >= len(t.endpoints) {
			k = first % len(t.endpoints)
		}
		r.mark(1)
	}
	return nil
}

// flush waits until the peer has taken all that was sent.
func (t *talk) flush(ctx context.Context) error {
	for _, e := range t.endpoints {
		if err := e.Send(ctx, tagLast, nil); err != nil {
			return err
		}
	}
	for _, e := range t.endpoints {
		m, err := e.Receive(ctx)
		if err != nil {
			return endedEarly(err)
		}
		m.Release()
	}
	return nil
}

func endedEarly(err error) error {
	if err == io.EOF {
		return errors.New("perf: the server closed the endpoint")
	}
	return err
}

// run lets all posters work.
func (t *talk) run(ctx context.Context, sent []int64, amount Amount, recorders []*recorder) error {
	var all sync.WaitGroup
	errs := make([]error, len(recorders))
	work := t.stream
	switch {
	case t.plan.Level == LevelRPC:
		work = t.echo
	case t.plan.Test == TestCall:
		work = t.calls
	case t.plan.Test == TestStream:
		work = t.pour
	case t.plan.Mode == ModeLatency:
		work = t.latency
	}
	share := amount
	share.Iterations = (amount.Iterations + len(recorders) - 1) / len(recorders)
	for i, r := range recorders {
		all.Go(func() {
			if errs[i] = work(ctx, i, len(recorders), sent, share, r); errs[i] != nil {
				t.fail(errs[i])
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return t.failure
	}
	if t.plan.Mode == ModeLatency || t.plan.Test == TestStream {
		return nil
	}
	return t.flush(ctx)
}
