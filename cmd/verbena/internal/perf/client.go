package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
)

// A Client measures with one server.
type Client struct {
	Server    string // its address
	Runtime   *verbena.Runtime
	Providers []rdma.Provider
	Logger    *slog.Logger
	// StallTimeout ends a measurement in which nothing has happened for so long.
	StallTimeout time.Duration

	corrupt func(message int64, payload []byte) // tests
}

// A Measurement is what came out.
type Measurement struct {
	Plan       Plan
	Iterations int64
	Took       time.Duration
	// Histogram has the one-way latencies, or in a stream the times between
	// messages, in quarters of a nanosecond.
	Histogram *hdrhistogram.Histogram
	OneWay    float64       // what a recorded time is divided by
	CPU       time.Duration // of both ends
	Verified  int64         // bytes that were checked, at both ends
	// Registered and Resident are bytes, of both ends; the second of the whole
	// processes.
	Registered, Resident int64
}

// Quantile is a latency in nanoseconds; q in percent.
func (m *Measurement) Quantile(q float64) float64 { return percentile(m.Histogram, q) / m.OneWay }

// Transport resolves "auto" and names the transport that a plan will use, as the
// runtime chooses it towards the server.
func (c *Client) Transport(ctx context.Context, level, wanted string) (string, error) {
	if wanted != "" && wanted != verbena.TransportAuto {
		return wanted, nil
	}
	s, err := c.Runtime.Explain(ctx, c.Server)
	if err != nil {
		return "", err
	}
	if level == LevelVerbs && s.Transport == verbena.TransportTCP {
		return "", fmt.Errorf("perf: only plain TCP reaches the server, which has no verbs: use --level runtime\n%s", s)
	}
	return s.Transport, nil
}

// Run carries out one measurement. The plan's zero numbers are filled in.
func (c *Client) Run(ctx context.Context, plan Plan, amount Amount) (m *Measurement, err error) {
	if plan.Transport, err = c.Transport(ctx, plan.Level, plan.Transport); err != nil {
		return nil, err
	}
	dev, err := findDevice(ctx, c.Providers, plan.Transport)
	if err != nil {
		return nil, err
	}
	a := dev.Attributes()
	plan.resolve(limits{
		depth: a.MaxQueueDepth, inline: a.MaxInline, notReady: a.Has(rdma.CapReceiverNotReady), polled: a.Has(rdma.CapPolledWrites),
	})
	if err := plan.check(); err != nil {
		return nil, err
	}
	e, err := c.Runtime.Dial(ctx, c.Server, Service, verbena.DialConfig{Transport: verbena.TransportTCP})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	k := control{e}
	setup, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	if err := k.send(setup, kindPlan, plan); err != nil {
		return nil, err
	}
	body, err := k.receive(setup, kindOffer)
	if err != nil {
		return nil, err
	}
	o, err := decodeOffer(body)
	if err != nil {
		return nil, err
	}
	s, err := newSide(&plan, dev, true)
	if err != nil {
		return nil, err
	}
	s.corrupt = c.corrupt
	defer func() {
		s.stop(errStopped)
		err = errors.Join(err, s.close())
	}()
	if err := c.connect(setup, dev, s, o); err != nil {
		// The server may know more about it.
		if _, told := k.receive(setup, kindMemory); errors.As(told, new(*RefusedError)) {
			err = errors.Join(err, told)
		}
		return nil, err
	}
	if err := k.send(setup, kindMemory, memory{Address: s.region.Address(), Key: s.region.Key()}); err != nil {
		return nil, err
	}
	peer, err := receiveMemory(setup, k)
	if err != nil {
		return nil, err
	}
	s.meet(peer)
	return c.measure(ctx, k, s, amount)
}

// connect connects all queue pairs.
func (c *Client) connect(ctx context.Context, dev rdma.Device, s *side, o *offer) error {
	var group errgroup.Group
	group.SetLimit(16)
	for i, conn := range s.conns {
		group.Go(func() error {
			private := binary.BigEndian.AppendUint16(append([]byte(nil), o.Token...), uint16(i))
			var err error
			if streams, ok := asStreams(dev); ok {
				err = c.connectStream(ctx, streams, conn.qp, o, private)
			} else {
				_, err = conn.qp.Connect(ctx, o.Address, private)
			}
			if err != nil {
				return fmt.Errorf("perf: connection %d of %d over %s: %w", i+1, len(s.conns), s.plan.Transport, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func (c *Client) connectStream(ctx context.Context, dev rdma.StreamDevice, qp rdma.QueuePair, o *offer, private []byte) error {
	var d net.Dialer
	stream, err := d.DialContext(ctx, "tcp", c.Server)
	if err != nil {
		return err
	}
	if _, err := stream.Write(append([]byte(preface), o.Token...)); err != nil {
		return errors.Join(err, stream.Close())
	}
	_, err = dev.ConnectStream(ctx, qp, stream, private)
	return err
}

// measure warms up, measures and asks the server for what it saw.
func (c *Client) measure(ctx context.Context, k control, s *side, amount Amount) (*Measurement, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Loops end when the context does, or the server gives up.
	stop := context.AfterFunc(ctx, func() { s.stop(context.Cause(ctx)) })
	defer stop()
	over := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-k.endpoint.Done():
			s.stop(fmt.Errorf("perf: the server is gone: %w", k.endpoint.Err()))
		case <-over:
		}
	})
	defer watcher.Wait()
	defer close(over)

	run := c.rounds
	if s.streaming() {
		run = c.stream
	}
	m := &Measurement{Plan: *s.plan, OneWay: 1, Registered: int64(len(s.bytes))}
	if s.plan.Mode == ModeLatency && (s.plan.Test == TestSend || s.plan.Test == TestWrite) {
		m.OneWay = 2
	}
	recorders := s.prepareRun()
	if amount.Warmup > 0 {
		if err := run(ctx, s, recorders, Amount{Iterations: amount.Warmup}); err != nil {
			return nil, c.reason(ctx, k, s, err)
		}
	}
	if err := k.send(ctx, kindMark, struct{}{}); err != nil {
		return nil, err
	}
	if _, err := k.receive(ctx, kindMark); err != nil {
		return nil, err
	}
	before, err := processorTime()
	if err != nil {
		return nil, err
	}
	if s.plan.Mode == ModeLatency {
		// The pause has cooled things down.
		if err := run(ctx, s, recorders, Amount{Iterations: min(amount.Warmup, 64*len(recorders))}); err != nil {
			return nil, c.reason(ctx, k, s, err)
		}
	}
	began := time.Now()
	if err := run(ctx, s, recorders, amount); err != nil {
		return nil, c.reason(ctx, k, s, err)
	}
	m.Took = time.Since(began)
	after, err := processorTime()
	if err != nil {
		return nil, err
	}
	if err := k.send(ctx, kindStop, struct{}{}); err != nil {
		return nil, err
	}
	body, err := k.receive(ctx, kindResult)
	if err != nil {
		return nil, err
	}
	var r result
	if err := decode(body, &r); err != nil {
		return nil, err
	}
	if r.Failure != "" {
		return nil, fmt.Errorf("perf: at the server: %s", r.Failure)
	}
	m.Histogram = newRecorder().histogram
	for _, rec := range recorders {
		rec.flush()
		m.Histogram.Merge(rec.histogram)
		m.Iterations += rec.marked
	}
	if s.streaming() {
		// Not every message was marked.
		m.Iterations = 0
		for _, l := range s.lanes {
			for _, p := range l.posters {
				m.Iterations += p.posted
			}
		}
	}
	m.CPU = after - before + time.Duration(r.CPU)
	m.Registered += r.Registered
	m.Resident = resident() + r.Resident
	m.Verified = r.Verified
	for _, l := range s.lanes {
		m.Verified += l.verified.Load()
	}
	return m, nil
}

// reason is why the loops ended: what the server says of it, if it does.
func (c *Client) reason(ctx context.Context, k control, s *side, err error) error {
	if errors.Is(err, errStopped) && s.err != nil {
		err = s.err
	}
	if ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var refused *RefusedError
	if _, told := k.receive(ctx, kindResult); errors.As(told, &refused) {
		return errors.Join(refused, err)
	}
	return err
}

// streaming tells whether posters stream. Verifying runs of one-sided operations
// go by bursts that are checked before the next.
func (s *side) streaming() bool {
	return s.plan.Mode != ModeLatency && (!s.plan.Verify || s.plan.Test == TestSend)
}

// prepareRun makes what the loops need and returns their recorders.
func (s *side) prepareRun() []*recorder {
	var recorders []*recorder
	if !s.streaming() {
		for range s.lanes {
			recorders = append(recorders, newRecorder())
		}
		return recorders
	}
	for i := range s.plan.Posters {
		l := s.lanes[i%len(s.lanes)]
		p := newPoster(l, len(l.posters))
		l.posters = append(l.posters, p)
		recorders = append(recorders, p.recorder)
	}
	return recorders
}

// rounds is a latency measurement.
func (c *Client) rounds(_ context.Context, s *side, recorders []*recorder, amount Amount) error {
	var all sync.WaitGroup
	errs := make([]error, len(s.lanes))
	for i, l := range s.lanes {
		share := int64(0)
		if amount.Iterations > 0 {
			share = max(int64(amount.Iterations/len(s.lanes)), 1)
		}
		r := recorders[i]
		all.Go(func() {
			r.start()
			errs[i] = l.latency(share, func() bool { return r.elapsed() < amount.Duration && !s.stopping.Load() }, r)
			if errs[i] != nil {
				s.stop(errs[i])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *Client) stream(_ context.Context, s *side, _ []*recorder, amount Amount) error {
	until := amount.Duration
	if amount.Iterations > 0 {
		until = 0
	}
	return s.streams(int64(amount.Iterations), until)
}
