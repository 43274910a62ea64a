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
	// Device names the one to use where a provider has several; else the first.
	Device string
	// Tuning is that of the endpoints, but for how they wait, which a plan says.
	Tuning verbena.TuningTable

	corrupt func(message int64, payload []byte) // tests
}

// A Measurement is what came out.
type Measurement struct {
	Plan       Plan
	Iterations int64
	Took       time.Duration
	// Histogram has times in quarters of a nanosecond: those of rounds (see OneWay), or
	// in a stream the times between messages.
	Histogram *hdrhistogram.Histogram
	OneWay    float64       // a recorded time divided by this is a one-way latency
	CPU       time.Duration // of both ends
	Verified  int64         // bytes that were checked, at both ends
	// Registered and Resident are bytes of both ends together: what the measurement
	// has registered, and what the two processes have in memory.
	Registered, Resident int64
	// Turns are the medians, in nanoseconds, of the turns in which it was measured.
	Turns []float64
}

// Quantile is a latency in nanoseconds; q in percent.
func (m *Measurement) Quantile(q float64) float64 { return percentile(m.Histogram, q) / m.OneWay }

// Transport resolves "auto" and names the transport that a plan will use, as the
// runtime chooses it towards the server.
func (c *Client) Transport(ctx context.Context, level, wanted string) (string, error) {
	if wanted != "" && wanted != verbena.TransportAuto {
		return wanted, nil
	}
	s, err := c.Runtime.Explain(ctx, c.Server, verbena.DialConfig{})
	if err != nil {
		return "", err
	}
	if level == LevelVerbs && s.Transport == verbena.TransportTCP {
		return "", fmt.Errorf("perf: only plain TCP reaches the server, which has no verbs: use --level runtime\n%s", s)
	}
	return s.Transport, nil
}

// Run carries out one measurement. Numbers of the plan that are 0 get their defaults.
func (c *Client) Run(ctx context.Context, plan Plan, amount Amount) (m *Measurement, err error) {
	if plan.Transport, err = c.Transport(ctx, plan.Level, plan.Transport); err != nil {
		return nil, err
	}
	var dev rdma.Device
	l := limits{notReady: true}
	if plan.Level == LevelVerbs && plan.Transport != verbena.TransportTCP {
		if dev, err = findDevice(ctx, c.Providers, plan.Transport, c.Device); err != nil {
			return nil, err
		}
		a := dev.Attributes()
		l = limits{depth: a.MaxQueueDepth, inline: a.MaxInline, notReady: a.Has(rdma.CapReceiverNotReady), polled: a.Has(rdma.CapPolledWrites)}
	}
	plan.resolve(l)
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
	if plan.Level != LevelVerbs {
		return c.runEndpoints(ctx, setup, k, &plan, o, amount)
	}
	return c.runQueuePairs(ctx, setup, k, &plan, dev, o, amount)
}

func (c *Client) runQueuePairs(ctx, setup context.Context, k control, plan *Plan, dev rdma.Device, o *offer, amount Amount) (m *Measurement, err error) {
	s, err := newSide(plan, dev, true)
	if err != nil {
		return nil, err
	}
	s.corrupt = c.corrupt
	defer func() {
		s.stop(errStopped)
		err = errors.Join(err, s.close())
	}()
	if err := c.connect(setup, dev, s, o); err != nil {
		return nil, toldReason(setup, k, kindMemory, err)
	}
	peer, err := c.meet(setup, k, memory{Address: s.region.Address(), Key: s.region.Key()})
	if err != nil {
		return nil, err
	}
	s.meet(peer)
	x := &execution{
		plan: plan, recorders: s.prepareRun(), stop: s.stop, registered: func() int64 { return int64(len(s.bytes)) },
		verified: func() (n int64) {
			for _, l := range s.lanes {
				n += l.verified.Load()
			}
			return n
		},
	}
	x.run = func(ctx context.Context, amount Amount) error {
		// Loops end when the context does.
		defer context.AfterFunc(ctx, func() { s.stop(context.Cause(ctx)) })()
		var err error
		if s.streaming() {
			err = s.stream(amount)
		} else {
			err = s.rounds(x.recorders, amount)
		}
		if err != nil && s.err != nil {
			err = s.err
		}
		return err
	}
	return x.measure(ctx, k, amount)
}

func (c *Client) runEndpoints(ctx, setup context.Context, k control, plan *Plan, o *offer, amount Amount) (m *Measurement, err error) {
	rt, err := newRuntime(c.Providers, c.Tuning, c.Logger)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	group, err := rt.NewGroup(verbena.GroupConfig{Name: "measurement"})
	if err != nil {
		return nil, err
	}
	t := &talk{plan: plan, runtime: rt, group: group, corrupt: c.corrupt, token: o.Token, log: c.Logger}
	defer func() { err = errors.Join(err, t.close()) }()
	if !plan.overStreams() {
		if err := t.dial(setup, c.Server, o.Token); err != nil {
			return nil, toldReason(setup, k, kindMemory, err)
		}
		if n := t.endpoints[0].MaxMessage(); plan.Size > n {
			return nil, fmt.Errorf("perf: messages of %d bytes over %s: the server takes at most %d", plan.Size, plan.Transport, n)
		}
	}
	if _, err := c.meet(setup, k, memory{}); err != nil {
		return nil, err
	}
	if plan.Level == LevelRPC {
		if err := t.dialEcho(setup, o.Token, o.Address); err != nil {
			return nil, toldReason(setup, k, kindMark, err)
		}
	}
	x := &execution{plan: plan, stop: t.fail, verified: t.verified.Load, registered: t.registered}
	for range plan.Posters {
		x.recorders = append(x.recorders, newRecorder())
	}
	sent := make([]int64, plan.Connections)
	x.run = func(ctx context.Context, amount Amount) error { return t.run(ctx, sent, amount, x.recorders) }
	return x.measure(ctx, k, amount)
}

// meet exchanges the keys of the memory that the ends let each other reach.
func (c *Client) meet(ctx context.Context, k control, own memory) (memory, error) {
	if err := k.send(ctx, kindMemory, own); err != nil {
		return memory{}, err
	}
	return receiveMemory(ctx, k)
}

// toldReason adds to an error what the server says about it, if it says anything.
func toldReason(ctx context.Context, k control, due uint32, err error) error {
	if ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var refused *RefusedError
	if _, told := k.receive(ctx, due); errors.As(told, &refused) {
		return errors.Join(refused, err)
	}
	return err
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

// An execution is a measurement whose connections are set up.
type execution struct {
	plan       *Plan
	recorders  []*recorder
	run        func(context.Context, Amount) error
	stop       func(error)
	verified   func() int64 // bytes, at this end
	registered func() int64 // bytes, at this end
}

// measure warms up, measures and asks the server for what it saw.
func (x *execution) measure(ctx context.Context, k control, amount Amount) (*Measurement, error) {
	over := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-k.endpoint.Done():
			x.stop(fmt.Errorf("perf: the server is gone: %w", k.endpoint.Err()))
		case <-over:
		}
	})
	defer watcher.Wait()
	defer close(over)
	run := func(amount Amount) error {
		err := x.run(ctx, amount)
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("perf: %s over %s: %w", x.plan.Test, x.plan.Transport, cause)
		}
		return toldReason(ctx, k, kindResult, err)
	}
	warmUp := func(amount Amount) error {
		if amount.nothing() {
			return nil
		}
		return run(amount)
	}
	first, again, amount := amount.split(x.plan.Size, len(x.recorders))
	if err := warmUp(first); err != nil {
		return nil, err
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
	// Caches and clocks have cooled down in the pause.
	if err := warmUp(again); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := run(amount); err != nil {
		return nil, err
	}
	m := &Measurement{Plan: *x.plan, OneWay: 1, Took: time.Since(began), Histogram: newRecorder().histogram}
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
	if x.plan.roundTrips() {
		m.OneWay = 2
	}
	for _, rec := range x.recorders {
		rec.flush()
		m.Histogram.Merge(rec.histogram)
		m.Iterations += rec.marked
	}
	m.CPU = after - before + time.Duration(r.CPU)
	m.Registered, m.Resident = x.registered()+r.Registered, resident()+r.Resident
	m.Verified = x.verified() + r.Verified
	return m, nil
}

// streaming tells whether posters stream. One-sided operations that are verified go
// in bursts instead, each of which is checked before the next begins.
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

// rounds runs rounds of question and answer on all lanes.
func (s *side) rounds(recorders []*recorder, amount Amount) error {
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
			errs[i] = l.latency(share, func() bool { return r.elapsed() < amount.Duration }, r)
			if errs[i] != nil {
				s.stop(errs[i])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// stream runs posters that stream.
func (s *side) stream(amount Amount) error {
	until := amount.Duration
	if amount.Iterations > 0 {
		until = 0
	}
	return s.streams(int64(amount.Iterations), until)
}
