package rdmatest

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A server carries out the calls of a remoteDevice.
type server struct {
	device  rdma.Device
	ctx     context.Context
	running sync.WaitGroup

	writing sync.Mutex
	encoder *gob.Encoder
	flush   func() error

	mu      sync.Mutex
	last    uint64
	objects map[uint64]any
	calls   map[uint64]context.CancelFunc
}

// ServeDevice offers device at control until the other end closes it. Then it
// closes what the other end has left open, and returns.
func ServeDevice(control io.ReadWriteCloser, device rdma.Device) error {
	buffer := bufio.NewWriter(control)
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{
		device: device, ctx: ctx, encoder: gob.NewEncoder(buffer), flush: buffer.Flush,
		objects: map[uint64]any{}, calls: map[uint64]context.CancelFunc{},
	}
	decoder := gob.NewDecoder(bufio.NewReader(control))
	var err error
	for {
		c := new(call)
		if err = decoder.Decode(c); err != nil {
			break
		}
		if c.Cancel {
			s.mu.Lock()
			if end := s.calls[c.Sequence]; end != nil {
				end()
			}
			s.mu.Unlock()
			continue
		}
		ctx, end := context.WithCancel(s.ctx)
		s.mu.Lock()
		s.calls[c.Sequence] = end
		s.mu.Unlock()
		s.running.Go(func() {
			r, err := s.do(ctx, c)
			r.Sequence, r.Error = c.Sequence, encodeError(err)
			s.mu.Lock()
			delete(s.calls, c.Sequence)
			s.mu.Unlock()
			end()
			s.write(r)
		})
	}
	cancel()
	control.Close()
	s.running.Wait() // all calls end with their context
	var left []io.Closer
	for _, o := range s.objects {
		switch o := o.(type) {
		case rdma.Domain:
			left = append(left, o)
		case rdma.Listener:
			left = append(left, o)
		}
	}
	for _, o := range left {
		o.Close()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return fmt.Errorf("rdmatest: control connection: %w", err)
}

// write sends a reply. An error ends the reading side, too.
func (s *server) write(r *reply) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.encoder.Encode(r) == nil {
		_ = s.flush()
	}
}

func (s *server) add(o any) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.objects[s.last] = o
	return s.last
}

// find returns the object of a type; it is the zero value for object 0 or one
// of another type, which the providers must be able to refuse.
func find[T any](s *server, object uint64) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, _ := s.objects[object].(T)
	return o
}

// name finds the number of an object that an event names.
func (s *server) name(is func(any) bool) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, o := range s.objects {
		if is(o) {
			return id
		}
	}
	return 0
}

func (s *server) sges(w []wireSGE) []rdma.SGE {
	var sges []rdma.SGE
	for _, each := range w {
		sges = append(sges, rdma.SGE{Region: find[rdma.Region](s, each.Region), Offset: each.Offset, Length: each.Length})
	}
	return sges
}

func (s *server) receives(w []wireReceive) []rdma.RecvRequest {
	var requests []rdma.RecvRequest
	for _, each := range w {
		requests = append(requests, rdma.RecvRequest{ID: each.ID, SGEs: s.sges(each.SGEs)})
	}
	return requests
}

func (s *server) openDomain() (uint64, error) {
	id := s.add(nil)
	domain, err := s.device.OpenDomain(rdma.DomainConfig{OnEvent: func(e rdma.Event) {
		w := &wireEvent{Domain: id, Kind: e.Kind, Error: encodeError(e.Err)}
		if e.QueuePair != nil {
			// Adapters may have wrapped the queue pair: it is known by its number.
			number := e.QueuePair.Number()
			w.QueuePair = s.name(func(o any) bool {
				q, ok := o.(rdma.QueuePair)
				return ok && q.Number() == number
			})
		}
		if e.Completions != nil {
			w.Completions = s.name(func(o any) bool { return o == e.Completions })
		}
		if e.SharedReceive != nil {
			w.SharedReceive = s.name(func(o any) bool { return o == e.SharedReceive })
		}
		s.write(&reply{Event: w})
	}})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	s.objects[id] = domain
	s.mu.Unlock()
	return id, nil
}

// do carries out one call. Every object that it names was made by this server;
// a wrong name is a mistake of the tests, and fails the call.
func (s *server) do(ctx context.Context, c *call) (r *reply, err error) {
	r = &reply{}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("rdmatest: %s: panic: %v\n%s", c.Method, p, stacks())
		}
	}()
	switch c.Method {
	case "Device.Attributes":
		r.Attributes = s.device.Attributes()
	case "Device.overTCP":
		s.device, err = overTCP(s.device)
	case "Device.OpenDomain":
		r.Object, err = s.openDomain()
	case "Device.Listen":
		var l rdma.Listener
		if l, err = s.device.Listen(ctx, c.Address); err == nil {
			r.Object, r.Text = s.add(l), l.Address()
		}
	case "Listener.Accept":
		var request rdma.ConnectRequest
		if request, err = find[rdma.Listener](s, c.Object).Accept(ctx); err == nil {
			r.Object, r.Data, r.Text = s.add(request), request.PrivateData(), request.RemoteAddress()
		}
	case "Listener.Close":
		err = find[rdma.Listener](s, c.Object).Close()
	case "ConnectRequest.Accept":
		err = find[rdma.ConnectRequest](s, c.Object).Accept(ctx, find[rdma.QueuePair](s, c.Other), c.Data)
	case "ConnectRequest.Reject":
		err = find[rdma.ConnectRequest](s, c.Object).Reject(c.Data)
	case "Domain.Allocate":
		var region rdma.Region
		if region, err = find[rdma.Domain](s, c.Object).Allocate(c.Number, c.Access); err == nil {
			r.Object, r.Key, r.Address, r.Access = s.add(region), region.Key(), region.Address(), region.Access()
		}
	case "Domain.NewCompletionQueue":
		var q rdma.CompletionQueue
		if q, err = find[rdma.Domain](s, c.Object).NewCompletionQueue(c.Number); err == nil {
			r.Object = s.add(q)
		}
	case "Domain.NewSharedReceiveQueue":
		var q rdma.SharedReceiveQueue
		if q, err = find[rdma.Domain](s, c.Object).NewSharedReceiveQueue(c.Shared); err == nil {
			r.Object = s.add(q)
		}
	case "Domain.NewQueuePair":
		err = s.newQueuePair(c, r)
	case "Domain.Close":
		err = find[rdma.Domain](s, c.Object).Close()
	case "Region.Close":
		err = find[rdma.Region](s, c.Object).Close()
	case "Region.read":
		r.Data = find[rdma.Region](s, c.Object).Bytes()[c.Offset:][:c.Number]
	case "Region.write":
		copy(find[rdma.Region](s, c.Object).Bytes()[c.Offset:], c.Data)
	case "Region.fill":
		b := find[rdma.Region](s, c.Object).Bytes()[c.Offset:][:c.Number]
		for len(b) > 0 {
			b = b[copy(b, blanks[c.Value]):]
		}
	case "CompletionQueue.Poll":
		r.Completions = make([]rdma.Completion, min(c.Number, 1<<16))
		r.Number, err = find[rdma.CompletionQueue](s, c.Object).Poll(r.Completions)
		r.Completions = r.Completions[:r.Number]
	case "CompletionQueue.Arm":
		err = find[rdma.CompletionQueue](s, c.Object).Arm(c.Flag)
	case "CompletionQueue.Wait":
		err = find[rdma.CompletionQueue](s, c.Object).Wait(ctx)
	case "CompletionQueue.Close":
		err = find[rdma.CompletionQueue](s, c.Object).Close()
	case "SharedReceiveQueue.PostRecv":
		r.Number, err = find[rdma.SharedReceiveQueue](s, c.Object).PostRecv(s.receives(c.Receives))
	case "SharedReceiveQueue.Close":
		err = find[rdma.SharedReceiveQueue](s, c.Object).Close()
	case "QueuePair.PostSend":
		var requests []rdma.SendRequest
		for _, w := range c.Sends {
			w.Request.SGEs = s.sges(w.SGEs)
			requests = append(requests, w.Request)
		}
		r.Number, err = find[rdma.QueuePair](s, c.Object).PostSend(requests)
	case "QueuePair.PostRecv":
		r.Number, err = find[rdma.QueuePair](s, c.Object).PostRecv(s.receives(c.Receives))
	case "QueuePair.Connect":
		r.Data, err = find[rdma.QueuePair](s, c.Object).Connect(ctx, c.Address, c.Data)
	case "QueuePair.Disconnect":
		err = find[rdma.QueuePair](s, c.Object).Disconnect()
	case "QueuePair.State":
		r.Number = int(find[rdma.QueuePair](s, c.Object).State())
	case "QueuePair.Err":
		err = find[rdma.QueuePair](s, c.Object).Err()
	case "QueuePair.Close":
		err = find[rdma.QueuePair](s, c.Object).Close()
	default:
		err = fmt.Errorf("rdmatest: unknown call %q", c.Method)
	}
	return r, err
}

func (s *server) newQueuePair(c *call, r *reply) error {
	config := rdma.QueuePairConfig{
		SendDepth: c.Config.SendDepth, RecvDepth: c.Config.RecvDepth, MaxSGE: c.Config.MaxSGE, MaxInline: c.Config.MaxInline,
		MaxReads: c.Config.MaxReads, ReceiverNotReadyRetry: time.Duration(c.Config.Retry),
		SendCompletions: find[rdma.CompletionQueue](s, c.Config.SendCompletions),
		RecvCompletions: find[rdma.CompletionQueue](s, c.Config.RecvCompletions),
	}
	if c.Config.SharedReceive != 0 {
		config.SharedReceive = find[rdma.SharedReceiveQueue](s, c.Config.SharedReceive)
	}
	q, err := find[rdma.Domain](s, c.Object).NewQueuePair(config)
	if err != nil {
		return err
	}
	id := s.add(q)
	r.Object, r.Key = id, q.Number()
	s.running.Go(func() {
		select {
		case <-q.Done():
			s.write(&reply{Done: id})
		case <-s.ctx.Done():
		}
	})
	return nil
}
